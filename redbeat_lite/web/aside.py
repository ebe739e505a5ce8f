"""What needs somebody's hand: once-locks, entries in quarantine, and what the doctor finds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any

from ..entries.fields import DEFINITION_FIELDS
from ..instants import MAX_MS, from_ms
from ..once.lock_listing import locks as locks_of
from ..operate.doctor import examine
from ..storage.json_values import loads
from .editing import arguments
from .messages import Response
from .site import Call

#: Locks and quarantined entries on a page, and characters of a definition.
_SHOWN, _LONGEST = 200, 2000

#: Entries that the doctor looks at for a page: a tenth of a second's work.
_EXAMINED = 500


def locks(call: Call) -> Response:
    """Show the once-locks, their holders and their waiters."""
    (key,), all_ = call.texts("key"), locks_of(call.site.app)
    ask = partial(all_.list, _SHOWN + 1) if not key else lambda: [*filter(None, [all_.get(key)])]
    found = call.site.shared.read(("locks", key), ask)
    return call.page("locks.html", locks=found[:_SHOWN], more=len(found) > _SHOWN)


def quarantine(call: Call) -> Response:
    """Show the entries in quarantine with their errors."""
    found = call.site.shared.read("quarantine", lambda: call.site.schedules.quarantined(_SHOWN + 1))
    records = [(name, *_told(call, found[name])) for name in sorted(found)[:_SHOWN]]
    return call.page("quarantine.html", records=records, more=len(found) > _SHOWN)


def _told(call: Call, record: Mapping[str, Any]) -> tuple[datetime | None, str, str | None]:
    """Since when, why, and its definition, as far as whoever asks may see it."""
    at, error, definition = record.get("at"), call.wrong(str(record.get("error"))), record.get("definition")
    since = from_ms(at) if isinstance(at, int) and 0 <= at <= MAX_MS else None
    if definition is None or (call.site.redact is None and call.may("edit")):
        return since, error, definition and str(definition)[:_LONGEST]
    try:
        shown = json.dumps(_known_fields(call, loads(definition)), ensure_ascii=False)[:_LONGEST]
    except Exception:  # noqa: BLE001 - anything may lie there, and what cannot be read cannot be redacted
        shown = "for those who may edit, where it can be read and redacted"
    return since, error, shown


def _known_fields(call: Call, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that the user may see: known names with plain values, and arguments."""
    plain = (str, int, float, bool, type(None))
    known = {name: value for name, value in fields.items() if name in DEFINITION_FIELDS and isinstance(value, plain)}
    return {**known, **arguments(call, fields)}


def doctor(call: Call) -> Response:
    """Show the findings of the doctor, once a user has asked for them."""
    at, found = None, None
    if "examine" in call.given:
        ask = partial(examine, call.site.app, limit=_EXAMINED)
        at, found = call.site.shared.read("doctor", lambda: (datetime.now(UTC), ask()))
    return call.page("doctor.html", at=at, found=found, examined=_EXAMINED)

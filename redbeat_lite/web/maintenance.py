"""Pages for operators: freezes, backfills, once-locks, quarantine, findings of the doctor."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from .._base.times import MAX_MS, from_ms
from ..entries.backfill import Backfill
from ..entries.freezes import Freeze
from ..once.locks import LockInfo
from ..once.locks import locks as locks_of
from ..operate.doctor import examine
from ..operate.examination import Finding
from ..operate.texts import backfill_status
from .actions import BACKFILL_OPTIONS
from .call import Call, SharedParts
from .http import Response

#: Most locks, or quarantined entries, on a page.
_SHOWN = 200

#: Most entries that the doctor examines for a page. They take a tenth of a second.
_EXAMINED = 500


def freezes(call: Call) -> Response:
    """Show the freezes that are in force, and a form for another one."""
    return call.page("freezes.html", freezes=call.read(_freezes))


def _freezes(site: SharedParts) -> list[Freeze]:
    return [*site.schedules.freezes]


def backfills(call: Call) -> Response:
    """Show all backfills, the newest first, and a form for another one."""
    rows = [(backfill, backfill_status(backfill)) for backfill in reversed(call.read(_backfills))]
    return call.page("backfills.html", backfills=rows, options=BACKFILL_OPTIONS)


def _backfills(site: SharedParts) -> list[Backfill]:
    return [*site.schedules.backfills]


def locks(call: Call) -> Response:
    """Show all once-locks, or the one of a key, with their holders and waiters."""
    (key,) = call.texts("key")
    listed = call.read(_locks, key)
    return call.page("locks.html", locks=listed[:_SHOWN], more=len(listed) > _SHOWN)


def _locks(site: SharedParts, key: str) -> Sequence[LockInfo]:
    listing = locks_of(site.app)
    if not key:
        return listing.list(_SHOWN + 1)
    lock = listing.get(key)
    return [] if lock is None else [lock]


def quarantine(call: Call) -> Response:
    """Show the entries in quarantine with their errors."""
    records = call.read(_quarantine)
    rows = []
    for name in sorted(records)[:_SHOWN]:
        at = records[name].get("at")
        since = from_ms(at) if isinstance(at, int) and 0 <= at <= MAX_MS else None
        rows.append((name, since, call.visible_error(str(records[name].get("error")))))
    return call.page("quarantine.html", entries=rows, more=len(records) > _SHOWN)


def _quarantine(site: SharedParts) -> dict[str, dict[str, Any]]:
    return site.schedules.quarantined(_SHOWN + 1)


def doctor(call: Call) -> Response:
    """Show the findings of the doctor, or a button that asks for them."""
    at = None
    findings = None
    if "examine" in call.params:
        at, findings = call.read(_examine)
    return call.page("doctor.html", at=at, findings=findings, examined=_EXAMINED)


def _examine(site: SharedParts) -> tuple[datetime, list[Finding]]:
    return datetime.now(UTC), examine(site.app, limit=_EXAMINED)

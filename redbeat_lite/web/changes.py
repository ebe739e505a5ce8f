"""The page of the record of changes: who changed what, of all entries."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

from ..entries.selection import Selection, is_pattern
from ..instants import MAX_MS, from_ms, to_ms
from ..storage.changes import OF_OTHERS, Change
from .messages import Response
from .site import Call, Site

#: Lines on a page, and how many a filter looks through for them, of which 1,000 are a round trip.
_LINES, _LOOKED_AT = 100, 2000

#: Of these, the names are of no entry, or of one that is gone.
_GONE = ("removed", "discarded", "quarantined", *OF_OTHERS)


def page(call: Call) -> Response:
    """The changes that a filter leaves, the newest first."""
    name, actor, text = call.texts("q", "by", "until")
    until = min(int(text), MAX_MS) if text.isascii() and text.isdigit() and len(text) < 16 else None
    found = call.site.shared.read(("changes", name, actor, until), lambda: _found(call.site, name, actor, until))
    return call.page("changes.html", gone=_GONE, until=until, looked_at=_LOOKED_AT, **found)


def _found(site: Site, name: str, actor: str, until: int | None) -> dict[str, Any]:
    # Of a longer one, to make an expression for it would take minutes.
    pattern = Selection.of(name if is_pattern(name) else f"{name}*").name
    most = (_LOOKED_AT if name or actor else _LINES) + 1
    lines = site.schedules.changes(until=None if until is None else from_ms(until), limit=most)
    left = [each for each in lines if actor in each.actor and (not name or _is_of(each, name, pattern))]
    # The next page begins with a line that this one leaves out, and with what else was changed in that millisecond.
    beyond = [*left[_LINES : _LINES + 1], *lines[most - 1 :]]
    return {"listed": left[:_LINES], "older": to_ms(beyond[0].at) if beyond else None}


def _is_of(change: Change, name: str, pattern: str) -> bool:
    return name in change.names or any(fnmatchcase(each, pattern) for each in change.names)

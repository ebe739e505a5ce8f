"""Reader of the record of changes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import islice
from typing import Any, NamedTuple

from .._base.times import MAX_MS, aware, from_ms, to_ms
from ..entries.model import is_name
from ..store.changes import OF_OTHERS, Change, decode_change, decode_last
from ..store.keys import Keys
from ..store.records import PAGE
from ..store.redis_values import UNREADABLE, newest_first, readable
from ..store.scripts import Call
from ..store.store import Store

#: Lines that one call of the script searches. The record has about twice as many lines.
_LOOKED_AT = 5_100


def recorded(
    store: Store, name: str | None, since: datetime | None, until: datetime | None, limit: int
) -> list[Change]:
    """Return recorded changes, the newest first; see :meth:`redbeat_lite.Schedules.changes`."""
    if limit == 0 or (name is not None and not is_name(name)):
        return []
    first = "-" if since is None else str(max(0, to_ms(aware("since", since))))
    last = "+" if until is None else str(max(0, to_ms(aware("until", until))))
    if name is None:
        size = min(limit, PAGE)
        lines = newest_first(
            store.backend.client, store.keys.changes, decode_change, size, first, last
        )
        return [*islice(lines, limit)]
    _, raw, _, _ = store.read_with_change(name)
    kept = kept_change(name, raw)
    if kept is not None and ((since and kept.at < since) or (until and kept.at > until)):
        kept = None
    return of_entry(name, search(store, name, limit, first, last).changes, kept, limit)


class Search(NamedTuple):
    """Result of a search in the record of changes.

    Parameters:
        changes: the changes that were searched for, the newest first.
        since: time of the oldest line that was searched; ``None`` if the record is empty.
    """

    changes: list[Change]
    since: datetime | None


def asking(
    keys: Keys,
    name: str,
    limit: int,
    oldest: str = "-",
    newest: str = "+",
    kinds: Sequence[str] = (),
) -> Call:
    """Return the call that searches one part of the record; parameters as for :func:`search`."""
    return Call.of(
        "schedule/changes",
        keys,
        newest=newest,
        oldest=oldest,
        most=_LOOKED_AT,
        enough=limit,
        name=name,
        # The stored change is a JSON list that begins with its action.
        kinds=[f'["{kind}"' for kind in kinds],
    )


def search(
    store: Store,
    name: str,
    limit: int,
    oldest: str = "-",
    newest: str = "+",
    kinds: Sequence[str] = (),
    reply: Any = None,
) -> Search:
    """Search the record of changes for those of one entry.

    Parameters:
        limit: maximum number of changes, approximately.
        oldest, newest: ids of the oldest and the newest line to search.
        kinds: actions whose changes are returned, too, whatever entries they are about.
        reply: reply to the call of :func:`asking`, if the caller has sent it with others.
    """
    changes: list[Change] = []
    since = None
    more = True
    while more and len(changes) < limit:
        if reply is None:
            call = asking(store.keys, name, limit, oldest, newest, kinds)
            reply = store.backend.scripts.send(call)
        last, more, lines = reply
        reply = None
        flat = ((id_, dict(zip(fields[::2], fields[1::2], strict=True))) for id_, fields in lines)
        for change in readable(flat, decode_change):
            if change.action in kinds or _is_about(change, name):
                changes.append(change)
        if last:
            written_ms = int(last.partition(b"-")[0])
            since = from_ms(min(written_ms, MAX_MS))
            newest = f"({last.decode()}"
    return Search(changes, since)


def of_entry(
    name: str, recorded_changes: Iterable[Change], kept: Change | None, limit: int
) -> list[Change]:
    """Return the changes of an entry among these, the newest first.

    Parameters:
        kept: last change of the entry, which is also stored with the entry. It is added if the
            others lack it, because its line was cut from the record or does not name the entry.
        limit: maximum number of changes.
    """
    changes = [change for change in recorded_changes if _is_about(change, name)]
    if kept is not None and not any(_is_same(change, kept) for change in changes):
        changes = sorted((kept, *changes), key=lambda change: change.at, reverse=True)
    return changes[:limit]


def _is_about(change: Change, name: str) -> bool:
    """Return whether a change is about an entry."""
    return name in change.names and change.action not in OF_OTHERS


def _is_same(change: Change, other: Change) -> bool:
    return (change.at, change.action) == (other.at, other.action)


def kept_change(name: str, kept: bytes | None) -> Change | None:
    """Decode the last change that is stored with an entry; ``None`` if there is no readable one."""
    if kept is None:
        return None
    with suppress(*UNREADABLE):
        return decode_last(name, kept)
    return None

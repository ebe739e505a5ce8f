"""Reading the record of changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from itertools import islice

from ..entries.fields import is_name
from ..instants import aware, to_ms
from ..storage.changes import Change, is_of, of_entry, of_stream
from ..storage.store import Store
from ..storage.stored import PAGE, Stored
from ..storage.streams import UNREADABLE, newest_first


def recorded(
    store: Store, name: str | None, since: datetime | None, until: datetime | None, limit: int
) -> list[Change]:
    """What the record tells, newest first; see :meth:`redbeat_lite.Schedules.changes`.

    The lines of one entry are found by reading all of them, 1,000 in a round trip.
    """
    if limit == 0 or (name is not None and not is_name(name)):
        return []
    first = "-" if since is None else str(max(0, to_ms(aware("since", since))))
    last = "+" if until is None else str(max(0, to_ms(aware("until", until))))
    if name is None:
        return [*islice(_lines(store, first, last, min(limit, PAGE)), limit)]
    kept = kept_change(name, store.read_with_change(name)[1])
    if kept is not None and ((since and kept.at < since) or (until and kept.at > until)):
        kept = None
    return of_name(name, _lines(store, first, last, PAGE), kept, limit)


def of_name(name: str, lines: Iterable[Change], kept: Change | None, limit: int) -> list[Change]:
    """The changes of one entry among these lines, newest first.

    Parameters:
        kept: its last change, which is told even where its line is gone, or names only others.
    """
    others = ("lock cleared", "term begun")  # a lock may have any key, and that of an entry
    found = [*islice((each for each in lines if name in each.names and each.action not in others), limit)]
    if kept is not None and not any((each.at, each.action) == (kept.at, kept.action) for each in found):
        found = sorted((kept, *found), key=lambda change: change.at, reverse=True)
    return found[:limit]


def last_change(stored: Stored, kept: bytes | None) -> Change | None:
    """The last change of an entry.

    ``None`` where none is kept, it cannot be read, or somebody has edited the entry since and left no line.
    """
    return kept_change(stored.name.decode(), kept) if kept is not None and is_of(kept, stored.state) else None


def kept_change(name: str, kept: bytes | None) -> Change | None:
    """The last change of an entry that was recorded; ``None`` where there is none, or it cannot be read."""
    with suppress(*UNREADABLE):
        return None if kept is None else of_entry(name, kept)
    return None


def _lines(store: Store, oldest: str, newest: str, size: int) -> Iterator[Change]:
    return newest_first(store.backend.client, store.keys.changes, of_stream, size, oldest, newest)

"""Reading the record of changes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from itertools import islice

from ..instants import aware, to_ms
from ..storage.changes import UNREADABLE, Change, of_entry, of_stream
from ..storage.store import Store
from ..storage.stored import PAGE

#: The id of a line: milliseconds, and a number within them. Ids grow.
_Id = tuple[int, ...]


def recorded(
    store: Store, name: str | None, since: datetime | None, until: datetime | None, limit: int
) -> list[Change]:
    """What the record tells, newest first; see :meth:`redbeat_lite.Schedules.changes`.

    The lines of one entry are found by reading all of them, 1,000 in a round trip. Its last change is kept apart, so it
    is told even where its line is gone, or names only others.
    """
    if limit == 0:
        return []
    first = "-" if since is None else str(max(0, to_ms(aware("since", since))))
    last = "+" if until is None else str(max(0, to_ms(aware("until", until))))
    if name is None:
        return [change for _, change in islice(_lines(store, first, last, min(limit, PAGE)), limit)]
    found = dict(islice((each for each in _lines(store, first, last, PAGE) if name in each[1].names), limit))
    for id_, change in _kept(store, name):
        if (since is None or change.at >= since) and (until is None or change.at <= until):
            found.setdefault(id_, change)
    return [found[id_] for id_ in sorted(found, reverse=True)[:limit]]


def last_change(name: str, kept: bytes | None) -> Change | None:
    """The last change of an entry from its stored form; ``None`` where there is none, or it cannot be read."""
    with suppress(*UNREADABLE):
        return None if kept is None else of_entry(name, kept)
    return None


def _lines(store: Store, first: str, last: str, size: int) -> Iterator[tuple[_Id, Change]]:
    """The lines between two ids, newest first, without those that cannot be read; ``size`` in a round trip."""
    page = store.lines(first, last, size)
    while page:
        for id_, line in page:
            change = None
            with suppress(*UNREADABLE):
                change = of_stream(id_, line)
            if change is not None:
                yield _id(id_), change
        page = store.lines(first, f"({page[-1][0].decode()}", size) if len(page) == size else []


def _kept(store: Store, name: str) -> Iterator[tuple[_Id, Change]]:
    _, kept = store.read_with_change(name)
    if kept is not None and (change := last_change(name, kept)) is not None:
        with suppress(ValueError):
            yield _id(kept.partition(b"|")[0]), change


def _id(raw: bytes) -> _Id:
    return tuple(map(int, raw.split(b"-")))

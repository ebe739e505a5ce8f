"""Reading the record of changes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import islice
from typing import Any

from .._base.times import MAX_MS, aware, from_ms, to_ms
from ..entries.fields import is_name
from ..store.changes import OF_OTHERS, Change, decode_change, decode_last, is_last_change
from ..store.records import PAGE, Stored
from ..store.redis_values import UNREADABLE, newest_first, readable
from ..store.scripts import Call, checked
from ..store.store import Store

#: Lines that a script looks through: half of as many as there are, so that two of them do.
_LOOKED_AT = 5_100


def recorded(
    store: Store, name: str | None, since: datetime | None, until: datetime | None, limit: int
) -> list[Change]:
    """What the record tells, newest first; see :meth:`redbeat_lite.Schedules.changes`."""
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
    scan = Scan(store, name, limit, first, last)
    _, raw, _, replies = store.read_with_change(name, *scan.asking)
    kept = kept_change(name, raw)
    if kept is not None and ((since and kept.at < since) or (until and kept.at > until)):
        kept = None
    return scan.of_entry(scan.read(checked(replies)), kept)


class Scan:
    """Looks through the record of changes for those of one entry.

    Parameters:
        limit: of these, how many at most.
        oldest, newest: ids of lines, both of which are part of the range.
        kinds: actions of which each change is looked for, too.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        limit: int,
        oldest: str = "-",
        newest: str = "+",
        kinds: Sequence[str] = (),
    ) -> None:
        self._store, self._name, self._limit, self._oldest, self._newest = (
            store,
            name,
            limit,
            oldest,
            newest,
        )
        self._kinds = kinds
        #: When the first line of those that were looked through was written.
        self.since: datetime | None = None

    @property
    def asking(self) -> list[Call]:
        """Return the next call, which can be sent together with others; none if none is left."""
        if not self._limit:
            return []
        kinds = (f'["{kind}"' for kind in self._kinds)
        args = (self._newest, self._oldest, _LOOKED_AT, self._limit, self._name, *kinds)
        return [Call("schedule/changes", [self._store.keys.changes], args)]

    def read(self, replies: Sequence[Any]) -> list[Change]:
        """What was looked for, the newest first: from the reply to what it has asked, and what else
        it takes.
        """
        found: list[Change] = []
        while replies:
            (last, more, lines), replies = replies[0], ()
            flat = (
                (id_, dict(zip(fields[::2], fields[1::2], strict=True))) for id_, fields in lines
            )
            found += (
                each
                for each in readable(flat, decode_change)
                if each.action in self._kinds or self._names(each)
            )
            if last:
                self.since, self._newest = (
                    from_ms(min(int(last.partition(b"-")[0]), MAX_MS)),
                    f"({last.decode()}",
                )
            if more and len(found) < self._limit:
                replies = checked(self._store.backend.scripts.together(self.asking))
        return found

    def of_entry(self, lines: Iterable[Change], kept: Change | None) -> list[Change]:
        """The changes of the entry among those that were found, newest first; with ``kept``, its
        last one, even where the line of that is gone, or names only others.
        """
        found = [each for each in lines if self._names(each)]
        if kept is not None and not any(
            (each.at, each.action) == (kept.at, kept.action) for each in found
        ):
            found = sorted((kept, *found), key=lambda change: change.at, reverse=True)
        return found[: self._limit]

    def _names(self, change: Change) -> bool:
        return self._name in change.names and change.action not in OF_OTHERS


def last_change(stored: Stored, kept: bytes | None) -> Change | None:
    """The last change of an entry.

    ``None`` where none is kept, it cannot be read, or somebody has edited the entry since and left
    no line.
    """
    return (
        kept_change(stored.name.decode(), kept)
        if kept is not None and is_last_change(kept, stored.state)
        else None
    )


def kept_change(name: str, kept: bytes | None) -> Change | None:
    """The last change of an entry that was recorded; ``None`` where there is none, or it cannot be
    read.
    """
    with suppress(*UNREADABLE):
        return None if kept is None else decode_last(name, kept)
    return None

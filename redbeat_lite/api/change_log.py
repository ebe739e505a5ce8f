"""Reader of the record of changes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import islice
from typing import Any

from .._base.times import MAX_MS, aware, from_ms, to_ms
from ..entries.model import is_name
from ..store.changes import OF_OTHERS, Change, decode_change, decode_last
from ..store.records import PAGE
from ..store.redis_values import UNREADABLE, newest_first, readable
from ..store.scripts import Call, checked
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
    scan = Scan(store, name, limit, first, last)
    _, raw, _, replies = store.read_with_change(name, *scan.asking)
    kept = kept_change(name, raw)
    if kept is not None and ((since and kept.at < since) or (until and kept.at > until)):
        kept = None
    return scan.of_entry(scan.read(checked(replies)), kept)


class Scan:
    """Search for the changes of one entry in the record of changes.

    Parameters:
        name: name of the entry.
        limit: most changes.
        oldest, newest: ids of the oldest and the newest line to search.
        kinds: actions whose changes are returned, too, whatever entries they are about.
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
        self._store = store
        self._name = name
        self._limit = limit
        self._oldest = oldest
        self._newest = newest
        self._kinds = kinds
        #: Time of the oldest line that was searched; ``None`` if the record is empty.
        self.since: datetime | None = None

    @property
    def asking(self) -> list[Call]:
        """Call of the script that searches the next part of the record.

        It is a list, so that it can be sent together with other calls. It is empty if ``limit`` is
        0.
        """
        if not self._limit:
            return []
        kinds = (f'["{kind}"' for kind in self._kinds)
        call = Call.of(
            "schedule/changes",
            self._store.keys,
            newest=self._newest,
            oldest=self._oldest,
            most=_LOOKED_AT,
            enough=self._limit,
            name=self._name,
            kinds=kinds,
        )
        return [call]

    def read(self, replies: Sequence[Any]) -> list[Change]:
        """Return the changes in the replies, the newest first.

        If they are too few, this method sends further calls to search the rest of the record.

        Parameters:
            replies: replies to the calls of :attr:`asking`.
        """
        changes: list[Change] = []
        while replies:
            last, more, lines = replies[0]
            replies = ()
            flat = (
                (id_, dict(zip(fields[::2], fields[1::2], strict=True))) for id_, fields in lines
            )
            for change in readable(flat, decode_change):
                if change.action in self._kinds or self._names(change):
                    changes.append(change)
            if last:
                written_ms = int(last.partition(b"-")[0])
                self.since = from_ms(min(written_ms, MAX_MS))
                self._newest = f"({last.decode()}"
            if more and len(changes) < self._limit:
                replies = checked(self._store.backend.scripts.together(self.asking))
        return changes

    def of_entry(self, lines: Iterable[Change], kept: Change | None) -> list[Change]:
        """Return the changes of the entry, the newest first.

        Parameters:
            lines: changes that :meth:`read` has returned.
            kept: last change of the entry, which is also stored with the entry. It is added if
                ``lines`` lacks it, because its line was cut from the record or does not name the
                entry.
        """
        changes = [change for change in lines if self._names(change)]
        if kept is None:
            return changes[: self._limit]
        if not any(_is_same(change, kept) for change in changes):
            changes = sorted((kept, *changes), key=lambda change: change.at, reverse=True)
        return changes[: self._limit]

    def _names(self, change: Change) -> bool:
        """Return whether a change is about the entry."""
        return self._name in change.names and change.action not in OF_OTHERS


def _is_same(change: Change, other: Change) -> bool:
    return (change.at, change.action) == (other.at, other.action)


def kept_change(name: str, kept: bytes | None) -> Change | None:
    """Decode the last change that is stored with an entry; ``None`` if there is no readable one."""
    if kept is None:
        return None
    with suppress(*UNREADABLE):
        return decode_last(name, kept)
    return None

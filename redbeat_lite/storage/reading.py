"""Entries in Redis as they are read: one by one, in due order, in the order of their names, and by what they hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import Any, Self

from ..settings import Settings
from .connections import Backend
from .keys import Keys
from .stored import CUT, PAGE, PARKED, Stored, by_due, chunks, entries_of, entries_read

#: Names per round trip, where nothing else is read: some milliseconds of the server's time.
_SLICE = 10_000

#: What a search looks at in a script, and how many finds are enough for one, as they are read together.
_LOOKED_AT, _ENOUGH = 5000, 100


class Reading:
    """Reads entries under one prefix."""

    def __init__(self, backend: Backend, keys: Keys) -> None:
        self.backend = backend
        self.keys = keys

    @classmethod
    def of(cls, settings: Settings, *, timeout: float | None = None) -> Self:
        """The store of an app's settings, with a backend of its own. Nothing connects before it is used."""
        return cls(Backend(settings, timeout=timeout), Keys.of(settings.key_prefix))

    @property
    def _client(self) -> Any:
        return self.backend.client

    def _run(self, name: str, keys: Sequence[str], args: Sequence[Any]) -> Any:
        return self.backend.scripts.run(name, keys, args)

    def read(self, names: Sequence[str | bytes]) -> list[Stored]:
        """The entries of these names, in one round trip; absent ones come without definition and state."""
        return entries_read(names, *self._reading(names).execute()) if names else []

    def read_with_change(self, name: str) -> tuple[Stored, bytes | None, bytes]:
        """The entry of this name, as :meth:`read` gives it, its last change, and :meth:`freezes`, in one round trip.

        Where the record is of a foreign type there is no last change, and the entry can be read all the same.
        """
        pipe = self._reading([name])
        pipe.hget(self.keys.meta, "freezes").hget(self.keys.changed, name)
        *parts, changed = pipe.execute(raise_on_error=False)
        for part in parts:
            if isinstance(part, Exception):
                raise part
        *parts, freezes = parts
        return entries_read([name], *parts)[0], changed if isinstance(changed, bytes) else None, freezes or b""

    def _reading(self, names: Sequence[str | bytes]) -> Any:
        pipe = self._client.pipeline(transaction=True)
        pipe.hmget(self.keys.entries, names)
        pipe.hmget(self.keys.state, names)
        pipe.zmscore(self.keys.due, names)
        return pipe

    def page(self, offset: int, limit: int) -> list[Stored]:
        """At most ``limit`` entries from rank ``offset`` on, in due order, in one round trip."""
        keys = (self.keys.due, self.keys.entries, self.keys.state)
        return entries_of(self._run("schedule/page", keys, (offset, offset + limit - 1, CUT)))

    def paged(self, first: int | None = None) -> Iterator[list[Stored]]:
        """All entries in due order, a page per round trip. None takes long, however large the schedule is.

        An entry that moves while the pages are read may be seen twice; it is handed out once. One that moves to where
        was read already comes at the end.

        Parameters:
            first: length of the first page, for who may need no more; each is twice as long as the one before it.
        """
        seen: set[bytes] = set()
        offset, size, last = 0, first or PAGE, (0.0, b"")
        while page := self.page(offset, size):
            if offset and by_due(page[0]) > last:  # before the last one read some have gone, and others slipped
                offset = max(offset - PAGE // 2, 0)
                continue
            last = by_due(page[-1])
            yield [stored for stored in page if stored.name not in seen]
            seen.update(stored.name for stored in page)
            if len(page) < size:
                break
            offset, size = offset + len(page) - 1, min(2 * size, PAGE)
        if offset:  # the first page was not all
            for names in chunks(self.beginning(), PAGE):  # each with a page, perhaps an empty one: others wait for it
                yield [*self.present(name for name in names if name not in seen)]

    def pages(self) -> Iterator[Stored]:
        """All entries one by one, as :meth:`paged` reads them."""
        return chain.from_iterable(self.paged())

    def present(self, names: Iterable[str | bytes]) -> Iterator[Stored]:
        """Those of these entries that are stored, in this order, 1,000 in a round trip."""
        for chunk in chunks(names, PAGE):
            yield from (stored for stored in self.read(chunk) if stored.definition or stored.state)

    def names(self) -> Iterator[bytes]:
        """All names, in their order, even if a part of their index is gone: no beat may be there to mend it."""
        if self._client.zcard(self.keys.names) >= self.count():
            return self.beginning()
        return iter(sorted({name for name, _ in self._client.zscan_iter(self.keys.due, count=PAGE)}))

    def beginning(self, text: bytes = b"") -> Iterator[bytes]:
        """The names that begin with this, in their order, read in slices so that a large schedule blocks nobody."""
        least, most = (b"[" + text, b"(" + text + b"\xff") if text else (b"-", b"+")  # no UTF-8 has that byte
        names: list[bytes] = [b""] * _SLICE
        while len(names) == _SLICE:
            names = self._client.zrange(self.keys.names, least, most, bylex=True, offset=0, num=_SLICE)
            yield from names
            least = b"(" + names[-1] if names else most

    def ranked(self, offset: int, limit: int) -> list[bytes]:
        """At most ``limit`` names from rank ``offset`` on, in their order."""
        return [*self._client.zrange(self.keys.names, offset, offset + limit - 1)] if limit else []

    def search(self, most: int, beginning: bytes, *texts: str | bytes) -> Iterator[tuple[int, bytes, list[Stored]]]:
        """Entries that may be meant, 5,000 or what has some in a round trip: how many are stored, the text of the
        freezes, and those found, in due order or that of their names.

        Parameters:
            most: how many are looked at.
            beginning: of the names, which come in their order; empty for those that are due first.
            texts: one in the name, a pattern of Lua for the state, and any number in the definition.
        """
        keys = (self.keys.due, self.keys.entries, self.keys.state, self.keys.names, self.keys.meta)
        offset, looked = 0, _LOOKED_AT
        while looked and offset < most:
            size = min(_LOOKED_AT, most - offset)
            reply = self._run("schedule/search", keys, (offset, size, _ENOUGH, CUT, beginning, *texts))
            total, freezes, looked, *found = reply
            yield total, freezes or b"", entries_read(*found)
            offset += looked

    def first(self, most: int) -> list[bytes]:
        """The names of those that are due first, or will be."""
        return [*self._client.zrange(self.keys.due, 0, most - 1)]

    def count_and_freezes(self) -> tuple[int, bytes]:
        """:meth:`count` and :meth:`freezes`, in one round trip."""
        pipe = self._client.pipeline(transaction=False)
        pipe.hlen(self.keys.entries)
        pipe.hget(self.keys.meta, "freezes")
        total, found = pipe.execute()
        return total, found or b""

    def count(self) -> int:
        """How many entries are stored."""
        return int(self._client.hlen(self.keys.entries))

    def due_counts(self, edges: Sequence[int]) -> list[int]:
        """How many entries are due before the first of these instants (epoch ms), between each two, and after the last.

        A quick command for each, all in one round trip.
        """
        pipe = self._client.pipeline(transaction=False)
        for first, last in pairwise(("-inf", *edges, PARKED)):
            pipe.zcount(self.keys.due, first, f"({last}")
        return [*pipe.execute()]

    def exists(self, name: str) -> bool:
        """Whether an entry of this name is stored."""
        return bool(self._client.hexists(self.keys.entries, name))

    def existing(self, names: Iterable[str]) -> set[str]:
        """Which of these are stored, 1,000 in a round trip."""
        asked = ((chunk, self._client.zmscore(self.keys.due, chunk)) for chunk in chunks(names, PAGE))
        return {name for chunk, scores in asked for name, score in zip(chunk, scores, strict=True) if score is not None}

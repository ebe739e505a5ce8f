"""Entries in Redis as they are read: one by one, in due order, in the order of their names, and by what they hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import Any, Self

from ..settings import Settings
from .connections import Backend
from .json_values import dumps
from .keys import Keys
from .scripts import Call, checked
from .stored import CUT, PAGE, PARKED, Stored, by_due, chunks, entries_of, entries_read

#: Names per round trip, where nothing else is read: some milliseconds of the server's time.
_SLICE = 10_000

#: What a search looks at in a script, and how many times as many finds are enough for one of the next round trip:
#: where those of the first were not, they were less precise than most.
_LOOKED_AT, _MORE = 5000, 10

#: What a name has, and what a definition.
Texts = tuple[Sequence[str], Sequence[str]]


#: A script or a command that is sent together with others.
Asked = Call | tuple[Any, ...]


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
        return self.read_with(names)[0] if names else []

    def read_with(self, names: Sequence[str | bytes], *asked: Asked) -> tuple[list[Stored], list[Any]]:
        """The entries of these names, one or more, as :meth:`read` gives them, and in the same round trip the replies
        to what else is asked; what raises is in the place of its reply."""
        # One script and no transaction, which a cluster's client has not before redis-py 6.2.
        reading = Call("schedule/read", [self.keys.entries, self.keys.state, self.keys.due], names)
        found, *replies = self.backend.scripts.together([reading, *asked])
        [parts] = checked([found])
        return entries_read(names, *parts), replies

    def read_with_change(self, name: str, *asked: Asked) -> tuple[Stored, bytes | None, bytes, list[Any]]:
        """The entry of this name, as :meth:`read` gives it, its last change, :meth:`freezes`, and the replies to what
        else is asked, as :meth:`read_with` gives them, in one round trip.

        Where the record is of a foreign type there is no last change, and the entry can be read all the same.
        """
        own = (("HGET", self.keys.meta, "freezes"), ("HGET", self.keys.changed, name))
        (stored,), (freezes, changed, *replies) = self.read_with([name], *own, *asked)
        checked([freezes])
        return stored, changed if isinstance(changed, bytes) else None, freezes or b"", replies

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

    def search(
        self, most: int, beginning: bytes, state: str, meant: Sequence[Texts], enough: int, *, at_once: bool = False
    ) -> Iterator[tuple[int, bytes, list[Stored]]]:
        """Entries that may be meant: how many are stored, the text of the freezes, and those found, in due order or
        that of their names. 5,000 are looked at in a first round trip, as a rule, and what is left in a second.

        Parameters:
            most: how many are looked at.
            beginning: of the names, which come in their order; empty for those that are due first.
            state: a pattern of Lua for the state.
            meant: texts of the name and of the definition; all of one of these pairs are there.
            enough: how many finds of a script are, at first; no more than 1,000.
            at_once: whether all are looked at in the first round trip.
        """
        keys = (self.keys.due, self.keys.entries, self.keys.state, self.keys.names, self.keys.meta)
        offset, more, enough = 0, 1, min(enough, PAGE)
        while more and offset < most:
            starts = range(offset, most if at_once or offset else min(most, _LOOKED_AT), _LOOKED_AT)
            sizes = [min(_LOOKED_AT, most - start) for start in starts]
            rest = (enough, CUT, beginning, state, dumps(meant))
            asked = [(start, size, *rest) for start, size in zip(starts, sizes, strict=True)]
            replies = checked(self.backend.scripts.together([Call("schedule/search", keys, each) for each in asked]))
            for size, (total, freezes, looked, left, *found) in zip(sizes, replies, strict=True):
                yield total, freezes or b"", entries_read(*found)
                offset, more = offset + looked, left
                if looked < size:  # what comes behind it was not looked at, or there is nothing
                    break
            enough = min(enough * _MORE, PAGE)

    def count_and_freezes(self, *asked: Asked) -> tuple[int, bytes, list[Any]]:
        """:meth:`count`, :meth:`freezes` and the replies to what else is asked, in one round trip."""
        own = (("HLEN", self.keys.entries), ("HGET", self.keys.meta, "freezes"))
        total, found, *replies = checked(self.backend.scripts.together([*own, *asked]))
        return total, found or b"", replies

    def asking_first(self, most: int, beginning: bytes) -> Asked:
        """What the names are asked by, as :meth:`search` takes them: so many that begin with this, or are due first."""
        if not beginning:
            return "ZRANGE", self.keys.due, 0, most - 1
        return "ZRANGE", self.keys.names, b"[" + beginning, b"(" + beginning + b"\xff", "BYLEX", "LIMIT", 0, most

    def count(self) -> int:
        """How many entries are stored."""
        return int(self._client.hlen(self.keys.entries))

    def counting_due(self, edges: Sequence[int]) -> list[Asked]:
        """What is asked for how many entries are due before the first of these instants (epoch ms), between each two,
        and after the last: a quick command for each."""
        return [("ZCOUNT", self.keys.due, first, f"({last}") for first, last in pairwise(("-inf", *edges, PARKED))]

    def exists(self, name: str) -> bool:
        """Whether an entry of this name is stored."""
        return bool(self._client.hexists(self.keys.entries, name))

    def existing(self, names: Iterable[str]) -> set[str]:
        """Which of these are stored, 1,000 in a round trip."""
        asked = ((chunk, self._client.zmscore(self.keys.due, chunk)) for chunk in chunks(names, PAGE))
        return {name for chunk, scores in asked for name, score in zip(chunk, scores, strict=True) if score is not None}

"""Entries in Redis as they are read: one by one, and in due order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import Any, Self, cast

from ..settings import Settings
from .connections import Backend
from .keys import Keys
from .scripts import Call, checked
from .stored import PAGE, PARKED, Stored, by_due, chunks, entries_of, entries_read

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
        # One script and no transaction, because a cluster's client lacks it before redis-py 6.2.
        reading = Call("schedule/read", [self.keys.entries, self.keys.state, self.keys.due], names)
        found, *replies = self.backend.scripts.together([reading, *asked])
        [parts] = checked([found])
        return entries_read(names, *parts), replies

    def read_with_change(self, name: str, *asked: Asked) -> tuple[Stored, bytes | None, bytes, list[Any]]:
        """The entry of this name, as :meth:`read` gives it, its last change, :meth:`freezes`, and the replies to what
        else is asked, as :meth:`read_with` gives them, in one round trip."""
        own = (("HGET", self.keys.meta, "freezes"), ("HGET", self.keys.changed, name))
        (stored,), (freezes, changed, *replies) = self.read_with([name], *own, *asked)
        checked([freezes, changed])
        return stored, changed, freezes or b"", replies

    def page(self, offset: int, limit: int) -> list[Stored]:
        """At most ``limit`` entries from rank ``offset`` on, in due order, in one round trip."""
        keys = (self.keys.due, self.keys.entries, self.keys.state)
        return entries_of(self._run("schedule/page", keys, (offset, offset + limit - 1)))

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
            # Even an empty page is yielded, so that the caller can do other work in between.
            for chunk in chunks(self.scan(), PAGE):
                names = {name for name, _ in chunk} - seen
                yield [*self.present(names)]
                seen |= names

    def pages(self) -> Iterator[Stored]:
        """All entries one by one, as :meth:`paged` reads them."""
        return chain.from_iterable(self.paged())

    def present(self, names: Iterable[str | bytes]) -> Iterator[Stored]:
        """Those of these entries that are stored, in this order, 1,000 in a round trip."""
        for chunk in chunks(names, PAGE):
            yield from (stored for stored in self.read(chunk) if stored.definition or stored.state)

    def scan(self, beginning: str = "") -> Iterator[tuple[bytes, float]]:
        """Yield all names with their due times, in no order, 1,000 in a round trip.

        A name that is stored during the whole scan is among them, even if its due time changes.

        Parameters:
            beginning: only names that begin with this text.
        """
        pattern = None
        if beginning:
            pattern = re.sub(r"([*?\[\]\\])", r"\\\1", beginning) + "*"
        found = self._client.zscan_iter(self.keys.due, match=pattern, count=PAGE)
        return cast(Iterator[tuple[bytes, float]], found)

    def names(self) -> list[bytes]:
        """All names, in due order; those that are due at the same instant by name."""
        scores = dict(self.scan())  # a scan may return a name twice
        return sorted(scores, key=lambda name: (scores[name], name))

    def count_and_freezes(self, *asked: Asked) -> tuple[int, bytes, list[Any]]:
        """:meth:`count`, :meth:`freezes` and the replies to what else is asked, in one round trip."""
        own = (("HLEN", self.keys.entries), ("HGET", self.keys.meta, "freezes"))
        total, found, *replies = checked(self.backend.scripts.together([*own, *asked]))
        return total, found or b"", replies

    def asking_names(self, first: int, number: int) -> Asked:
        """Return the command that reads names in due order from a rank on; 10,000 take 2 ms."""
        return "ZRANGE", self.keys.due, first, first + number - 1

    def parked(self) -> int:
        """The rank of the first entry that will not fire by itself."""
        return int(self._client.zcount(self.keys.due, "-inf", f"({PARKED}"))

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

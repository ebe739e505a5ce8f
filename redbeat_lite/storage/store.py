"""Entries in Redis: reading pages, writing edits. What only the leader does is in :mod:`.leader_store`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import Any, Self

from ..errors import CorruptEntry, UnsupportedFormat
from ..settings import Settings
from .changes import Line, together
from .connections import Backend
from .json_values import dumps, loads
from .keys import FORMAT, Keys
from .refused import Refused
from .replies import text
from .stored import CUT, PAGE, PARKED, Edit, Stored, Term, check_term, chunks, due_of, entries_of, entries_read

#: How often an edit is tried over when somebody else changed the entry at the same moment. An entry of 50 ms can lose
#: this race a few times in a row, not fifty times.
TRIES = 50

#: Names per round trip, where nothing else is read: some milliseconds of the server's time.
_SLICE = 10_000

#: What a search looks at in a script, and how many finds are enough for one, as they are read together.
_LOOKED_AT, _ENOUGH = 5000, 100


class Store:
    """Reads and writes entries under one prefix.

    Parameters:
        backend: where the connections come from.
        keys: the names of the keys.
    """

    def __init__(self, backend: Backend, keys: Keys) -> None:
        self.backend = backend
        self.keys = keys

    @classmethod
    def of(cls, settings: Settings, *, timeout: float | None = None) -> Self:
        """The store of an app's settings, with a backend of its own. Nothing connects before it is used.

        Parameters:
            timeout: seconds after which a command that hangs is given up, as :class:`Backend` has it.
        """
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

        An entry that moves while the pages are read may be seen twice; it is handed out once. Where it makes others
        slip to a page that was read already, those come at the end.

        Parameters:
            first: length of the first page, for who may need no more; each is twice as long as the one before it.
        """
        seen: set[bytes] = set()
        offset, size = 0, first or PAGE
        while page := self.page(offset, size):
            yield [stored for stored in page if stored.name not in seen]
            seen.update(stored.name for stored in page)
            offset, size = offset + len(page), min(2 * size, PAGE)
        if offset >= (first or PAGE):  # the first page was not all
            for names in chunks(self.beginning(), PAGE):  # each with a page, perhaps an empty one: others wait for it
                yield [*self.present(name for name in names if name not in seen)]

    def pages(self) -> Iterator[Stored]:
        """All entries one by one, as :meth:`paged` reads them."""
        return chain.from_iterable(self.paged())

    def present(self, names: Iterable[str | bytes]) -> Iterator[Stored]:
        """Those of these entries that are stored, in this order, 1,000 in a round trip."""
        for chunk in chunks(names, PAGE):
            yield from (stored for stored in self.read(chunk) if stored.definition or stored.state)

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
        asked = ((chunk, self._client.zmscore(self.keys.names, chunk)) for chunk in chunks(names, PAGE))
        return {name for chunk, scores in asked for name, score in zip(chunk, scores, strict=True) if score is not None}

    def put(self, edits: Iterable[Edit], term: Term | None = None) -> list[bool]:
        """Make these edits, 1,000 in a round trip; tells of each whether it was made, and records those that were.

        Parameters:
            term: of the leader that writes them; ``None`` for anybody else.

        Raises:
            UnsupportedFormat: a newer redbeat_lite uses this prefix; nothing was written.
            Lost: the term is over; what is left of the edits was not written.
        """
        keys = self.keys
        where = (keys.due, keys.entries, keys.state, keys.quarantine, keys.meta, keys.leader)
        done: list[bool] = []
        for chunk in chunks(edits, PAGE):
            lines = together(edit.line for edit in chunk)
            number = {change: place for place, change in enumerate(lines, 1)}
            whose = bytes(number[edit.line.change] if edit.line else 0 for edit in chunk)
            args: list[Any] = [keys.wake, FORMAT, *(term or ("", "")), CUT, whose, len(lines)]
            args += chain.from_iterable(lines.items())
            for edit in chunk:
                state = edit.state or ""
                args += (edit.name, edit.expected or b"", state, edit.definition or "", due_of(edit.score))
            reply = self._run("schedule/put", (*where, keys.changes, keys.changed, keys.new_reply(), keys.names), args)
            check_term(reply)
            _check_format(reply)
            done += [result == "1" for result in text(reply[1])]
        return done

    def rewrite(
        self,
        names: Iterable[str | bytes],
        decide: Callable[[Stored], Sequence[Edit]],
        term: Term | None = None,
        at_once: int = PAGE,
    ) -> list[str | bytes]:
        """Make the edits that ``decide`` finds for what is stored; asks it anew about those that changed meanwhile;
        returns the names of those it has edited.

        Parameters:
            term: as for :meth:`put`.
            at_once: how many entries are edited in one script.

        Raises:
            Lost: the term is over; what is left of the edits was not written.
        """
        made: list[str | bytes] = []
        for chunk in chunks(names, at_once):
            left: Sequence[str | bytes] = chunk
            for _ in range(TRIES):
                edits = [edit for stored in self.read(left) for edit in decide(stored)]
                tried = [*zip(edits, self.put(edits, term), strict=True)]
                made += [edit.name for edit, done in tried if done]
                left = [edit.name for edit, done in tried if not done]
                if not left:
                    break
        return made

    def quarantined(self, limit: int | None = None) -> dict[str, dict[str, Any]]:
        """What is in quarantine, or about ``limit`` of it: name -> ``error``, ``definition``, ``state``, ``at``."""
        records, where = {}, self.keys.quarantine
        for name, raw in (self._client.hscan(where, count=limit)[1] if limit else self._client.hgetall(where)).items():
            try:
                record = loads(raw)
            except CorruptEntry as exc:
                record = {"error": f"quarantine record: {exc}"}
            records[text(name)] = record if isinstance(record, dict) else {"error": "quarantine record is no object"}
        return records

    def discard(self, name: str, line: Line) -> bool:
        """Forget an entry that is in quarantine; tells whether it was, and records it with this line."""
        keys = (self.keys.quarantine, self.keys.changes, self.keys.changed, self.keys.new_reply())
        return bool(self._run("schedule/discard", keys, (name, line.change)))

    def record(self, line: Line, names: Sequence[str]) -> None:
        """Write a line into the record of changes about what is no edit of an entry.

        Parameters:
            names: at most 1,000.
        """
        keys = (self.keys.changes, self.keys.new_reply())
        self._run("schedule/note_change", keys, (line.change, *names))

    def refused(self) -> Refused:
        """What the last beat to read its configuration has refused of it."""
        return Refused.decode(self._client.hget(self.keys.meta, "refused") or b"")

    def config_names(self, owner: str) -> set[str]:
        """The config entries that ``owner`` stored last."""
        raw = self._client.hget(self.keys.meta, f"config:{owner}")
        try:
            names = loads(raw) if raw else []
        except CorruptEntry:
            return set()
        return {name for name in names if isinstance(name, str)} if isinstance(names, list) else set()

    def owners(self) -> set[str]:
        """Those who have stored config entries."""
        fields = map(text, self._client.hkeys(self.keys.meta))
        return {field.removeprefix("config:") for field in fields if field.startswith("config:")}

    def add_config_names(self, owner: str, names: Iterable[str]) -> None:
        """Remember that these are ``owner``'s, too.

        Do so before they are stored: one that were stored without being known as the configuration's would never be
        removed.
        """
        known, names = self.config_names(owner), set(names)
        if not names <= known:
            self.set_config_names(owner, known | names)

    def freezes(self) -> bytes:
        """The text of the freezes, of :class:`~redbeat_lite.entries.freezes.Freezes`; empty if there never was one."""
        return self._client.hget(self.keys.meta, "freezes") or b""

    def set_freezes(self, before: bytes, after: bytes, line: Line | None = None) -> bool:
        """Store the text of the freezes and wake the beat, if it is still the one that was read; tells whether."""
        told = ("", "") if line is None else (line.change, dumps(line.fields))
        keys = (self.keys.meta, self.keys.changes)
        return bool(self._run("schedule/freezes", keys, (before, after, self.keys.wake, *told)))

    def due_at(self, score: int, offset: int, limit: int) -> list[bytes]:
        """The names of at most so many of the entries with this very due time, epoch ms, in their order."""
        return [*self._client.zrangebyscore(self.keys.due, score, score, offset, limit)]

    def set_config_names(self, owner: str, names: Iterable[str], term: Term | None = None) -> None:
        """Remember which config entries ``owner`` has stored.

        Parameters:
            term: of the leader that stored them; ``None`` for anybody else.

        Raises:
            Lost: the term is over, nothing was written.
        """
        self.remember(f"config:{owner}", dumps(sorted(names)), term)

    def remember(self, field: str, value: str, term: Term | None) -> None:
        """Set a field of ``meta``.

        Parameters:
            term: of the leader that does; ``None`` for anybody else.

        Raises:
            Lost: the term is over, nothing was written.
        """
        args = (*(term or ("", "")), field, value)
        check_term(self._run("schedule/remember", (self.keys.leader, self.keys.meta), args))


def _check_format(reply: Any) -> None:
    if reply[0] == -1:
        raise UnsupportedFormat(
            f"the schedule in Redis has format {reply[1]}; this redbeat_lite reads up to {FORMAT}: update it"
        )

"""Entries in Redis: reading pages, writing edits, and the leader's peek and commit.

Names and texts stay bytes here. What cannot be read is the affair of whoever decodes one entry, not of the whole reply.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from ..errors import CorruptEntry, UnsupportedFormat
from ..instants import MAX_MS
from .connections import Backend
from .json_values import MAX_BYTES, dumps, loads
from .keys import FORMAT, Keys
from .replies import text
from .uuids import random_uuid

#: Entries per round trip of bulk reads and writes.
PAGE = 1000

#: How often an edit is tried over when somebody else changed the entry at the same moment. An entry of 50 ms can lose
#: this race a few times in a row, not fifty times.
TRIES = 50

#: Where a text is cut that the leader or a listing reads: nothing so long can be used, and it could be of any length.
_CUT = MAX_BYTES + 1

#: Bytes of texts in one reply to the leader, about: several times that is taken in the server while it is made.
_REPLY = 16_000_000

#: In the place of the definition of an entry that is removed: it belongs to a configuration.
_CONFIGURED = "config"

#: Names per round trip, where nothing else is read: some milliseconds of the server's time.
_SLICE = 10_000

#: Score in the sorted set of an entry that will not fire by itself.
PARKED = "+inf"

#: One command for the broker: ``("lpush" | "pexpire" | "publish", key or channel, value)``.
Command = tuple[str, str, Any]

_T = TypeVar("_T")


class Stored(NamedTuple):
    """One entry as it lies in Redis. ``score`` is its due time in epoch milliseconds, ``None`` when parked."""

    name: bytes
    score: int | None
    definition: bytes | None
    state: bytes | None


class Edit(NamedTuple):
    """One change of :meth:`Store.put`, made only if the state is still ``expected`` (``None``: there is no entry).

    ``state`` ``None`` removes the entry, see :func:`removal`; ``definition`` ``None`` keeps the stored one.
    """

    name: str | bytes
    expected: bytes | None
    state: str | None
    definition: str | None = None
    score: int | None = None


def removal(stored: Stored) -> Edit:
    """The edit that removes an entry; of a config entry one that the leader gets to know of, and puts it back."""
    # The text will do: where it says so among the arguments, the leader looks for nothing once.
    is_configured = b'"owner":' in (stored.definition or b"")
    return Edit(stored.name, stored.state, None, _CONFIGURED if is_configured else None)


class Advance(NamedTuple):
    """One step of :meth:`Store.commit`, made only if the stored state begins with ``guard``.

    ``state`` ``None`` removes the entry; ``commands`` are sent in the same step.
    """

    name: bytes
    guard: str
    state: str | None
    score: int | None
    commands: Sequence[Command] = ()


class Bad(NamedTuple):
    """One entry for :meth:`Store.quarantine`, as it was read, with the record that says why."""

    stored: Stored
    record: str


class Term(NamedTuple):
    """Proof of leadership: checked by every script that only a leader may run."""

    token: str
    number: int


class Mark(NamedTuple):
    """What a leader has just written into its schedule, to know that database again over another connection."""

    key: str
    field: str
    value: bytes


class Lost(Exception):
    """This term is over: somebody else leads, or the lease is gone."""


class Store:
    """Reads and writes entries under one prefix.

    Parameters:
        backend: where the connections come from.
        keys: the names of the keys.
    """

    def __init__(self, backend: Backend, keys: Keys) -> None:
        self._backend = backend
        self._keys = keys

    @property
    def prefix(self) -> str:
        """What all keys begin with."""
        return self._keys.prefix

    @property
    def _client(self) -> Any:
        return self._backend.client

    def _run(self, name: str, keys: Sequence[str], args: Sequence[Any]) -> Any:
        return self._backend.scripts.run(name, keys, args)

    # -- anybody ------------------------------------------------------------------------------------------------------

    def read(self, names: Sequence[str | bytes]) -> list[Stored]:
        """The entries of these names, in one round trip; absent ones come without definition and state."""
        if not names:
            return []
        pipe = self._client.pipeline(transaction=True)
        pipe.hmget(self._keys.entries, names)
        pipe.hmget(self._keys.state, names)
        pipe.zmscore(self._keys.due, names)
        definitions, states, scores = pipe.execute()
        return [
            Stored(name.encode() if isinstance(name, str) else name, _score(score), definition, state)
            for name, score, definition, state in zip(names, scores, definitions, states, strict=True)
        ]

    def page(self, offset: int, limit: int) -> list[Stored]:
        """At most ``limit`` entries from rank ``offset`` on, in due order, in one round trip."""
        keys = (self._keys.due, self._keys.entries, self._keys.state)
        return _stored(self._run("page", keys, (offset, offset + limit - 1, _CUT)))

    def pages(self) -> Iterator[Stored]:
        """All entries in due order, a page per round trip.

        An entry that moves while the pages are read may be seen twice; it is handed out once. Where it makes others
        slip to a page that was read already, those come at the end.
        """
        seen: set[bytes] = set()
        offset = 0
        while page := self.page(offset, PAGE):
            for stored in page:
                if stored.name not in seen:
                    seen.add(stored.name)
                    yield stored
            offset += len(page)
        if offset > PAGE:
            for chunk in chunks((name for name in self._names() if name not in seen), PAGE):
                yield from (stored for stored in self.read(chunk) if stored.definition is not None)

    def names(self) -> Iterator[str]:
        """All names, in no order, read in slices so that a large schedule blocks nobody."""
        return map(text, self._names())

    def _names(self) -> Iterator[bytes]:
        seen: set[bytes] = set()  # SCAN may show a name twice
        for name, _ in self._client.zscan_iter(self._keys.due, count=_SLICE):
            if name not in seen:
                seen.add(name)
                yield name

    def sorted_names(self) -> list[str]:
        """All names in their order, in one round trip; some milliseconds for 10,000 of them."""
        return sorted(map(text, self._client.hkeys(self._keys.entries)))

    def count(self) -> int:
        """How many entries are stored."""
        return int(self._client.hlen(self._keys.entries))

    def exists(self, name: str) -> bool:
        """Whether an entry of this name is stored."""
        return bool(self._client.hexists(self._keys.entries, name))

    def put(self, edits: Iterable[Edit], term: Term | None = None) -> list[bool]:
        """Make these edits, 1,000 in a round trip; tells of each whether it was made.

        Parameters:
            term: of the leader that writes them; ``None`` for anybody else.

        Raises:
            UnsupportedFormat: a newer redbeat_lite uses this prefix; nothing was written.
            Lost: the term is over; what is left of the edits was not written.
        """
        keys = self._keys
        where = (keys.due, keys.entries, keys.state, keys.quarantine, keys.meta, keys.leader)
        done: list[bool] = []
        for chunk in chunks(edits, PAGE):
            args: list[Any] = [keys.wake, FORMAT, *(term or ("", "")), _CUT]
            for edit in chunk:
                state = edit.state or ""
                args += (edit.name, edit.expected or b"", state, edit.definition or "", _due(edit.score))
            reply = self._run("put", (*where, keys.reply(random_uuid())), args)
            _check_term(reply)
            _check_format(reply)
            done += [result == "1" for result in text(reply[1])]
        return done

    def rewrite(self, names: Iterable[str | bytes], decide: Callable[[Stored], Sequence[Edit]], term: Term) -> None:
        """Make the edits that ``decide`` finds for what is stored; asks it anew about those that changed meanwhile.

        Raises:
            Lost: the term is over; what is left of the edits was not written.
        """
        for chunk in chunks(names, PAGE):
            left: Sequence[str | bytes] = chunk
            for _ in range(TRIES):
                edits = [edit for stored in self.read(left) for edit in decide(stored)]
                left = [edit.name for edit, done in zip(edits, self.put(edits, term), strict=True) if not done]
                if not left:
                    break

    def quarantined(self) -> dict[str, dict[str, Any]]:
        """Everything in quarantine: name -> record with ``error``, ``definition``, ``state``, ``at``."""
        records = {}
        for name, raw in self._client.hgetall(self._keys.quarantine).items():
            try:
                record = loads(raw)
            except CorruptEntry as exc:
                record = {"error": f"quarantine record: {exc}"}
            records[text(name)] = record if isinstance(record, dict) else {"error": "quarantine record is no object"}
        return records

    def discard(self, name: str) -> bool:
        """Forget an entry that is in quarantine; tells whether it was."""
        return bool(self._client.hdel(self._keys.quarantine, name))

    # -- the leader ---------------------------------------------------------------------------------------------------

    def peek(self, term: Term, now: int, limit: int) -> tuple[list[Stored], int | None]:
        """What is due at ``now`` (epoch ms), earliest first, and when the next entry comes if nothing is.

        Parameters:
            limit: how many entries at most; large ones fill a reply earlier.

        Raises:
            Lost: the term is over.
        """
        keys = self._keys
        reply = self._run("peek", (keys.leader, keys.due, keys.entries, keys.state), (*term, now, limit, _CUT, _REPLY))
        _check_term(reply)
        if len(reply) == 2:
            return [], _score(reply[1][1]) if reply[1] else None
        return _stored(reply[1:]), None

    def commit(self, term: Term, now: int, advances: Sequence[Advance]) -> list[bool | str]:
        """Advance entries; tells of each whether it was (``True``), was changed meanwhile (``False``), or why not.

        Raises:
            Lost: the term is over, nothing was written.
        """
        keys = self._keys
        lists: dict[str, int] = {}
        where = [keys.leader, keys.due, keys.entries, keys.state, keys.meta]
        args: list[Any] = [*term, now, random_uuid()]
        for name, guard, state, score, commands in advances:
            args += (name, guard, state or "", _due(score), len(commands))
            for command, target, value in commands:
                if command != "publish":
                    index = lists.setdefault(target, len(where) + len(lists) + 1)
                    args += (command, index, value)
                else:
                    args += (command, target, value)
        reply = self._run("commit", where + list(lists), args)
        _check_term(reply)
        return [text(result) if isinstance(result, bytes) else result == 1 for result in reply[1:]]

    def quarantine(self, term: Term, bad: Sequence[Bad]) -> None:
        """Set these entries aside, unless they were changed since they were read.

        Raises:
            Lost: the term is over, nothing was written.
        """
        keys = self._keys
        args: list[Any] = [*term, _CUT]
        for stored, record in bad:
            args += (stored.name, stored.definition or b"", stored.state or b"", record)
        where = (keys.leader, keys.due, keys.entries, keys.state, keys.quarantine)
        _check_term(self._run("quarantine", where, args))

    def config_names(self, owner: str) -> set[str]:
        """The config entries that ``owner`` stored last."""
        raw = self._client.hget(self._keys.meta, f"config:{owner}")
        try:
            names = loads(raw) if raw else []
        except CorruptEntry:
            return set()
        return {name for name in names if isinstance(name, str)} if isinstance(names, list) else set()

    def owners(self) -> set[str]:
        """Those who have stored config entries."""
        fields = map(text, self._client.hkeys(self._keys.meta))
        return {field.removeprefix("config:") for field in fields if field.startswith("config:")}

    def set_config_names(self, owner: str, names: Iterable[str], term: Term | None = None) -> None:
        """Remember which config entries ``owner`` has stored.

        Parameters:
            term: of the leader that stored them; ``None`` for anybody else.

        Raises:
            Lost: the term is over, nothing was written.
        """
        self.remember(f"config:{owner}", dumps(sorted(names)), term)

    def config_is_back(self, term: Term) -> None:
        """Forget that config entries were removed; say so before they are looked for.

        Raises:
            Lost: the term is over, nothing was written.
        """
        self.remember("removed", "", term)

    def remember(self, field: str, value: str, term: Term | None) -> None:
        """Set a field of ``meta``.

        Parameters:
            term: of the leader that does; ``None`` for anybody else.

        Raises:
            Lost: the term is over, nothing was written.
        """
        args = (*(term or ("", "")), field, value)
        _check_term(self._run("own", (self._keys.leader, self._keys.meta), args))

    def mark(self, term: Term) -> Mark:
        """Mark the database of the schedule with something that no other one holds, not even a copy of it.

        Raises:
            Lost: the term is over, nothing was written.
        """
        mark = Mark(self._keys.meta, "mark", random_uuid().encode())
        _check_term(self._run("own", (self._keys.leader, mark.key), (*term, mark.field, mark.value)))
        return mark

    def bears(self, mark: Mark) -> bool:
        """Whether this mark is still there; the next leader's takes its place."""
        return bool(self._client.hget(mark.key, mark.field) == mark.value)

    def drop_foreign(self, term: Term, others: Mapping[str, str]) -> list[tuple[str, str, str]]:
        """Remove those of our keys that are of a foreign type; gives each with the type it was, and that it should be.

        Parameters:
            others: further keys to look at, and the types that they should have.

        Raises:
            Lost: the term is over, nothing was removed.
        """
        keys = self._keys
        hashes = (keys.entries, keys.state, keys.meta, keys.quarantine)
        kinds = {keys.due: "zset", **dict.fromkeys(hashes, "hash"), **others}
        reply = self._run("drop_foreign", (keys.leader, *kinds), (*term, *kinds.values()))
        _check_term(reply)
        found = zip(kinds.items(), map(text, reply[1:]), strict=True)
        return [(key, other, kind) for (key, kind), other in found if other not in (kind, "none")]


def _score(raw: Any) -> int | None:
    if raw is None:
        return None
    score = float(raw)
    # An infinite score parks an entry. What is no instant is garbage: minus infinity is due since ever, and what lies
    # behind the last instant that can be told is that one.
    return None if score == float("inf") else int(min(max(score, 0.0), MAX_MS))


def _due(score: int | None) -> int | str:
    return PARKED if score is None else score


def _stored(reply: Any) -> list[Stored]:
    ranked = reply[0]
    if not ranked:
        return []
    names, scores = ranked[::2], map(_score, ranked[1::2])
    return list(map(Stored._make, zip(names, scores, reply[1], reply[2], strict=True)))


def chunks(items: Iterable[_T], size: int) -> Iterator[list[_T]]:
    """``items`` in lists of at most ``size``."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def _check_term(reply: Any) -> None:
    if reply[0] == 0:
        raise Lost


def _check_format(reply: Any) -> None:
    if reply[0] == -1:
        raise UnsupportedFormat(
            f"the schedule in Redis has format {reply[1]}; this redbeat_lite reads up to {FORMAT}: update it"
        )

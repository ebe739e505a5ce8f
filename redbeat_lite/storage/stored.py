"""The plain values that the store takes and gives: Stored, Edit, Advance, Term, Lost. Nothing is decoded.

Names and texts stay bytes here. What cannot be read is the affair of whoever decodes one entry, not of the whole reply.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from ..instants import MAX_MS
from .changes import Line

#: Entries per round trip of bulk reads and writes.
PAGE = 1000

#: Entries that a script edits where many are changed at somebody's wish: it shall hold up nobody for 5 ms.
AT_ONCE = 250

#: Score in the sorted set of an entry that will not fire by itself.
PARKED = "+inf"

#: Revision for a commit that ignores freezes: the messages have been sent already, so a freeze
#: cannot hold them any more.
ANY_REVISION = b"|"

#: One command for the broker: ``("lpush" | "pexpire" | "publish", key or channel, value)``; or, for the record of runs,
#: ``("range" | "recorded", key, value)``, as ``schedule/commit.lua`` has them.
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

    ``state`` ``None`` removes the entry, for good if the leader does it; who else removes one takes
    :func:`~redbeat_lite.entries.stored_entry.removal`.
    ``definition`` ``None`` keeps the stored one. ``line`` is what the record of changes tells of it if it is made;
    ``None``: nothing.
    """

    name: str | bytes
    expected: bytes | None
    state: str | None
    definition: str | None = None
    score: int | None = None
    line: Line | None = None


class Advance(NamedTuple):
    """One step of :meth:`LeaderStore.commit`, made only if the stored state begins with ``guard``.

    ``state`` ``None`` removes the entry. The same step sends ``commands``, records ``ranges``, as
    :func:`redbeat_lite.beat.dispatch.committer.range_command` makes them, and sets ``deadlines``, as
    ``schedule/commit.lua`` takes them.
    """

    name: bytes
    guard: str
    state: str | None
    score: int | None
    commands: Sequence[Command] = ()
    ranges: Sequence[Command] = ()
    deadlines: Sequence[int] = ()


class Bad(NamedTuple):
    """One entry for :meth:`LeaderStore.quarantine`, as it was read, with why, and the record that says so."""

    stored: Stored
    error: str
    record: str


class Term(NamedTuple):
    """Proof of leadership: checked by every script that only a leader may run.

    Whatever is given one raises :class:`Lost` where it is over, and nothing was written then. Where it may be ``None``,
    somebody else writes.
    """

    token: str
    number: int


class Mark(NamedTuple):
    """What a leader has just written into its schedule, to know that database again over another connection."""

    key: str
    field: str
    value: bytes


class Lost(Exception):
    """This term is over: somebody else leads, or the lease is gone."""


class Refrozen(Exception):
    """The freezes are of another revision, and nothing was done; its argument is their text."""


def score_of(raw: Any) -> int | None:
    if raw is None:
        return None
    score = float(raw)
    # An infinite score parks an entry. What is no instant is garbage: minus infinity is due since ever, and what lies
    # behind the last instant that can be told is that one.
    return None if score == float("inf") else int(min(max(score, 0.0), MAX_MS))


def by_due(stored: Stored) -> tuple[float, bytes]:
    """A key that sorts as the sorted set does."""
    return float("inf") if stored.score is None else stored.score, stored.name


def due_of(score: int | None) -> int | str:
    return PARKED if score is None else score


def entries_of(reply: Any) -> list[Stored]:
    ranked = reply[0]
    if not ranked:
        return []
    names, scores = ranked[::2], map(score_of, ranked[1::2])
    return list(map(Stored._make, zip(names, scores, reply[1], reply[2], strict=True)))


def entries_read(names: Sequence[str | bytes], definitions: Any, states: Any, scores: Any) -> list[Stored]:
    return [
        Stored(name.encode() if isinstance(name, str) else name, score_of(score), definition, state)
        for name, score, definition, state in zip(names, scores, definitions, states, strict=True)
    ]


def chunks(items: Iterable[_T], size: int) -> Iterator[list[_T]]:
    """``items`` in lists of at most ``size``."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def check_term(reply: Any) -> None:
    if reply[0] == 0:
        raise Lost
    if reply[0] == -2:
        raise Refrozen(reply[1])

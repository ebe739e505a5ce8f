"""Plain values that go into the store and come out of it, and how replies become such values.

Names and texts stay bytes here and nothing is decoded. So if one entry cannot be read, the other
entries of the reply still can.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import msgspec

from .._base.json_values import dumps
from .._base.text import storable
from .._base.times import MAX_MS
from ..entries.changes import Stored

#: Entries per round trip of bulk reads and writes.
PAGE = 1000

#: Maximum number of entries that one script edits, so that it takes the server less than 5 ms.
AT_ONCE = 250

#: Score, in the sorted set of due times, of an entry that will not fire by itself.
PARKED = "+inf"

#: Planning time, in epoch ms, for a commit that must go through during a freeze, because its
#: messages have been sent already. Every freeze ends before this time, so none stops the commit.
IGNORES_FREEZE = 2**53

#: One command of a commit, as ``schedule/commit.lua`` lists them: its kind, the channel, the key or
#: the keys (a tuple) that it is for, and a value.
Command = tuple[str, Any, Any]

_T = TypeVar("_T")


class Advance(NamedTuple):
    """Next state and due time of one entry, for :meth:`LeaderStore.commit`.

    Parameters:
        guard: beginning of the state that the entry was planned from: its version, generation and
            nominal time, or the whole state of a backfill. If the stored state begins in another
            way, the entry was changed since, and is not advanced.
        state: next state; ``None`` removes the entry.
        score: next due time in epoch ms; ``None`` if the entry will not fire by itself.
        commands: commands that send messages, or record runs and deadlines. A backfill also has a
            check of its entry.
    """

    name: bytes
    guard: str
    state: str | None
    score: int | None
    commands: Sequence[Command] = ()


class Bad(NamedTuple):
    """One entry that cannot be used, for :meth:`LeaderStore.quarantine`.

    Parameters:
        stored: the entry as it was read.
        error: why it cannot be used, for the log and the event.
        record: JSON text that the quarantine keeps of it, with the error.
    """

    stored: Stored
    error: str
    record: str


class Term(NamedTuple):
    """Proof of leadership, which every script for the leader alone checks.

    A call with a term that is over writes nothing and raises :class:`Lost`. Methods whose ``term``
    is optional are also for other writers, which pass ``None``.
    """

    token: str
    number: int


class Lost(Exception):
    """The term is over: another beat leads, or the lease has expired."""


class Frozen(Exception):
    """A freeze has begun since the planning, and nothing was done."""


class Refused(msgspec.Struct, frozen=True):
    """Config entries that the leader has refused, as Redis holds them.

    The stored form typically takes 1 KB, and 50 KB at most.

    Parameters:
        owner: owner of the configuration; empty if no beat has read one yet.
        count: number of refused entries.
        errors: name of an entry -> its error, of at most 300 characters, for the first 100.
    """

    owner: str = ""
    count: int = 0
    errors: dict[str, str] = {}

    @classmethod
    def of(cls, owner: str, errors: Mapping[str, str]) -> Refused:
        """Return the record of an owner's refused entries, shortened so that it can be stored."""
        stored_errors = {}
        for name, error in islice(errors.items(), 100):
            stored_errors[_shortened(name, 200)] = _shortened(error, 300)
        return cls(owner, len(errors), stored_errors)

    def encode(self) -> str:
        """Return the stored form."""
        return dumps(self)

    @classmethod
    def decode(cls, raw: bytes) -> Refused:
        """Return the record of a stored form; an empty record if it cannot be read."""
        with suppress(ValueError, RecursionError):
            return msgspec.json.decode(raw, type=cls)
        return cls()


def _shortened(text: str, longest: int) -> str:
    """Return a text in a form that can be stored, cut to ``longest`` characters."""
    text = storable(text)
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def score_of(raw: Any) -> int | None:
    """Return the due time of a score, in epoch ms.

    ``None`` if there is no score, or if the score is ``PARKED``: the entry will not fire by itself.
    Another program can have written any number. A number out of range becomes 0 or ``MAX_MS``.
    """
    if raw is None:
        return None
    score = float(raw)
    return None if score == float("inf") else int(min(max(score, 0.0), MAX_MS))


def stored_score(score: int | None) -> int | str:
    """Return a due time (epoch ms) as the sorted set has it: ``PARKED`` for ``None``."""
    return PARKED if score is None else score


def by_due(stored: Stored) -> tuple[float, bytes]:
    """Return a key that sorts entries as the sorted set does."""
    return float("inf") if stored.score is None else stored.score, stored.name


def entries_of(reply: Any) -> list[Stored]:
    """Return the entries of a reply.

    Parameters:
        reply: four lists in the same order: names, scores, definitions and states.
    """
    names, scores, definitions, states = reply
    return [*map(Stored, names, map(score_of, scores), definitions, states)]


def chunks(items: Iterable[_T], size: int) -> Iterator[list[_T]]:
    """Yield ``items`` in lists of at most ``size``."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def check_term(reply: Any) -> None:
    """Raise Lost or Frozen if a script has refused a leader's call.

    Parameters:
        reply: a list whose first item is 0 if the term is over, and -2 if a freeze holds.
    """
    if reply[0] == 0:
        raise Lost
    if reply[0] == -2:
        raise Frozen

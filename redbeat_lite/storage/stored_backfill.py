"""Backfills as they are stored: what was asked for as a definition, how far each has come as a state."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime

from ..errors import CorruptEntry, is_plain
from ..public import public
from ..settings import MAX_NAME
from .json_values import dumps, loads, pack, unpack
from .records import Edit, Stored

#: Ranges of nominal times, epoch ms, both ends included; in order, and none adjoins another.
Ranges = Sequence[Sequence[int]]

#: Bounds of the messages a second of one backfill.
SLOWEST = 0.001
FASTEST = 1000

#: The fields that change.
_STATE = ("sent", "paused", "ended", "active", "cursor", "feed", "attempts")


#: Types that fields must have when they are read.
_TYPES: dict[type, tuple[str, ...]] = {
    str: ("note", "actor", "generation", "ended", "feed"),
    int: ("again", "number", "total", "sent", "attempts", "cursor"),
    datetime: ("start", "end", "at"),
    bool: ("paused",),
}


@public
@dataclass(frozen=True, slots=True)
class Backfill:
    """Occurrences of an entry that are sent late, or once more. Datetimes are aware.

    Parameters:
        id: short and random; empty where nothing was started.
        name: of the entry.
        start, end: the first and the last nominal time.
        max_active: how many may be out at once; ``None``: it goes by ``rate`` alone, messages a second.
        again: which time these are sent, from 0.
        note, actor, at: why, by whom and when it was started.
        generation: of the entry.
        number: how many there were before it, of this entry and ``again``.
        skip: ranges of nominal times, epoch ms, that these have sent.
        total: how many occurrences there are to be sent.
        sent: how many were sent.
        paused: whether somebody stopped it for a while.
        ended: empty, ``"done"``, or that it was cancelled, and why.
        active: nominal times, epoch ms, of what is out and not known to have ended; for ``max_active``.
        cursor, feed: epoch ms from which on nothing is sent yet; up to which id the feed of ends was read.
        attempts: publishes in a row that failed.
    """

    id: str
    name: str
    start: datetime
    end: datetime
    max_active: int | None
    rate: float
    again: int
    note: str
    actor: str
    at: datetime
    generation: str
    number: int = 0
    skip: Ranges = ()
    total: int = 0
    sent: int = 0
    paused: bool = False
    ended: str = ""
    active: Sequence[int] = ()
    cursor: int = 0
    feed: str = ""
    attempts: int = 0

    @property
    def left(self) -> int:
        """How many are still to be sent."""
        return 0 if self.ended == "done" else max(self.total - self.sent, 0)  # or its schedule was edited meanwhile

    @property
    def runs(self) -> bool:
        """Whether the leader sends it."""
        return not self.paused and not self.ended

    @property
    def state(self) -> str:
        """The stored form of what changes."""
        return dumps({field: getattr(self, field) for field in _STATE})

    def edit(self, before: Backfill | None, due: int | None) -> Edit:
        """The edit that stores it, if ``before`` is what is stored, for the beat to look at at ``due`` (epoch ms)."""
        told = {field: value for field, value in asdict(self).items() if field not in (*_STATE, "id")}
        expected = None if before is None else before.state.encode()
        definition = dumps(pack(told, "backfill")) if before is None else None
        return Edit(self.id, expected, self.state, definition, due)


def backfill_of(stored: Stored) -> Backfill | None:
    """The backfill that is stored; ``None`` where there is none, or what cannot be read."""
    with suppress(CorruptEntry, TypeError, UnicodeDecodeError):
        told = {**unpack(loads(stored.definition or b"")), **loads(stored.state or b"")}
        backfill = Backfill(stored.name.decode(), **told)
        return backfill if _is_intact(backfill) else None
    return None


def _is_intact(backfill: Backfill) -> bool:
    """Return whether the beat can use each field; raises TypeError if one has a wrong type."""
    most = backfill.max_active
    return (
        all(isinstance(getattr(backfill, field), kind) for kind, fields in _TYPES.items() for field in fields)
        and is_plain(backfill.name, MAX_NAME)
        and None not in (backfill.start.tzinfo, backfill.end.tzinfo, backfill.at.tzinfo)
        and min(backfill.again, backfill.number, backfill.total, backfill.sent, backfill.attempts) >= 0
        and (most is None or (isinstance(most, int) and most >= 1))
        and SLOWEST <= backfill.rate <= FASTEST
        and all(type(ms) is int for ms in backfill.active)
        and all(len(span) == 2 and all(type(ms) is int for ms in span) for span in backfill.skip)
    )

"""A backfill as Redis holds it: the request is its definition, and the progress is its state."""

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

#: Ranges of nominal times in epoch ms, both ends included. They are in order, and no two adjoin.
Ranges = Sequence[Sequence[int]]

#: Bounds of the messages a second of one backfill.
SLOWEST = 0.001
FASTEST = 1000

# Fields that change.
_STATE = ("sent", "paused", "ended", "active", "cursor", "feed", "attempts")

# Types that fields must have when they are read.
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
        id: short and random; empty if nothing was started.
        name: of the entry.
        start: the first nominal time.
        end: the last nominal time.
        max_active: most runs in flight at once; ``None`` limits only the ``rate``.
        rate: messages a second.
        again: number of times that these runs were sent before, from 0.
        note: why it was started.
        actor: who started it.
        at: when it was started.
        generation: of the entry.
        number: number of backfills before it with the same entry and ``again``.
        skip: ranges of nominal times, in epoch ms, that the backfills before it have sent.
        total: number of occurrences to be sent.
        sent: number of occurrences that were sent.
        paused: whether somebody has paused it.
        ended: empty, ``"done"``, or that it was cancelled, and why.
        active: nominal times, in epoch ms, of runs in flight, for ``max_active``.
        cursor: nominal time, in epoch ms, from which on nothing was sent yet.
        feed: id up to which the feed of ends was read.
        attempts: failed publishes in a row.
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
        """Number of occurrences that are still to be sent."""
        if self.ended == "done":  # An edit of the schedule may have made it fewer than the total.
            return 0
        return max(self.total - self.sent, 0)

    @property
    def runs(self) -> bool:
        """Whether the leader sends it."""
        return not self.paused and not self.ended

    @property
    def state(self) -> str:
        """Stored form of the fields that change."""
        return dumps({field: getattr(self, field) for field in _STATE})

    def edit(self, before: Backfill | None, due: int | None) -> Edit:
        """Return the edit that stores it, if ``before`` is still what is stored.

        Parameters:
            before: ``None`` to store a new backfill.
            due: when the beat looks at it next, in epoch ms.
        """
        if before is not None:
            return Edit(self.id, before.state.encode(), self.state, None, due)
        fields = asdict(self)
        for field in (*_STATE, "id"):
            del fields[field]
        return Edit(self.id, None, self.state, dumps(pack(fields, "backfill")), due)


def backfill_of(stored: Stored) -> Backfill | None:
    """Return the stored backfill; ``None`` if there is none, or if it cannot be read."""
    with suppress(CorruptEntry, TypeError, UnicodeDecodeError):
        fields = unpack(loads(stored.definition or b""))
        progress = loads(stored.state or b"")
        backfill = Backfill(stored.name.decode(), **{**fields, **progress})
        return backfill if _is_intact(backfill) else None
    return None


def _is_intact(backfill: Backfill) -> bool:
    """Return whether the beat can use each field; raise TypeError if one has a wrong type."""
    for kind, fields in _TYPES.items():
        if not all(isinstance(getattr(backfill, field), kind) for field in fields):
            return False
    instants = (backfill.start, backfill.end, backfill.at)
    counts = (backfill.again, backfill.number, backfill.total, backfill.sent, backfill.attempts)
    most = backfill.max_active
    return (
        is_plain(backfill.name, MAX_NAME)
        and all(instant.tzinfo is not None for instant in instants)
        and min(counts) >= 0
        and (most is None or (isinstance(most, int) and most >= 1))
        and SLOWEST <= backfill.rate <= FASTEST
        and all(type(ms) is int for ms in backfill.active)
        and all(len(span) == 2 and all(type(ms) is int for ms in span) for span in backfill.skip)
    )

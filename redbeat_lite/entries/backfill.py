"""Backfills: the request, the progress, and the runs to send next.

Redis holds the request as a definition and the progress as a state, as it does for an entry.
Nothing here asks the server or a clock.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime, tzinfo

from .._base.errors import CorruptEntry, InvalidEntry
from .._base.public import public
from .._base.text import is_short_text
from .._base.times import MAX_MS, to_ms
from ..rules import At, Every, Question, Rule, next_ms
from ..settings import MAX_NAME
from ..store.json_values import dumps, loads, pack, unpack
from ..store.records import Edit, Stored
from .entry import Entry
from .state import EntryState

#: Ranges of nominal times in epoch ms, both ends included. They are in order, and no two adjoin.
Ranges = Sequence[Sequence[int]]

#: Bounds of the messages a second of one backfill.
SLOWEST = 0.001
FASTEST = 1000

# Most messages of one step. Sending them takes 4 ms with a prepared message, 20 ms without one.
_MOST = 50

# If a rate limits the backfill, one step sends the messages of this many seconds.
_STEP = 0.1

# Fields that change while the backfill runs.
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
    """Past occurrences of an entry that are sent late or sent again. Datetimes are aware.

    Parameters:
        id: short random text; empty if no backfill was started.
        name: name of the entry.
        start: the first nominal time.
        end: the last nominal time.
        max_active: most runs in flight at once; ``None`` limits only the ``rate``.
        rate: messages a second.
        again: how often these runs were sent before, from 0.
        note: reason for the backfill.
        actor: name of the person or program that started it.
        at: time of its start.
        generation: generation of the entry.
        number: number of earlier backfills with the same entry and ``again``.
        skip: ranges of nominal times, in epoch ms, that earlier backfills have sent.
        total: number of occurrences to send.
        sent: number of occurrences sent so far.
        paused: whether the backfill is paused.
        ended: empty while it runs; then ``"done"``, or that it was cancelled, and why.
        active: nominal times, in epoch ms, of runs in flight, for ``max_active``.
        cursor: earliest nominal time, in epoch ms, that was not sent yet.
        feed: id of the last read record in the feed of ended runs.
        attempts: number of failed publishes in a row.
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
        if self.ended == "done":
            # An edit of the schedule may have left fewer occurrences than `total`.
            return 0
        return max(self.total - self.sent, 0)

    @property
    def runs(self) -> bool:
        """Whether the leader sends messages of this backfill."""
        return not self.paused and not self.ended

    @property
    def state(self) -> str:
        """Stored form of the fields that change."""
        return dumps({field: getattr(self, field) for field in _STATE})

    def edit(self, before: Backfill | None, due: int | None) -> Edit:
        """Return the edit that stores this backfill if Redis still holds ``before``.

        Parameters:
            before: the stored backfill; ``None`` to store a new one.
            due: next time, in epoch ms, at which the beat takes a step.
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
        is_short_text(backfill.name, MAX_NAME)
        and all(instant.tzinfo is not None for instant in instants)
        and min(counts) >= 0
        and (most is None or (isinstance(most, int) and most >= 1))
        and SLOWEST <= backfill.rate <= FASTEST
        and all(type(ms) is int for ms in backfill.active)
        and all(len(span) == 2 and all(type(ms) is int for ms in span) for span in backfill.skip)
    )


# -- The next step ---------------------------------------------------------------------------------


def times(
    backfill: Backfill,
    entry: Entry,
    state: EntryState,
    zone: tzinfo,
) -> Iterator[int]:
    """Yield the nominal times, in epoch ms, that are still to be sent under the entry's present
    rule.

    Raises:
        InvalidEntry: the schedule cannot list its past occurrences.
    """
    rule = entry.rule(zone)
    first = backfill.cursor or to_ms(backfill.start)
    end = to_ms(backfill.end)
    if backfill.start == backfill.end:
        rule = At(backfill.end)
    else:
        first = max(first, entry.start_ms or first)
        end = min(end, MAX_MS if entry.end_ms is None else entry.end_ms)
    known_times = (state.nominal, state.last, entry.start_ms)
    phase = next((ms for ms in known_times if ms is not None), first)

    at: int | None = _in_phase(rule, phase, first - 1)
    while at is not None:
        at = next_ms(rule, at)
        if at is None or at > end:
            return
        if isinstance(at, Question):
            expected = "one that tells its past occurrences"
            raise InvalidEntry("schedule", expected, entry.schedule, entry=entry.name)
        skipped_until = _end_of_skip(backfill.skip, at)
        if skipped_until is None:
            yield at
        else:
            at = _in_phase(rule, phase, skipped_until)


def _in_phase(rule: Rule, phase: int, ms: int) -> int:
    """Return the instant to start from when a rule is asked for occurrences after ``ms``.

    An interval counts from one of its own instants, so the start has the same phase as ``phase``.
    """
    if isinstance(rule, Every) and not rule.on_grid:
        return ms - (ms - phase) % rule.ms
    return ms


def _end_of_skip(skip: Ranges, at: int) -> int | None:
    """Return the end of the range that holds ``at``; ``None`` if no range does."""
    place = bisect_right(skip, at, key=lambda span: span[0])
    if place and skip[place - 1][1] >= at:
        return skip[place - 1][1]
    return None


def room(backfill: Backfill, entry: Entry) -> int:
    """Return how many messages the next step may send."""
    most = _MOST
    if entry.once is not None and entry.once.at_publish:
        # All runs of the entry may need the same once-lock, and only one of them can get it.
        most = 1
    if backfill.max_active is None:
        return min(most, max(1, round(backfill.rate * _STEP)))
    return min(most, backfill.max_active - len(backfill.active))


def went_out(backfill: Backfill, sent: Sequence[int], *, is_all: bool) -> Backfill:
    """Return the backfill after a step.

    Parameters:
        sent: nominal times, in epoch ms, of the sent messages.
        is_all: whether no occurrence is left to send.
    """
    return replace(
        backfill,
        cursor=sent[-1] + 1 if sent else backfill.cursor,
        sent=backfill.sent + len(sent),
        active=() if backfill.max_active is None else (*backfill.active, *sent),
        ended="done" if is_all else backfill.ended,
        attempts=0,
    )


def covered(backfill: Backfill) -> Ranges:
    """Return the ranges that this backfill and the earlier ones have sent."""
    if not backfill.sent:
        return backfill.skip
    return merged([*backfill.skip, (to_ms(backfill.start), backfill.cursor - 1)])


def merged(ranges: Ranges) -> Ranges:
    """Return ranges that cover the same times, where no two ranges overlap or adjoin.

    So only the last range that begins at or before a time can hold that time.
    """
    result: list[Sequence[int]] = []
    for first, last in sorted(ranges, key=lambda span: span[0]):
        if result and first <= result[-1][1] + 1:
            before_first, before_last = result.pop()
            result.append((before_first, max(before_last, last)))
        else:
            result.append((first, last))
    return result

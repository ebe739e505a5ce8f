"""Backfills: the request, the progress, and the runs to send next.

Redis holds the request as a definition and the progress as a state, as it does for an entry.
Nothing here asks the server or a clock.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime, tzinfo
from typing import Annotated, Any, ClassVar

from .._base.errors import CorruptEntry, InvalidEntry
from .._base.fields import Model, checked_kind, whole
from .._base.public import public
from .._base.times import MAX_MS, MIN_MS, to_ms
from ..rules import At, Every, Question, Rule, next_ms
from ..store.json_values import dumps, loads
from ..store.records import Edit, Stored
from .entry import Entry
from .model import NAME
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

#: Number that counts something.
_COUNT = whole(0)


def _is_rate(value: Any) -> bool:
    return type(value) in (int, float) and SLOWEST <= value <= FASTEST


def _are_instants(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(type(ms) is int for ms in value)


def _are_ranges(value: Any) -> bool:
    if not isinstance(value, (list, tuple)):
        return False
    return all(_are_instants(span) and len(span) == 2 for span in value)


_RATE = checked_kind("N", f"a number from {SLOWEST} to {FASTEST}", _is_rate)
_INSTANTS = checked_kind("", "a list of epoch milliseconds", _are_instants)
_RANGES = checked_kind("", "pairs of epoch milliseconds", _are_ranges)


@public
class Backfill(Model, frozen=True):
    """Past occurrences of an entry that are sent late or sent again. Datetimes are aware.

    Parameters:
        id: short random text; empty if no backfill was started.
        name: name of the entry.
        start: the first nominal time.
        end: the last nominal time.
        max_active: maximum number of runs in flight at once; ``None`` limits only the ``rate``.
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

    forms: ClassVar[str] = "an object"

    id: str
    name: Annotated[str, NAME]
    start: datetime
    end: datetime
    max_active: Annotated[int | None, whole(1, 1000)]
    rate: Annotated[float, _RATE]
    again: Annotated[int, whole(0, 10**6)]
    note: str
    actor: str
    at: datetime
    generation: str
    number: Annotated[int, _COUNT] = 0
    skip: Annotated[Ranges, _RANGES] = ()
    total: Annotated[int, _COUNT] = 0
    sent: Annotated[int, _COUNT] = 0
    paused: bool = False
    ended: str = ""
    active: Annotated[Sequence[int], _INSTANTS] = ()
    cursor: Annotated[int, whole(MIN_MS, MAX_MS)] = 0
    feed: str = ""
    attempts: Annotated[int, _COUNT] = 0

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
        # Only the progress changes, so the definition is kept (``None``).
        if before is not None:
            return Edit(self.id, before.state.encode(), self.state, None, due)
        fields = self.encode()
        # The progress is stored apart from the definition, and the id is the name of both.
        for field in (*_STATE, "id"):
            fields.pop(field, None)
        return Edit(self.id, None, self.state, dumps(fields), due)


def backfill_of(stored: Stored) -> Backfill | None:
    """Return the stored backfill; ``None`` if there is none, or if it cannot be read."""
    with suppress(CorruptEntry, InvalidEntry, TypeError, UnicodeDecodeError):
        fields = loads(stored.definition or b"")
        progress = loads(stored.state or b"")
        backfill: Backfill = Backfill.decode({**fields, **progress, "id": stored.name.decode()})
        return backfill
    return None


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
        # A backfill of one instant sends it, even if the present rule does not name it.
        rule = At(backfill.end)
    else:
        first = max(first, entry.start_ms or first)
        end = min(end, MAX_MS if entry.end_ms is None else entry.end_ms)
    # An interval has no phase of its own, so take it from an occurrence of the entry.
    known_times = (state.nominal, state.last, entry.start_ms)
    phase = next((ms for ms in known_times if ms is not None), first)

    # A rule is asked for what comes after an instant, and ``first`` itself may be sent.
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
    # A slow rate would round to no message at all.
    if backfill.max_active is None:
        return min(most, max(1, round(backfill.rate * _STEP)))
    # With ``max_active``, fill the places of the runs that have ended.
    return min(most, backfill.max_active - len(backfill.active))


def went_out(backfill: Backfill, sent: Sequence[int], *, is_all: bool) -> Backfill:
    """Return the backfill after a step.

    Parameters:
        sent: nominal times, in epoch ms, of the sent messages.
        is_all: whether no occurrence is left to send.
    """
    return backfill.but(
        cursor=sent[-1] + 1 if sent else backfill.cursor,
        sent=backfill.sent + len(sent),
        # Runs in flight matter to ``max_active`` alone.
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

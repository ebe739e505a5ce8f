"""Backfills: the request, the progress, and the runs to send next.

The beat carries out a backfill in steps. A step sends some of its messages, if any may be sent now,
and plans the next step. Redis stores a backfill as one JSON text under its id. Nothing in this
module asks the server or a clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Annotated, Any, ClassVar

from msgspec import Meta, ValidationError, convert

from .._base.errors import CorruptEntry, InvalidEntry
from .._base.fields import Kind, Model, checked_kind, whole
from .._base.json_values import dumps, loads
from .._base.public import public
from .._base.times import MAX_MS, MIN_MS, to_ms
from ..rules import Question, at, counts_from_run
from ..rules.occurrences import occurrences
from . import lifecycle
from .changes import Edit, Stored
from .entry import Entry
from .model import NAME
from .state import EntryState

#: Ranges of nominal times (the times that the schedule says) in epoch ms, both ends included. They
#: are in order, and no two overlap or touch.
Ranges = Sequence[Sequence[int]]

# Maximum number of messages that one step sends. Fifty messages take 4 ms if the message of the
# entry is prepared, and 20 ms otherwise.
_MAX_MESSAGES = 50

# A step without ``max_active`` sends the messages that the rate allows in so many seconds.
_STEP_SECONDS = 0.1

# Milliseconds until the next step of a backfill with ``max_active``, which has no rate.
_SHORTEST_WAIT = 10

# Milliseconds until the next step after one that could not send, because it waits for a run to end,
# or for a lock. Each further wait is twice as long, up to the longest one.
_FIRST_WAIT = 200
_LONGEST_WAIT = 4000


def _typed(expected: str, value_type: Any) -> Kind:
    """Return the kind of the values that msgspec accepts for a type."""

    def has_type(value: Any) -> bool:
        with suppress(ValidationError):
            convert(value, value_type)
            return True
        return False

    return checked_kind(metavar="", expected=expected, is_right=has_type)


_COUNT = whole(0)
_RATE = _typed("a number from 0.001 to 1000", Annotated[float, Meta(ge=0.001, le=1000)])
_INSTANTS = _typed("a list of epoch milliseconds", list[int])
_RANGES = _typed("pairs of epoch milliseconds", list[tuple[int, int]])


@public
class Backfill(Model, frozen=True):
    """Past occurrences of an entry that are sent late or sent again. Datetimes are aware.

    Parameters:
        id: short random text; empty if no backfill was started.
        name: name of the entry.
        start: the first nominal time.
        end: the last nominal time.
        max_active: maximum number of runs in flight; with ``None``, the ``rate`` is the limit.
        rate: messages a second.
        again: how often these runs were sent before; 0 if never.
        note: reason for the backfill.
        actor: name of the person or program that started it.
        at: time of its start.
        generation: generation of the entry, a text that changes when the entry is removed and
            added again.
        number: number of earlier backfills with the same entry and ``again``.
        skip: ranges of nominal times, in epoch ms, that are not sent, because earlier backfills
            have sent them, or because their runs are not missing.
        total: number of occurrences to send.
        sent: number of occurrences sent so far.
        paused: whether the backfill is paused.
        ended: empty while it runs; then ``"done"``, or that it was cancelled, and why.
        active: nominal times, in epoch ms, of the runs in flight; empty without ``max_active``.
        cursor: earliest nominal time, in epoch ms, that was not sent yet.
        feed: time, in epoch ms of the server, up to which the feed (the stream of ended runs) was
            read.
        attempts: number of failed publishes in a row.
        wait: milliseconds from the last step to the next one.
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
    feed: Annotated[int, _COUNT] = 0
    attempts: Annotated[int, _COUNT] = 0
    wait: Annotated[int, _COUNT] = 0

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
    def text(self) -> str:
        """The backfill as Redis stores it."""
        return dumps(self.encode())

    def edit(self, before: Backfill | None, due: int | None) -> Edit:
        """Return the edit that stores this backfill if Redis still holds ``before``.

        Parameters:
            before: the stored backfill; ``None`` to store a new one.
            due: next time, in epoch ms, at which the beat takes a step; ``None``: never.
        """
        expected = None if before is None else before.text.encode()
        return Edit(self.id, expected, state=self.text, score=due)


def backfill_of(stored: Stored) -> Backfill | None:
    """Return the stored backfill; ``None`` if there is none, or if it cannot be read."""
    with suppress(CorruptEntry, InvalidEntry):
        backfill: Backfill = Backfill.decode(loads(stored.state or b""))
        # Ignore a copy that another program has stored under another name: no command would reach
        # it.
        if backfill.id.encode() == stored.name:
            return backfill
    return None


# -- The next step ---------------------------------------------------------------------------------


def unsent_times(backfill: Backfill, entry: Entry, state: EntryState) -> Iterator[int]:
    """Yield the nominal times, in epoch ms, that the backfill still has to send.

    They follow the present schedule of the entry.

    Parameters:
        state: state of the entry. It has an occurrence from which an interval is counted.

    Raises:
        InvalidEntry: the schedule cannot list its past occurrences.
    """
    rule = entry.rule
    first = backfill.cursor or to_ms(backfill.start)
    end = to_ms(backfill.end)
    if backfill.start == backfill.end:
        # A backfill of one instant sends it, even if the present rule does not name it.
        rule = at(backfill.end)
    else:
        first = max(first, entry.start_ms or first)
        end = min(end, entry.end_ms)
    # A rule gives the occurrence after an instant. As ``first`` itself may be one, ask for the one
    # after ``first - 1``. A rule that answers with a Question (a time at which to ask again) does
    # not know its occurrences in advance.
    if isinstance(rule.next_ms(first - 1), Question):
        expected = "one that tells its past occurrences"
        raise InvalidEntry("schedule", expected, entry.schedule, entry=entry.name)
    for begin, last in _ranges_without(backfill.skip, first, end):
        before = begin - 1
        if counts_from_run(rule):
            # The rule adds the interval to any instant that it gets. So move ``before`` back to an
            # instant that is a whole number of intervals from an occurrence of the entry.
            known_times = (state.nominal, state.last, entry.start_ms)
            anchor = next((ms for ms in known_times if ms is not None), first)
            before -= (before - anchor) % rule.ms
        for nominal in occurrences(rule, before):
            if nominal > last:
                break
            yield nominal


def _ranges_without(skip: Ranges, first: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of times from ``first`` to ``end`` that ``skip`` does not cover."""
    for skipped_first, skipped_last in skip:
        last = min(skipped_first - 1, end)
        if first <= last:
            yield first, last
        first = max(first, skipped_last + 1)
    if first <= end:
        yield first, end


def message_limit(backfill: Backfill, entry: Entry) -> int:
    """Return how many messages the next step may send."""
    most = _MAX_MESSAGES
    if entry.once is not None and entry.once.at_publish:
        # A message needs its once-lock before it is sent. All runs of the entry may need the same
        # lock, and only one of them can acquire it.
        most = 1
    if backfill.max_active is None:
        # A slow rate would round to no message at all, so send at least one.
        return min(most, max(1, round(backfill.rate * _STEP_SECONDS)))
    # If another program has changed the stored text, more runs may be in flight than ``max_active``
    # allows, and the difference may be negative.
    return max(min(most, backfill.max_active - len(backfill.active)), 0)


def after_step(backfill: Backfill, sent: Sequence[int]) -> Backfill:
    """Return the backfill after a step in which no publish failed.

    Parameters:
        sent: nominal times, in epoch ms, of the sent messages; empty if the step had to wait.
    """
    if not sent:
        # The step waited for a run or for a lock. The next wait is twice as long.
        wait = min(max(2 * backfill.wait, _FIRST_WAIT), _LONGEST_WAIT)
    elif len(sent) == backfill.left:
        # These messages were the last ones, unless an edit of the schedule has added occurrences.
        # The next step looks for more of them at once, and ends the backfill if there are none.
        wait = 0
    elif backfill.max_active is not None:
        # The number of runs in flight limits the pace, so look soon whether one has ended.
        wait = _SHORTEST_WAIT
    else:
        wait = round(1000 * len(sent) / backfill.rate)
    return backfill.but(
        cursor=sent[-1] + 1 if sent else backfill.cursor,
        sent=backfill.sent + len(sent),
        # Only ``max_active`` needs the runs in flight.
        active=() if backfill.max_active is None else (*backfill.active, *sent),
        attempts=0,
        wait=wait,
    )


def after_failure(backfill: Backfill) -> Backfill:
    """Return the backfill after a step whose messages could not be sent."""
    attempts = backfill.attempts + 1
    return backfill.but(attempts=attempts, wait=1000 * lifecycle.retry_delay(attempts))


def covered(backfill: Backfill) -> Ranges:
    """Return the ranges of nominal times that this backfill has sent so far, or leaves out."""
    if not backfill.sent:
        return backfill.skip
    return merged([*backfill.skip, (to_ms(backfill.start), backfill.cursor - 1)])


def merged(ranges: Ranges) -> Ranges:
    """Return as few ranges as possible that cover the same times, in order."""
    result: list[Sequence[int]] = []
    for first, last in sorted(ranges, key=lambda span: span[0]):
        # Join a range that overlaps the range before it, or follows it without a gap.
        if result and first <= result[-1][1] + 1:
            before_first, before_last = result.pop()
            result.append((before_first, max(before_last, last)))
        else:
            result.append((first, last))
    return result

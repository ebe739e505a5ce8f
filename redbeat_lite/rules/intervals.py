"""Schedules that do not depend on a clock on a wall: intervals, one instant, and by hand only."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TypeGuard

from celery.schedules import schedule

from .._base.errors import InvalidEntry
from .._base.fields import INSTANT, length
from .._base.public import public
from .._base.times import MAX_MS, MIN_MS, YEAR, Duration, duration_text, from_ms, to_ms
from .rule import RuleSchedule, SpreadSchedule, draw

#: Length of an interval. If it were shorter, the round trips to Redis and the broker would set the
#: pace. A longer one was probably written in a wrong unit.
_INTERVAL = length(0.05, 100 * YEAR)


def interval_ms(interval: object, *, exact: bool = True) -> int:
    """Return an interval in whole milliseconds.

    A fraction of a millisecond is refused if ``exact``, and rounded otherwise.
    """
    precise: float = 1000 * _INTERVAL.read("schedule", interval)
    ms = round(precise)
    # 0.07 * 1000 is 70.00000000000001. Accept so small a difference, because it is an error of the
    # float. The error of a longer interval is larger, so more is accepted there.
    if exact and abs(precise - ms) > 1e-6 * max(1.0, ms / 1000):
        hint = f"did you mean {ms / 1000:g}?"
        raise InvalidEntry("schedule", "whole milliseconds", interval, hint=hint)
    return ms


@public
class every(SpreadSchedule, schedule):  # type: ignore[misc]  # Celery ships no types
    """Repeat at a fixed interval of real time, whatever the clocks do.

    Each occurrence counts from the one before, and not from the moment when that was sent, so an
    interval never drifts.

    Parameters:
        interval: seconds, a timedelta or a text such as ``"1h30m"``; whole milliseconds, at least
            0.05 s and at most 100 years.
        align: run at the multiples of the interval since 1970-01-01T00:00Z instead of counting from
            the start, so that ``every(10, align=True)`` runs at :00, :10, :20. Intervals of hours
            and days align to UTC as well, because a real interval has no daylight saving; for local
            hours or midnight write ``cron("0 0 * * *", tz=...)``. A week aligns to Thursday, the
            weekday of 1970-01-01.
        spread: run at a fixed time after each of these multiples, and before the next one. The name
            of the entry decides this time. So it is the same on every machine, it does not depend
            on when the entry was added, and different entries rarely run at the same moment.

    Raises:
        InvalidEntry: not a positive number of whole milliseconds in these bounds, or both ``align``
            and ``spread``.
    """

    fields = (("every", "interval"), ("align", "align"), ("spread", "spread"))

    def __init__(self, interval: Duration, *, align: bool = False, spread: bool = False) -> None:
        if not isinstance(align, bool):
            raise InvalidEntry("align", "True or False", align)
        if not isinstance(spread, bool) or (spread and align):
            hint = 'it spreads over the whole interval; for some hours write cron("H H(0-5) * * *")'
            raise InvalidEntry("spread", "True or False, and not beside align", spread, hint=hint)
        self.ms = interval_ms(interval)
        self.align = align
        self.spread = spread
        #: Whether the occurrences are independent of the time when the entry began.
        self.on_grid = align or spread
        # Milliseconds after the multiples of the interval. With ``spread``, the name decides them.
        self.resolved = None if spread else 0
        super().__init__(timedelta(milliseconds=self.ms))

    @property
    def interval(self) -> str:
        """Length of the interval, such as ``"1h30m"``."""
        return duration_text(self.ms)

    def next_ms(self, ms: int) -> int | None:
        """Return the next occurrence after ``ms``. Without a grid, it is one interval later."""
        following = ms + self.ms
        # Occurrences on a grid lie ``resolved`` milliseconds after a multiple of the interval. The
        # remainder is the time from the last of them to ``ms``, so it is taken off.
        if self.on_grid:
            following -= (ms - self._require_resolved()) % self.ms
        return following if MIN_MS <= following <= MAX_MS else None

    def count_ms(self, after: int, until: int) -> int:
        """Return the number of occurrences in ``(after, until]``, both in epoch milliseconds."""
        anchor = self._anchor(after)
        # Number of whole intervals from the anchor to ``until``, less the number up to ``after``.
        return max(0, (until - anchor) // self.ms - (after - anchor) // self.ms)

    def last_ms(self, after: int, until: int) -> int:
        """Return the last occurrence in ``(after, until]``; ``after`` if there is none."""
        # Go back from ``until`` by the remainder, the part of the last interval that has passed.
        return max(after, until - (until - self._anchor(after)) % self.ms)

    def _anchor(self, after: int) -> int:
        """Return an instant that lies whole intervals away from each occurrence after ``after``."""
        return int(self._require_resolved()) if self.on_grid else after

    def describe_resolved(self) -> str:
        return f"{duration_text(self.resolved or 0)} after each full {duration_text(self.ms)}"

    def _resolve(self, name: str) -> int:
        """Return how many ms after each multiple of the interval the entry of this name runs."""
        return draw(f"spread:{name}", self.ms)


def counts_from_run(rule: object) -> TypeGuard[every]:
    """Whether a rule is an interval without a grid, which counts from run to run."""
    return isinstance(rule, every) and not rule.on_grid


@public
class at(RuleSchedule):
    """Run once.

    Parameters:
        instant: an aware datetime or its text in ISO 8601, such as ``"2026-12-01T09:00+01:00"``;
            kept to the millisecond (rounded up).

    Raises:
        InvalidEntry: the instant has no offset from UTC.
    """

    fields = (("at", "instant"),)

    def __init__(self, instant: datetime | str) -> None:
        self.ms = to_ms(INSTANT.read("schedule", instant))
        self.instant = from_ms(self.ms)
        super().__init__()

    def next_ms(self, ms: int) -> int | None:
        return self.ms if ms < self.ms else None


@public
class manual(RuleSchedule):
    """Run only when somebody asks for it, by ``Schedules.run_now`` or ``redbeat run``."""

    fields = (("manual", "is_manual"),)

    def __init__(self, is_manual: object = True) -> None:
        if is_manual is not True:
            raise InvalidEntry("schedule", "true", is_manual)
        self.is_manual = is_manual
        super().__init__()

    def __repr__(self) -> str:
        return "manual()"

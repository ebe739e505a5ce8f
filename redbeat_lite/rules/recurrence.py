"""Wall-clock times of an RFC 5545 recurrence.

dateutil says which days of a year the parts of a rule allow, and the days are cached by year. The
periods of INTERVAL, the positions of BYSETPOS and the times of day are computed from these days.
So a search starts near the time that is asked for, and its work is bounded. A search by dateutil
alone starts at DTSTART, and goes on to the year 9999 if nothing matches.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import MAXYEAR, date, datetime, timedelta
from functools import cached_property, lru_cache
from itertools import groupby
from typing import NamedTuple

from dateutil.rrule import YEARLY, rrule, weekday

from .wall_times import DayTimes

#: Seconds of the longest period of each frequency.
_LENGTHS = {
    "YEARLY": 366 * 86_400,
    "MONTHLY": 31 * 86_400,
    "WEEKLY": 7 * 86_400,
    "DAILY": 86_400,
    "HOURLY": 3600,
    "MINUTELY": 60,
    "SECONDLY": 1,
}
FREQUENCIES = tuple(_LENGTHS)
#: Most steps of one search, which takes half a second at worst. The days of a year are 100 steps; a
#: period that is looked at is one.
STEPS = 60_000
_STEPS_OF_YEAR = 100
#: The calendar repeats after 400 years, so a rule that has not matched for so long never will.
_YEARS = 400
_SECOND = timedelta(seconds=1)


class TooManySteps(Exception):
    """A search has used up its steps."""


class DayParts(NamedTuple):
    """Parts of an RRULE that choose days. A day matches if each part that is not empty allows it.

    Monday is weekday 0. In ``byday``, (0, 0) is every Monday and (0, -1) the last one.
    """

    bymonth: tuple[int, ...]
    bymonthday: tuple[int, ...]
    byyearday: tuple[int, ...]
    byweekno: tuple[int, ...]
    byday: tuple[tuple[int, int], ...]
    wkst: int


@dataclass(frozen=True)
class Parts:
    """Parts of an RRULE as written."""

    freq: str
    interval: int
    count: int | None
    until: datetime | None
    days: DayParts
    byhour: tuple[int, ...]
    byminute: tuple[int, ...]
    bysecond: tuple[int, ...]
    bysetpos: tuple[int, ...]


class _Search:
    """Bounds of one search."""

    def __init__(self, wall: datetime) -> None:
        self.last_year = wall.year + _YEARS
        self._steps = STEPS

    def take(self, steps: int) -> None:
        """Spend steps; raise TooManySteps if none are left."""
        self._steps -= steps
        if self._steps < 0:
            raise TooManySteps


@dataclass(frozen=True)
class Recurrence:
    """A rule with its start. Parts that the rule does not name come from the start.

    Times are naive.

    ``left_out_times`` and ``left_out_days`` are no occurrences, even if the parts allow them. COUNT
    is ignored here.
    """

    parts: Parts
    start: datetime
    left_out_times: frozenset[datetime] = frozenset()
    left_out_days: frozenset[date] = frozenset()

    @property
    def running(self) -> bool:
        """Whether the rule runs in every hour that matches, instead of at fixed times of day."""
        return len(self.parts.byhour) == 24 or (self._is_short and not self.parts.byhour)

    def next_wall(self, wall: datetime) -> datetime | None:
        """Return the first matching time later than ``wall``; None if the search finds none."""
        with suppress(TooManySteps):
            return next(self.walls(wall), None)
        return None

    def walls(self, wall: datetime) -> Iterator[datetime]:
        """Yield the matching times later than ``wall`` in order, until none matches for 400 years.

        Raises:
            TooManySteps: there may be another one, but the search has taken `STEPS` steps.
        """
        search = _Search(max(wall, self.start))
        find = self._find_in_days if self._is_short else self._find_in_periods
        with suppress(OverflowError):  # before the year 1, or after the year 9999
            after = max(wall, self.start - _SECOND)
            for found in find(after, search):
                if self.parts.until is not None and found > self.parts.until:
                    return
                is_left_out = found in self.left_out_times or found.date() in self.left_out_days
                if found > after and not is_left_out:
                    search.last_year = found.year + _YEARS
                    yield found

    @property
    def _is_short(self) -> bool:
        """Whether periods are shorter than a day."""
        return self._length < 86_400

    @property
    def _length(self) -> int:
        return _LENGTHS[self.parts.freq]

    @cached_property
    def _day_parts(self) -> DayParts:
        """The parts that choose days, completed from the start."""
        days = self.parts.days
        freq = self.parts.freq
        if not (days.byweekno or days.byyearday or days.bymonthday or days.byday):
            if freq == "WEEKLY":
                days = days._replace(byday=((self.start.weekday(), 0),))
            elif freq == "YEARLY" and not days.bymonth:
                days = days._replace(bymonth=(self.start.month,), bymonthday=(self.start.day,))
            elif freq in ("YEARLY", "MONTHLY"):
                days = days._replace(bymonthday=(self.start.day,))
        if freq == "MONTHLY" and not days.bymonth:
            days = days._replace(bymonth=tuple(range(1, 13)))
        return days

    @cached_property
    def _times(self) -> DayTimes:
        """The times of day that the parts allow, before INTERVAL and BYSETPOS choose from them."""
        hours = self.parts.byhour or (self.start.hour,)
        minutes = self.parts.byminute or (self.start.minute,)
        seconds = self.parts.bysecond or (self.start.second,)
        if self._is_short and not self.parts.byhour:
            hours = tuple(range(24))
        if self._length < 3600 and not self.parts.byminute:
            minutes = tuple(range(60))
        if self._length < 60 and not self.parts.bysecond:
            seconds = tuple(range(60))
        return DayTimes(hours, minutes, seconds)

    def _days(self, begin: date, search: _Search) -> Iterator[date]:
        """Yield the days that the parts allow, from ``begin`` on."""
        year = begin.year
        while year <= min(search.last_year, MAXYEAR):
            search.take(_STEPS_OF_YEAR)
            days = _days_of_year(self._day_parts, year)
            yield from days[bisect_left(days, begin) :]
            year += 1

    def _find_in_periods(self, after: datetime, search: _Search) -> Iterator[datetime]:
        """Yield the times of years, months, weeks or days. Some may be before ``after``."""
        begin = after.date()
        if self.parts.bysetpos:
            # The first period is incomplete, but it is over before ``after``.
            begin -= timedelta(seconds=self._length)
        times = range(len(self._times))
        first_period = self._period(self.start.date())
        for period, days in groupby(self._days(begin, search), self._period):
            if (period - first_period) % self.parts.interval == 0:
                yield from self._times_of_period(days, times, after, search)

    def _period(self, day: date) -> int:
        """Return the number of the year, month, week or day that ``day`` is in."""
        if self.parts.freq == "YEARLY":
            return day.year
        if self.parts.freq == "MONTHLY":
            return day.year * 12 + day.month
        if self.parts.freq == "WEEKLY":
            # Day 1 of the calendar is a Monday.
            return (day.toordinal() - 1 - self.parts.days.wkst) // 7
        return day.toordinal()

    def _find_in_days(self, after: datetime, search: _Search) -> Iterator[datetime]:
        """Yield the times of hours, minutes or seconds. Some may be before ``after``."""
        length = timedelta(seconds=self._length)
        stride = length * self.parts.interval
        first_period = self._begin_of_period(self.start)
        earliest = self._begin_of_period(after)
        for day in self._days(earliest.date(), search):
            if day in self.left_out_days:
                continue
            index = 0
            if day == earliest.date():
                index = bisect_left(self._times, earliest.time())
            while index < len(self._times):
                begin = self._begin_of_period(datetime.combine(day, self._times[index]))
                # The first period of the rule that begins then or later.
                period = begin + (first_period - begin) % stride
                if period == begin:
                    end = bisect_right(self._times, (begin + length - _SECOND).time())
                    yield from self._times_of_period([day], range(index, end), after, search)
                    index = end
                    continue
                search.take(1)
                if period.date() > day:
                    break
                index = bisect_left(self._times, period.time())

    def _begin_of_period(self, wall: datetime) -> datetime:
        """Return the begin of the hour, minute or second that a time is in."""
        seconds = (wall.minute * 60 + wall.second) % self._length
        return wall - timedelta(seconds=seconds, microseconds=wall.microsecond)

    def _times_of_period(
        self, days: Iterable[date], times: range, after: datetime, search: _Search
    ) -> Iterator[datetime]:
        """Yield the times of each day of a period. BYSETPOS, if there is one, chooses some of them.

        ``times`` are indexes of times of day. Times up to ``after`` may be skipped.
        """
        # Ten positions take as long as any other step.
        search.take(1 + len(self.parts.bysetpos) // 10)
        if self.parts.bysetpos:
            yield from self._at_positions(list(days), times)
            return
        for day in days:
            first = times.start
            if day == after.date():
                first = max(first, bisect_right(self._times, after.time()))
            if day not in self.left_out_days:
                for index in range(first, times.stop):
                    yield datetime.combine(day, self._times[index])

    def _at_positions(self, days: Sequence[date], times: range) -> Iterator[datetime]:
        """Yield the times of a period that BYSETPOS chooses."""
        total = len(days) * len(times)
        indexes = {place - 1 if place > 0 else total + place for place in self.parts.bysetpos}
        for index in sorted(indexes):
            if 0 <= index < total:
                day, time = divmod(index, len(times))
                yield datetime.combine(days[day], self._times[times[time]])


@lru_cache(maxsize=2048)
def _days_of_year(parts: DayParts, year: int) -> tuple[date, ...]:
    """Return the days of a year that match, in order."""
    rule = rrule(
        YEARLY,
        datetime(year, 1, 1),
        interval=MAXYEAR,  # dateutil stops after this year, because the next one is beyond 9999
        bymonth=parts.bymonth or None,
        bymonthday=parts.bymonthday or range(1, 32),
        byyearday=parts.byyearday or None,
        byweekday=_weekdays(parts) or None,
    )
    days = [occurrence.date() for occurrence in rule]
    # dateutil gives some days around New Year to a wrong week (BYWEEKNO=52, 53, -52 and -53).
    if parts.byweekno:
        weeks = set(parts.byweekno)
        days = [day for day in days if weeks & _week_numbers(day, parts.wkst)]
    return tuple(days)


def _weekdays(parts: DayParts) -> list[weekday]:
    """Return BYDAY for dateutil.

    For dateutil a day has to match both a plain weekday and a numbered one. So beside a numbered
    weekday, a plain one is replaced by that weekday with every number.
    """
    if all(nth == 0 for _, nth in parts.byday):
        return [weekday(day) for day, _ in parts.byday]
    most = 5 if parts.bymonth else 53
    weekdays = []
    for day, nth in parts.byday:
        numbers = [nth] if nth else range(1, most + 1)
        weekdays += [weekday(day, number) for number in numbers]
    return weekdays


def _week_numbers(day: date, wkst: int) -> set[int]:
    """Return the number of a day's week in its year, counted from the first and from the last."""
    # A week belongs to the year that its fourth day is in.
    fourth = day + timedelta(days=3 - (day.weekday() - wkst) % 7)
    days_before = fourth.timetuple().tm_yday - 1
    days_after = (date(fourth.year, 12, 31) - fourth).days
    return {days_before // 7 + 1, -(days_after // 7) - 1}

"""The wall-clock times of an RFC 5545 recurrence, found from any point without walking there from its start.

The answers are those of ``dateutil.rrule``. It walks from DTSTART, which takes minutes for a rule that counts seconds,
and for ever for one that never matches; here the period around a time is computed, and the search is bounded.
"""

from __future__ import annotations

import calendar
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, time, timedelta
from functools import cached_property, lru_cache
from itertools import count

from .wall_times import DayTimes

FREQUENCIES = ("YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY")
_UNITS = {"HOURLY": 3600, "MINUTELY": 60, "SECONDLY": 1}
_DAY, _SECOND = timedelta(days=1), timedelta(seconds=1)
#: Periods looked at before a rule counts as one that never matches again: 100 years of days, months, weeks, the 400
#: years after which the calendar repeats, and enough of the short ones for a rule that anybody would write.
_MAX_PERIODS = {"YEARLY": 400, "MONTHLY": 1200, "WEEKLY": 5300, "DAILY": 36_600}
_MAX_SHORT_PERIODS = 50_000


class TooManySteps(Exception):
    """A search used up the steps it was given."""


@dataclass(frozen=True)
class Parts:
    """The parts of an RRULE as written. Weekdays count from Monday = 0; (weekday, 0) is every one of them."""

    freq: str
    interval: int = 1
    count: int | None = None
    until: datetime | None = None
    wkst: int = 0
    bymonth: frozenset[int] = frozenset()
    bymonthday: frozenset[int] = frozenset()
    byyearday: frozenset[int] = frozenset()
    byweekno: frozenset[int] = frozenset()
    byday: frozenset[tuple[int, int]] = frozenset()
    byhour: frozenset[int] = frozenset()
    byminute: frozenset[int] = frozenset()
    bysecond: frozenset[int] = frozenset()
    bysetpos: frozenset[int] = frozenset()

    def completed(self, start: datetime) -> Parts:
        """With those of the days that are taken from the start."""
        if self.byweekno or self.byyearday or self.bymonthday or self.byday:
            return self
        if self.freq == "WEEKLY":
            return replace(self, byday=frozenset({(start.weekday(), 0)}))
        if self.freq == "MONTHLY":
            return replace(self, bymonthday=frozenset({start.day}))
        if self.freq == "YEARLY":
            return replace(self, bymonth=self.bymonth or frozenset({start.month}), bymonthday=frozenset({start.day}))
        return self

    def has(self, day: date) -> bool:
        """Whether they allow a day; every part that is given must agree."""
        return (
            (not self.bymonth or day.month in self.bymonth)
            and (not self.bymonthday or _counted(day.day, _days_in_month(day), self.bymonthday))
            and (not self.byday or self._has_weekday(day))
            and (not self.byyearday or _counted(day.timetuple().tm_yday, _days_in_year(day), self.byyearday))
            and (not self.byweekno or _counted(*_week(day, self.wkst), self.byweekno))
        )

    def _has_weekday(self, day: date) -> bool:
        # "2MO" is the second Monday of the month, except in a YEARLY rule without months: of the year.
        in_year = self.freq == "YEARLY" and not self.bymonth
        at = day.timetuple().tm_yday if in_year else day.day
        length = _days_in_year(day) if in_year else _days_in_month(day)
        weekday, ordinals = day.weekday(), (0, (at - 1) // 7 + 1, -((length - at) // 7) - 1)
        return any((weekday, nth) in self.byday for nth in ordinals)


@dataclass(frozen=True)
class Recurrence:
    """A rule with its start, a naive local time; what the parts leave open is taken from the start."""

    parts: Parts
    start: datetime

    @cached_property
    def _days(self) -> Parts:
        return self.parts.completed(self.start)

    @cached_property
    def _times(self) -> DayTimes:
        parts, at = self.parts, self.start
        given = (parts.byhour or {at.hour}, parts.byminute or {at.minute}, parts.bysecond or {at.second})
        return DayTimes(*(tuple(sorted(each)) for each in given))

    @property
    def running(self) -> bool:
        """Whether the rule runs through the hours of the clock rather than at fixed times of day."""
        return len(self.parts.byhour) == 24 or (self.parts.freq in _UNITS and not self.parts.byhour)

    def next_wall(self, wall: datetime) -> datetime | None:
        """The first matching time later than ``wall``; None when there is none within the bounds of the search."""
        return next(self.walls(wall), None)

    def walls(self, wall: datetime, steps: int | None = None) -> Iterator[datetime]:
        """The matching times later than ``wall``, in order, found in one go; it ends where `next_wall` has none.

        Parameters:
            steps: the most days, hours, minutes or seconds to look at for all of them together.

        Raises:
            TooManySteps: there may be another one, farther away than that.
        """
        search = self._short_periods if self.parts.freq in _UNITS else self._long_periods
        most, idle, taken = _MAX_PERIODS.get(self.parts.freq, _MAX_SHORT_PERIODS), 0, 0
        try:
            wall = max(wall, self.start - _SECOND)
            for days, times, cost in search(wall):
                for found in self._pick(days, times, wall) if days else ():
                    if self.parts.until is not None and found > self.parts.until:
                        return
                    idle = 0
                    yield found
                idle, taken = idle + 1, taken + cost
                if idle >= most:
                    return
                if steps is not None and taken > steps:
                    raise TooManySteps
        except OverflowError:  # before the year 1, or after the year 9999
            return

    def _pick(self, days: Sequence[date], times: Sequence[time], wall: datetime) -> Iterator[datetime]:
        """The times of a period that are later than ``wall``."""
        if self.parts.bysetpos:
            total = len(days) * len(times)
            chosen = {at if at > 0 else total + at + 1 for at in self.parts.bysetpos}
            at_times = (divmod(at - 1, len(times)) for at in sorted(chosen) if 1 <= at <= total)
            found = (datetime.combine(days[day], times[clock]) for day, clock in at_times)
            yield from (candidate for candidate in found if candidate > wall)
            return
        for day in days[bisect_right(days, wall.date() - _DAY) :]:
            first = bisect_right(times, wall.time()) if day == wall.date() else 0
            for at in range(first, len(times)):
                yield datetime.combine(day, times[at])

    def _long_periods(self, wall: datetime) -> Iterator[_Period]:
        """The matching days of each period from that of ``wall`` on, with the times of a day."""
        for index in count(self._index(wall.date()) // self.parts.interval):
            dates = self._dates(index * self.parts.interval)
            if dates is None:
                return
            yield [day for day in dates if self._days.has(day)], self._times, len(dates) + self._extra

    @property
    def _extra(self) -> int:
        """What the positions of a period cost, in steps: some ten of them as much as to look at a day."""
        return len(self.parts.bysetpos) // 10

    def _index(self, day: date) -> int:
        """How many years, months, weeks or days ``day`` is after the start."""
        start = self.start.date()
        if self.parts.freq == "YEARLY":
            return day.year - start.year
        if self.parts.freq == "MONTHLY":
            return (day.year - start.year) * 12 + day.month - start.month
        if self.parts.freq == "WEEKLY":
            return (day - self._week_start()).days // 7
        return (day - start).days

    def _week_start(self) -> date:
        start = self.start.date()
        return start - (start.weekday() - self.parts.wkst) % 7 * _DAY

    def _dates(self, index: int) -> list[date] | None:
        """The days of the period that is ``index`` years, months, weeks or days after that of the start."""
        start = self.start.date()
        if self.parts.freq == "DAILY":
            return [start + index * _DAY]
        if self.parts.freq == "WEEKLY":
            monday = self._week_start() + index * 7 * _DAY
            return [monday + i * _DAY for i in range(7)]
        months = start.year * 12 + (start.month - 1 + index if self.parts.freq == "MONTHLY" else index * 12)
        year, month = divmod(months, 12)
        if year > 9999:
            return None
        wanted = range(1, 13) if self.parts.freq == "YEARLY" else (month + 1,)
        allowed = [m for m in wanted if not self._days.bymonth or m in self._days.bymonth]
        return [date(year, m, d) for m in allowed for d in range(1, calendar.monthrange(year, m)[1] + 1)]

    def _short_periods(self, wall: datetime) -> Iterator[_Period]:
        """The hours, minutes or seconds from that of ``wall`` on, with the times in each; none where it is left out."""
        unit = _UNITS[self.parts.freq]
        stride = unit * self.parts.interval * _SECOND
        base = self.start - (self.start.minute * 60 + self.start.second) % unit * _SECOND
        index = max(0, (wall - base) // stride)
        while True:
            begin = base + index * stride
            end = self._left_out_until(begin)
            yield ([begin.date()], self._times_in(begin, unit), 1 + self._extra) if end is None else ((), (), 1)
            index = max(index + 1, -((base - end) // stride) if end is not None else 0)

    def _left_out_until(self, begin: datetime) -> datetime | None:
        """None if a period may begin here; else the end of the days, hours, minutes or seconds that are left out."""
        parts = self.parts
        if not self._days.has(begin.date()):
            return datetime.combine(begin.date() + _DAY, time())
        if parts.byhour and begin.hour not in parts.byhour:
            hours = _until(parts.byhour, begin.hour, 24)
            return begin.replace(minute=0, second=0) + timedelta(hours=hours)
        if parts.freq != "HOURLY" and parts.byminute and begin.minute not in parts.byminute:
            return begin.replace(second=0) + timedelta(minutes=_until(parts.byminute, begin.minute, 60))
        if parts.freq == "SECONDLY" and parts.bysecond and begin.second not in parts.bysecond:
            return begin + timedelta(seconds=_until(parts.bysecond, begin.second, 60))
        return None

    def _times_in(self, begin: datetime, unit: int) -> DayTimes:
        seconds = (begin.second,) if unit == 1 else self._times.seconds
        minutes = (begin.minute,) if unit <= 60 else self._times.minutes
        return DayTimes((begin.hour,), minutes, seconds)


def _until(allowed: frozenset[int], at: int, end: int) -> int:
    """How far it is from ``at`` to the next that is allowed, or to the end."""
    return min((each for each in allowed if each > at), default=end) - at


#: Days that match, the times in each, and how many days, hours, minutes or seconds were looked at for them.
_Period = tuple[Sequence[date], Sequence[time], int]


def _counted(at: int, total: int, wanted: frozenset[int]) -> bool:
    """Whether ``at`` is wanted, counted from the first or, negative, from the last."""
    return at in wanted or at - total - 1 in wanted


def _days_in_month(day: date) -> int:
    return calendar.monthrange(day.year, day.month)[1]


def _days_in_year(day: date) -> int:
    return 366 if calendar.isleap(day.year) else 365


def _week(day: date, wkst: int) -> tuple[int, int]:
    """The number of the week that ``day`` is in, and how many weeks its week-year has (ISO 8601 for Mondays)."""
    # A week belongs to the year that has at least four of its days, so to the year of its fourth day.
    year = (day + (3 - (day.weekday() - wkst) % 7) * _DAY).year
    first, following = _first_week(year, wkst), _first_week(year + 1, wkst)
    return (day - first).days // 7 + 1, (following - first).days // 7


@lru_cache(maxsize=1024)
def _first_week(year: int, wkst: int) -> date:
    fourth = date(year, 1, 4)
    return fourth - (fourth.weekday() - wkst) % 7 * _DAY

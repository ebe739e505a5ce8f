"""The wall-clock times of an RFC 5545 recurrence, found from any point without walking there from its start.

The answers are those of ``dateutil.rrule``. It walks from DTSTART, which takes minutes for a rule that counts seconds,
and for ever for one that never matches; here the period around a time is computed, and the search is bounded.
"""

from __future__ import annotations

import calendar
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from itertools import product

FREQUENCIES = ("YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY")
_UNITS = {"HOURLY": 3600, "MINUTELY": 60, "SECONDLY": 1}
_DAY, _SECOND = timedelta(days=1), timedelta(seconds=1)
#: Periods looked at before a rule counts as one that never matches again: 100 years of days, months, weeks, and the
#: 400 years after which the calendar repeats.
_MAX_PERIODS = {"YEARLY": 400, "MONTHLY": 1200, "WEEKLY": 5300, "DAILY": 36_600}
_MAX_SHORT_PERIODS = 50_000


@dataclass(frozen=True)
class Parts:
    """The parts of an RRULE as written. Weekdays count from Monday = 0; (weekday, 0) is every one of them."""

    freq: str
    interval: int = 1
    count: int | None = None
    until: datetime | None = None
    wkst: int = 0
    bymonth: tuple[int, ...] = ()
    bymonthday: tuple[int, ...] = ()
    byyearday: tuple[int, ...] = ()
    byweekno: tuple[int, ...] = ()
    byday: tuple[tuple[int, int], ...] = ()
    byhour: tuple[int, ...] = ()
    byminute: tuple[int, ...] = ()
    bysecond: tuple[int, ...] = ()
    bysetpos: tuple[int, ...] = ()

    @property
    def running(self) -> bool:
        """Whether the rule runs through the hours of the clock rather than at fixed times of day."""
        return len(self.byhour) == 24 or (self.freq in _UNITS and not self.byhour)


@dataclass(frozen=True)
class Recurrence:
    """A rule with its start, a naive local time; what the parts leave open is taken from the start."""

    parts: Parts
    start: datetime
    _hash: int = field(init=False, repr=False, compare=False)
    _days: _DayFilter = field(init=False, repr=False, compare=False)
    _times: tuple[time, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.parts, self.start)))
        object.__setattr__(self, "_days", _DayFilter(self.parts, self.start))
        object.__setattr__(self, "_times", _times(self.parts, self.start))

    def __hash__(self) -> int:
        return self._hash

    @property
    def running(self) -> bool:
        return self.parts.running

    def next_wall(self, wall: datetime) -> datetime | None:
        """The first matching time later than ``wall``; None when there is none within the bounds of the search."""
        wall = max(wall, self.start - _SECOND)
        search = self._short_periods if self.parts.freq in _UNITS else self._long_periods
        try:
            for days, times in search(wall):
                found = self._pick(days, times, wall)
                if found is not None:
                    return None if self.parts.until is not None and found > self.parts.until else found
        except OverflowError:  # the year 9999
            return None
        return None

    def _pick(self, days: Sequence[date], times: Sequence[time], wall: datetime) -> datetime | None:
        """The first time of a period that is later than ``wall``."""
        if self.parts.bysetpos:
            total = len(days) * len(times)
            chosen = {at if at > 0 else total + at + 1 for at in self.parts.bysetpos}
            at_times = (divmod(at - 1, len(times)) for at in sorted(chosen) if 1 <= at <= total)
            found = (datetime.combine(days[day], times[clock]) for day, clock in at_times)
            return next((candidate for candidate in found if candidate > wall), None)
        for day in days[bisect_right(days, wall.date() - _DAY) :]:
            at = bisect_right(times, wall.time()) if day == wall.date() else 0
            if at < len(times):
                return datetime.combine(day, times[at])
        return None

    def _long_periods(self, wall: datetime) -> Iterator[tuple[Sequence[date], Sequence[time]]]:
        """The matching days of each period from that of ``wall`` on, with the times of a day."""
        first = self._index(wall.date()) // self.parts.interval
        for index in range(first, first + _MAX_PERIODS[self.parts.freq]):
            dates = self._dates(index * self.parts.interval)
            if dates is None:
                return
            yield [day for day in dates if self._days.has(day)], self._times

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
        allowed = [m for m in wanted if not self.parts.bymonth or m in self.parts.bymonth]
        return [date(year, m, d) for m in allowed for d in range(1, calendar.monthrange(year, m)[1] + 1)]

    def _short_periods(self, wall: datetime) -> Iterator[tuple[Sequence[date], Sequence[time]]]:
        """The hours, minutes or seconds from that of ``wall`` on which the rule allows, with the times in each."""
        unit = _UNITS[self.parts.freq]
        stride = unit * self.parts.interval * _SECOND
        base = self.start - self._into_unit(unit)
        index = max(0, (wall - base) // stride)
        for _ in range(_MAX_SHORT_PERIODS):
            begin = base + index * stride
            end = self._left_out_until(begin)
            if end is None:
                yield [begin.date()], self._times_in(begin, unit)
            index = max(index + 1, -((base - end) // stride) if end is not None else 0)

    def _into_unit(self, unit: int) -> timedelta:
        return (self.start.minute * 60 + self.start.second) % unit * _SECOND

    def _left_out_until(self, begin: datetime) -> datetime | None:
        """None if a period may begin here; else the end of the day, hour or minute that the rule leaves out."""
        parts = self.parts
        if not self._days.has(begin.date()):
            return datetime.combine(begin.date() + _DAY, time())
        if parts.byhour and begin.hour not in parts.byhour:
            return begin.replace(minute=0, second=0) + timedelta(hours=1)
        if parts.freq != "HOURLY" and parts.byminute and begin.minute not in parts.byminute:
            return begin.replace(second=0) + timedelta(minutes=1)
        if parts.freq == "SECONDLY" and parts.bysecond and begin.second not in parts.bysecond:
            return begin + _SECOND
        return None

    def _times_in(self, begin: datetime, unit: int) -> list[time]:
        seconds = [begin.second] if unit == 1 else self.parts.bysecond or [self.start.second]
        minutes = [begin.minute] if unit <= 60 else self.parts.byminute or [self.start.minute]
        return [time(begin.hour, minute, second) for minute, second in product(minutes, seconds)]


def _times(parts: Parts, start: datetime) -> tuple[time, ...]:
    hours, minutes = parts.byhour or (start.hour,), parts.byminute or (start.minute,)
    return tuple(time(*clock) for clock in product(hours, minutes, parts.bysecond or (start.second,)))


class _DayFilter:
    """Which days a rule allows; every part that is given must agree."""

    def __init__(self, parts: Parts, start: datetime) -> None:
        self.wkst, self.byweekno = parts.wkst, parts.byweekno
        self.bymonth, self.bymonthday, self.byyearday, self.byday = (
            parts.bymonth,
            parts.bymonthday,
            parts.byyearday,
            parts.byday,
        )
        #: "2MO" is the second Monday of the month, except in a YEARLY rule without months: of the year.
        self.in_year = parts.freq == "YEARLY" and not parts.bymonth
        if not (parts.byweekno or parts.byyearday or parts.bymonthday or parts.byday):
            self._complete(parts.freq, start)

    def _complete(self, freq: str, start: datetime) -> None:
        if freq == "YEARLY" and not self.bymonth:
            self.bymonth = (start.month,)
        if freq in ("YEARLY", "MONTHLY"):
            self.bymonthday = (start.day,)
        if freq == "WEEKLY":
            self.byday = ((start.weekday(), 0),)

    def has(self, day: date) -> bool:
        return (
            (not self.bymonth or day.month in self.bymonth)
            and (not self.bymonthday or _counted(day.day, _days_in_month(day), self.bymonthday))
            and (not self.byday or self._weekday(day))
            and (not self.byyearday or _counted(day.timetuple().tm_yday, _days_in_year(day), self.byyearday))
            and (not self.byweekno or _counted(*_week(day, self.wkst), self.byweekno))
        )

    def _weekday(self, day: date) -> bool:
        weekday = day.weekday()
        at = day.timetuple().tm_yday if self.in_year else day.day
        length = _days_in_year(day) if self.in_year else _days_in_month(day)
        ordinals = (0, (at - 1) // 7 + 1, -((length - at) // 7) - 1)
        return any(weekday == wanted and nth in ordinals for wanted, nth in self.byday)


def _counted(at: int, total: int, wanted: tuple[int, ...]) -> bool:
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


def _first_week(year: int, wkst: int) -> date:
    fourth = date(year, 1, 4)
    return fourth - (fourth.weekday() - wkst) % 7 * _DAY

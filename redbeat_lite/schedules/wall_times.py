"""Wall-clock times of a recurring rule, without any time zone: which naive times match, which is next, how many.

`Days` says on which dates, `WallTimes` adds the times of day. Both are values: equal rules are equal objects.
"""

from __future__ import annotations

import calendar
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from functools import cached_property
from itertools import pairwise
from typing import Any

#: No date recurs more rarely than 29 February on a given weekday: once in 40 years, across a year like 2100.
_SEARCH_YEARS = 50
_LAST_YEAR = 9999
_REMEMBERED_MONTHS = 600
_WEEKS = calendar.Calendar()
_SECOND = timedelta(seconds=1)


@dataclass(frozen=True)
class Days:
    """The dates a rule names.

    Parameters:
        months: 1 to 12.
        month_days: 1 to 31; ``last_day`` adds the last day of each month, ``nearest_weekday`` (Monday to Friday
            nearest to that day, within the month) stands alone.
        weekdays: 0 is Sunday; ``nth_weekdays`` holds (weekday, nth) with -1 for the last in the month.
        either: whether one of month day and weekday is enough (cron), or both must match (Celery).
    """

    months: tuple[int, ...]
    month_days: tuple[int, ...] = ()
    last_day: bool = False
    nearest_weekday: int = 0
    weekdays: tuple[int, ...] = ()
    nth_weekdays: tuple[tuple[int, int], ...] = ()
    either: bool = False

    def of(self, year: int, month: int) -> tuple[int, ...]:
        """The matching days of a year's month, ascending."""
        known = self._known  # not functools.lru_cache: it would keep this alive in a ring, and out of a pickle
        if (found := known.get((year, month))) is None:
            if len(known) >= _REMEMBERED_MONTHS:
                known.clear()
            found = known[year, month] = self._match(year, month)
        return found

    @cached_property
    def _known(self) -> dict[tuple[int, int], tuple[int, ...]]:
        return {}

    def _match(self, year: int, month: int) -> tuple[int, ...]:
        if month not in self.months:
            return ()
        # calendar counts from Monday = 0, cron from Sunday = 0; days of other months come as 0.
        weekdays = {day: (weekday + 1) % 7 for day, weekday in _WEEKS.itermonthdays2(year, month) if day}
        by_date, by_weekday = self._by_date(weekdays), self._by_weekday(weekdays)
        return tuple(sorted(by_date | by_weekday if self.either else by_date & by_weekday))

    def _by_date(self, weekdays: dict[int, int]) -> set[int]:
        if self.nearest_weekday:
            wanted = min(self.nearest_weekday, len(weekdays))
            return {min((day for day in weekdays if 0 < weekdays[day] < 6), key=lambda day: abs(day - wanted))}
        days = {day for day in self.month_days if day in weekdays}
        return days | {len(weekdays)} if self.last_day else days

    def _by_weekday(self, weekdays: dict[int, int]) -> set[int]:
        days = {day for day, weekday in weekdays.items() if weekday in self.weekdays}
        for wanted, nth in self.nth_weekdays:
            all_of_them = [day for day, weekday in weekdays.items() if weekday == wanted]
            if nth <= len(all_of_them):
                days.add(all_of_them[nth if nth < 0 else nth - 1])
        return days


@dataclass(frozen=True)
class WallTimes:
    """Every combination of these hours, minutes and seconds on the dates of ``days``.

    ``running`` says how the rule meets a clock change; see `redbeat_lite.schedules.clock_changes`.
    """

    hours: tuple[int, ...]
    minutes: tuple[int, ...]
    seconds: tuple[int, ...]
    days: Days
    running: bool

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.hours, self.minutes, self.seconds, self.days, self.running))

    @cached_property
    def _of_day(self) -> DayTimes:
        return DayTimes(self.hours, self.minutes, self.seconds)

    def next_wall(self, wall: datetime) -> datetime | None:
        """The first matching time later than ``wall`` (naive), or None within 50 years or by the year 9999."""
        year, month = wall.year, wall.month
        days = self.days.of(year, month)
        if wall.day in days and (clock := self._later(wall.hour, wall.minute, wall.second)):
            return datetime(year, month, wall.day, *clock)
        following = bisect_right(days, wall.day)
        last_year = min(year + _SEARCH_YEARS, _LAST_YEAR)
        while following == len(days):
            year, month = self._following_month(year, month)
            if year > last_year:
                return None
            days, following = self.days.of(year, month), 0
        return datetime(year, month, days[following], self.hours[0], self.minutes[0], self.seconds[0])

    def count(self, after: datetime, until: datetime) -> int:
        """How many matching times lie in ``(after, until]``, by arithmetic on days rather than by walking."""
        return self._rank(until) - self._rank(after) + self._days_between(after, until) * len(self._of_day)

    @cached_property
    def shortest_gap(self) -> int:
        """Seconds between the two closest times, as if every day matched."""
        return min(self._gaps())

    def _gaps(self) -> Iterator[int]:
        """Seconds from the end of what lies within one value of a unit to what lies within the following."""
        span = 0
        for values, unit in ((self.seconds, 1), (self.minutes, 60), (self.hours, 3600)):
            yield from ((right - left) * unit - span for left, right in pairwise(values))
            span += (values[-1] - values[0]) * unit
        yield 86_400 - span

    def _later(self, hour: int, minute: int, second: int) -> tuple[int, int, int] | None:
        if hour in self.hours:
            if minute in self.minutes and (i := bisect_right(self.seconds, second)) < len(self.seconds):
                return hour, minute, self.seconds[i]
            if (i := bisect_right(self.minutes, minute)) < len(self.minutes):
                return hour, self.minutes[i], self.seconds[0]
        if (i := bisect_right(self.hours, hour)) < len(self.hours):
            return self.hours[i], self.minutes[0], self.seconds[0]
        return None

    def _following_month(self, year: int, month: int) -> tuple[int, int]:
        i = bisect_right(self.days.months, month)
        return (year, self.days.months[i]) if i < len(self.days.months) else (year + 1, self.days.months[0])

    def _rank(self, wall: datetime) -> int:
        """How many matching times of its own day are not later than ``wall``."""
        if wall.day not in self.days.of(wall.year, wall.month):
            return 0
        return bisect_right(self._of_day, wall.time())

    def _days_between(self, after: datetime, until: datetime) -> int:
        """Matching dates from that of ``after`` on and before that of ``until``; negative in the other order."""
        year, month, total = after.year, after.month, -bisect_left(self.days.of(after.year, after.month), after.day)
        while (year, month) < (until.year, until.month):
            total += len(self.days.of(year, month))
            year, month = (year, month + 1) if month < 12 else (year + 1, 1)
        return total + bisect_left(self.days.of(until.year, until.month), until.day)


class DayTimes(Sequence[time]):
    """Every combination of these hours, minutes and seconds, ascending. Not one is kept: there can be 86,400."""

    def __init__(self, hours: tuple[int, ...], minutes: tuple[int, ...], seconds: tuple[int, ...]) -> None:
        self.hours, self.minutes, self.seconds = hours, minutes, seconds

    def __len__(self) -> int:
        return len(self.hours) * len(self.minutes) * len(self.seconds)

    def __getitem__(self, at: Any) -> Any:
        rest, second = divmod(at, len(self.seconds))
        hour, minute = divmod(rest, len(self.minutes))
        return time(self.hours[hour], self.minutes[minute], self.seconds[second])


def before(wall: datetime) -> datetime:
    """One second earlier, so that a strictly later search may return ``wall`` itself."""
    return wall - _SECOND

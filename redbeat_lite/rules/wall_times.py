"""Wall-clock times of a rule without a time zone: which ones match, the next one, their number.

`Days` holds the dates, and `WallTimes` adds the times of day. Both are compared by value.
"""

from __future__ import annotations

import calendar
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import MAXYEAR, datetime, time, timedelta
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any

#: Years that are searched. The rarest date is 29 February on a weekday: after 40 years at most.
_SEARCH_YEARS = 50
_WEEKS = calendar.Calendar()
_SECOND = timedelta(seconds=1)


@dataclass(frozen=True)
class Days:
    """Dates that a rule names.

    Parameters:
        months: 1 to 12.
        month_days: 1 to 31; ``last_day`` adds the last day of each month.
        nearest_weekday: a day of the month, in place of ``month_days``. The weekday (Monday to
            Friday) nearest to it within the month matches.
        weekdays: 0 is Sunday; ``nth_weekdays`` holds (weekday, nth) with -1 for the last in the
            month.
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
        """Return the matching days of a month in ascending order."""
        return _days_of_month(self, year, month)

    def _match(self, year: int, month: int) -> tuple[int, ...]:
        """Return the matching days of a month, without the cache."""
        if month not in self.months:
            return ()
        # calendar counts from Monday = 0, cron from Sunday = 0; days of other months come as 0.
        days = _WEEKS.itermonthdays2(year, month)
        weekdays = {day: (weekday + 1) % 7 for day, weekday in days if day}
        by_date = self._by_date(weekdays)
        by_weekday = self._by_weekday(weekdays)
        return tuple(sorted(by_date | by_weekday if self.either else by_date & by_weekday))

    def _by_date(self, weekdays: dict[int, int]) -> set[int]:
        length = len(weekdays)
        if self.nearest_weekday:
            target = min(self.nearest_weekday, length)
            candidates = [day for day, weekday in weekdays.items() if 0 < weekday < 6]
            return {min(candidates, key=lambda day: abs(day - target))}
        days = {day for day in self.month_days if day <= length}
        return days | {length} if self.last_day else days

    def _by_weekday(self, weekdays: dict[int, int]) -> set[int]:
        days = {day for day, weekday in weekdays.items() if weekday in self.weekdays}
        for target, nth in self.nth_weekdays:
            same_weekday = [day for day, weekday in weekdays.items() if weekday == target]
            if nth <= len(same_weekday):
                days.add(same_weekday[nth if nth < 0 else nth - 1])
        return days


@lru_cache(maxsize=16_384)
def _days_of_month(days: Days, year: int, month: int) -> tuple[int, ...]:
    return days._match(year, month)


@dataclass(frozen=True)
class WallTimes:
    """Every combination of these hours, minutes and seconds on the dates of ``days``.

    ``running`` says how the rule meets a clock change; see `redbeat_lite.rules.clock_changes`.
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
    def _day_times(self) -> DayTimes:
        return DayTimes(self.hours, self.minutes, self.seconds)

    def next_wall(self, wall: datetime) -> datetime | None:
        """Return the first matching time later than ``wall``; None if there is none in 50 years."""
        year = wall.year
        month = wall.month
        days = self.days.of(year, month)
        if wall.day in days:
            later = self._later(wall.hour, wall.minute, wall.second)
            if later:
                return datetime(year, month, wall.day, *later)
        following = bisect_right(days, wall.day)
        last_year = min(year + _SEARCH_YEARS, MAXYEAR)
        while following == len(days):
            year, month = self._following_month(year, month)
            if year > last_year:
                return None
            days = self.days.of(year, month)
            following = 0
        first = self.hours[0], self.minutes[0], self.seconds[0]
        return datetime(year, month, days[following], *first)

    def _later(self, hour: int, minute: int, second: int) -> tuple[int, int, int] | None:
        """Return the first time of the same day that is later."""
        if hour in self.hours:
            if minute in self.minutes:
                later = bisect_right(self.seconds, second)
                if later < len(self.seconds):
                    return hour, minute, self.seconds[later]
            later = bisect_right(self.minutes, minute)
            if later < len(self.minutes):
                return hour, self.minutes[later], self.seconds[0]
        later = bisect_right(self.hours, hour)
        if later < len(self.hours):
            return self.hours[later], self.minutes[0], self.seconds[0]
        return None

    def _following_month(self, year: int, month: int) -> tuple[int, int]:
        following = bisect_right(self.days.months, month)
        if following < len(self.days.months):
            return year, self.days.months[following]
        return year + 1, self.days.months[0]

    def count(self, after: datetime, until: datetime) -> int:
        """Return the number of matching times in ``(after, until]``, without looking at each."""
        whole_days = self._count_days(after, until) * len(self._day_times)
        return whole_days + self._count_of_day(until) - self._count_of_day(after)

    def _count_of_day(self, wall: datetime) -> int:
        """Return the number of matching times on the day of ``wall`` that are not later."""
        if wall.day not in self.days.of(wall.year, wall.month):
            return 0
        return bisect_right(self._day_times, wall.time())

    def _count_days(self, after: datetime, until: datetime) -> int:
        """Return the number of matching dates from ``after`` on and before ``until``."""
        year = after.year
        month = after.month
        total = -bisect_left(self.days.of(year, month), after.day)
        while (year, month) < (until.year, until.month):
            total += len(self.days.of(year, month))
            month += 1
            if month > 12:
                month = 1
                year += 1
        return total + bisect_left(self.days.of(until.year, until.month), until.day)

    @cached_property
    def shortest_gap(self) -> int:
        """Seconds between the two closest times, as if every day matched."""
        return min(self._gaps())

    def _gaps(self) -> Iterator[int]:
        """Yield the gaps in seconds: those within a minute, between minutes, hours and days."""
        span = 0
        for values, unit in ((self.seconds, 1), (self.minutes, 60), (self.hours, 3600)):
            yield from ((right - left) * unit - span for left, right in pairwise(values))
            span += (values[-1] - values[0]) * unit
        yield 86_400 - span


class DayTimes(Sequence[time]):
    """Every combination of hours, minutes and seconds in ascending order.

    Each is computed when it is asked for, because there can be 86,400.
    """

    def __init__(
        self,
        hours: tuple[int, ...],
        minutes: tuple[int, ...],
        seconds: tuple[int, ...],
    ) -> None:
        self.hours = hours
        self.minutes = minutes
        self.seconds = seconds

    def __len__(self) -> int:
        return len(self.hours) * len(self.minutes) * len(self.seconds)

    def __getitem__(self, index: Any) -> Any:
        rest, second = divmod(index, len(self.seconds))
        hour, minute = divmod(rest, len(self.minutes))
        return time(self.hours[hour], self.minutes[minute], self.seconds[second])


def before(wall: datetime) -> datetime:
    """Return one second earlier, so that a search for later times may return ``wall`` itself."""
    return wall - _SECOND

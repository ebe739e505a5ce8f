"""Wall-clock times of a rule, without a time zone.

`Days` are the dates of a rule, found by dateutil. `WallTimes` adds the times of day; it finds the
next matching time and counts the matching times between two others.
"""

from __future__ import annotations

import calendar
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace
from datetime import MAXYEAR, date, datetime, time, timedelta
from functools import cached_property, lru_cache

from dateutil.rrule import YEARLY, rrule, weekday

#: Years that are searched. The rarest date, 29 February on a certain weekday, comes again after 40
#: years at the latest.
_SEARCH_YEARS = 50
_SECOND = timedelta(seconds=1)
_DAY = timedelta(days=1)


@dataclass(frozen=True)
class Days:
    """Dates that a rule names. A date matches if each part that is not empty allows it.

    Parameters:
        months: 1 to 12.
        month_days: 1 to 31, or -1 to -31 from the last day of the month.
        weekdays: pairs of a weekday (0 is Monday) and its number in the month, or in the year if
            there are no ``months``. Number -1 is the last one, and number 0 is every one.
        year_days: 1 to 366, or -1 to -366 from the last day of the year.
        weeks: 1 to 53, or -1 to -53 from the last week of the year.
        week_start: weekday on which weeks begin.
        nearest_weekday: a day of the month, in place of ``month_days``. The weekday (Monday to
            Friday) nearest to it within the month matches.
        either: whether one of month day and weekday is enough (cron), or both must match (Celery).
    """

    months: tuple[int, ...]
    month_days: tuple[int, ...] = ()
    weekdays: tuple[tuple[int, int], ...] = ()
    year_days: tuple[int, ...] = ()
    weeks: tuple[int, ...] = ()
    week_start: int = 0
    nearest_weekday: int = 0
    either: bool = False

    def of(self, year: int) -> tuple[date, ...]:
        """Return the matching dates of a year in ascending order."""
        return _dates_of_year(self, year)


@lru_cache(maxsize=1024)  # a miss takes 40 to 230 µs, a hit 2 µs; most rules share few dates
def _dates_of_year(days: Days, year: int) -> tuple[date, ...]:
    if days.either:
        by_date = replace(days, weekdays=(), either=False)
        by_weekday = replace(days, month_days=(), nearest_weekday=0, either=False)
        return tuple(sorted({*by_date.of(year), *by_weekday.of(year)}))
    if days.nearest_weekday:
        return tuple(_nearest_weekday(year, month, days.nearest_weekday) for month in days.months)
    rule = rrule(
        YEARLY,
        datetime(year, 1, 1),
        interval=MAXYEAR,  # dateutil stops after this year, because the next one is beyond 9999
        bymonth=days.months or None,
        bymonthday=days.month_days or range(1, 32),
        byyearday=days.year_days or None,
        byweekday=_byweekday(days) or None,
    )
    dates = [occurrence.date() for occurrence in rule]
    # dateutil gives some days around New Year to a wrong week (BYWEEKNO=52, 53, -52 and -53).
    if days.weeks:
        weeks = set(days.weeks)
        dates = [day for day in dates if weeks & _week_numbers(day, days.week_start)]
    return tuple(dates)


def _nearest_weekday(year: int, month: int, number: int) -> date:
    """Return the weekday of a month that is nearest to a day of the month."""
    target = date(year, month, min(number, calendar.monthrange(year, month)[1]))
    nearest_first = [target + offset * _DAY for offset in (0, -1, 1, -2, 2)]
    return next(day for day in nearest_first if day.month == month and day.weekday() < 5)


def _byweekday(days: Days) -> list[weekday]:
    """Return the weekdays as dateutil takes them.

    For dateutil a day has to match both a plain weekday and a numbered one. So beside a numbered
    weekday, a plain one is replaced by that weekday with every number.
    """
    if all(nth == 0 for _, nth in days.weekdays):
        return [weekday(day) for day, _ in days.weekdays]
    highest = 5 if days.months else 53
    weekdays = []
    for day, nth in days.weekdays:
        numbers = [nth] if nth else range(1, highest + 1)
        weekdays += [weekday(day, number) for number in numbers]
    return weekdays


def _week_numbers(day: date, week_start: int) -> set[int]:
    """Return the number of a day's week in its year, counted from the first and from the last."""
    # A week belongs to the year that its fourth day is in.
    fourth = day + (3 - (day.weekday() - week_start) % 7) * _DAY
    days_before = fourth.timetuple().tm_yday - 1
    days_after = (date(fourth.year, 12, 31) - fourth).days
    return {days_before // 7 + 1, -(days_after // 7) - 1}


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

    def next_wall(self, wall: datetime) -> datetime | None:
        """Return the first matching time later than ``wall``; None if there is none in 50 years."""
        year = wall.year
        dates = self.days.of(year)
        place = self._passed(dates, wall)
        last_year = min(year + _SEARCH_YEARS, MAXYEAR)
        while place == len(dates) * self._times_a_day:
            if year == last_year:
                return None
            year += 1
            dates = self.days.of(year)
            place = 0
        day, time_of_day = divmod(place, self._times_a_day)
        return datetime.combine(dates[day], self._time(time_of_day))

    def count(self, after: datetime, until: datetime) -> int:
        """Return the number of matching times in ``(after, until]``, without looking at each."""
        days = sum(len(self.days.of(year)) for year in range(after.year, until.year))
        passed_after = self._passed(self.days.of(after.year), after)
        passed_until = self._passed(self.days.of(until.year), until)
        return days * self._times_a_day + passed_until - passed_after

    @cached_property
    def _times_a_day(self) -> int:
        return len(self.hours) * len(self.minutes) * len(self.seconds)

    def _passed(self, dates: tuple[date, ...], wall: datetime) -> int:
        """Return the number of matching times up to ``wall`` in its year, which has these dates."""
        today = wall.date()
        day = bisect_left(dates, today)
        passed = day * self._times_a_day
        if day == len(dates) or dates[day] != today:
            return passed
        passed += bisect_left(self.hours, wall.hour) * len(self.minutes) * len(self.seconds)
        if wall.hour in self.hours:
            passed += bisect_left(self.minutes, wall.minute) * len(self.seconds)
            if wall.minute in self.minutes:
                passed += bisect_right(self.seconds, wall.second)
        return passed

    def _time(self, place: int) -> time:
        """Return the matching time at a place in the day. A list of all could have 86,400 items."""
        rest, second = divmod(place, len(self.seconds))
        hour, minute = divmod(rest, len(self.minutes))
        return time(self.hours[hour], self.minutes[minute], self.seconds[second])


def before(wall: datetime) -> datetime:
    """Return one second earlier, so that a search for later times may return ``wall`` itself."""
    return wall - _SECOND

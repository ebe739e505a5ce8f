"""Wall-clock rules on real clocks, whose local time can jump.

Clocks that are set back show an hour twice, which is a *fold*. Clocks that are set forward skip an
hour, which is a *gap*.

A *running* rule means "whenever the clock shows this". It runs in both passings of a fold, and does
not run for the times in a gap. A *fixed* rule means "at this time of day". In a fold it runs at the
first passing only. For all its times in a gap it runs once, at the first instant after the gap.

This holds for every jump of local time, also for half an hour and for the day that Samoa skipped.
Vixie cron has both kinds of rules as well, but counts some rules among the other kind.

`Days` are the dates of a rule, found by dateutil. `WallTimes` adds the times of day; it finds the
next matching time and counts the matching times between two others. A rule has them in a zone.
"""

from __future__ import annotations

import calendar
from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field, replace
from datetime import MAXYEAR, UTC, date, datetime, time, timedelta, tzinfo
from functools import lru_cache
from typing import Protocol

from dateutil.rrule import YEARLY, rrule, weekday

from .._base.times import EPOCH, from_ms
from .rule import Rule

_SECOND = timedelta(seconds=1)
#: Offsets of a zone are compared once in this many seconds. No zone jumps there and back in a day.
_STRIDE = 86_400
#: Years that are searched. The rarest date, 29 February on a certain weekday, comes again after 40
#: years at the latest.
_SEARCH_YEARS = 50
_DAY = timedelta(days=1)
#: Maximum number of skipped times that a sentence names; "…" stands for the others.
_NAMED = 3


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


@lru_cache(maxsize=1024)  # a miss takes 40 to 230 µs, a hit 2 µs; most rules share few dates
def dates_of(days: Days, year: int) -> tuple[date, ...]:
    """Return the matching dates of a year in ascending order."""
    numbered = tuple((day, nth) for day, nth in days.weekdays if nth)
    alternatives = []
    if days.either:
        by_date = replace(days, weekdays=(), either=False)
        by_weekday = replace(days, month_days=(), nearest_weekday=0, either=False)
        alternatives = [by_date, by_weekday]
    elif 0 < len(numbered) < len(days.weekdays):
        # dateutil would want a day to match both a plain weekday and a numbered one.
        plain = tuple((day, nth) for day, nth in days.weekdays if not nth)
        alternatives = [replace(days, weekdays=plain), replace(days, weekdays=numbered)]
    # A date that matches one of the alternatives is enough.
    if alternatives:
        return tuple(sorted({day for part in alternatives for day in dates_of(part, year)}))
    if days.nearest_weekday:
        return tuple(_nearest_weekday(year, month, days.nearest_weekday) for month in days.months)
    rule = rrule(
        YEARLY,
        datetime(year, 1, 1),
        interval=MAXYEAR,  # dateutil stops after this year, because the next one is beyond 9999
        bymonth=days.months or None,
        # Without this part, dateutil would take the day of the start, 1 January.
        bymonthday=days.month_days or range(1, 32),
        byyearday=days.year_days or None,
        byweekday=[weekday(day, nth or None) for day, nth in days.weekdays] or None,
    )
    dates = [occurrence.date() for occurrence in rule]
    # dateutil gives some days around New Year to a wrong week (BYWEEKNO=52, 53, -52 and -53).
    if days.weeks:
        weeks = set(days.weeks)
        dates = [day for day in dates if weeks & _week_numbers(day, days.week_start)]
    return tuple(dates)


def _nearest_weekday(year: int, month: int, number: int) -> date:
    """Return the weekday of a month that is nearest to a day of the month."""
    # The last day of a month takes the place of a day that the month does not have.
    target = date(year, month, min(number, calendar.monthrange(year, month)[1]))
    nearest_first = [target + offset * _DAY for offset in (0, -1, 1, -2, 2)]
    return next(day for day in nearest_first if day.month == month and day.weekday() < 5)


def _week_numbers(day: date, week_start: int) -> set[int]:
    """Return the number of a day's week in its year, and its negative number from the last week."""
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
        for year in range(wall.year, min(wall.year + _SEARCH_YEARS, MAXYEAR) + 1):
            dates = dates_of(self.days, year)
            # _passed() counts the matching times of the year up to ``wall``. This count is the
            # index of the next one, and divmod() splits it into the indexes of second, minute,
            # hour, day.
            rest, second_index = divmod(self._passed(dates, wall), len(self.seconds))
            rest, minute_index = divmod(rest, len(self.minutes))
            day_index, hour_index = divmod(rest, len(self.hours))
            if day_index < len(dates):
                hour = self.hours[hour_index]
                minute = self.minutes[minute_index]
                clock = time(hour, minute, self.seconds[second_index])
                return datetime.combine(dates[day_index], clock)
        return None

    def count(self, after: datetime, until: datetime) -> int:
        """Return the number of matching times in ``(after, until]``, without looking at each."""
        count = 0
        for year in range(after.year, until.year + 1):
            dates = dates_of(self.days, year)
            count += self._passed(dates, until) - self._passed(dates, after)
        return count

    def _passed(self, dates: tuple[date, ...], wall: datetime) -> int:
        """Return the number of matching times on these dates that are not later than ``wall``.

        Parameters:
            dates: the matching dates of a year; ``wall`` may be in another year.
        """
        today = wall.date()
        day = bisect_left(dates, today)
        hour = minute = second = 0
        if day < len(dates) and dates[day] == today:
            hour = bisect_left(self.hours, wall.hour)
            if wall.hour in self.hours:
                minute = bisect_left(self.minutes, wall.minute)
                if wall.minute in self.minutes:
                    second = bisect_right(self.seconds, wall.second)
        # Each day has the same hours, each hour the same minutes, each minute the same seconds.
        passed_hours = day * len(self.hours) + hour
        passed_minutes = passed_hours * len(self.minutes) + minute
        return passed_minutes * len(self.seconds) + second


def before(wall: datetime) -> datetime:
    """Return the time one second earlier, so that a search for later times finds ``wall``, too."""
    return wall - _SECOND


class Walls(Hashable, Protocol):
    """Times of a rule on a clock without a zone."""

    @property
    def running(self) -> bool: ...

    def next_wall(self, wall: datetime) -> datetime | None: ...


def offset_at(zone: tzinfo, second: int) -> int:
    """Return the seconds that ``zone`` is ahead of UTC at a second since 1970."""
    local = (EPOCH + second * _SECOND).astimezone(zone)
    return local.utcoffset() // _SECOND  # type: ignore[operator]  # it is aware


def jump_between(zone: tzinfo, before: int, after: int) -> int:
    """Return the first second in ``(before, after]`` that has the offset of ``after``."""
    target = offset_at(zone, after)
    # The offset changes once between the two, so a binary search finds the change.
    seconds = range(before + 1, after + 1)
    index = bisect_left(seconds, True, key=lambda second: offset_at(zone, second) == target)
    return seconds[index]


def stretches(zone: tzinfo, after: int, until: int) -> Iterator[tuple[int, int, int]]:
    """Split the seconds ``(after, until]`` at the jumps of the clocks.

    Yields ``(after, until, offset)`` for each part, in which the offset of the zone is the same.
    """
    start = after
    offset = offset_at(zone, after + 1)
    for here in range(after + 1, until, _STRIDE):
        there = min(here + _STRIDE, until)
        new_offset = offset_at(zone, there)
        if new_offset != offset:
            # The first second with the new offset begins the next part.
            end = jump_between(zone, here, there) - 1
            yield start, end, offset
            start = end
            offset = new_offset
    if start < until:
        yield start, until, offset


def naive(second: int) -> datetime:
    """Return the wall time of seconds since 1970 to which the offset of a zone was added."""
    return EPOCH.replace(tzinfo=None) + second * _SECOND


def first_passing(zone: tzinfo, wall: datetime) -> datetime:
    """Return the first instant at which the clock shows ``wall``, or the end of its gap."""
    local = wall.replace(tzinfo=zone)
    by_old_offset = local.astimezone(UTC)
    by_new_offset = local.replace(fold=1).astimezone(UTC)
    if by_new_offset >= by_old_offset:
        return by_old_offset
    # The clock has skipped this time (PEP 495): the old offset gives an instant after the jump, and
    # the new offset one before it. So the jump is between them.
    return EPOCH + _SECOND * jump_between(zone, _second(by_new_offset), _second(by_old_offset))


def _second(instant: datetime) -> int:
    return (instant - EPOCH) // _SECOND


def _next_fixed(walls: Walls, zone: tzinfo, second: int) -> int | None:
    """Return the next instant at which the clock shows a matching time for the first time.

    Instants are in seconds since 1970. The clock shows the times in a gap when the gap ends.
    """
    wall = walls.next_wall(naive(second + offset_at(zone, second)))
    while wall is not None:
        passing = _second(first_passing(zone, wall))
        # While the clock repeats an hour, it has shown its next times before. Leave them out.
        if passing > second:
            return passing
        wall = walls.next_wall(wall)
    return None


def _next_running(walls: Walls, zone: tzinfo, second: int) -> int | None:
    """Return the next second in which the clock shows a matching time.

    Each round assumes that the offset does not change. If it does, the next round begins at the
    jump.
    """
    while True:
        offset = offset_at(zone, second + 1)
        wall = walls.next_wall(naive(second + offset))
        if wall is None:
            return None
        following = _second(wall.replace(tzinfo=UTC)) - offset
        # No zone jumps there and back within a stride, so no jump before ``end`` is overlooked.
        end = min(following, second + _STRIDE)
        if offset_at(zone, end) != offset:
            # The clocks jump before they show ``wall``, so search again from the jump.
            second = jump_between(zone, second + 1, end) - 1
        elif end == following:
            return following
        else:
            # The offsets of a zone differ by less than two days. So no clock shows ``wall`` earlier
            # than two days before ``following``.
            second = max(end, following - 2 * _STRIDE)


@dataclass(frozen=True)
class ZonedRule(Rule):
    """Wall-clock rule in a zone."""

    walls: Walls
    zone: tzinfo = field(hash=False)  # a zone of dateutil has no hash

    def next_ms(self, ms: int) -> int | None:
        """Return the next occurrence after ``ms``, in epoch ms; ``None`` if there is none."""
        search = _next_running if self.walls.running else _next_fixed
        try:
            second = search(self.walls, self.zone, ms // 1000)
        except (OverflowError, ValueError):  # local time beyond the years 1 to 9999
            return None
        return None if second is None else second * 1000


@dataclass(frozen=True)
class CountedRule(ZonedRule):
    """Wall-clock rule whose occurrences can be counted without looking at each."""

    walls: WallTimes

    def count_ms(self, after: int, until: int) -> int:
        """Return the number of occurrences in ``(after, until]``, both in epoch milliseconds."""
        first = after // 1000
        parts = stretches(self.zone, first, until // 1000)
        # A running rule, such as every minute, runs whenever the clock shows a matching time: once
        # more if the clock is set back.
        if self.walls.running:
            return sum(
                self.walls.count(naive(start + offset), naive(end + offset))
                for start, end, offset in parts
            )
        # A fixed rule runs once for each time on the clock, however often the clock shows it.
        count = 0
        # Latest time that the clock has shown so far.
        shown = self._latest_shown(first)
        for start, end, offset in parts:
            begin = naive(start + offset)
            close = naive(end + offset)
            if begin > shown:
                # The times in a gap and the time at its end make one run.
                begin += _SECOND
                count += min(self.walls.count(shown, begin), 1)
            # In a fold, times that the clock has shown before do not run again.
            begin = max(begin, shown)
            shown = max(close, shown)
            if begin < close:
                count += self.walls.count(begin, close)
        return count

    def _latest_shown(self, second: int) -> datetime:
        """Return the latest time that the clock has shown until a second.

        While the clock shows an hour again, that is the end of the hour and not the present time.
        """
        parts = stretches(self.zone, second - _STRIDE, second)
        return max(naive(end + offset) for _, end, offset in parts)


# -- Effect of a clock change on one occurrence, in words ------------------------------------------


def hazard(rule: Rule, ms: int) -> str | None:
    """Describe the effect of a clock change on an occurrence; return ``None`` if there is none.

    Parameters:
        ms: nominal time of the occurrence, in epoch ms.
    """
    if not isinstance(rule, ZonedRule):
        return None
    return _fold_words(rule, from_ms(ms)) or _gap_words(rule, ms // 1000)


def _fold_words(rule: ZonedRule, instant: datetime) -> str | None:
    """Describe an occurrence at a time that clocks show twice; return ``None`` for another one."""
    local = instant.astimezone(rule.zone)
    # The local time of an instant never lies in a gap, so the two offsets differ only if clocks
    # show this time twice.
    if local.replace(fold=0).utcoffset() == local.replace(fold=1).utcoffset():
        return None
    shown = f"{local:%H:%M} comes twice"
    # A rule with a time of day runs the first time only, unless an RDATE names the second one.
    if rule.walls.running or local.fold:
        turn = "second" if local.fold else "first"
        return f"{shown}; this is the {turn} time"
    return f"{shown}; it runs the first time"


def _gap_words(rule: ZonedRule, second: int) -> str | None:
    """Describe the runs that fell into a gap of the last day.

    Return ``None`` unless the occurrence at ``second`` (since 1970) is the first one after the gap.
    """
    parts = [*stretches(rule.zone, second - _STRIDE, second)]
    # One jump of the clocks in the last day makes two parts.
    if len(parts) != 2:
        return None
    # ``last`` is the last second before the clocks jump.
    (_, last, behind), (_, _, ahead) = parts
    opens = naive(last + 1 + behind)
    closes = naive(last + 1 + ahead)
    # Clocks that are set back skip no time; then ``closes`` is before ``opens``. And only the first
    # run after the jump can stand for the skipped ones.
    if closes <= opens or rule.next_ms(last * 1000) != second * 1000:
        return None
    skipped: list[str] = []
    wall = rule.walls.next_wall(before(opens))
    while wall is not None and wall < closes and len(skipped) <= _NAMED:
        skipped.append(f"{wall:%H:%M}" if len(skipped) < _NAMED else "…")
        wall = rule.walls.next_wall(wall)
    if not skipped:
        return None
    effect = "no run for" if rule.walls.running else "runs in place of"
    return f"{effect} {', '.join(skipped)}: the clocks skip {opens:%H:%M} to {closes:%H:%M}"

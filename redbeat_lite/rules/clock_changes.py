"""Wall-clock rules on real clocks, whose local time can jump.

Clocks that are set back show an hour twice, which is a *fold*. Clocks that are set forward skip an
hour, which is a *gap*.

A *running* rule means "whenever the clock shows this". In a fold it runs both times, and for the
times in a gap it does not run. A *fixed* rule means "at this time of day". In a fold it runs only
the first time. For all its times in a gap it runs once, at the first instant after the gap.

This holds for every jump of local time, also for a jump of half an hour, and for the whole day that
Samoa skipped. Vixie cron has both kinds of rules as well, but some rules that are fixed here are
running there, and the reverse.

`Days` are the dates of a rule, found by dateutil. `WallTimes` adds the times of day; it finds the
next matching time and counts the matching times of a period. A `ZonedRule` has them in a zone.
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
#: Offsets of a zone are compared once in this many seconds, which are a day. No zone jumps forth
#: and back within a day, or is set back by more than a day.
_DAY_SECONDS = 86_400
#: Years that are searched. The rarest date, 29 February on a certain weekday, comes again after 40
#: years at the latest.
_SEARCH_YEARS = 50
_DAY = timedelta(days=1)
#: Maximum number of skipped times that a sentence names; "…" stands for more.
_NAMED = 3


@dataclass(frozen=True)
class Days:
    """Dates that a rule names. A date matches if each part that is not empty allows it.

    Parameters:
        months: 1 to 12.
        month_days: 1 to 31, or -1 to -31 counted back from the last day of the month.
        weekdays: pairs of a weekday (0 is Monday) and its number in the month, or in the year if
            there are no ``months``: ``(4, 2)`` is the second Friday. Number -1 is the last such
            weekday, and number 0 stands for every one.
        year_days: 1 to 366, or -1 to -366 counted back from the last day of the year.
        weeks: 1 to 53, or -1 to -53 counted back from the last week of the year.
        week_start: weekday on which weeks begin.
        nearest_weekday: a day of the month, in place of ``month_days``. The weekday (Monday to
            Friday) nearest to it within the month matches.
        either: true if a matching month day or a matching weekday is enough (cron); false if both
            must match (Celery).
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
    # Weekdays with a number, such as the second Friday. Number 0 stands for every such weekday.
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
    # A date matches if at least one of the alternatives allows it.
    if alternatives:
        return tuple(sorted({day for part in alternatives for day in dates_of(part, year)}))
    if days.nearest_weekday:
        return tuple(_nearest_weekday(year, month, days.nearest_weekday) for month in days.months)
    rule = rrule(
        YEARLY,
        datetime(year, 1, 1),
        # With an interval of 9,999 years, no second year is reached. So there are only dates of
        # ``year``.
        interval=MAXYEAR,
        bymonth=days.months or None,
        # If no day of the month is named, all are allowed. Without this part, dateutil would take
        # the day of the start, 1 January.
        bymonthday=days.month_days or range(1, 32),
        byyearday=days.year_days or None,
        byweekday=[weekday(day, nth or None) for day, nth in days.weekdays] or None,
    )
    dates = [occurrence.date() for occurrence in rule]
    # The weeks are checked here, because dateutil counts some days around New Year in a wrong week
    # (BYWEEKNO=52, 53, -52 and -53).
    if days.weeks:
        weeks = set(days.weeks)
        dates = [day for day in dates if weeks & _week_numbers(day, days.week_start)]
    return tuple(dates)


def _nearest_weekday(year: int, month: int, number: int) -> date:
    """Return the weekday of a month that is nearest to a day of the month."""
    # If the month does not have this day, its last day takes the place.
    target = date(year, month, min(number, calendar.monthrange(year, month)[1]))
    # Two days each way are enough to leave a weekend at the begin or the end of the month.
    nearest_first = [target + offset * _DAY for offset in (0, -1, 1, -2, 2)]
    return next(day for day in nearest_first if day.month == month and day.weekday() < 5)


def _week_numbers(day: date, week_start: int) -> set[int]:
    """Return both numbers of a day's week.

    One counts 1, 2, ... from the start of the year, and the other -1, -2, ... from its end.
    """
    # A week belongs to the year that its fourth day is in. The remainder of 7 is the place of
    # ``day`` in its week, from 0 on, and the fourth day has place 3.
    fourth = day + (3 - (day.weekday() - week_start) % 7) * _DAY
    # Each full seven days of the year before the fourth day, or after it, are one more week.
    days_before = fourth.timetuple().tm_yday - 1
    days_after = (date(fourth.year, 12, 31) - fourth).days
    return {days_before // 7 + 1, -(days_after // 7) - 1}


@dataclass(frozen=True)
class WallTimes:
    """Every combination of these hours, minutes and seconds on the dates of ``days``.

    If ``running``, the rule runs whenever a clock shows such a time; otherwise once for each time,
    also if a clock change skips or repeats it. See `redbeat_lite.rules.clock_changes`.
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
            # Number the matching times of the year from 0. The next one has the number of those
            # that have passed. Split this number into the indexes of its second, minute, hour and
            # day, as a number of seconds is split into minutes, hours and days.
            rest, second_index = divmod(self._passed(dates, wall), len(self.seconds))
            rest, minute_index = divmod(rest, len(self.minutes))
            day_index, hour_index = divmod(rest, len(self.hours))
            if day_index < len(dates):
                # The day exists, so a matching time is left in this year.
                hour = self.hours[hour_index]
                minute = self.minutes[minute_index]
                clock = time(hour, minute, self.seconds[second_index])
                return datetime.combine(dates[day_index], clock)
        return None

    def count(self, after: datetime, until: datetime) -> int:
        """Return the number of matching times in ``(after, until]``, without looking at each."""
        count = 0
        # In each year, subtract the times up to ``after`` from the times up to ``until``.
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
        # Number of matching dates before today.
        day = bisect_left(dates, today)
        hour = minute = second = 0
        # If today matches, count its hours that have passed, too. If the present hour matches, also
        # count its minutes that have passed. If the present minute matches, also count its seconds
        # up to the present one, which does not come again.
        if day < len(dates) and dates[day] == today:
            hour = bisect_left(self.hours, wall.hour)
            if wall.hour in self.hours:
                minute = bisect_left(self.minutes, wall.minute)
                if wall.minute in self.minutes:
                    second = bisect_right(self.seconds, wall.second)
        # Add up, in units of hours, then minutes, then seconds: each day has the same hours, each
        # hour the same minutes, each minute the same seconds.
        passed_hours = day * len(self.hours) + hour
        passed_minutes = passed_hours * len(self.minutes) + minute
        return passed_minutes * len(self.seconds) + second


def before(wall: datetime) -> datetime:
    """Return the time one second earlier, so that a search for later times also finds ``wall``."""
    return wall - _SECOND


class Walls(Hashable, Protocol):
    """Times of a rule on a clock without a zone."""

    @property
    def running(self) -> bool: ...

    def next_wall(self, wall: datetime) -> datetime | None: ...


def offset_at(zone: tzinfo, second: int) -> int:
    """Return the offset of a zone from UTC, in seconds, at a second since 1970."""
    local = (EPOCH + second * _SECOND).astimezone(zone)
    return local.utcoffset() // _SECOND  # type: ignore[operator]  # it is aware


def jump_between(zone: tzinfo, before: int, after: int) -> int:
    """Return when the clocks jump: the first second after ``before`` with the offset of ``after``.

    Instants are in seconds since 1970, and offsets from UTC in seconds.
    """
    target = offset_at(zone, after)
    # The offset changes once between the two, so a binary search finds the change.
    seconds = range(before + 1, after + 1)
    index = bisect_left(seconds, True, key=lambda second: offset_at(zone, second) == target)
    return seconds[index]


def stretches(zone: tzinfo, after: int, until: int) -> Iterator[tuple[int, int, int]]:
    """Split the seconds ``(after, until]`` at the jumps of the clocks.

    Yields ``(start, end, offset)`` for each part ``(start, end]``. Within a part, the offset of the
    zone from UTC is the same.
    """
    start = after
    offset = offset_at(zone, after + 1)
    # Compare the offsets at the begin and the end of each day.
    for here in range(after + 1, until, _DAY_SECONDS):
        there = min(here + _DAY_SECONDS, until)
        new_offset = offset_at(zone, there)
        if new_offset != offset:
            # A part ends with the last second that has the old offset.
            end = jump_between(zone, here, there) - 1
            yield start, end, offset
            start = end
            offset = new_offset
    if start < until:
        yield start, until, offset


def naive(second: int) -> datetime:
    """Return the time on the wall; ``second`` is seconds since 1970 plus the offset of the zone."""
    return EPOCH.replace(tzinfo=None) + second * _SECOND


def first_passing(zone: tzinfo, wall: datetime) -> datetime:
    """Return the first instant at which the clock shows ``wall``, or the jump that skips it."""
    local = wall.replace(tzinfo=zone)
    by_old_offset = local.astimezone(UTC)
    by_new_offset = local.replace(fold=1).astimezone(UTC)
    if by_new_offset >= by_old_offset:
        # The clock shows this time, once or twice. If twice, the old offset gives the first time.
        return by_old_offset
    # The clock has skipped this time (PEP 495): the old offset gives an instant after the jump, and
    # the new offset one before it. So the jump is between them.
    return EPOCH + _SECOND * jump_between(zone, _second(by_new_offset), _second(by_old_offset))


def _second(instant: datetime) -> int:
    """Return an instant in whole seconds since 1970."""
    return (instant - EPOCH) // _SECOND


def _next_fixed(walls: Walls, zone: tzinfo, second: int) -> int | None:
    """Return the next instant at which the clock shows a matching time for the first time.

    Instants are in seconds since 1970. A time that the clock skips counts as shown when the clock
    jumps.
    """
    # Next matching time after the local time at ``second``.
    wall = walls.next_wall(naive(second + offset_at(zone, second)))
    while wall is not None:
        passing = _second(first_passing(zone, wall))
        if passing > second:
            return passing
        # The clock is repeating an hour, and has shown ``wall`` before. Take the next time.
        wall = walls.next_wall(wall)
    return None


def _next_running(walls: Walls, zone: tzinfo, second: int) -> int | None:
    """Return the next instant at which the clock shows a matching time, also when repeated.

    Instants are in seconds since 1970. Each round of the search assumes that the offset of the zone
    does not change. If it changes, the next round begins at the jump.
    """
    while True:
        offset = offset_at(zone, second + 1)
        wall = walls.next_wall(naive(second + offset))
        if wall is None:
            return None
        # Instant at which the clock shows ``wall``, if it does not jump before.
        following = _second(wall.replace(tzinfo=UTC)) - offset
        # Look for a jump up to this instant, but at most one day ahead. Within a day, no zone jumps
        # forth and back, so no jump before ``end`` is overlooked.
        end = min(following, second + _DAY_SECONDS)
        if offset_at(zone, end) != offset:
            # The clocks jump before they show ``wall``, so search again from the jump.
            second = jump_between(zone, second + 1, end) - 1
        elif end == following:
            return following
        else:
            # The clocks do not jump up to ``end``, so go on from there. If ``following`` is far
            # away, go on from two days before it: the offsets of a zone differ by less than two
            # days, so a jump can bring ``wall`` forward by less than two days.
            second = max(end, following - 2 * _DAY_SECONDS)


@dataclass(frozen=True)
class ZonedRule(Rule):
    """Wall-clock rule in a zone."""

    walls: Walls
    zone: tzinfo = field(hash=False)  # a zone of dateutil has no hash

    def next_ms(self, ms: int) -> int | None:
        """Return the next occurrence after ``ms``, in epoch ms; ``None`` if there is none."""
        try:
            second = _next_second(self, ms // 1000)
        except (OverflowError, ValueError):  # local time beyond the years 1 to 9999
            return None
        return None if second is None else second * 1000


@lru_cache(maxsize=16_384)  # entries with the same rule search once
def _next_second(rule: ZonedRule, second: int) -> int | None:
    search = _next_running if rule.walls.running else _next_fixed
    return search(rule.walls, rule.zone, second)


@dataclass(frozen=True)
class CountedRule(ZonedRule):
    """Wall-clock rule whose occurrences can be counted without looking at each."""

    walls: WallTimes

    def count_ms(self, after: int, until: int) -> int:
        """Return the number of occurrences in ``(after, until]``, both in epoch milliseconds."""
        first = after // 1000
        # In each part, which excludes its start and includes its end, the offset of the zone from
        # UTC is the same. ``walls.count`` also excludes its first time and includes its last one.
        parts = stretches(self.zone, first, until // 1000)
        # A running rule, such as every minute, runs whenever the clock shows a matching time, and
        # so once more if the clock is set back.
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
                # The clock was set forward here, and the first time that it shows afterwards is a
                # second after ``begin``. The skipped times and this one, together, make one run if
                # any of them matches. The count below is of the times after this one.
                begin += _SECOND
                count += min(self.walls.count(shown, begin), 1)
            # If the clock was set back, times that it has shown before do not run again.
            begin = max(begin, shown)
            shown = max(close, shown)
            if begin < close:
                count += self.walls.count(begin, close)
        return count

    def _latest_shown(self, second: int) -> datetime:
        """Return the latest local time that the clock has shown up to an instant.

        While the clock repeats an hour, this is the end of that hour and not the present time.

        Parameters:
            second: the instant, in seconds since 1970.
        """
        # Clocks are set back by a day at most, so they have shown the latest time within a day. It
        # is at the end of a part, because the offset of the zone is the same within a part.
        parts = stretches(self.zone, second - _DAY_SECONDS, second)
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
    """Describe an occurrence at a time that clocks show twice; return ``None`` for any other."""
    local = instant.astimezone(rule.zone)
    # The local time of an instant never lies in a gap, so the two offsets differ only if clocks
    # show this time twice.
    if local.replace(fold=0).utcoffset() == local.replace(fold=1).utcoffset():
        return None
    shown = f"{local:%H:%M} comes twice"
    # A running rule, such as every minute, runs both times. A fixed rule runs the first time only.
    # If it has an occurrence at the second time (``fold`` is 1), an RDATE names this instant.
    if rule.walls.running or local.fold:
        turn = "second" if local.fold else "first"
        return f"{shown}; this is the {turn} time"
    return f"{shown}; it runs the first time"


def _gap_words(rule: ZonedRule, second: int) -> str | None:
    """Describe the runs that fell into a gap of the last day.

    Return ``None`` unless the occurrence at ``second`` (since 1970) is the first one after the gap.
    """
    # A part is ``(start, end, offset)``. One jump of the clocks in the last day makes two parts.
    parts = [*stretches(rule.zone, second - _DAY_SECONDS, second)]
    if len(parts) != 2:
        return None
    # ``last`` is the last second before the clocks jump. ``behind`` and ``ahead`` are the offsets
    # from UTC before and after the jump.
    (_, last, behind), (_, _, ahead) = parts
    # The clocks skip the local times from ``opens`` until ``closes``.
    opens = naive(last + 1 + behind)
    closes = naive(last + 1 + ahead)
    # Clocks that are set back skip no time; then ``closes`` is before ``opens``. Where they skip
    # times, only the first run after the jump runs in place of the skipped ones.
    if closes <= opens or rule.next_ms(last * 1000) != second * 1000:
        return None
    # Collect the first skipped times that match.
    skipped: list[str] = []
    wall = rule.walls.next_wall(before(opens))
    while wall is not None and wall < closes and len(skipped) <= _NAMED:
        skipped.append(f"{wall:%H:%M}" if len(skipped) < _NAMED else "…")
        wall = rule.walls.next_wall(wall)
    if not skipped:
        return None
    # A running rule has no run for skipped times. A fixed rule has one run in place of all of them.
    effect = "no run for" if rule.walls.running else "runs in place of"
    return f"{effect} {', '.join(skipped)}: the clocks skip {opens:%H:%M} to {closes:%H:%M}"

"""Rules in words, for those who do not read cron: common ones exactly, all others by their own text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import tzinfo

from celery.schedules import BaseSchedule, crontab

from ..schedules import Cron, rule_of
from ..schedules.clock_changes import CountedRule
from ..schedules.cron_text import WEEKDAYS
from ..schedules.wall_times import Days, WallTimes
from .schedule_text import schedule_text

_UNITS = {"d": "day", "h": "hour", "m": "minute", "s": "second"}
#: Times or days that are named one by one.
_NAMED = 4
#: The days that a rule matches are counted in this year, which has 365.
_SAMPLE_YEAR = 2027


def rule_words(schedule: BaseSchedule, zone: tzinfo) -> str:
    """A schedule in words, ``every day at 02:30, Europe/Berlin``; where there are none, as `schedule_text` has it."""
    text = schedule_text(schedule, zone)
    if type(schedule) is crontab or (isinstance(schedule, Cron) and schedule.resolved):
        rule = rule_of(schedule, zone)
        assert isinstance(rule, CountedRule)
        words = _of_wall(rule.walls)
        return f"{words}, {rule.zone_name}" if words else text
    return {"manual": "by hand only"}.get(text) or re.sub(r"^every (\d+)([dhms])\b( ?)", _of_length, text)


def either_day_words(schedule: BaseSchedule) -> str | None:
    """What a cron rule does that restricts both day fields, and what to write if both have to match.

    ``None`` for every other schedule.
    """
    if not isinstance(schedule, Cron) or not schedule.resolved:
        return None
    days = schedule.times.days
    if not days.either:
        return None
    count = sum(len(days.of(_SAMPLE_YEAR, month)) for month in range(1, 13))
    return (
        f"{schedule.expression!r} restricts day of month and day of week, and runs if either matches, "
        f"on about {count} days a year; to run only if both match, {_both_days(schedule, days)}"
    )


def _both_days(schedule: Cron, days: Days) -> str:
    """Say how to write a rule whose two day fields must both match: as ``MON#1`` for Mondays of the days 1 to 7."""
    weeks = {(day - 1) // 7 + 1 for day in days.month_days}
    is_one_week = len(weeks) == 1 and len(days.month_days) == 7
    if not is_one_week or days.last_day or days.nth_weekdays:
        return "use Celery's crontab"
    nth = weeks.pop()
    fields = schedule.expression.upper().split()
    last = 4 if len(fields) == 5 or schedule.seconds == "last" else 5
    fields[last] = ",".join(f"{WEEKDAYS[day][:3].upper()}#{nth}" for day in days.weekdays)
    fields[last - 2] = "*"
    return f"write {' '.join(fields)!r}"


def _of_length(found: re.Match[str]) -> str:
    """``every 15m aligned``: ``every 15 minutes, aligned``."""
    return _every(int(found[1]), _UNITS[found[2]]) + (found[3] and ", ")


def _every(number: int, unit: str) -> str:
    return f"every {unit}" if number == 1 else f"every {number} {unit}s"


def _of_wall(times: WallTimes) -> str | None:
    """The words of times on the clock; ``None`` where it takes more than these."""
    days, (minute, *minutes) = _of_days(times.days), times.minutes
    if days is None or times.seconds != (0,):
        return None
    if not minutes and not times.running and len(times.hours) <= _NAMED:
        return f"{days} at {_and(f'{hour:02}:{minute:02}' for hour in times.hours)}"
    if days != "every day":
        return None
    if not minutes and (step := _step(times.hours, 24)):
        return _every(step, "hour") + (f" from 00:{minute:02} on" if step > 1 else f" at :{minute:02}")
    step = _step(times.minutes, 60) if len(times.hours) == 24 else 0
    return _every(step, "minute") + (" from the full hour on" if step > 1 else "") if step else None


def _of_days(days: Days) -> str | None:
    if len(days.months) < 12 or days.nth_weekdays or days.nearest_weekday or days.either:
        return None
    dates, is_any_date, is_any_weekday = days.month_days, len(days.month_days) == 31, len(days.weekdays) == 7
    if is_any_weekday and not is_any_date:
        if days.last_day:
            return None if dates else "on the last day of each month"
        # The 29th to the 31st are not in every month: their own text is exact.
        return f"on day {_and(map(str, dates))} of each month" if len(dates) <= _NAMED and dates[-1] <= 28 else None
    if is_any_weekday or not is_any_date:
        return "every day" if is_any_date else None
    week = sorted((day - 1) % 7 for day in days.weekdays)  # which begins with Monday
    begins = [place for place, day in enumerate(week) if (day - 1) % 7 not in week]
    is_row = len(week) > 2 and len(begins) == 1
    first = begins[0] if is_row else 0
    names = [WEEKDAYS[(day + 1) % 7].capitalize() for day in week[first:] + week[:first]]
    return f"every {names[0]} to {names[-1]}" if is_row else f"every {_and(names)}"


def _step(values: Sequence[int], size: int) -> int:
    """After how many it is again, each time alike; 0 where that is not so."""
    step = size // len(values)
    return step if [*values] == [*range(0, size, step)] else 0


def _and(words: Iterable[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last

"""Warnings for cron rules that run more often than they seem to."""

from __future__ import annotations

from celery.schedules import BaseSchedule

from ..rules import Cron
from ..rules.cron import WEEKDAYS
from ..rules.wall_times import Days

#: Year in which the days that a rule matches are counted. It has 365 days.
_SAMPLE_YEAR = 2027


def either_day_words(schedule: BaseSchedule) -> str | None:
    """Return a warning if a cron rule restricts both day fields; else ``None``.

    It says how often the rule runs, and what to write if both fields have to match.
    """
    if not isinstance(schedule, Cron) or not schedule.resolved:
        return None
    days = schedule.times.days
    if not days.either:
        return None
    count = sum(len(days.of(_SAMPLE_YEAR, month)) for month in range(1, 13))
    return (
        f"{schedule.expression!r} restricts day of month and day of week, and runs if either "
        "matches, "
        f"on about {count} days a year; to run only if both match, {_both_days(schedule, days)}"
    )


def every_second_words(schedule: BaseSchedule) -> str | None:
    """Return a warning if a cron rule runs every second, but its first field looks like seconds."""
    if not isinstance(schedule, Cron) or schedule.seconds == "first":
        return None
    minutes, *others = schedule.expression.split()
    if len(others) < 5 or others[-1] != "*" or minutes == "*":
        return None
    return (
        f"{schedule.expression!r} runs 60 times in each minute that matches, because its last "
        "field holds the seconds; "
        'if its first field is to hold them, add seconds="first" (--cron-seconds first)'
    )


def _both_days(schedule: Cron, days: Days) -> str:
    """Return how to write a rule whose day fields must both match: ``MON#1`` for 1-7 and MON."""
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

"""Celery's crontab fields with a zone of their own, as a schedule that can be stored.

Celery's crontab carries no zone, and :func:`cron` takes *either* of two restricted day fields where Celery wants
*both*: such a one becomes a recurrence. Which of them says the same is not believed but compared.
"""

from __future__ import annotations

from datetime import tzinfo

from celery.schedules import BaseSchedule, crontab

from ...entries.schedule_text import schedule_text
from ...schedules import Cron, RRule
from ...schedules.cron import crontab_rule
from ...schedules.rrule_text import WEEKDAYS
from ...schedules.wall_times import WallTimes


def zoned_crontab(found: crontab, zone: tzinfo) -> BaseSchedule:
    """A schedule with the occurrences of Celery's ``found`` in ``zone``; raises InvalidEntry if it has none."""
    text = schedule_text(found).removeprefix("crontab ")
    times = crontab_rule(found, zone).walls
    days = times.days
    numbers = (times.minutes, times.hours, days.month_days, days.months, days.weekdays)
    for candidate in (text, " ".join(map(_listed, numbers, (60, 24, 31, 12, 7)))):
        try:
            cron = Cron(candidate, tz=zone)
        except ValueError:  # Celery's spelling need not be cron's
            continue
        if cron.times == times:
            return cron
    return RRule(_recurrence(times), tz=zone)


def _listed(values: tuple[int, ...], all_: int, anything: str = "*") -> str:
    return anything if len(values) == all_ else ",".join(map(str, values))


def _recurrence(times: WallTimes) -> str:
    """Parts of a recurrence restrict each other, so both days must match."""
    days = times.days
    start, hours = _hours(times)
    parts = {
        **hours,
        "BYMONTH": _listed(days.months, 12, ""),
        "BYMONTHDAY": _listed(days.month_days, 31, ""),
        "BYDAY": "" if len(days.weekdays) == 7 else ",".join(WEEKDAYS[day - 1] for day in days.weekdays),
        "BYMINUTE": ",".join(map(str, times.minutes)),
        "BYSECOND": "0",
    }
    return start + ";".join(f"{name}={value}" for name, value in parts.items() if value)


def _hours(times: WallTimes) -> tuple[str, dict[str, str]]:
    """The start of a recurrence, and what makes these its hours.

    One that counts hours is running, as ``*/2`` is; one that names some is fixed. What cannot be counted (``1,*/6``)
    becomes fixed, which is another thing on the days on which the clocks change.
    """
    hours = times.hours
    step = hours[1] - hours[0] if len(hours) > 1 else 24
    if times.running and 24 % step == 0 and hours == tuple(range(hours[0], 24, step)):
        return f"DTSTART:20010101T{hours[0]:02}0000 RRULE:", {"FREQ": "HOURLY", "INTERVAL": str(step)}
    return "", {"FREQ": "DAILY", "BYHOUR": ",".join(map(str, hours))}

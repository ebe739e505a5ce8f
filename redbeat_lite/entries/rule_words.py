"""Rules in words, for those who do not read cron: common ones exactly, all others by their own text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import tzinfo

from celery.schedules import BaseSchedule, crontab

from ..schedules.cron import Cron
from ..schedules.cron_text import WEEKDAYS, split
from ..schedules.zones import zone_name
from .schedule_text import schedule_text

_UNITS = {"d": "day", "h": "hour", "m": "minute", "s": "second"}


def rule_words(schedule: BaseSchedule, zone: tzinfo) -> str:
    """A schedule in words, ``every day at 02:30, Europe/Berlin``; where there are none, as `schedule_text` has it."""
    text = schedule_text(schedule, zone)
    if isinstance(schedule, Cron) and schedule.resolved:
        words, own = _of_wall(*split(schedule.resolved, schedule.seconds)), schedule.tz_name
    elif type(schedule) is crontab and text.startswith("crontab "):
        words, own = _of_wall("0", *text.split()[1:]), None
    else:
        return {"manual": "by hand only"}.get(text) or re.sub(r"^every (\d+)([dhms])\b( ?)", _of_length, text)
    return f"{words}, {own or zone_name(zone)}" if words else text


def _of_length(found: re.Match[str]) -> str:
    """``every 15m aligned``: ``every 15 minutes, aligned``."""
    return _every(int(found[1]), _UNITS[found[2]]) + (found[3] and ", ")


def _every(number: int, unit: str) -> str:
    return f"every {unit}" if number == 1 else f"every {number} {unit}s"


def _of_wall(second: str, minute: str, hour: str, day: str, month: str, weekday: str) -> str | None:
    """The words of a cron expression's fields, in lower case; ``None`` where it takes more than these."""
    if second not in ("0", "00") or month != "*":
        return None
    minutes, hours, days = _numbers(minute, 59), _numbers(hour, 23), _days(day, weekday)
    if days and len(minutes) == 1 and hours:
        times = [f"{each:02}:{minutes[0]:02}" for each in hours]
        return f"{days} at {_and(times)}"
    if days != "every day":
        return None
    step = _step(hour, 24)
    if len(minutes) == 1 and step:
        return _every(step, "hour") + (f" from 00:{minutes[0]:02} on" if step > 1 else f" at :{minutes[0]:02}")
    step = _step(minute, 60)
    return _every(step, "minute") + (" from the full hour on" if step > 1 else "") if step and hour == "*" else None


def _days(day: str, weekday: str) -> str | None:
    if day == "*" and weekday in ("*", "?"):
        return "every day"
    if weekday in ("*", "?"):
        # The 29th to the 31st are not in every month: their own text is exact.
        days = _numbers(day, 28)
        named = "the last day" if day == "l" else f"day {_and(map(str, days))}" if days and days[0] else ""
        return f"on {named} of each month" if named else None
    if day not in ("*", "?") or not re.fullmatch(r"[a-z0-7]+(-[a-z0-7]+|(,[a-z0-7]+)*)", weekday, re.ASCII):
        return None
    names = [_weekday(each) for each in re.split("[-,]", weekday)]
    if None in names:
        return None
    return f"every {' to '.join(map(str, names)) if '-' in weekday else _and(map(str, names))}"


def _weekday(text: str) -> str | None:
    found = [name for at, name in enumerate(WEEKDAYS) if text in (str(at), name, name[:3]) or (text, at) == ("7", 0)]
    return found[0].capitalize() if found else None


def _numbers(field: str, most: int) -> list[int]:
    """A field's numbers, if it is a list of a few; none where it is anything else."""
    found = [int(each) for each in field.split(",")] if re.fullmatch(r"\d\d?(,\d\d?){0,3}", field, re.ASCII) else []
    return sorted({*found}) if found and max(found) <= most else []


def _step(field: str, size: int) -> int:
    """After how many it is again, each time alike; 0 where that is not so."""
    found = re.fullmatch(r"\*(?:/(\d\d?))?", field, re.ASCII)
    step = int(found[1] or 1) if found else 0
    return step if step and size % step == 0 else 0


def _and(words: Iterable[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last

"""Schedules as people write them in files and on the command line.

- ``{"every": "1h30m"}``, optionally with ``"align": true`` or ``"spread": true``
- ``{"cron": "0 3 * * *"}``, optionally with ``"tz"`` and ``"seconds"``
- ``{"at": "2026-12-01T09:00Z"}``
- ``{"rrule": "FREQ=DAILY"}``, in one line or several, optionally with ``"tz"`` and ``"start"``
- ``{"crontab": [0, "*/4", …]}`` and all other kinds, in their stored form
- ``30`` or ``"30s"``: Celery's own interval

The stored form has milliseconds where people write ``"1h30m"`` or an instant; see
:mod:`redbeat_lite.rules.stored_form`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, tzinfo
from typing import Any

from celery.schedules import BaseSchedule

from .._base.errors import InvalidEntry
from .._base.times import aware, duration_text, from_ms, length_of, to_ms
from ..rules import Every, SpreadSchedule, coerce_schedule, decode_schedule, encode_schedule
from .words import in_zone


def schedule_fields(schedule: BaseSchedule) -> dict[str, Any]:
    """Return a schedule as a file has it; raise InvalidEntry if its class cannot be stored."""
    stored = encode_schedule(schedule)
    # "resolved" follows from the other fields and the entry's name.
    stored.pop("resolved", None)
    if "every" in stored:
        stored["every"] = duration_text(stored["every"])
    if "at" in stored:
        stored["at"] = from_ms(stored["at"]).isoformat()
    return stored


def schedule_from(value: object) -> BaseSchedule:
    """Return the schedule for a written form; raise InvalidEntry if there is none."""
    if not isinstance(value, Mapping):
        return coerce_schedule(value)
    stored = dict(value)
    if "resolved" in stored:
        raise InvalidEntry(
            "schedule", "no resolved, which goes by the entry's name", stored["resolved"]
        )
    if "every" in stored:
        seconds = length_of("schedule.every", stored["every"], "at least 0.05 s", 0.05)
        stored["every"] = round(1000 * seconds)
    if "at" in stored:
        stored["at"] = to_ms(instant_from("schedule.at", stored["at"]))
    # A TOML file has datetimes.
    if isinstance(stored.get("start"), datetime):
        stored["start"] = stored["start"].isoformat()
    return decode_schedule(stored)


def schedule_text(schedule: BaseSchedule, shown: tzinfo = UTC) -> str:
    """Describe a schedule in a few words, for a table.

    Parameters:
        shown: zone in which an instant is shown.
    """
    try:
        fields = schedule_fields(schedule)
    except InvalidEntry:
        return repr(schedule)
    zone = f" {fields['tz']}" if "tz" in fields else ""
    if "every" in fields:
        suffix = ""
        if "align" in fields:
            suffix = " aligned"
        elif "spread" in fields:
            suffix = " spread"
        return f"every {fields['every']}{suffix}"
    if "schedule" in fields:
        return f"every {duration_text(round(fields['schedule'] * 1000))}"
    if "at" in fields:
        return f"at {in_zone(datetime.fromisoformat(fields['at']), shown)}"
    if "crontab" in fields:
        minute, hour, weekday, day, month = (_crontab_field(field) for field in fields["crontab"])
        return f"crontab {minute} {hour} {day} {month} {weekday}"
    if "manual" in fields:
        return "manual"
    if "solar" in fields:
        event, latitude, longitude = fields["solar"]
        return f"{event} at {latitude:g}, {longitude:g}"
    kind = next((kind for kind in ("cron", "rrule") if kind in fields), "custom")
    return f"{kind} {_in_one_line(fields[kind])}{zone}"


def _in_one_line(text: str) -> str:
    """Join the lines of a recurrence by spaces; it has the same meaning."""
    return " ".join(text.split())


def resolved_text(schedule: BaseSchedule) -> str | None:
    """Describe the times of a spread schedule for its entry; ``None`` for another schedule."""
    if not (isinstance(schedule, SpreadSchedule) and schedule.spread):
        return None
    if isinstance(schedule, Every):
        return f"{duration_text(schedule.resolved)} after each full {duration_text(schedule.ms)}"
    return str(schedule.resolved)


def _crontab_field(field: object) -> str:
    return ",".join(map(str, field)) if isinstance(field, list) else str(field)


def instant_from(field: str, value: object) -> datetime:
    """Return the aware datetime of an ISO 8601 text or of a datetime, which TOML files have.

    Raises:
        InvalidEntry: the value is no instant, or has no offset; names the field.
    """
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise InvalidEntry(field, "an instant such as 2026-12-01T09:00+01:00", value) from None
    if isinstance(value, datetime) and value.tzinfo is None:
        hint = f"add the offset, as in {value.isoformat(timespec='minutes')}+01:00"
        raise InvalidEntry(
            field, "an instant with its offset from UTC", value.isoformat(), hint=hint
        )
    return aware(field, value)


def schedule_words(schedule: BaseSchedule, shown: tzinfo = UTC) -> list[str]:
    """Return the options of the command line for a schedule with the same runs.

    A schedule that has no options of its own gets ``--schedule`` with its JSON form.

    Raises:
        InvalidEntry: the class of the schedule cannot be stored.
    """
    fields = schedule_fields(schedule)
    seconds = fields.pop("schedule", None)
    if seconds is not None:
        ms = round(seconds * 1000)
        # Other fields, such as "relative", cannot be options.
        is_every = abs(seconds * 1000 - ms) < 1e-6 and not fields
        fields = {"every": duration_text(ms)} if is_every else {"schedule": seconds, **fields}
    if "manual" in fields:
        return ["--manual"]
    kind = next((kind for kind in ("every", "cron", "at", "rrule") if kind in fields), None)
    if kind is None:
        return ["--schedule", json.dumps(fields, ensure_ascii=False)]
    if kind == "at":
        return ["--at", datetime.fromisoformat(fields["at"]).astimezone(shown).isoformat()]
    words = [f"--{kind}", _in_one_line(fields[kind])]
    for field, name in (("tz", "--tz"), ("seconds", "--cron-seconds"), ("start", "--rrule-start")):
        if field in fields:
            words += [name, fields[field]]
    return [*words, *(f"--{field}" for field in ("align", "spread") if field in fields)]

"""Schedules as people write them in files and on the command line, and back.

=================================  ==========================================================
``{"every": "1h30m"}``             with ``"align": true`` or ``"spread": true`` where it is
``{"cron": "0 3 * * *"}``          with ``"tz"`` and ``"seconds"`` where they are given ``{"at":
"2026-12-01T09:00Z"}`` ``{"rrule": "FREQ=DAILY"}``        with ``"tz"`` and ``"start"`` where they
are given; lines in one, or in several ``{"crontab": [0, "*/4", …]}``     and all other kinds: as
they are stored ``30``, ``"30s"``                  Celery's own interval
=================================  ==========================================================

The stored form counts milliseconds, which nobody wants to write or to read; see
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
    """A schedule as it is written in a file; raises InvalidEntry if its class cannot be stored."""
    stored = encode_schedule(schedule)
    stored.pop("resolved", None)  # it follows from the rest and the entry's name
    if "every" in stored:
        stored["every"] = duration_text(stored["every"])
    if "at" in stored:
        stored["at"] = from_ms(stored["at"]).isoformat()
    return stored


def schedule_from(value: object) -> BaseSchedule:
    """The schedule that somebody wrote; raises InvalidEntry if it is none."""
    if not isinstance(value, Mapping):
        return coerce_schedule(value)
    stored = dict(value)
    if "resolved" in stored:
        raise InvalidEntry(
            "schedule", "no resolved, which goes by the entry's name", stored["resolved"]
        )
    if "every" in stored:
        stored["every"] = round(
            1000 * length_of("schedule.every", stored["every"], "at least 0.05 s", 0.05)
        )
    if "at" in stored:
        stored["at"] = to_ms(instant_from("schedule.at", stored["at"]))
    if isinstance(stored.get("start"), datetime):  # TOML has them
        stored["start"] = stored["start"].isoformat()
    return decode_schedule(stored)


def schedule_text(schedule: BaseSchedule, shown: tzinfo = UTC) -> str:
    """A schedule in a few words, for a table, with an instant in the zone in which it is shown."""
    try:
        fields = schedule_fields(schedule)
    except InvalidEntry:
        return repr(schedule)
    zone = f" {fields['tz']}" if "tz" in fields else ""
    if "every" in fields:
        how = " aligned" if "align" in fields else " spread" if "spread" in fields else ""
        return f"every {fields['every']}{how}"
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
    kind = "cron" if "cron" in fields else "rrule" if "rrule" in fields else "custom"
    return f"{kind} {_in_one_line(fields[kind])}{zone}"


def _in_one_line(text: str) -> str:
    """A recurrence with a space between its lines, which reads as well."""
    return " ".join(text.split())


def resolved_text(schedule: BaseSchedule) -> str | None:
    """When a spread schedule of an entry runs, in a few words; None for any other."""
    if not (isinstance(schedule, SpreadSchedule) and schedule.spread):
        return None
    if isinstance(schedule, Every):
        return f"{duration_text(schedule.resolved)} after each full {duration_text(schedule.ms)}"
    return str(schedule.resolved)


def _crontab_field(field: object) -> str:
    return ",".join(map(str, field)) if isinstance(field, list) else str(field)


def instant_from(field: str, value: object) -> datetime:
    """The aware datetime of an ISO 8601 text, or of a datetime (TOML has them).

    Raises InvalidEntry, which names the field, if it is none, or lacks an offset.
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
    """The options of the command line that make a schedule with these runs; what they cannot say is
    ``--schedule``.

    Raises InvalidEntry if its class cannot be stored.
    """
    fields = schedule_fields(schedule)
    if (seconds := fields.pop("schedule", None)) is not None:
        ms = round(seconds * 1000)
        is_every = abs(seconds * 1000 - ms) < 1e-6 and not fields  # no "relative"
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

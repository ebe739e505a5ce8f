"""Entries written on the command line: the options of ``add`` and ``edit``, and what they mean."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, time, timedelta, tzinfo
from typing import Any

import click

from ..durations import seconds_of
from ..entries.schedule_text import instant_from, schedule_from
from ..errors import CorruptEntry, InvalidEntry
from ..schedules import at, cron, every, manual, rrule
from ..schedules.zones import zone_of
from ..storage.json_values import unpack
from .command import together

#: The options of which one says when an entry runs.
KINDS = ("every", "cron", "at", "rrule", "manual", "schedule")

#: What unsets a field that may be unset.
_NONE = "none"

#: Digits of a whole number: Python reads no more than 4,300, and nobody means as many.
_DIGITS = 300


#: The options that make a schedule; :func:`schedule_of` reads them.
schedule_options = together(
    click.option("--every", metavar="LENGTH", help="At a fixed interval: 30s, 5m, 1h30m, 2d."),
    click.option("--align", is_flag=True, help="With --every: at round multiples, not counted from now."),
    click.option("--spread", is_flag=True, help="With --every: at a moment of its own, by its name."),
    click.option("--cron", metavar="FIELDS", help='By the clock: "*/5 * * * *", five fields, or six with seconds.'),
    click.option("--at", metavar="INSTANT", help="Once: 2026-12-01T09:00+01:00, or 2h from now."),
    click.option("--rrule", metavar="RULE", help='By an RFC 5545 recurrence: "FREQ=DAILY;BYHOUR=9".'),
    click.option("--manual", is_flag=True, default=None, help="Never by itself, only when somebody runs it."),
    click.option("--tz", metavar="ZONE", help="Zone of --cron, --rrule and --at. [default: the app's]"),
    click.option(
        "--cron-seconds", type=click.Choice(["first", "last"]), help="Where six fields have the seconds. [last]"
    ),
    click.option("--rrule-start", metavar="INSTANT", help="What --rrule counts from, instead of its DTSTART."),
    click.option("--schedule", metavar="JSON", help='Any other, as show prints it: {"solar": ["dusk", 52.5, 13]}'),
)

#: The options of the other fields; :func:`fields_of` reads them.
field_options = together(
    click.option("--args", metavar="JSON", help="Arguments: '[1, \"two\"]'."),
    click.option("--kwargs", metavar="JSON", help="Arguments by name: '{\"x\": 1}'."),
    click.option("--options", metavar="JSON", help='Of apply_async: \'{"queue": "slow"}\'.'),
    click.option("--expires", metavar="LENGTH", help='Seconds, a length of time, "interval" or "none".'),
    click.option("--once", metavar="JSON", help="One run at a time: true, false, or the fields of Once."),
    click.option("--misfire", metavar="POLICY", help="coalesce, skip, all, or JSON with policy, grace, limit."),
    click.option("--jitter", metavar="LENGTH", help="Put off each run by up to this."),
    click.option("--start-at", metavar="INSTANT", help='No run before this; or "none".'),
    click.option("--end-at", metavar="INSTANT", help='No run after this; or "none".'),
    click.option("--max-runs", metavar="N", help='Finish after so many runs; or "none".'),
    click.option("--description", help="Free text for people."),
    click.option("--enabled/--disabled", default=None, help="Whether it fires at all."),
    click.option("--remove-when-done/--keep-when-done", default=None, help="What becomes of it once finished."),
    click.option("--history", metavar="N", help='Remember so many of its last runs; or "none": as the app\'s do.'),
    click.option("--expect", metavar="EXPECT", help='"start_within=30s,failures=3", JSON, "false" or "none".'),
    click.option("--on-failure", metavar="POLICY", help='"pause:3": pause it after so many in a row; or "none".'),
    click.option("--calendar", metavar="NAME", help='Not on the days of this calendar; or "none".'),
    click.option("--tags", "--tag", metavar="TAG,...", help='Words by which it is selected with others; or "none".'),
)


def schedule_of(given: dict[str, Any], zone: tzinfo) -> Any:
    """The schedule of :func:`schedule_options`, which are taken out of ``given``; ``None`` if there is none.

    Raises InvalidEntry: two schedules, options that do not go together, or a wrong value.
    """
    kinds = {kind: given.pop(kind) for kind in KINDS}
    kinds = {kind: text for kind, text in kinds.items() if text is not None}
    align, spread = given.pop("align"), given.pop("spread")
    tz, seconds, start = (given.pop(name) for name in ("tz", "cron_seconds", "rrule_start"))
    if len(kinds) > 1:
        raise InvalidEntry("schedule", "one schedule", " and ".join(f"--{kind}" for kind in kinds))
    kind, value = next(iter(kinds.items()), ("", ""))
    for name, extra, needs in (
        ("--tz", tz, "cron at rrule"),
        ("--align", align, "every"),
        ("--spread", spread, "every"),
        ("--cron-seconds", seconds, "cron"),
        ("--rrule-start", start, "rrule"),
    ):
        if extra and kind not in needs.split():
            beside = " or ".join(f"--{each}" for each in needs.split())
            raise InvalidEntry("schedule", f"{name} beside {beside}", f"{name} {kind or 'alone'}")
    if kind == "every":
        return every(value, align=align, spread=spread)
    if kind == "cron":
        return cron(value, tz=tz, seconds=seconds or "last")
    if kind == "at":
        return at(until_of("at", value, zone_of(tz) if tz else zone))
    if kind == "rrule":
        return rrule(value, tz=tz, start=None if start is None else instant_of("rrule_start", start, zone))
    if kind == "manual":
        return manual()
    return None if not kind else schedule_from(_json("schedule", value))


def fields_of(given: Mapping[str, Any], zone: tzinfo) -> dict[str, Any]:
    """The fields of :func:`field_options` that are given, as an entry has them; raises InvalidEntry if any is wrong."""
    readers: dict[str, Callable[[str, Any], Any]] = {
        **dict.fromkeys(("args", "kwargs", "options"), _packed),
        "once": _json,
        "misfire": lambda field, value: _json(field, value) if value.lstrip().startswith("{") else value,
        "start_at": lambda field, value: until_of(field, value, zone),
        "end_at": lambda field, value: until_of(field, value, zone),
        "max_runs": _whole,
        "history": _whole,
        "expect": _expectation,
        "tags": lambda field, value: () if value == _NONE else value.split(","),
    }
    may_be_none = ("expires", "start_at", "end_at", "max_runs", "history", "expect", "on_failure", "calendar")
    fields: dict[str, Any] = {}
    for field, value in given.items():
        if value is None:
            continue
        if value == _NONE and field in may_be_none:
            fields[field] = None
        else:
            fields[field] = readers[field](field, value) if field in readers else value
    return fields


def instant_of(field: str, text: str, zone: tzinfo) -> datetime:
    """An instant, read in ``zone`` if it has no offset; raises InvalidEntry if it is none."""
    with suppress(ValueError):
        if (found := datetime.fromisoformat(text)).tzinfo is None:
            return found.replace(tzinfo=zone)
    return instant_from(field, text)


def time_of_day(text: str, zone: tzinfo, now: datetime) -> datetime | None:
    """The last time of this day that has passed, of a text such as ``03:00``; ``None`` if it does not look like one.

    One that does, and is none, raises a ValueError.
    """
    if ":" not in text[:3]:  # where a date has none
        return None
    wanted = time.fromisoformat(text)
    zone = wanted.tzinfo or zone
    found = datetime.combine(now.astimezone(zone), wanted, zone)
    return found if found <= now else found - timedelta(days=1)


def since_of(field: str, text: str, zone: tzinfo) -> datetime:
    """An instant, a time of day, or how long ago; raises as :func:`instant_of`."""
    with suppress(ValueError):
        if (found := time_of_day(text, zone, datetime.now(UTC))) is not None:
            return found
    return _instant_or_length(field, text, zone, "a time of day such as 03:00, or how long ago", -1)


def span_of(
    fields: tuple[str, str], since: str | None, until: str | None, zone: tzinfo
) -> tuple[datetime | None, datetime | None]:
    """Two instants, each as :func:`since_of`; a time of day that has not come since the first is still to come."""
    first = None if since is None else since_of(fields[0], since, zone)
    last = None if until is None else since_of(fields[1], until, zone)
    if first is None or last is None or until is None or first <= last:
        return first, last
    with suppress(ValueError):
        if time_of_day(until, zone, last) is not None and first <= (later := last + timedelta(days=1)):
            return first, later
    raise InvalidEntry(fields[1], f"an instant after --{fields[0]}, {first.astimezone(zone):%Y-%m-%d %H:%M:%S}", until)


def until_of(field: str, text: str, zone: tzinfo) -> datetime:
    """An instant, or how long from now; raises as :func:`instant_of`."""
    return _instant_or_length(field, text, zone, "how long from now", 1)


def _instant_or_length(field: str, text: str, zone: tzinfo, words: str, sign: int) -> datetime:
    if (seconds := None if text.isdecimal() else seconds_of(text)) is None:  # 20261201 is a day
        try:
            return instant_of(field, text, zone)
        except InvalidEntry as exc:
            expected = f'{exc.expected}, or {words}, such as "1h30m"'
            raise InvalidEntry(field, expected, text, hint=exc.hint) from None
    return datetime.now(UTC) + sign * timedelta(seconds=min(seconds, 36_500 * 86_400))


def _json(field: str, text: str, expected: str = "JSON") -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise InvalidEntry(field, f"{expected} that is not nested hundreds of levels deep", text) from None
    except ValueError as exc:
        raise InvalidEntry(field, f"{expected} ({exc})", text) from None


def _packed(field: str, text: str) -> Any:
    """Arguments or options in JSON, where ``__type__`` marks what is not plain JSON, as everywhere in the schedule."""
    kind, expected = (list, "JSON array") if field == "args" else (dict, "JSON object")
    try:
        found = unpack(_json(field, text, expected))
    except CorruptEntry as exc:
        raise InvalidEntry(field, f"{expected} ({exc})", text) from None
    if not isinstance(found, kind):
        raise InvalidEntry(field, expected, text)
    return found


def _expectation(field: str, text: str) -> Any:
    """What must become of runs: JSON, or names and values as ``start_within=30s,failures=3``."""
    if "=" not in text or text.lstrip().startswith("{"):
        return _json(field, text)
    pairs = (part.strip().partition("=") for part in text.split(","))
    return {name: _whole(f"{field}.{name}", value) if name == "failures" else value for name, _, value in pairs}


def _whole(field: str, text: str) -> int:
    if not text.isdecimal() or len(text) > _DIGITS:
        raise InvalidEntry(field, 'a whole number, or "none"', text)
    return int(text)

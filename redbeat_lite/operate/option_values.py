"""Options of entries and of backfills, which the command line and the page share.

The tables have each option with its help. The functions read the texts that people type: a
schedule, the fields of an entry, instants.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, time, timedelta, tzinfo
from typing import Any

from celery.schedules import BaseSchedule

from .._base.errors import CorruptEntry, InvalidEntry
from .._base.fields import INSTANT
from .._base.times import duration_text, seconds_of
from ..rules import coerce_schedule, decode_schedule, encode_schedule
from ..rules.zones import zone_of
from ..store.json_values import unpack

#: Options that define the schedule of an entry. Each is a kind of schedule; an entry has one.
KINDS = ("every", "cron", "at", "rrule", "manual", "schedule")

#: Option that refines a schedule -> the kinds of schedule that allow it.
_REFINEMENTS = {
    "tz": ("cron", "at", "rrule"),
    "align": ("every",),
    "spread": ("every",),
    "cron_seconds": ("cron",),
    "rrule_start": ("rrule",),
}

#: Option -> its field in the form of a schedule, if that has another name.
_FIELD_OF = {"cron_seconds": "seconds", "rrule_start": "start"}
_OPTION_OF = {field: option for option, field in _FIELD_OF.items()}

#: Text that unsets a field.
_NONE = "none"

#: Fields that may be unset.
_MAY_BE_NONE = (
    "expires",
    "start_at",
    "end_at",
    "max_runs",
    "history",
    "expect",
    "on_failure",
    "calendar",
)

#: Most digits of a whole number. Python itself refuses to read more than 4,300.
_DIGITS = 300

#: Longest distance of an instant from now, such as ``2h``: about a hundred years.
_LONGEST = timedelta(days=36_500)

#: Options of :func:`schedule_of` -> help. A word in capitals stands for the value. An option
#: without such a word is a flag.
SCHEDULE_OPTIONS = {
    "--every LENGTH": "At a fixed interval: 30s, 5m, 1h30m, 2d.",
    "--align": "With --every: at round multiples, not counted from now.",
    "--spread": "With --every: at a moment of its own, by its name.",
    "--cron FIELDS": 'By the clock: "*/5 * * * *", five fields, or six with seconds.',
    "--at INSTANT": "Once: 2026-12-01T09:00+01:00, or 2h from now.",
    "--rrule RULE": 'By an RFC 5545 recurrence: "FREQ=DAILY;BYHOUR=9".',
    "--manual": "Never by itself, only when somebody runs it.",
    "--tz ZONE": "Zone of --cron, --rrule and --at. [default: the app's]",
    "--cron-seconds WHERE": "Where six fields have the seconds: first or last. [last]",
    "--rrule-start INSTANT": "What --rrule counts from, instead of its DTSTART.",
    "--schedule JSON": 'Any other, as show prints it: {"solar": ["dusk", 52.5, 13]}',
}

#: Options of :func:`fields_of`, in the same form.
FIELD_OPTIONS = {
    "--args JSON": "Arguments: '[1, \"two\"]'.",
    "--kwargs JSON": "Arguments by name: '{\"x\": 1}'.",
    "--options JSON": 'Of apply_async: \'{"queue": "slow"}\'.',
    "--expires LENGTH": 'Seconds, a length of time, "interval" or "none".',
    "--once JSON": "One run at a time: true, false, or the fields of Once.",
    "--misfire POLICY": "coalesce, skip, all, or JSON with policy, grace, limit.",
    "--jitter LENGTH": "Put off each run by up to this.",
    "--start-at INSTANT": 'No run before this; or "none".',
    "--end-at INSTANT": 'No run after this; or "none".',
    "--max-runs N": 'Finish after so many runs; or "none".',
    "--description TEXT": "Free text for people.",
    "--enabled/--disabled": "Whether it fires at all.",
    "--remove-when-done/--keep-when-done": "What becomes of it once finished.",
    "--history N": 'Remember so many of its last runs; or "none": as the app\'s do.',
    "--expect EXPECT": '"start_within=30s,failures=3", JSON, "false" or "none".',
    "--on-failure POLICY": '"pause:3": pause it after so many in a row; or "none".',
    "--calendar NAME": 'Not on the days of this calendar; or "none".',
    "--tags --tag TAG,...": 'Words by which it is selected with others; or "none".',
}


def schedule_of(values: dict[str, Any], zone: tzinfo) -> Any:
    """Remove the :data:`SCHEDULE_OPTIONS` from ``values``, and return their schedule.

    Parameters:
        values: name of an option -> its value; ``None`` for an option that was not used.
        zone: time zone of instants without an offset.

    Returns:
        the schedule; ``None`` if no option defines one.

    Raises:
        InvalidEntry: there are two schedules, two options exclude each other, or a value is wrong.
    """
    kinds = {kind: values.pop(kind, None) for kind in KINDS}
    kinds = {kind: value for kind, value in kinds.items() if value is not None}
    refinements = {name: values.pop(name, None) for name in _REFINEMENTS}
    if len(kinds) > 1:
        options = " and ".join(f"--{kind}" for kind in kinds)
        raise InvalidEntry("schedule", "one schedule", options)
    kind, value = next(iter(kinds.items()), ("", ""))
    _check_refinements(kind, refinements)
    if not kind:
        return None
    if kind == "schedule":
        return coerce_schedule(_json("schedule", value))
    form = {kind: value}
    for name, text in refinements.items():
        if text:
            form[_FIELD_OF.get(name, name)] = text
    if kind == "at":
        tz = form.pop("tz", None)
        form["at"] = coming_instant("at", value, zone_of(tz) if tz else zone)
    if "start" in form:
        form["start"] = parse_instant("rrule_start", form["start"], zone)
    try:
        return decode_schedule(form)
    except InvalidEntry as exc:
        field = exc.field.removeprefix("schedule.")
        option = _OPTION_OF.get(field, field)
        raise InvalidEntry(option, exc.expected, exc.value, hint=exc.hint) from None


def schedule_options(schedule: BaseSchedule, zone: tzinfo = UTC) -> dict[str, Any]:
    """Return the options with which :func:`schedule_of` makes a schedule with the same runs.

    The first is the kind. A schedule that has no options of its own has its form as JSON.

    Parameters:
        zone: of an instant.

    Raises:
        InvalidEntry: the class of the schedule cannot be stored.
    """
    form = encode_schedule(schedule)
    kind = next(iter(form))
    if form.keys() == {"schedule"}:
        ms = form["schedule"] * 1000
        if abs(ms - round(ms)) < 1e-6:
            return {"every": duration_text(round(ms))}
    if kind == "schedule" or kind not in KINDS:
        return {"schedule": json.dumps(form, ensure_ascii=False)}
    if kind == "at":
        return {"at": datetime.fromisoformat(form["at"]).astimezone(zone).isoformat()}
    if kind == "rrule":
        # Lines may be joined by blanks.
        form["rrule"] = " ".join(form["rrule"].split())
    return {_OPTION_OF.get(name, name): value for name, value in form.items()}


def option_words(options: Mapping[str, str | bool]) -> list[str]:
    """Return options as words of the command line; ``True`` is an option without a value."""
    words = []
    for name, value in options.items():
        words.append(f"--{name.replace('_', '-')}")
        if isinstance(value, str):
            words.append(value)
    return words


def _check_refinements(kind: str, refinements: Mapping[str, Any]) -> None:
    """Raise InvalidEntry if this kind of schedule does not allow an option that was used."""
    for name, kinds in _REFINEMENTS.items():
        if refinements[name] and kind not in kinds:
            option = f"--{name.replace('_', '-')}"
            allowed = " or ".join(f"--{allowing}" for allowing in kinds)
            got = f"{option} {kind or 'alone'}"
            raise InvalidEntry("schedule", f"{option} beside {allowed}", got)


def fields_of(values: Mapping[str, Any], zone: tzinfo) -> dict[str, Any]:
    """Return the fields of an entry that the :data:`FIELD_OPTIONS` set.

    Parameters:
        values: name of an option -> its text; ``None`` for an option that was not used.
        zone: time zone of instants without an offset.

    Raises:
        InvalidEntry: a value is wrong.
    """
    readers: dict[str, Callable[[str, Any], Any]] = {
        "args": _packed,
        "kwargs": _packed,
        "options": _packed,
        "once": _json,
        "misfire": _misfire,
        "start_at": lambda field, value: coming_instant(field, value, zone),
        "end_at": lambda field, value: coming_instant(field, value, zone),
        "max_runs": _whole,
        "history": _whole,
        "expect": _expectation,
        "tags": lambda field, value: () if value == _NONE else value.split(","),
    }
    fields: dict[str, Any] = {}
    for field, value in values.items():
        if value is None:
            continue
        if value == _NONE and field in _MAY_BE_NONE:
            fields[field] = None
        elif field in readers:
            fields[field] = readers[field](field, value)
        else:
            fields[field] = value
    return fields


def _json(field: str, text: str, expected: str = "JSON") -> Any:
    """Return the value of a JSON text; ``expected`` names it in the error."""
    try:
        return json.loads(text)
    except RecursionError:
        shallow = f"{expected} that is not nested hundreds of levels deep"
        raise InvalidEntry(field, shallow, text) from None
    except ValueError as exc:
        raise InvalidEntry(field, f"{expected} ({exc})", text) from None


def _packed(field: str, text: str) -> Any:
    """Return the arguments or the options of a call, from a JSON text.

    A value that JSON lacks, such as a date, is an object with the key ``__type__``, as in a stored
    entry.
    """
    python_type: type = dict
    expected = "JSON object"
    if field == "args":
        python_type = list
        expected = "JSON array"
    try:
        value = unpack(_json(field, text, expected))
    except CorruptEntry as exc:
        raise InvalidEntry(field, f"{expected} ({exc})", text) from None
    if not isinstance(value, python_type):
        raise InvalidEntry(field, expected, text)
    return value


def _misfire(field: str, text: str) -> Any:
    """Return a misfire policy: the object of a JSON text, or the text itself."""
    return _json(field, text) if text.lstrip().startswith("{") else text


def _expectation(field: str, text: str) -> Any:
    """Return an expectation, from JSON or from ``start_within=30s,failures=3``."""
    if "=" not in text or text.lstrip().startswith("{"):
        return _json(field, text)
    values: dict[str, Any] = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        values[name] = _whole(f"{field}.{name}", value) if name == "failures" else value
    return values


def _whole(field: str, text: str) -> int:
    """Return a whole number, or raise InvalidEntry."""
    if not text.isdecimal() or len(text) > _DIGITS:
        raise InvalidEntry(field, 'a whole number, or "none"', text)
    return int(text)


def parse_instant(field: str, text: str, zone: tzinfo) -> datetime:
    """Return the instant that a text names, in ``zone`` if it has no offset.

    Raises:
        InvalidEntry: the text is no instant.
    """
    with suppress(ValueError):
        instant = datetime.fromisoformat(text)
        if instant.tzinfo is None:
            return instant.replace(tzinfo=zone)
    return INSTANT.read(field, text)  # type: ignore[no-any-return]


def parse_time_of_day(text: str, zone: tzinfo, now: datetime) -> datetime | None:
    """Return the last instant at which it was this time of day; ``None`` for any other text.

    Raises:
        ValueError: the text looks like a time of day, but is none, such as ``25:00``.
    """
    # A date has no colon among its first three characters.
    if ":" not in text[:3]:
        return None
    parsed = time.fromisoformat(text)
    zone = parsed.tzinfo or zone
    instant = datetime.combine(now.astimezone(zone), parsed, zone)
    return instant if instant <= now else instant - timedelta(days=1)


def past_instant(field: str, text: str, zone: tzinfo) -> datetime:
    """Return the instant that a text names: an instant, a time of day, or a length of time ago.

    Raises:
        InvalidEntry: the text is none of these.
    """
    with suppress(ValueError):
        instant = parse_time_of_day(text, zone, datetime.now(UTC))
        if instant is not None:
            return instant
    length = _length(text)
    if length is not None:
        return datetime.now(UTC) - length
    also = "a time of day such as 03:00, or how long ago"
    return _instant_or(field, text, zone, also)


def coming_instant(field: str, text: str, zone: tzinfo) -> datetime:
    """Return the instant that a text names: an instant, or a length of time from now.

    Raises:
        InvalidEntry: the text is none of these.
    """
    length = _length(text)
    if length is not None:
        return datetime.now(UTC) + length
    return _instant_or(field, text, zone, "how long from now")


def _length(text: str) -> timedelta | None:
    """Return a length of time, at most ``_LONGEST``; ``None`` for any other text."""
    # A number without a unit is no length, because 20261201 is a day.
    seconds = None if text.isdecimal() else seconds_of(text)
    if seconds is None:
        return None
    return timedelta(seconds=min(seconds, _LONGEST.total_seconds()))


def _instant_or(field: str, text: str, zone: tzinfo, also: str) -> datetime:
    """Return the instant that a text names, or raise InvalidEntry.

    Parameters:
        also: the other form of text that the caller allows, for the error.
    """
    try:
        return parse_instant(field, text, zone)
    except InvalidEntry as exc:
        expected = f'{exc.expected}, or {also}, such as "1h30m"'
        raise InvalidEntry(field, expected, text, hint=exc.hint) from None


def parse_span(
    fields: tuple[str, str],
    since: str | None,
    until: str | None,
    zone: tzinfo,
) -> tuple[datetime | None, datetime | None]:
    """Return the start and the end of a span of time, read by :func:`past_instant`.

    If the end is a time of day and lies before the start, it is that time on the next day.

    Parameters:
        fields: names of the two options, for errors.
        since, until: the texts; ``None``: no start, or no end.

    Raises:
        InvalidEntry: a text is no instant, or the end lies before the start.
    """
    first = None if since is None else past_instant(fields[0], since, zone)
    last = None if until is None else past_instant(fields[1], until, zone)
    if first is None or last is None or first <= last:
        return first, last
    with suppress(ValueError):
        next_day = last + timedelta(days=1)
        is_time_of_day = parse_time_of_day(str(until), zone, last) is not None
        if is_time_of_day and first <= next_day:
            return first, next_day
    start = f"{first.astimezone(zone):%Y-%m-%d %H:%M:%S}"
    raise InvalidEntry(fields[1], f"an instant after --{fields[0]}, {start}", until)


def start_arguments(options: dict[str, Any], zone: tzinfo) -> dict[str, Any]:
    """Return the arguments of a backfill's ``start()`` for the options of a command.

    Raises:
        InvalidEntry: an option is wrong.
    """
    most = options["max_active"]
    if most != "none" and not re.fullmatch("[0-9]{1,9}", most):
        raise InvalidEntry("max_active", 'a whole number, or "none"', most)
    start, end = parse_span(("from", "to"), options["start"], options["end"], zone)
    max_active = None if most == "none" else int(most)
    return {**options, "start": start, "end": end, "max_active": max_active}

"""Options that commands share, and their values: selections, schedules, fields, instants."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, time, timedelta, tzinfo
from typing import Any

import click

from ..api.selected import Selected
from ..durations import seconds_of
from ..entries.schedule_text import instant_from, schedule_from
from ..entries.selection import Selection, is_pattern
from ..entries.words import counted, listed
from ..errors import CorruptEntry, InvalidEntry
from ..schedules import at, cron, every, manual, rrule
from ..schedules.zones import zone_of
from ..storage.json_values import unpack
from .command import Failure, entry_names, load_schedules, option, together
from .output import echo_json, say

#: Options of which one makes the schedule of an entry.
KINDS = ("every", "cron", "at", "rrule", "manual", "schedule")

#: Options that refine a schedule -> the kinds that they go with.
_REFINEMENTS = {
    "tz": ("cron", "at", "rrule"),
    "align": ("every",),
    "spread": ("every",),
    "cron_seconds": ("cron",),
    "rrule_start": ("rrule",),
}

#: Text that unsets a field, and the fields that it may unset.
_NONE = "none"
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

#: Longest length of time before or after now: about a hundred years.
_LONGEST = timedelta(days=36_500)

selecting = together(
    option("--tag TEXT", "Entries that have this tag."),
    option("--task PATTERN", "Entries whose task matches this pattern."),
)

#: Options of :func:`to_change`, and the same with the argument for the name.
agreeing = together(
    selecting,
    option("--yes", "Do not ask, however many entries they are."),
)
changing = together(
    click.argument("name", required=False, shell_complete=entry_names),
    agreeing,
)


def _table_of(options: Mapping[str, str]) -> Callable[[Any], Any]:
    """Return the options of a table as one decorator; those that are not given are ``None``.

    Parameters:
        options: the words of an option -> its help.
    """
    return together(
        *(option(words, text, default=None, show_default=False) for words, text in options.items())
    )


#: Options of :func:`schedule_of`.
schedule_options = together(
    _table_of(
        {
            "--every LENGTH": "At a fixed interval: 30s, 5m, 1h30m, 2d.",
            "--align": "With --every: at round multiples, not counted from now.",
            "--spread": "With --every: at a moment of its own, by its name.",
            "--cron FIELDS": 'By the clock: "*/5 * * * *", five fields, or six with seconds.',
            "--at INSTANT": "Once: 2026-12-01T09:00+01:00, or 2h from now.",
            "--rrule RULE": 'By an RFC 5545 recurrence: "FREQ=DAILY;BYHOUR=9".',
            "--manual": "Never by itself, only when somebody runs it.",
            "--tz ZONE": "Zone of --cron, --rrule and --at. [default: the app's]",
            "--rrule-start INSTANT": "What --rrule counts from, instead of its DTSTART.",
            "--schedule JSON": 'Any other, as show prints it: {"solar": ["dusk", 52.5, 13]}',
        }
    ),
    option(
        "--cron-seconds",
        "Where six fields have the seconds. [last]",
        type=click.Choice(["first", "last"]),
    ),
)

#: Options of :func:`fields_of`.
field_options = _table_of(
    {
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
)


def selected() -> Selected:
    """Return the entries that NAME, ``--tag`` and ``--task`` of the command line select.

    An entry whose name looks like the pattern goes before the pattern.
    """
    name = click.get_current_context().params["name"]
    schedules = load_schedules()
    if name is not None and is_pattern(name) and name in schedules:
        name = Selection.one(name).name
    tag = click.get_current_context().params["tag"]
    return schedules.select(
        "*" if name is None else name, tag=tag, task=click.get_current_context().params["task"]
    )


def names_of(entries: Selected) -> list[str] | str:
    """Return the names of the selected entries, or NAME if the command line has that alone.

    NAME need not be stored. Raises Failure if no entry is selected.
    """
    name: str | None = click.get_current_context().params["name"]
    if name is not None and entries.selection == Selection.one(name):
        return name
    names = entries.names()
    if not names:
        raise Failure(f"no entry is selected by {entries.selection}")
    return names


def required_names() -> tuple[Selected, list[str] | str]:
    """Return the selected entries and :func:`names_of` them; raises Failure if nothing selects."""
    if not any(click.get_current_context().params[option] for option in ("name", "tag", "task")):
        raise Failure("say which entries: a NAME or a pattern, --tag or --task")
    entries = selected()
    return entries, names_of(entries)


def to_change(what: str) -> Selected | str:
    """Return the name of the one entry to change; or the selected ones, once the user agrees.

    Parameters:
        what: the verb of the question.
    """
    entries, names = required_names()
    if isinstance(names, str):
        return names
    if len(names) > 1:
        say(f"{len(names)} entries to {what}: {listed(names, 10)}", err=True)
        if not click.get_current_context().params["yes"] and sys.stdin.isatty():
            click.confirm("Go on?", abort=True, err=True)
    return entries


def say_changed(done: str, names: list[str]) -> None:
    """Say what was done to so many entries, or print their names as JSON."""
    echo_json(names)
    say(f"{done} {counted(len(names), 'entry', 'entries')}")


def schedule_of(values: dict[str, Any], zone: tzinfo) -> Any:
    """Return the schedule of :data:`schedule_options`, which are taken out of the values.

    Returns ``None`` if there is no schedule. Raises InvalidEntry for two schedules, for options
    that do not go together, and for a wrong value.
    """
    kinds = {kind: values.pop(kind, None) for kind in KINDS}
    kinds = {kind: value for kind, value in kinds.items() if value is not None}
    refinements = {name: values.pop(name, None) for name in _REFINEMENTS}
    if len(kinds) > 1:
        options = " and ".join(f"--{kind}" for kind in kinds)
        raise InvalidEntry("schedule", "one schedule", options)
    kind, value = next(iter(kinds.items()), ("", ""))
    for name, refined in _REFINEMENTS.items():
        if refinements[name] and kind not in refined:
            option = f"--{name.replace('_', '-')}"
            beside = " or ".join(f"--{each}" for each in refined)
            got = f"{option} {kind or 'alone'}"
            raise InvalidEntry("schedule", f"{option} beside {beside}", got)
    tz = refinements["tz"]
    match kind:
        case "every":
            align = bool(refinements["align"])
            return every(value, align=align, spread=bool(refinements["spread"]))
        case "cron":
            return cron(value, tz=tz, seconds=refinements["cron_seconds"] or "last")
        case "at":
            return at(coming_instant("at", value, zone_of(tz) if tz else zone))
        case "rrule":
            start = refinements["rrule_start"]
            if start is not None:
                start = parse_instant("rrule_start", start, zone)
            return rrule(value, tz=tz, start=start)
        case "manual":
            return manual()
        case "schedule":
            return schedule_from(_json("schedule", value))
    return None


def fields_of(values: Mapping[str, Any], zone: tzinfo) -> dict[str, Any]:
    """Return the fields of :data:`field_options` that have a value, as an entry has them.

    Raises InvalidEntry if a value is wrong.
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
    try:
        return json.loads(text)
    except RecursionError:
        shallow = f"{expected} that is not nested hundreds of levels deep"
        raise InvalidEntry(field, shallow, text) from None
    except ValueError as exc:
        raise InvalidEntry(field, f"{expected} ({exc})", text) from None


def _packed(field: str, text: str) -> Any:
    """Return arguments or options; ``__type__`` marks values that JSON lacks."""
    kind: type = dict
    expected = "JSON object"
    if field == "args":
        kind = list
        expected = "JSON array"
    try:
        value = unpack(_json(field, text, expected))
    except CorruptEntry as exc:
        raise InvalidEntry(field, f"{expected} ({exc})", text) from None
    if not isinstance(value, kind):
        raise InvalidEntry(field, expected, text)
    return value


def _misfire(field: str, text: str) -> Any:
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
    if not text.isdecimal() or len(text) > _DIGITS:
        raise InvalidEntry(field, 'a whole number, or "none"', text)
    return int(text)


def parse_instant(field: str, text: str, zone: tzinfo) -> datetime:
    """Return an instant, read in ``zone`` if it has no offset; raises InvalidEntry."""
    with suppress(ValueError):
        instant = datetime.fromisoformat(text)
        if instant.tzinfo is None:
            return instant.replace(tzinfo=zone)
    return instant_from(field, text)


def parse_time_of_day(text: str, zone: tzinfo, now: datetime) -> datetime | None:
    """Return the last time of this day that has passed; ``None`` for a text unlike ``03:00``.

    Raises ValueError for a text that is like one and is none.
    """
    # A date has no colon among its first characters.
    if ":" not in text[:3]:
        return None
    parsed = time.fromisoformat(text)
    zone = parsed.tzinfo or zone
    instant = datetime.combine(now.astimezone(zone), parsed, zone)
    return instant if instant <= now else instant - timedelta(days=1)


def past_instant(field: str, text: str, zone: tzinfo) -> datetime:
    """Return an instant, from a time of day or how long ago too; raises InvalidEntry."""
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
    """Return an instant, from how long from now too; raises InvalidEntry."""
    length = _length(text)
    if length is not None:
        return datetime.now(UTC) + length
    return _instant_or(field, text, zone, "how long from now")


def _length(text: str) -> timedelta | None:
    # 20261201 is a day, and no number of seconds.
    seconds = None if text.isdecimal() else seconds_of(text)
    if seconds is None:
        return None
    return timedelta(seconds=min(seconds, _LONGEST.total_seconds()))


def _instant_or(field: str, text: str, zone: tzinfo, also: str) -> datetime:
    """Return an instant; ``also`` is the other form that the error names."""
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
    """Return two instants, each read by :func:`past_instant`; ``None`` for a text that is missing.

    If the end is a time of day that lies before the start, it is the one of the next day.
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

"""Options of an entry, for the command line and the page, and instants as people type them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, time, timedelta, tzinfo
from typing import Any, NamedTuple

from celery.schedules import BaseSchedule

from .._base.errors import CorruptEntry, InvalidEntry
from .._base.fields import Field, local_instant
from .._base.json_values import unpack
from .._base.times import duration_text, seconds_of
from ..entries.entry import STATUSES, Entry
from ..entries.model import FIELDS
from ..rules import coerce_schedule, decode_schedule, encode_schedule
from ..rules.forms import SCHEDULE_KINDS
from ..rules.zones import zone_of

#: States by which entries are listed: a status; ``"failing"`` if the last publish failed; or
#: ``"failed"`` if the last finished run failed.
STATES = (*STATUSES, "failing", "failed")

#: Text that unsets a field.
_NONE = "none"

#: Texts that are no texts as the value of a field -> that value.
_WORDS = {"true": True, "false": False, _NONE: None}

#: Longest time from now that a text such as ``2h`` can mean: about a hundred years.
_LONGEST = timedelta(days=36_500)


class Option(NamedTuple):
    """Option of the command ``redbeat edit``, and input of the form on the page.

    Parameters:
        metavar: the word that stands for its value in the help; empty for a flag.
        help: its sentence in the help.
        choices: its values, if only a few words are allowed.
        off: name of the opposite flag, which means ``False``; empty if there is none.
        label: its label in the form; if empty, its name is the label.
    """

    metavar: str
    help: str
    choices: tuple[str, ...] = ()
    off: str = ""
    label: str = ""


#: Options that make the schedule of an entry: name -> option. An entry has exactly one of them.
KINDS = {
    "every": Option("LENGTH", "At a fixed interval: 30s, 5m, 1h30m, 2d."),
    "cron": Option("FIELDS", 'By the clock: "*/5 * * * *", five fields, or six with seconds.'),
    "at": Option("INSTANT", "Once: 2026-12-01T09:00+01:00, or 2h from now."),
    "rrule": Option("RULE", 'By an RFC 5545 recurrence: "FREQ=DAILY;BYHOUR=9".'),
    "manual": Option("", "Never by itself, only when somebody runs it."),
    "schedule": Option("JSON", 'Any other, as JSON: {"solar": ["sunset", 52.5, 13]}'),
}

#: Options that refine a schedule: name -> option.
REFINEMENTS = {
    "align": Option(
        "", "With --every: at round multiples, not counted from now.", label="At round multiples"
    ),
    "spread": Option(
        "", "With --every: at a moment of its own, by its name.", label="At a moment of its own"
    ),
    "tz": Option(
        "ZONE", "Zone of --cron, --rrule and --at. [default: the app's]", label="Time zone"
    ),
    "cron_seconds": Option(
        "WHERE",
        "Where six fields have the seconds: first or last. [last]",
        ("", "first", "last"),
        label="Position of the seconds",
    ),
    "rrule_start": Option(
        "INSTANT",
        "What --rrule counts from, instead of its DTSTART.",
        label="Start of the recurrence",
    ),
}

#: Name of a refinement -> name of its field in the stored form (JSON) of a schedule, if it differs.
_FIELD_OF = {"cron_seconds": "seconds", "rrule_start": "start"}
_OPTION_OF = {field: option for option, field in _FIELD_OF.items()}

#: Options of the fields of an entry: name of the field -> option. A field without help has none.
FIELD_OPTIONS = {
    name: Option(field.kind.metavar, field.help, field.kind.choices, field.kind.off, field.label)
    for name, field in FIELDS.items()
    if field.help
}


def option_word(name: str) -> str:
    """Return an option as the command line has it, such as ``--max-runs`` for ``max_runs``."""
    return f"--{name.replace('_', '-')}"


def read_options(values: Mapping[str, Any], zone: tzinfo) -> dict[str, Any]:
    """Return the fields of an entry that these options define: name of a field -> its value.

    Parameters:
        values: name of an option -> its value; ``None`` for an option that was not used.
        zone: time zone of instants without an offset.

    Raises:
        InvalidEntry: two options define a schedule, options exclude each other, or a value is
            wrong.
    """
    fields = {}
    schedule_options = {}
    for name, value in values.items():
        if value is None:
            continue
        if name in KINDS or name in REFINEMENTS:
            schedule_options[name] = value
        else:
            fields[name] = _read_field(FIELDS[name], value, zone)
    if schedule_options:
        fields["schedule"] = _read_schedule(schedule_options, zone)
    return fields


def _read_schedule(options: Mapping[str, Any], zone: tzinfo) -> Any:
    """Return the schedule that options of :data:`KINDS` and :data:`REFINEMENTS` define."""
    kinds = [name for name in options if name in KINDS]
    if len(kinds) > 1:
        raise InvalidEntry(kinds[0], "one schedule", " and ".join(kinds))
    kind = kinds[0] if kinds else ""
    for name in options:
        if name in REFINEMENTS:
            _check_refinement(name, kind)
    if kind == "schedule":
        return coerce_schedule(_read_json("schedule", options["schedule"]))
    # Make the stored form of the schedule, and decode it.
    form = {_FIELD_OF.get(name, name): value for name, value in options.items()}
    if kind == "at":
        # The form has one aware instant, so the zone becomes a part of it.
        tz = form.pop("tz", None)
        form["at"] = coming_instant("at", form["at"], zone_of(tz) if tz else zone)
    if "start" in form:
        form["start"] = local_instant("rrule_start", form["start"], zone)
    try:
        return decode_schedule(form)
    except InvalidEntry as exc:
        # The error names a field of the form. The user knows only the option, so name that instead.
        field = exc.field.removeprefix("schedule.")
        raise exc.at(_OPTION_OF.get(field, field)) from None


def _check_refinement(name: str, kind: str) -> None:
    """Raise InvalidEntry if an option does not go with the kind of the schedule."""
    field = _FIELD_OF.get(name, name)
    # ``beside`` has the kinds that allow the option: the stored form of such a kind has its field.
    # The kind "at" also allows --tz, although its form has an aware instant in place of a zone.
    beside = [
        allowed
        for allowed in KINDS
        if field in SCHEDULE_KINDS[allowed].options or (allowed, field) == ("at", "tz")
    ]
    if kind not in beside:
        expected = f"{' or '.join(map(repr, beside))} beside it"
        raise InvalidEntry(name, expected, kind or "none")


def schedule_options(schedule: BaseSchedule, zone: tzinfo = UTC) -> dict[str, Any]:
    """Return the options with which :func:`read_options` makes a schedule with the same runs.

    The first is the kind. A schedule that no other option can express has the option ``schedule``
    with its stored form as JSON.

    Parameters:
        zone: time zone in which the instant of ``at`` is written.

    Raises:
        InvalidEntry: the class of the schedule cannot be stored.
    """
    form = encode_schedule(schedule)
    kind = next(iter(form))
    if form.keys() == {"schedule"}:
        # The form of Celery's own interval has only its seconds. Without a fraction of a ms, the
        # interval has the same runs as --every.
        ms = form["schedule"] * 1000
        if abs(ms - round(ms)) < 1e-6:
            return {"every": duration_text(round(ms))}
    if kind == "schedule" or kind not in KINDS:
        return {"schedule": json.dumps(form, ensure_ascii=False)}
    if kind == "at":
        return {"at": datetime.fromisoformat(form["at"]).astimezone(zone).isoformat()}
    if kind == "rrule":
        # A rule may have several lines. Its parser also accepts blanks between them, so join them.
        form["rrule"] = " ".join(form["rrule"].split())
    return {_OPTION_OF.get(name, name): value for name, value in form.items()}


def option_words(options: Mapping[str, str | bool]) -> list[str]:
    """Return options as words of the command line.

    The value ``True`` stands for a flag, and ``False`` for the flag with the opposite meaning.
    """
    words = []
    for name, value in options.items():
        if value is False:
            words.append(f"--{FIELD_OPTIONS[name].off}")
            continue
        words.append(option_word(name))
        if isinstance(value, str):
            words.append(value)
    return words


def _read_field(field: Field, value: Any, zone: tzinfo) -> Any:
    """Parse the text of an option, and return the value of its field.

    A flag has a truth value and no text, and is returned unchanged.
    """
    if not isinstance(value, str):
        return value
    if value == _NONE and field.optional:
        return None
    # The metavar is the word that stands for the value in the help. Fields with the same word are
    # parsed alike. For a field with any other word, the text itself is the value.
    match field.kind.metavar:
        case "JSON":
            return _read_arguments(field.path, value)
        case "POLICY":
            return _read_policy(field.path, value)
        case "INSTANT":
            return coming_instant(field.path, value, zone)
        case "N":
            return read_word(value)  # If it is no number, the check of the field refuses it.
        case "TAG,...":
            return () if value == _NONE else value.split(",")
    return value


def _read_json(field: str, text: str, expected: str = "JSON") -> Any:
    """Return the value of a JSON text; raise InvalidEntry if the text is no JSON.

    Parameters:
        expected: kind of text that the error says was expected.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise InvalidEntry(field, f"{expected} ({exc})", text) from None


def _read_arguments(field: str, text: str) -> Any:
    """Return the arguments or options of a task from their JSON.

    In this JSON, an object with ``__type__`` is a value of a type that JSON lacks.

    Parameters:
        field: ``"args"``, which is a list; or another field, such as ``"kwargs"``, an object.
    """
    kind: type = dict
    expected = "JSON object"
    if field == "args":
        kind = list
        expected = "JSON array"
    try:
        value = unpack(_read_json(field, text, expected))
    except CorruptEntry as exc:
        raise InvalidEntry(field, f"{expected} ({exc})", text) from None
    if not isinstance(value, kind):
        raise InvalidEntry(field, expected, text)
    return value


def _read_policy(field: str, text: str) -> Any:
    """Return a policy, such as ``once`` or ``misfire``, from its text.

    The text is JSON, or pairs such as ``start_within=30s,failures=3``, or a single word.

    Returns:
        the value of the JSON, a dict of the pairs, or the word. The field checks it later.
    """
    if text.lstrip().startswith("{"):
        return _read_json(field, text)
    if "=" not in text:
        return text == "true" if text in ("true", "false") else text
    parts = [part.strip().partition("=") for part in text.split(",")]
    return {name: read_word(value) for name, _, value in parts}


def read_word(text: str) -> Any:
    """Return the truth value, number or ``None`` that a text names; any other text unchanged."""
    if text in _WORDS:
        return _WORDS[text]
    # Python also refuses to read a whole number of more than 4,300 digits.
    with suppress(ValueError):
        return int(text) if text.isdecimal() else float(text)
    return text


def has_state(entry: Entry, state: str | None) -> bool:
    """Return whether an entry has this state.

    Parameters:
        state: one of :data:`STATES`. Empty or ``None``: any state.
    """
    if state == "failing":
        return entry.last_error is not None
    if state == "failed":
        return entry.failures_in_a_row > 0
    return not state or entry.status == state


def past_instant(field: str, text: str, zone: tzinfo) -> datetime:
    """Return the instant that a text names: an instant, a time of day, or a length of time ago.

    A time of day is the last one that has passed.

    Raises:
        InvalidEntry: the text is none of these.
    """
    if _is_time_of_day(text):
        # If it is none, such as 25:00, the error below names all allowed forms.
        with suppress(ValueError):
            parsed = time.fromisoformat(text)
            now = datetime.now(UTC).astimezone(parsed.tzinfo or zone)
            instant = datetime.combine(now, parsed, now.tzinfo)
            return instant if instant <= now else instant - timedelta(days=1)
    also = "a time of day such as 03:00, or how long ago"
    return _instant_from_now(field, text, zone, direction=-1, also=also)


def _is_time_of_day(text: str) -> bool:
    """Return whether a text looks like a time of day, which has a colon where a date has none."""
    return ":" in text[:3]


def coming_instant(field: str, text: str, zone: tzinfo) -> datetime:
    """Return the instant that a text names: an instant, or a length of time from now.

    Raises:
        InvalidEntry: the text is none of these.
    """
    return _instant_from_now(field, text, zone, direction=1, also="how long from now")


def _instant_from_now(
    field: str, text: str, zone: tzinfo, *, direction: int, also: str
) -> datetime:
    """Return the instant that a text names, or that lies a length of time from now.

    Parameters:
        direction: 1 if a length of time lies ahead of now, -1 if it lies behind.
        also: words for the error: the forms of text that are allowed beside an instant.
    """
    length = parse_length(text)
    if length is not None:
        return datetime.now(UTC) + direction * length
    try:
        return local_instant(field, text, zone)
    except InvalidEntry as exc:
        expected = f'{exc.expected}, or {also}, such as "1h30m"'
        raise InvalidEntry(field, expected, text, hint=exc.hint) from None


def parse_length(text: str) -> timedelta | None:
    """Return the length of time that a text names, at most ``_LONGEST``.

    ``None`` if the text names no length.
    """
    # A number without a unit is no length, because 20261201 is a date.
    seconds = None if text.isdecimal() else seconds_of(text)
    if seconds is None:
        return None
    return timedelta(seconds=min(seconds, _LONGEST.total_seconds()))


def parse_span(
    fields: tuple[str, str],
    since: str | None,
    until: str | None,
    zone: tzinfo,
) -> tuple[datetime | None, datetime | None]:
    """Return the start and the end of a span of time, read by :func:`past_instant`.

    If the end is a time of day and lies before the start, it is that time on the next day. So at
    23:00, ``22:00`` to ``06:00`` means this evening to tomorrow morning, although ``06:00`` alone
    would mean this morning.

    Parameters:
        fields: names of the two options, for errors.
        since, until: the texts; ``None``: no start, or no end.

    Raises:
        InvalidEntry: a text is no instant, or the end lies before the start.
    """
    first = None if since is None else past_instant(fields[0], since, zone)
    last = None if until is None else past_instant(fields[1], until, zone)
    if first is None or last is None:
        return first, last
    if last < first and _is_time_of_day(str(until)):
        last += timedelta(days=1)
    if last < first:
        start = f"{first.astimezone(zone):%Y-%m-%d %H:%M:%S}"
        raise InvalidEntry(fields[1], f"an instant after --{fields[0]}, {start}", until)
    return first, last

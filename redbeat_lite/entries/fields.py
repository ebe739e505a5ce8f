"""Fields of an entry: each is checked, and converted into one form."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from difflib import get_close_matches
from itertools import islice
from typing import Any, NamedTuple, TypeGuard

from celery.utils.abstract import CallableSignature
from kombu.entity import Queue

from .._base.errors import InvalidEntry
from .._base.text import is_short_text, nearest_hint
from .._base.times import DURATION_FORMS, YEAR, aware, length_of, seconds_of
from ..expect import Expect, Pause
from ..once.canvas import CANVAS, CANVASES, plain
from ..once.policy import Once
from ..rules import Manual, coerce_schedule, decode_schedule, encode_schedule
from ..rules.calendars import Calendar
from ..rules.misfire import Misfire
from ..settings import MAX_HISTORY, MAX_NAME, key_root
from ..store.json_values import pack, unpack
from .foreign_fields import INSTEAD

#: Fields of ``once``, which users easily mistake for fields of the entry.
_ONCE = frozenset(field.name for field in dataclasses.fields(Once))

#: Longest time in seconds until a message expires or becomes due, so that a datetime can hold that
#: instant.
LONGEST = 100 * YEAR

#: Most tags of an entry.
MAX_TAGS = 20

#: Most characters of a tag.
MAX_TAG = 100


def check_name(field: str, value: object) -> str:
    """Return ``value`` if it can be the name of an entry or a task; else raise InvalidEntry."""
    if not is_name(value):
        raise InvalidEntry(
            field, f"text of 1 to {MAX_NAME} characters without control characters", value
        )
    return value


def is_name(value: object) -> TypeGuard[str]:
    """Whether ``value`` can be the name of an entry or a task."""
    return is_short_text(value, MAX_NAME)


def as_args(value: Any) -> tuple[Any, ...]:
    if value is None:
        return ()
    if not isinstance(value, (list, tuple)):
        raise InvalidEntry(
            "args", "a list or tuple", value, hint="one argument is written (value,)"
        )
    return tuple(value)


def as_mapping(field: str, value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidEntry(field, "a dict", value)
    for key in value:
        if not isinstance(key, str):
            raise InvalidEntry(field, "a dict with text keys", key)
    return dict(value)


def as_options(value: Any) -> dict[str, Any]:
    options = as_mapping("options", value)
    if not options:
        return options
    # The headers must be a dict, because the beat adds its own headers for each run.
    as_mapping("options.headers", options.get("headers"))
    for name, near in misspelt(options):
        raise InvalidEntry(
            f"options.{name}", "a known option", options[name], hint=f"did you mean {near!r}?"
        )
    for name, (is_right, expected) in _OPTIONS.items():
        if options.get(name) is not None and not is_right(options[name]):
            raise InvalidEntry(f"options.{name}", expected, options[name])
    return options


def _is_seconds(value: object) -> bool:
    return is_number(value) and abs(value) <= LONGEST


def _is_instant(value: object) -> bool:
    if not isinstance(value, str):
        return isinstance(value, datetime)
    try:
        datetime.fromisoformat(value)
    except ValueError:
        return False
    return True


#: Checks of options whose wrong values would fail at every run: a test, and the expected values.
_OPTIONS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "expires": (
        lambda value: _is_seconds(value) or _is_instant(value),
        "seconds up to 100 years, or a datetime or its ISO form",
    ),
    "countdown": (_is_seconds, "seconds up to 100 years"),
    "eta": (_is_instant, "a datetime or its ISO form"),
    "queue": (
        lambda value: isinstance(value, (str, Queue)),
        "the name of a queue or a kombu Queue",
    ),
}


def of_type(field: str, value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise InvalidEntry(field, {bool: "True or False", str: "text"}[kind], value)
    return value


def is_number(value: object) -> TypeGuard[float]:
    """Whether ``value`` is a finite number that a float can hold."""
    return (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and abs(value) <= sys.float_info.max
    )


def as_expires(value: Any) -> float | str | None:
    if value is None or value == "interval":
        return value  # type: ignore[no-any-return]
    seconds = seconds_of(value)
    if seconds is None or seconds <= 0:
        hint = None
        if isinstance(value, datetime):
            hint = "the last instant of an entry is its end_at"
        raise InvalidEntry(
            "expires", f'None, "interval", or {DURATION_FORMS}, more than 0', value, hint=hint
        )
    if seconds > LONGEST:
        raise InvalidEntry("expires", "at most 100 years", value, hint="None is never")
    return float(seconds)


def as_jitter(value: Any) -> float:
    return float(length_of("jitter", value, f"not negative and at most a year ({YEAR} s)", 0, YEAR))


def as_number(field: str, value: Any, least: int, most: float = math.inf) -> int | None:
    if value is not None and (type(value) is not int or not least <= value <= most):
        bounds = f"{least} to {most}" if math.isfinite(most) else f"{least}"
        raise InvalidEntry(field, f"None or a whole number from {bounds}", value)
    return value


def as_tags(value: Any) -> tuple[str, ...]:
    expected = (
        f"up to {MAX_TAGS} different texts of 1 to {MAX_TAG} characters without commas and "
        "control characters"
    )
    tags = tuple(value) if isinstance(value, (list, tuple, set, frozenset)) else (value,)
    if len(set(map(str, tags))) != len(tags) or len(tags) > MAX_TAGS:
        raise InvalidEntry("tags", expected, value)
    for tag in tags:
        if not is_short_text(tag, MAX_TAG) or "," in tag:
            raise InvalidEntry("tags", expected, tag)
    return tuple(sorted(tags))


def brings_arguments(task: Any) -> bool:
    """Whether ``task`` is a signature or a pipeline, which has arguments of its own."""
    return isinstance(task, CallableSignature) or hasattr(task, "as_entry")


def expanded(task: Any, args: Any, kwargs: Any, options: Any) -> tuple[Any, Any, Any, Any]:
    """Return task, arguments and options; a signature or a pipeline as ``task`` brings its own."""
    if isinstance(task, CallableSignature):
        for field, value in (("args", args), ("kwargs", kwargs)):
            if value:
                raise InvalidEntry(field, "none beside a signature, which has its own", value)
        if task.task in CANVASES:
            return CANVAS, (plain(unpack(pack(task, "task"))),), {}, options
        return task.task, task.args, task.kwargs, {**task.options, **as_mapping("options", options)}
    if hasattr(task, "as_entry"):
        if kwargs:
            raise InvalidEntry("kwargs", "none beside a pipeline, which has its own params", kwargs)
        fields = task.as_entry()
        return fields["task"], args, fields["kwargs"], options
    return task, args, kwargs, options


def as_calendar(value: Any) -> Calendar | str | None:
    name = value.name if isinstance(value, Calendar) else value
    if value is not None and (not is_name(name) or "@" in name):
        hint = None
        if isinstance(value, Calendar):
            hint = "store it: schedules.calendars[name] = ..."
        raise InvalidEntry("calendar", "None or the name of a stored calendar", value, hint=hint)
    return value  # type: ignore[no-any-return]


#: Options that Celery's ``apply_async`` and ``send_task`` know, and those that they hand on to
#: kombu's ``publish``.
KNOWN = frozenset(
    """
    task_id producer publisher connection router
    route_name result_cls add_to_parent ignore_result shadow
    countdown eta expires retries link link_error
    chain chord group_id group_index root_id parent_id reply_to
    time_limit soft_time_limit task_type replaced_task_nesting stamped_headers argsrepr
    kwargsrepr origin
    queue exchange exchange_type routing_key
    event_dispatcher retry retry_policy serializer delivery_mode
    compression declare headers mandatory immediate
    priority content_type content_encoding expiration timeout
    confirm_timeout correlation_id message_id timestamp
    type user_id app_id cluster_id application_headers
    MessageGroupId MessageDeduplicationId MessageAttributes
    """.split()  # noqa: SIM905 - a list would be sixty lines
)

#: Known options by their names in lower case.
_BY_NAME = {name.lower(): name for name in KNOWN}

#: Frequent short forms of known options. They must match exactly: a name that only resembles one,
#: as "ahead" resembles "head", may be an option of a broker.
_OTHER_WORDS = {"que": "queue", "prio": "priority", "expiry": "expires", "head": "headers"}

#: Most unknown options that are compared with the known ones. A comparison takes 0.1 ms or more,
#: and 64 KiB can hold thousands of options.
_LOOKED_AT = 20

#: Similarity (0 to 1) from which on an unknown name is taken for a misspelled known one. "queu" and
#: "queue" have 0.89; "group" and "group_id", which are different options, have 0.77.
_ALIKE = 0.84


def check_destination(options: Mapping[str, Any], prefix: str) -> None:
    """Refuse a queue whose name is one of the schedule's own keys.

    If the broker and the schedule share a database, the broker would write messages into that key.

    Raises:
        InvalidEntry: the option names such a queue.
    """
    root = key_root(prefix)
    for name in ("queue", "routing_key"):
        value = options.get(name)
        if isinstance(value, str) and value.startswith((f"{root}:", f"{root[:-1]}:")):
            raise InvalidEntry(f"options.{name}", "a queue, which is no key of the schedule", value)


def misspelt(options: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Yield the options that look misspelled, each with the known option that it resembles.

    Other unknown options are allowed, because a task's own ``apply_async`` and some brokers have
    options of their own.
    """
    stamped = set(options.get("stamped_headers") or ())
    unknown = (name for name in options if name not in KNOWN and name not in stamped)
    for name in islice(unknown, _LOOKED_AT):
        other = _OTHER_WORDS.get(name.lower())
        near = [] if other else get_close_matches(name.lower(), _BY_NAME, n=1, cutoff=_ALIKE)
        if other or near:
            yield name, other or _BY_NAME[near[0]]


def unknown_field(field: object, value: object) -> InvalidEntry:
    """Return the error for a field that an entry does not have, with a hint about the right one."""
    name = str(field)
    if name in INSTEAD:
        hint: str | None = INSTEAD[name]
    elif name in KNOWN:
        hint = f"it belongs into options: {{{name!r}: ...}}"
    elif name in _ONCE:
        hint = f"it belongs into once: {{{name!r}: ...}}"
    else:
        hint = nearest_hint(name, (*FIELDS, "relative"))
    return InvalidEntry(name, "a known field", value, hint=hint)


#: Fields that only matter to occurrences, with the values that ask for nothing. An entry with
#: `manual()` has no occurrences, so it must have these values.
_UNSET: dict[str, Any] = {
    "misfire": Misfire.of("coalesce"),
    "jitter": 0.0,
    "remove_when_done": False,
}
_UNSET |= dict.fromkeys(("start_at", "end_at", "max_runs", "on_failure"))


def check_together(entry: Any) -> None:
    """Refuse fields that contradict each other.

    Raises:
        InvalidEntry: names one of these fields.
    """
    if entry.start_at and entry.end_at and entry.end_at < entry.start_at:
        raise InvalidEntry(
            "end_at", f"an instant not before start_at ({entry.start_at.isoformat()})", entry.end_at
        )
    for field in ("expect", "on_failure"):
        value = getattr(entry, field)
        if value and entry.remove_when_done:
            raise InvalidEntry(field, "none beside remove_when_done: it is looked at later", value)
        if value and entry.history == 0:
            raise InvalidEntry(
                "history", f"at least 1 beside {field}, which goes by what is recorded", 0
            )
    if isinstance(entry.schedule, Manual):
        _check_manual(entry)


def _check_manual(entry: Any) -> None:
    for field, unset in _UNSET.items():
        value = getattr(entry, field)
        if value != unset:
            raise InvalidEntry(field, f"no {field} beside manual(), which is never due", value)
    if entry.expect and entry.expect != Expect(failures=entry.expect.failures):
        raise InvalidEntry(
            "expect", "failures alone beside manual(), which is never due", entry.expect
        )


def read_instant(field: str, value: Any) -> datetime | None:
    """Return an aware datetime or ``None``; raise InvalidEntry for anything else."""
    return None if value is None else aware(field, value)


def _as_it_is(value: Any, field: str = "") -> Any:
    return value


def _store_calendar(calendar: Any, field: str) -> Any:
    if not isinstance(calendar, Calendar):
        raise InvalidEntry(field, "a calendar that is stored", calendar)
    return calendar.encode()


class Field(NamedTuple):
    """Conversions between the forms of a field.

    Parameters:
        read: converts a user's input into the field's value; raises InvalidEntry.
        store: converts the value into JSON; raises InvalidEntry.
        load: converts the stored JSON into an input that ``read`` accepts.
    """

    read: Callable[[str, Any], Any]
    store: Callable[[Any, str], Any] = _as_it_is
    load: Callable[[Any], Any] = _as_it_is


def _read_by(of: Callable[[Any], Any]) -> Callable[[str, Any], Any]:
    """Return a ``read`` that calls ``of``, whose errors name the field already."""
    return lambda field, value: of(value)


_FLAG = Field(lambda field, value: of_type(field, value, bool))
_INSTANT = Field(read_instant, lambda value, field: value.isoformat(), datetime.fromisoformat)

#: Fields that a user may write. The class `Entry` has their types, defaults and meanings.
FIELDS = {
    "task": Field(check_name),
    "schedule": Field(
        _read_by(coerce_schedule),
        lambda value, field: encode_schedule(value),
        decode_schedule,
    ),
    "args": Field(_read_by(as_args), lambda value, field: pack([*value], field), unpack),
    "kwargs": Field(as_mapping, pack, unpack),
    "options": Field(_read_by(as_options), pack, unpack),
    "expires": Field(_read_by(as_expires)),
    "once": Field(_read_by(Once.of), lambda value, field: value.encode(), Once.decode),
    "misfire": Field(_read_by(Misfire.of), lambda value, field: value.encode()),
    "jitter": Field(_read_by(as_jitter)),
    "start_at": _INSTANT,
    "end_at": _INSTANT,
    "max_runs": Field(lambda field, value: as_number(field, value, 1)),
    "enabled": _FLAG,
    "description": Field(lambda field, value: of_type(field, value, str), pack),
    "remove_when_done": _FLAG,
    "history": Field(lambda field, value: as_number(field, value, 0, MAX_HISTORY)),
    "expect": Field(
        _read_by(Expect.of), lambda value, field: value and value.encode(), Expect.decode
    ),
    "on_failure": Field(_read_by(Pause.of), lambda value, field: str(value)),
    "calendar": Field(_read_by(as_calendar), _store_calendar, Calendar.decode),
    "tags": Field(_read_by(as_tags), lambda value, field: pack([*value], field)),
}


def read_field(field: str, value: Any) -> Any:
    """Convert a user's input into the value of a field.

    Raises:
        InvalidEntry: the field is unknown, or the input is wrong.
    """
    if field not in FIELDS:
        raise unknown_field(field, value)
    return FIELDS[field].read(field, value)

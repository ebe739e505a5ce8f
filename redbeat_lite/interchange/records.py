"""Entries, freezes and backfills as records that can be written to a file and read back, elsewhere or by a person.

A record holds the fields of an entry as JSON can: its schedule as :mod:`redbeat_lite.entries.schedule_text`
writes it, arguments as they are stored, instants in ISO 8601.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, TypeVar

from celery import Celery

from ..entries.configured import entry_with_defaults
from ..entries.entry import Entry
from ..entries.fields import is_name
from ..entries.freezes import Freeze
from ..entries.schedule_text import instant_from, schedule_from
from ..entries.selection import Selection
from ..entries.state import MAX_COUNT, MAX_NOTE, EntryState
from ..entries.unstored import UnstoredSchedule
from ..errors import CorruptEntry, InvalidEntry, storable
from ..instants import from_ms, to_ms
from ..schedules import Question
from ..settings import Settings
from ..storage.backfills import Backfill
from ..storage.json_values import unpack

#: Fields of a record that are none of the definition that a user writes.
_BESIDE = ("name", "owner", "unstored", "state")


#: Reads the value of a field, whose path it is given; raises InvalidEntry.
_Reader = Callable[[str, Any], Any]


def entry_from(settings: Settings, name: str, fields: Mapping[str, Any], *, app: Celery) -> Entry:
    """The entry of a record, as :func:`entry_fields` makes them; what it leaves out has the defaults of the settings.

    Raises InvalidEntry: a field is missing, unknown or wrong. ``owner`` and ``unstored`` are of config entries.
    """
    given = {field: value for field, value in fields.items() if field not in _BESIDE}
    read = {field: _ENTRY[field](field, value) if field in _ENTRY else value for field, value in given.items()}
    owner = fields.get("owner")
    unstored = {} if owner is None else _texts("unstored", fields.get("unstored", {}))
    if "schedule" in unstored:
        read["schedule"] = UnstoredSchedule(unstored["schedule"])
    entry = entry_with_defaults(settings, name, read, app=app)
    entry.owner = owner
    entry.unstored = unstored
    return entry


def state_fields(state: EntryState) -> dict[str, Any]:
    """The state of an entry as JSON values."""
    asked = state.nominal.asked if isinstance(state.nominal, Question) else None
    instants = {"next": state.nominal, "asked": asked, "last": state.last, "forgiven": state.forgiven or None}
    told = {field: None if ms is None else from_ms(ms).isoformat() for field, ms in instants.items()}
    told |= {field: getattr(state, field) for field in _STATE if field not in told}
    return {field: each for field, each in told.items() if each is not None or field in ("next", "last")}


def state_from(fields: Any) -> EntryState:
    """The state of a record; raises InvalidEntry if a part of it is missing or wrong."""
    found = _all_of(_STATE, "state", fields)
    nominal, asked, forgiven = found.pop("next"), found.pop("asked"), found.pop("forgiven")
    if nominal is not None and asked is not None:
        nominal = Question(nominal, asked)
    return EntryState(**found, nominal=nominal, forgiven=forgiven or 0)


_T = TypeVar("_T", Freeze, Backfill)


def fields_of(item: Freeze | Backfill) -> dict[str, Any]:
    """A freeze or a backfill as JSON values."""
    values = {field: getattr(item, field) for field in _FIELDS[type(item)]}
    return {field: each.isoformat() if isinstance(each, datetime) else each for field, each in values.items()}


def items_from(cls: type[_T], place: str, found: Any) -> tuple[_T, ...]:
    """What :func:`fields_of` made of some; raises InvalidEntry, which names the path of what is wrong."""
    return tuple(_item(cls, f"{place}[{number}]", fields) for number, fields in enumerate(_list(place, found)))


def _item(cls: type[_T], place: str, fields: Any) -> _T:
    found = _all_of(_FIELDS[cls], place, fields)
    if cls is Freeze:
        found |= Selection.of(found["name"], found["tag"], found["task"])._asdict()
    return cls(**found)


def _all_of(readers: Mapping[str, _Reader], place: str, fields: Any) -> dict[str, Any]:
    """These fields of an object; of one that is not there the reader is given ``None``."""
    given = _object(place, fields)
    return {field: read(f"{place}.{field}", given.get(field)) for field, read in readers.items()}


def _reader(expected: str, is_right: Callable[[Any], bool]) -> _Reader:
    def read(field: str, value: Any) -> Any:
        if not is_right(value):
            raise InvalidEntry(field, expected, value)
        return value

    return read


def _or_none(read: _Reader) -> _Reader:
    return lambda field, value: None if value is None else read(field, value)


def _unpacked(field: str, value: Any) -> Any:
    try:
        return unpack(value)
    except CorruptEntry as exc:
        raise InvalidEntry(field, f"values that can be read ({exc})", value) from None


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and storable(value) == value


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < MAX_COUNT


def _is_note(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= MAX_NOTE and value.encode(errors="replace").decode() == value


def _is_range(span: Any) -> bool:
    return isinstance(span, list) and len(span) == 2 and all(type(ms) is int for ms in span)


_MAX_GENERATION = 32

_list = _reader("a list", lambda value: isinstance(value, list))
_object = _reader("an object", lambda value: isinstance(value, dict))
_name = _reader("a name", is_name)
_text = _reader("text", _is_text)
_text_or_null = _reader("text or null", lambda value: value is None or _is_text(value))
_note = _reader(f"text of at most {MAX_NOTE} characters", _is_note)
_count = _reader("a whole number from 0", _is_count)
_count_or_null = _reader("a whole number from 0, or null", lambda value: value is None or _is_count(value))
_switch = _reader("true or false", lambda value: isinstance(value, bool))
_texts = _reader("an object of texts", lambda value: isinstance(value, dict) and all(map(_is_text, value.values())))
_ranges = _reader("pairs of epoch milliseconds", lambda value: isinstance(value, list) and all(map(_is_range, value)))
_generation = _reader(
    f"at most {_MAX_GENERATION} letters and digits",
    lambda value: isinstance(value, str) and value.isalnum() and len(value) <= _MAX_GENERATION,
)

_ENTRY: dict[str, _Reader] = {
    "schedule": _or_none(lambda _, value: schedule_from(value)),
    **dict.fromkeys(("args", "kwargs", "options"), _unpacked),
    **dict.fromkeys(("start_at", "end_at"), _or_none(instant_from)),
}
_STATE: dict[str, _Reader] = {
    **dict.fromkeys(("count", "skipped", "version"), _count),
    "paused": _switch,
    **dict.fromkeys(("note", "error"), _note),
    "generation": _generation,
    **dict.fromkeys(("next", "last", "asked", "forgiven"), _or_none(lambda *given: to_ms(instant_from(*given)))),
}
_BOTH = {"id": _name, **dict.fromkeys(("name", "note", "actor"), _text)}

#: The fields that a file has of each. What a backfill waits for is none: its ends may be lost by the time it is back.
_FIELDS: dict[type, dict[str, _Reader]] = {
    Freeze: {
        **_BOTH,
        **dict.fromkeys(("until", "since"), instant_from),
        "tag": _text_or_null,
        "task": _text,
    },
    Backfill: {
        **_BOTH,
        "name": _name,
        **dict.fromkeys(("start", "end", "at"), instant_from),
        **dict.fromkeys(("again", "number", "total", "sent"), _count),
        "cursor": _reader("epoch milliseconds", lambda value: type(value) is int),
        "max_active": _count_or_null,
        "rate": _reader("a number", lambda value: type(value) in (int, float)),
        "generation": _text,
        "skip": _ranges,
        "paused": _switch,
    },
}

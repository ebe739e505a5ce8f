"""Entries, freezes and backfills as records that can be written to a file and read back, elsewhere or by a person.

A record holds the fields of an entry as JSON can: its schedule as :mod:`redbeat_lite.entries.schedule_text`
writes it, arguments as they are stored, instants in ISO 8601.
"""

from __future__ import annotations

from collections.abc import Mapping
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
from ..errors import CorruptEntry, InvalidEntry, storable
from ..instants import from_ms, to_ms
from ..schedules import Question
from ..settings import Settings
from ..storage.backfills import Backfill
from ..storage.json_values import unpack

#: Fields of a record that are none of the definition that a user writes.
_BESIDE = ("name", "owner", "local", "runs", "state")


def entry_from(settings: Settings, name: str, fields: Mapping[str, Any], *, app: Celery) -> Entry:
    """The entry of a record, as :func:`entry_fields` makes them; what it leaves out has the defaults of the settings.

    Raises InvalidEntry: a field is missing, unknown or wrong. ``owner``, ``local`` and ``runs`` are of config entries.
    """
    given = {field: value for field, value in fields.items() if field not in _BESIDE}
    local = tuple(fields.get("local") or ())
    if "schedule" in local:
        given["schedule"] = 60  # stands for what its app alone knows, and is not stored
    entry = entry_with_defaults(settings, name, {f: _read(f, value) for f, value in given.items()}, app=app)
    entry.owner, entry.local, entry.runs = fields.get("owner"), local, _runs(fields.get("runs", []))
    return entry


def _runs(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or any(type(each) is not int for each in value):
        raise InvalidEntry("runs", "a list of epoch milliseconds", value)
    return tuple(value)


def state_fields(state: EntryState) -> dict[str, Any]:
    """The state of an entry as JSON values."""
    asked = {"asked": from_ms(state.nominal.asked).isoformat()} if isinstance(state.nominal, Question) else {}
    return {
        "next": None if state.nominal is None else from_ms(state.nominal).isoformat(),
        **asked,
        "last": None if state.last is None else from_ms(state.last).isoformat(),
        "count": state.count,
        "skipped": state.skipped,
        "paused": state.paused,
        "note": state.note,
        "error": state.error,
        **({"forgiven": from_ms(state.forgiven).isoformat()} if state.forgiven else {}),
        "generation": state.generation,
        "version": state.version,
    }


def state_from(fields: Any) -> EntryState:
    """The state of a record; raises InvalidEntry if a part of it is missing or wrong."""
    if not isinstance(fields, Mapping):
        raise InvalidEntry("state", "an object", fields)
    for field, kind, words in _STATE:
        value: Any = fields.get(field)
        if type(value) is not kind or not _can_be_stored(value):
            raise InvalidEntry(f"state.{field}", words, value)
    instants = {field: fields.get(field) for field in ("next", "last", "asked", "forgiven")}
    nominal, last, asked, forgiven = (
        None if value is None else to_ms(instant_from(f"state.{field}", value)) for field, value in instants.items()
    )
    generation = fields["generation"]
    if not generation.isalnum() or len(generation) > _MAX_GENERATION:
        raise InvalidEntry("state.generation", f"at most {_MAX_GENERATION} letters and digits", generation)
    return EntryState(
        fields["version"],
        generation,
        nominal if nominal is None or asked is None else Question(nominal, asked),
        last,
        fields["count"],
        fields["skipped"],
        paused=fields["paused"],
        note=fields["note"],
        error=fields["error"],
        forgiven=forgiven or 0,
    )


def _can_be_stored(value: Any) -> bool:
    if isinstance(value, int):
        return 0 <= value < MAX_COUNT
    return len(value) <= MAX_NOTE and value.encode(errors="replace").decode() == value


_MAX_GENERATION = 32
_TEXT = f"text of at most {MAX_NOTE} characters"
_STATE: tuple[tuple[str, type, str], ...] = (
    ("count", int, "a whole number from 0"),
    ("skipped", int, "a whole number from 0"),
    ("version", int, "a whole number from 0"),
    ("paused", bool, "true or false"),
    ("note", str, _TEXT),
    ("error", str, _TEXT),
    ("generation", str, _TEXT),
)


def _read(field: str, value: Any) -> Any:
    """A field as an entry takes it."""
    if field == "schedule":
        return value if value is None else schedule_from(value)
    if field in ("args", "kwargs", "options"):
        try:
            return unpack(value)
        except CorruptEntry as exc:
            raise InvalidEntry(field, f"values that can be read ({exc})", value) from None
    if field in ("start_at", "end_at"):
        return None if value is None else instant_from(field, value)
    return value


_T = TypeVar("_T", Freeze, Backfill)

_INSTANT = "instant"

#: The fields that a file has of each. What a backfill waits for is none: its ends may be lost by the time it is back.
_FIELDS: dict[type, dict[str, Any]] = {
    Freeze: {"until": _INSTANT, "since": _INSTANT, "tag": str | None, **dict.fromkeys(("task", "mode"), str)},
    Backfill: {
        **dict.fromkeys(("start", "end", "at"), _INSTANT),
        **dict.fromkeys(("again", "number", "total", "sent", "cursor"), int),
        "max_active": int | None,
        "rate": int | float,
        "generation": str,
        "skip": list | tuple,
        "paused": bool,
    },
}
_BOTH = dict.fromkeys(("id", "name", "note", "actor"), str)


def fields_of(item: Freeze | Backfill) -> dict[str, Any]:
    """A freeze or a backfill as JSON values."""
    values = {field: getattr(item, field) for field in (*_BOTH, *_FIELDS[type(item)])}
    return {field: each.isoformat() if isinstance(each, datetime) else each for field, each in values.items()}


def items_from(cls: type[_T], place: str, found: Any) -> tuple[_T, ...]:
    """What :func:`fields_of` made of some; raises InvalidEntry, which names the path of what is wrong."""
    _check(place, "a list", found, isinstance(found, list))
    return tuple(_item(cls, f"{place}[{number}]", fields) for number, fields in enumerate(found))


def _item(cls: type[_T], place: str, fields: Any) -> _T:
    _check(place, "an object", fields, isinstance(fields, dict))
    found: dict[str, Any] = {}
    for field, kind in (_BOTH | _FIELDS[cls]).items():
        where, value = f"{place}.{field}", fields.get(field)
        if kind is _INSTANT:
            found[field] = instant_from(where, value)
            continue
        is_right = isinstance(value, kind) and (kind is not str or storable(value) == value)
        _check(where, getattr(kind, "__name__", str(kind)), value, is_right)
        found[field] = value
    _check(f"{place}.id", "a name", found["id"], is_name(found["id"]))
    if cls is Freeze:
        _check(f"{place}.mode", '"hold" or "skip"', found["mode"], found["mode"] in ("hold", "skip"))
        found |= Selection.of(found["name"], found["tag"], found["task"])._asdict()
    else:
        _check(f"{place}.skip", "pairs of epoch milliseconds", found["skip"], all(map(_is_range, found["skip"])))
        _check(f"{place}.name", "a name", found["name"], is_name(found["name"]))
    return cls(**found)


def _is_range(span: Any) -> bool:
    return isinstance(span, list) and len(span) == 2 and all(type(ms) is int for ms in span)


def _check(field: str, expected: str, value: object, is_right: bool) -> None:
    if not is_right:
        raise InvalidEntry(field, expected, value)

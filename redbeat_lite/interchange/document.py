"""Files of entries in JSON or TOML, with errors that name the wrong part of a file.

``entries`` is a list of records that have a ``name``, or an object of records by name. An error
names the path of the wrong field, such as ``entries[3].schedule``. If the text itself is no JSON or
TOML, the error names the line.

A record has the fields of an entry: the schedule in the form that :mod:`redbeat_lite.rules.forms`
describes, arguments as they are stored, and instants in ISO 8601. An export also has freezes and
backfills.
"""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from celery import Celery

from .._base.errors import CorruptEntry, InvalidEntry, RedbeatError
from .._base.fields import INSTANT
from .._base.text import shorten, storable
from .._base.times import from_ms, to_ms
from ..entries.backfill import Backfill
from ..entries.configured import entry_with_defaults
from ..entries.definition import MAY_BE_UNSTORED
from ..entries.entry import Entry
from ..entries.freezes import Freeze
from ..entries.model import is_name
from ..entries.selection import Selection
from ..entries.state import MAX_COUNT, MAX_NOTE, EntryState
from ..entries.unstored import UnstoredSchedule
from ..rules import Question
from ..rules.calendars import Calendar
from ..settings import Settings
from ..store.json_values import unpack

#: Most characters of a key in the path of an error.
_KEY = 250

#: Most characters of a generation.
_MAX_GENERATION = 32

#: Fields of a record that do not belong to the definition of its entry.
_NOT_DEFINED = ("name", "owner", "unstored", "state", "local", "runs")

_T = TypeVar("_T", Freeze, Backfill)

#: Function of a field's path and its value in the file. It returns the checked value, or raises
#: InvalidEntry.
_Reader = Callable[[str, Any], Any]


class BadFile(RedbeatError):
    """A file of entries cannot be used. Nothing was written."""


@dataclass(frozen=True, slots=True)
class Record:
    """One entry of a file.

    Parameters:
        name: name of the entry.
        fields: all fields of the record in the file.
        key: index of the record in a list of records, or its key in an object of records.
    """

    name: str
    fields: dict[str, Any]
    key: int | str


@dataclass(frozen=True, slots=True)
class Document:
    """A file of entries, in its order. No two records have the same name.

    Only an export has calendars, freezes and backfills.
    """

    path: str
    records: tuple[Record, ...]
    calendars: tuple[Calendar, ...] = ()
    freezes: tuple[Freeze, ...] = ()
    backfills: tuple[Backfill, ...] = ()

    def wrong(self, record: Record, fault: InvalidEntry) -> BadFile:
        """Return an error with the path of a field in the file, and with the name of its entry."""
        where = _place(record.key)
        name = None if isinstance(record.key, str) else record.name
        # A record with a key has no field for its name.
        is_whole = fault.field == "entry" or (fault.field == "name" and name is None)
        if not is_whole:
            where = f"{where}.{fault.field}"
        error = InvalidEntry(where, fault.expected, fault.value, entry=name, hint=fault.hint)
        return BadFile(f"{self.path}: {error}")


def read_document(path: str, text: str) -> Document:
    """Read the text of a file: TOML if its name ends in ``.toml``, else JSON.

    Raises:
        BadFile: it is no file of entries. The error names the line, or the path of the wrong field.
    """
    root = _parse(path, text)
    entries = root.get("entries") if isinstance(root, dict) else None
    if not isinstance(entries, (dict, list)):
        expected = 'expected "entries", a list of entries or an object of entries by name'
        raise BadFile(f"{path}: {expected}")
    records: dict[str, Record] = {}
    try:
        for key, fields in entries.items() if isinstance(entries, dict) else enumerate(entries):
            record = _record(key, fields)
            if record.name in records:
                repeated = f"entry {record.name!r} comes a second time"
                raise BadFile(f"{path}: {_place(key)}: {repeated}")
            records[record.name] = record
        freezes = _items(Freeze, "freezes", root.get("freezes", []))
        backfills = _items(Backfill, "backfills", root.get("backfills", []))
    except InvalidEntry as exc:
        raise BadFile(f"{path}: {exc}") from None
    try:
        calendars = tuple(map(Calendar.decode, root.get("calendars") or ()))
    except (InvalidEntry, TypeError) as exc:
        raise BadFile(f"{path}: calendars: {exc}") from None
    return Document(path, tuple(records.values()), calendars, freezes, backfills)


def _place(key: int | str) -> str:
    """Return the path of a record."""
    return f"entries[{shorten(key, _KEY)}]"


def _record(key: int | str, fields: Any) -> Record:
    """Return the record of one entry of the file.

    Parameters:
        key: name of the entry in an object of entries; its index in a list of entries.
    """
    place = _place(key)
    if not isinstance(fields, dict):
        raise InvalidEntry(place, "an object with task and schedule", fields)
    name = fields.get("name") if isinstance(key, int) else key
    if not is_name(name):
        raise InvalidEntry(f"{place}.name", "text of 1 to 200 characters", name)
    if fields.get("name", name) != name:
        raise InvalidEntry(f"{place}.name", f"{name!r}, which is its key", fields["name"])
    return Record(name, fields, key)


def _parse(path: str, text: str) -> Any:
    """Return the content of a JSON or TOML file."""
    try:
        if Path(path).suffix == ".toml":
            return tomllib.loads(text)
        return json.loads(text, object_pairs_hook=_unique_keys)
    except RecursionError:
        raise BadFile(f"{path}: nested too deeply") from None
    except ValueError as exc:  # The errors of both parsers name line and column.
        raise BadFile(f"{path}: {exc}") from None


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of these pairs, or raise ValueError if a key is repeated."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        [(repeated, _)] = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"{repeated!r} comes twice in one object")
    return fields


def entry_from(settings: Settings, name: str, fields: Mapping[str, Any], *, app: Celery) -> Entry:
    """Return the entry that the fields of a record define.

    Missing fields have the defaults of the settings. Only config entries have ``owner`` and
    ``unstored``.

    Raises:
        InvalidEntry: a field is missing, unknown or wrong.
    """
    owner = fields.get("owner")
    unstored: dict[str, str] = {}
    if owner is not None:
        # Format 1 lists the fields that are not stored, without their texts.
        unstored = dict.fromkeys(_unstored_fields("local", fields.get("local", [])), "")
        unstored |= _texts("unstored", fields.get("unstored", {}))
    values = {}
    for field, value in fields.items():
        if field not in _NOT_DEFINED:
            values[field] = _ENTRY[field](field, value) if field in _ENTRY else value
    if "schedule" in unstored:
        values["schedule"] = UnstoredSchedule(unstored["schedule"])
    entry = entry_with_defaults(settings, name, values, app=app)
    entry.owner = owner
    entry.unstored = unstored
    return entry


def state_fields(state: EntryState) -> dict[str, Any]:
    """Return the state of an entry as JSON values."""
    fields: dict[str, Any] = {"next": _iso(state.nominal), "last": _iso(state.last)}
    if isinstance(state.nominal, Question):
        fields["asked"] = _iso(state.nominal.asked)
    if state.forgiven:
        fields["forgiven"] = _iso(state.forgiven)
    for field in _STATE_VALUES:
        value = getattr(state, field)
        if value is not None:
            fields[field] = value
    return fields


def _iso(ms: int | None) -> str | None:
    return None if ms is None else from_ms(ms).isoformat()


def state_from(fields: Any) -> EntryState:
    """Return the state of a record, or raise InvalidEntry if a part of it is missing or wrong."""
    values = _read_fields(_STATE_VALUES, "state", fields)
    instants = _read_fields(_STATE_INSTANTS, "state", fields)
    nominal = instants["next"]
    if nominal is not None and instants["asked"] is not None:
        nominal = Question(nominal, instants["asked"])
    forgiven = instants["forgiven"] or 0
    return EntryState(**values, nominal=nominal, last=instants["last"], forgiven=forgiven)


def fields_of(item: Freeze | Backfill) -> dict[str, Any]:
    """Return a freeze or a backfill as JSON values."""
    fields = {}
    for field in _FIELDS[type(item)]:
        value = getattr(item, field)
        fields[field] = value.isoformat() if isinstance(value, datetime) else value
    return fields


def _items(cls: type[_T], place: str, stored: Any) -> tuple[_T, ...]:
    """Return the freezes or the backfills of a file, or raise InvalidEntry for a wrong field.

    Parameters:
        place: path of the list in the file.
    """
    items = []
    for number, fields in enumerate(_list(place, stored)):
        values = _read_fields(_FIELDS[cls], f"{place}[{number}]", fields)
        if cls is Freeze:
            selection = Selection.of(values["name"], values["tag"], values["task"])
            values |= selection._asdict()
        items.append(cls(**values))
    return tuple(items)


def _read_fields(readers: Mapping[str, _Reader], place: str, fields: Any) -> dict[str, Any]:
    """Return the checked values of an object's fields. The reader of a missing field gets ``None``.

    Parameters:
        readers: field -> its reader.
        place: path of the object.
    """
    stored = _object(place, fields)
    return {field: read(f"{place}.{field}", stored.get(field)) for field, read in readers.items()}


def _reader(expected: str, is_right: Callable[[Any], bool]) -> _Reader:
    """Return a reader that accepts the values for which ``is_right`` returns true."""

    def read(field: str, value: Any) -> Any:
        if not is_right(value):
            raise InvalidEntry(field, expected, value)
        return value

    return read


def _or_none(read: _Reader) -> _Reader:
    """Return a reader that accepts ``None``, too."""
    return lambda field, value: None if value is None else read(field, value)


def _unpacked(field: str, value: Any) -> Any:
    try:
        return unpack(value)
    except CorruptEntry as exc:
        raise InvalidEntry(field, f"values that can be read ({exc})", value) from None


def _ms(field: str, value: Any) -> int:
    return to_ms(INSTANT.read(field, value))


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and storable(value) == value


def _is_note(value: Any) -> bool:
    if not isinstance(value, str) or len(value) > MAX_NOTE:
        return False
    return value.encode(errors="replace").decode() == value


def _is_generation(value: Any) -> bool:
    return isinstance(value, str) and value.isalnum() and len(value) <= _MAX_GENERATION


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < MAX_COUNT


def _is_list_of_ms(value: Any) -> bool:
    return isinstance(value, list) and all(type(ms) is int for ms in value)


def _is_object_of_texts(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_text, value.values()))


def _is_list_of_pairs(value: Any) -> bool:
    return isinstance(value, list) and all(
        _is_list_of_ms(pair) and len(pair) == 2 for pair in value
    )


_list = _reader("a list", lambda value: isinstance(value, list))
_object = _reader("an object", lambda value: isinstance(value, dict))
_name = _reader("a name", is_name)
_text = _reader("text", _is_text)
_text_or_null = _reader("text or null", lambda value: value is None or _is_text(value))
_note = _reader(f"text of at most {MAX_NOTE} characters", _is_note)
_count = _reader("a whole number from 0", _is_count)
_count_or_null = _reader(
    "a whole number from 0, or null", lambda value: value is None or _is_count(value)
)
_switch = _reader("true or false", lambda value: isinstance(value, bool))
_texts = _reader("an object of texts", _is_object_of_texts)
_unstored_fields = _reader(
    f"a list of some of {', '.join(MAY_BE_UNSTORED)}",
    lambda value: isinstance(value, list) and all(field in MAY_BE_UNSTORED for field in value),
)
_ranges = _reader("pairs of epoch milliseconds", _is_list_of_pairs)
_generation = _reader(f"at most {_MAX_GENERATION} letters and digits", _is_generation)

_ENTRY: dict[str, _Reader] = {
    "args": _unpacked,
    "kwargs": _unpacked,
    "options": _unpacked,
}
_STATE_VALUES: dict[str, _Reader] = {
    "count": _count,
    "skipped": _count,
    "version": _count,
    "paused": _switch,
    "note": _note,
    "error": _note,
    "generation": _generation,
}
_STATE_INSTANTS = dict.fromkeys(("next", "last", "asked", "forgiven"), _or_none(_ms))

#: Class -> fields of its objects in a file. The active runs of a backfill are left out, because the
#: records of their ends may be lost before the import.
_FIELDS: dict[type, dict[str, _Reader]] = {
    Freeze: {
        "id": _name,
        "name": _text,
        "note": _text,
        "actor": _text,
        "until": INSTANT.read,
        "since": INSTANT.read,
        "tag": _text_or_null,
        "task": _text,
    },
    Backfill: {
        "id": _name,
        "name": _name,
        "note": _text,
        "actor": _text,
        "start": INSTANT.read,
        "end": INSTANT.read,
        "at": INSTANT.read,
        "again": _count,
        "number": _count,
        "total": _count,
        "sent": _count,
        "cursor": _reader("epoch milliseconds", lambda value: type(value) is int),
        "max_active": _count_or_null,
        "rate": _reader("a number", lambda value: type(value) in (int, float)),
        "generation": _text,
        "skip": _ranges,
        "paused": _switch,
    },
}

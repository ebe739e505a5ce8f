"""Files of entries, in JSON or TOML: reading one, and naming the part of it that is wrong.

``entries`` is a list of records that have a ``name``, or an object of records by name. An error
names the path of its field, such as ``entries[3].schedule``. For an error of the text itself, the
parser names the line.

A record holds the fields of an entry in JSON: its schedule in the form that
:mod:`redbeat_lite.rules.forms` describes, arguments as they are stored, instants in ISO 8601. An
export also holds the freeze and backfills.
"""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar

from celery import Celery

from .._base.errors import CorruptEntry, InvalidEntry, RedbeatError
from .._base.fields import INSTANT, Model, checked_kind, whole
from .._base.json_values import unpack
from .._base.text import shorten, storable
from .._base.times import iso, to_ms
from ..entries.backfill import Backfill
from ..entries.configured import entry_with_defaults
from ..entries.entry import Entry
from ..entries.freeze import Freeze
from ..entries.model import MAY_BE_UNSTORED, UnstoredSchedule, is_name
from ..entries.state import MAX_COUNT, MAX_NOTE, EntryState
from ..rules import Question
from ..rules.calendars import Calendar
from ..settings import Settings

#: Maximum number of characters of an entry's key in the path of an error. Longer keys are cut.
_KEY = 250

#: Maximum number of characters of an entry's generation, a random text in its state.
_MAX_GENERATION = 32

#: Fields of a record that are not part of the definition that a user writes.
_NOT_DEFINED = ("name", "owner", "unstored", "state", "local", "runs")

_T = TypeVar("_T", Calendar, Backfill, Freeze)

#: Fields of an entry whose values have tags for their types in a file, as in Redis.
_PACKED = ("args", "kwargs", "options")


class BadFile(RedbeatError):
    """A file of entries cannot be used; nothing was written."""


class Record(NamedTuple):
    """One entry of a file.

    Parameters:
        fields: all its fields in the file.
        key: its index in a list of entries, or its key in an object of entries.
    """

    name: str
    fields: dict[str, Any]
    key: int | str


class Document(NamedTuple):
    """A file of entries, in its order, without equal names.

    Only an export has calendars, a freeze and backfills.

    Parameters:
        old_freezes: count of the freezes in an export of an older version, which are left out,
            because each was of some entries.
    """

    path: str
    records: tuple[Record, ...]
    calendars: tuple[Calendar, ...]
    freeze: Freeze | None
    backfills: tuple[Backfill, ...]
    old_freezes: int

    def wrong(self, record: Record, fault: InvalidEntry) -> BadFile:
        """Return an error with the path of the wrong field in the file.

        For a record in a list, whose path has only its index, the error also has the entry's name.

        Parameters:
            fault: error that names the field of the entry.
        """
        where = _place(record.key)
        # A key that is a text is the name of the entry already, so the error need not repeat it.
        name = None if isinstance(record.key, str) else record.name
        # In an object of entries, the key is the name. So an error of the name is about the record.
        is_about_record = fault.field == "entry" or (fault.field == "name" and name is None)
        if not is_about_record:
            where = f"{where}.{fault.field}"
        return BadFile(f"{self.path}: {fault.at(where, name)}")


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
        freeze = root.get("freeze")
        return Document(
            path,
            tuple(records.values()),
            _items(Calendar, "calendars", root),
            None if freeze is None else _object(Freeze, "freeze", freeze),
            _items(Backfill, "backfills", root),
            len(_LIST.read("freezes", root.get("freezes", []))),
        )
    except InvalidEntry as exc:
        raise BadFile(f"{path}: {exc}") from None


def _place(key: int | str) -> str:
    """Return the path of an entry in the file, for an error: ``entries[3]``."""
    return f"entries[{shorten(key, _KEY)}]"


def _record(key: int | str, fields: Any) -> Record:
    """Return the record of one entry of the file.

    Parameters:
        key: name of the entry in an object of entries; its index in a list of entries.
        fields: the object of the entry; any other value of the file is an error.

    Raises:
        InvalidEntry: it is no object, or its name is missing, wrong or not its key.
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
    """Return the content of a JSON or TOML file.

    Raises:
        BadFile: the text has an error, or a key comes twice in one object.
    """
    try:
        if Path(path).suffix == ".toml":
            return tomllib.loads(text)
        return json.loads(text, object_pairs_hook=_unique_keys)
    except RecursionError:
        raise BadFile(f"{path}: nested too deeply") from None
    except ValueError as exc:  # The errors of both parsers name the line and the column.
        raise BadFile(f"{path}: {exc}") from None


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of the JSON as a dict; raise ValueError if a key comes twice."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        [(repeated, _)] = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"{repeated!r} comes twice in one object")
    return fields


def entry_from(record: Record, settings: Settings, app: Celery) -> Entry:
    """Return the entry of a record, whose fields are those that :func:`entry_fields` writes.

    Missing fields have the defaults of the settings. Only the record of a config entry has the
    fields ``owner`` and ``unstored``. ``unstored`` has the fields that could not be stored: name of
    the field -> its text for people.

    Raises:
        InvalidEntry: a field is missing, unknown or wrong.
    """
    fields = record.fields
    owner = fields.get("owner")
    unstored: dict[str, str] = {}
    if owner is not None:
        # Files of format 1 list the unstored fields under ``local``, without their texts.
        names = _LIST.read("local", fields.get("local", []))
        texts = fields.get("unstored", {str(name): "" for name in names})
        unstored = _UNSTORED.read("unstored", texts)
    values = {}
    for field, value in fields.items():
        if field in _PACKED:
            values[field] = _unpacked(field, value)
        elif field not in _NOT_DEFINED:
            values[field] = value
    if "schedule" in unstored:
        values["schedule"] = UnstoredSchedule(unstored["schedule"])
    entry = entry_with_defaults(settings, record.name, values, app)
    entry.owner = owner
    entry.unstored = unstored
    return entry


def _is_note(value: Any) -> bool:
    """Return whether a value is a text that is short enough and can be written as UTF-8."""
    if not isinstance(value, str) or len(value) > MAX_NOTE:
        return False
    return value.encode(errors="replace").decode() == value


def _is_generation(value: Any) -> bool:
    return isinstance(value, str) and value.isalnum() and len(value) <= _MAX_GENERATION


def _are_unstored(value: Any) -> bool:
    """Return whether a value is an object of texts by names of fields that may be unstored."""
    return isinstance(value, dict) and all(
        field in MAY_BE_UNSTORED and isinstance(text, str) and storable(text) == text
        for field, text in value.items()
    )


_LIST = checked_kind("", "a list", lambda value: isinstance(value, list))
_COUNT = whole(0, MAX_COUNT - 1)
_NOTE = checked_kind("", f"text of at most {MAX_NOTE} characters", _is_note)
_GENERATION = checked_kind("", f"at most {_MAX_GENERATION} letters and digits", _is_generation)
_UNSTORED = checked_kind("", f"texts of some of {', '.join(MAY_BE_UNSTORED)}", _are_unstored)
#: Kind of a field with an instant that becomes epoch milliseconds.
_MS = INSTANT._replace(convert=lambda value: to_ms(INSTANT.convert(value)))

#: Fields of a state that have the same value in a file.
_AS_IN_STATE = ("count", "skipped", "version", "paused", "note", "error", "generation")

#: Fields of backfills that are left out of files. ``active``, for example, has the runs for whose
#: ends a backfill waits. These ends may be lost before the import.
_NOT_IN_FILES = ("ended", "active", "feed", "attempts", "wait")


class StateRecord(Model, frozen=True, kw_only=True):
    """State of an entry that was read from a file, with instants in epoch ms."""

    path: ClassVar[str] = "state"
    forms: ClassVar[str] = "an object"

    next: Annotated[int | None, _MS] = None
    last: Annotated[int | None, _MS] = None
    asked: Annotated[int | None, _MS] = None
    forgiven: Annotated[int | None, _MS] = None
    paused_until: Annotated[int | None, _MS] = None
    count: Annotated[int, _COUNT]
    skipped: Annotated[int, _COUNT]
    version: Annotated[int, _COUNT]
    paused: bool
    note: Annotated[str, _NOTE]
    error: Annotated[str, _NOTE]
    generation: Annotated[str, _GENERATION]


def state_fields(state: EntryState) -> dict[str, Any]:
    """Return the state of an entry as JSON values, with instants in ISO 8601.

    A schedule of another library may not tell its next occurrence. Then the beat asks it at a later
    instant whether it is due. For such a schedule, ``next`` is when the beat will ask it, and
    ``asked`` is the instant from which the schedule looks for its next occurrence.
    """
    instants = {
        "next": state.nominal,
        "last": state.last,
        "asked": state.nominal.after if isinstance(state.nominal, Question) else None,
        "forgiven": state.forgiven or None,
        "paused_until": state.paused_until,
    }
    texts = {field: None if ms is None else iso(ms) for field, ms in instants.items()}
    return {**texts, **{field: getattr(state, field) for field in _AS_IN_STATE}}


def state_from(fields: Any) -> EntryState:
    """Return the state of a record; raises InvalidEntry if a part of it is missing or wrong."""
    record = StateRecord.decode(fields)
    nominal = record.next
    if nominal is not None and record.asked is not None:
        nominal = Question(nominal, record.asked)
    return EntryState(
        nominal=nominal,
        last=record.last,
        forgiven=record.forgiven or 0,
        paused_until=record.paused_until,
        **{field: getattr(record, field) for field in _AS_IN_STATE},
    )


def backfill_fields(backfill: Backfill) -> dict[str, Any]:
    """Return a backfill as JSON values, with the fields that files have."""
    fields = backfill.encode()
    return {field: fields[field] for field in fields if field not in _NOT_IN_FILES}


def _object(cls: type[_T], place: str, fields: Any) -> _T:
    """Return an object of a file; raises InvalidEntry for a wrong field.

    Parameters:
        place: its path in the file.
    """
    try:
        decoded: _T = cls.decode(fields)
    except InvalidEntry as exc:
        # The field of the error is empty if the value is no object.
        raise exc.at(f"{place}.{exc.field}".rstrip(".")) from None
    return decoded


def _items(cls: type[_T], place: str, root: dict[str, Any]) -> tuple[_T, ...]:
    """Return the objects in one list of a file; raises InvalidEntry for a wrong field.

    Parameters:
        place: key of the list in the file. An export alone has such lists.
        root: content of the file.
    """
    items = enumerate(_LIST.read(place, root.get(place, [])))
    return tuple(_object(cls, f"{place}[{number}]", fields) for number, fields in items)


def _unpacked(field: str, value: Any) -> Any:
    """Return arguments or options without the tags for types; raise InvalidEntry for wrong tags."""
    try:
        return unpack(value)
    except CorruptEntry as exc:
        raise InvalidEntry(field, f"values that can be read ({exc})", value) from None

"""Files of entries, in JSON or TOML: reading one, and telling which part of it is wrong.

``entries`` is a list of records that have a ``name``, or an object of records by name. What is wrong in one of them is
told by its path, such as ``entries[3].schedule``; a line is told where the text itself is wrong, by the parser.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..entries.fields import is_name
from ..entries.freezes import Freeze
from ..errors import InvalidEntry, RedbeatError, shorten
from ..schedules.calendars import Calendar
from ..storage.backfills import Backfill
from .records import items_from

#: Characters of a key in a path; all of most names.
_KEY = 250


class BadFile(RedbeatError):
    """A file of entries cannot be used; nothing was written."""


@dataclass(frozen=True, slots=True)
class Record:
    """One entry of a file: all that it says about it, and its position among the entries, from 0, or its key."""

    name: str
    fields: dict[str, Any]
    key: int | str


@dataclass(frozen=True, slots=True)
class Document:
    """A file of entries, in its order; no name comes twice. Calendars, freezes and backfills are of an export."""

    path: str
    records: tuple[Record, ...]
    calendars: tuple[Calendar, ...] = ()
    freezes: tuple[Freeze, ...] = ()
    backfills: tuple[Backfill, ...] = ()

    def wrong(self, record: Record, fault: InvalidEntry) -> BadFile:
        """The error that names a field by its path in the file, and the entry where the path does not."""
        field, schedule = fault.field, record.fields.get("schedule")
        outermost = re.split(r"[.\[]", field)[0]
        if isinstance(schedule, dict) and outermost not in record.fields and outermost in schedule:
            field = f"schedule.{field}"  # a schedule names its own fields alone
        is_keyed = isinstance(record.key, str)
        # A keyed file has no field for the name, and none has one for the whole.
        is_whole = field == "entry" or (field == "name" and is_keyed)
        where = _place(record.key) if is_whole else f"{_place(record.key)}.{field}"
        name = None if is_keyed else record.name
        return BadFile(f"{self.path}: {InvalidEntry(where, fault.expected, fault.value, entry=name, hint=fault.hint)}")


def read_document(path: str, text: str) -> Document:
    """Read the text of a file: TOML if its name ends so, else JSON.

    Raises BadFile: it is no file of entries; names the line, or the path of what is none.
    """
    root = _parsed(path, text)
    entries = root.get("entries") if isinstance(root, dict) else None
    if not isinstance(entries, (dict, list)):
        raise BadFile(f'{path}: expected "entries", a list of entries or an object of entries by name')
    records: dict[str, Record] = {}
    try:
        for key, fields in entries.items() if isinstance(entries, dict) else enumerate(entries):
            record = _record(key, fields)
            if record.name in records:
                raise BadFile(f"{path}: {_place(key)}: entry {record.name!r} comes a second time")
            records[record.name] = record
        freezes = items_from(Freeze, "freezes", root.get("freezes", []))
        backfills = items_from(Backfill, "backfills", root.get("backfills", []))
    except InvalidEntry as exc:
        raise BadFile(f"{path}: {exc}") from None
    try:
        calendars = tuple(map(Calendar.decode, root.get("calendars") or ()))
    except (InvalidEntry, TypeError) as exc:
        raise BadFile(f"{path}: calendars: {exc}") from None
    return Document(path, tuple(records.values()), calendars, freezes, backfills)


def _place(key: int | str) -> str:
    return f"entries[{shorten(key, _KEY)}]"


def _record(key: int | str, fields: Any) -> Record:
    place = _place(key)
    if not isinstance(fields, dict):
        raise InvalidEntry(place, "an object with task and schedule", fields)
    name = fields.get("name") if isinstance(key, int) else key
    if not is_name(name):
        raise InvalidEntry(f"{place}.name", "text of 1 to 200 characters", name)
    if fields.get("name", name) != name:
        raise InvalidEntry(f"{place}.name", f"{name!r}, which is its key", fields["name"])
    return Record(name, fields, key)


def _parsed(path: str, text: str) -> Any:
    try:
        if Path(path).suffix == ".toml":
            return tomllib.loads(text)
        return json.loads(text, object_pairs_hook=_without_doubles)
    except RecursionError:
        raise BadFile(f"{path}: nested too deeply") from None
    except ValueError as exc:  # both parsers name line and column
        raise BadFile(f"{path}: {exc}") from None


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        [(double, _)] = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"{double!r} comes twice in one object")
    return found

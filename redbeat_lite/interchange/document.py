"""Files of entries, in JSON or TOML: reading one, and telling in which line something is wrong.

``entries`` is a list of records that have a ``name``, or an object of records by name. The parsers of the standard
library do not tell lines, so these are looked for when something is wrong, and only then.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..entries.fields import is_name
from ..errors import InvalidEntry, RedbeatError, shorten

#: A place in a document: keys and positions from its root.
Place = tuple[str | int, ...]

_SPACE = re.compile(r"[ \t\r\n]*")
_JSON = json.JSONDecoder()
#: The texts and comments of TOML: what is in them is no key, no table and no bracket.
_TOML_TEXT = re.compile(
    r'''"""(?:\\.|[^\\])*?"{3,5}|\'{3}.*?\'{3,5}|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'|\#[^\n]*''', re.DOTALL
)


class BadFile(RedbeatError):
    """A file of entries cannot be used; nothing was written."""


@dataclass(frozen=True, slots=True)
class Record:
    """One entry of a file.

    Parameters:
        name: of the entry.
        fields: everything that the file says about it.
        place: where.
    """

    name: str
    fields: dict[str, Any]
    place: Place


@dataclass(frozen=True, slots=True)
class Document:
    """A file of entries.

    Parameters:
        path: for messages.
        text: of the file.
        records: its entries, in their order; no name comes twice.
    """

    path: str
    text: str
    records: tuple[Record, ...]

    def wrong(self, record: Record, fault: InvalidEntry) -> BadFile:
        """The error that names the line of a field."""
        parts: list[str | int] = []
        for part in re.findall(r"[^.\[\]]+", fault.field):
            parts.append(int(part) if part.isdigit() else part)
        schedule = record.fields.get("schedule")
        if isinstance(schedule, dict) and parts and parts[0] not in record.fields and parts[0] in schedule:
            parts.insert(0, "schedule")  # a schedule names its own fields alone
        return _bad(self.path, self.text, (*record.place, *parts), str(fault))


def read_document(path: str, text: str) -> Document:
    """Read the text of a file.

    Parameters:
        path: its name, which ends in ``.toml`` if it is TOML; anything else is JSON.

    Raises:
        BadFile: it is no file of entries; names the line.
    """
    root = _parsed(path, text)
    entries = root.get("entries") if isinstance(root, dict) else None
    if isinstance(entries, dict):
        pairs = [(name, fields, ("entries", name)) for name, fields in entries.items()]
    elif isinstance(entries, list):
        pairs = [(_name_in(each), each, ("entries", number)) for number, each in enumerate(entries)]
    else:
        raise BadFile(f'{path}: expected "entries", a list of entries or an object of entries by name')
    records: dict[str, Record] = {}
    for name, fields, place in pairs:
        if not isinstance(fields, dict):
            raise _bad(path, text, place, "expected an object with task and schedule")
        if not is_name(name):
            raise _bad(path, text, place, f"name: expected text of 1 to 200 characters, got {shorten(name, 60)}")
        if fields.get("name", name) != name:
            raise _bad(
                path, text, (*place, "name"), f"name: expected {name!r} as above, got {shorten(fields['name'], 60)}"
            )
        if name in records:
            raise _bad(path, text, place, f"entry {name!r} comes a second time")
        records[name] = Record(name, fields, place)
    return Document(path, text, tuple(records.values()))


def _name_in(fields: Any) -> Any:
    return fields.get("name") if isinstance(fields, dict) else None


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
        seen: set[str] = set()
        double = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"{double!r} comes twice in one object")
    return found


def _bad(path: str, text: str, place: Place, words: str) -> BadFile:
    line = line_of(path, text, place)
    return BadFile(f"{path}, line {line}: {words}" if line else f"{path}: {words}")


def line_of(path: str, text: str, place: Place) -> int | None:
    """The line of a place, or of the innermost thing around it that has one."""
    try:
        found = dict(_toml_lines(text) if Path(path).suffix == ".toml" else _json_lines(text))
    except RecursionError:  # the parsers of the standard library go deeper than we do
        return None
    for length in range(len(place), 0, -1):
        if place[:length] in found:
            return found[place[:length]]
    return None


def _json_lines(text: str) -> Iterator[tuple[Place, int]]:
    line, counted = 1, 0
    for place, offset in _json_places(text, 0, ())[1]:  # in the order of the text
        line, counted = line + text.count("\n", counted, offset), offset
        yield place, line


def _json_places(text: str, at: int, place: Place) -> tuple[int, list[tuple[Place, int]]]:
    """Where each thing begins, from ``at`` on: the end of the value there, and its places. The text is JSON."""
    at = _after_space(text, at)
    found = [(place, at)]
    if text[at] not in "{[":
        return _JSON.raw_decode(text, at)[1], found
    is_object, number = text[at] == "{", 0
    at = _after_space(text, at + 1)
    while text[at] not in "}]":
        begins, key = at, number
        inner: Place = (*place, key)
        if is_object:
            name, at = _JSON.raw_decode(text, at)
            inner, at = (*place, name), _after_space(text, at) + 1
        at, places = _json_places(text, at, inner)
        # The key's own place, not that of the value: where a long value begins is of less use.
        found += [(inner, begins), *places[1:]]
        at = _after_space(text, at)
        if text[at] == ",":
            at = _after_space(text, at + 1)
        number += 1
    return at + 1, found


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _toml_lines(text: str) -> Iterator[tuple[Place, int]]:
    """The lines of tables and keys, as far as a line by itself tells; of dotted and inline ones the outermost."""
    table: Place = ()
    counts: dict[Place, int] = {}
    depth = 0
    for number, line in enumerate(_TOML_TEXT.sub(_without_lines, text).split("\n"), 1):
        inside, bare = depth, _TOML_TEXT.sub("", line)
        depth += sum(map(bare.count, "[{")) - sum(map(bare.count, "]}"))
        if inside:
            continue  # of an array or a table that began in an earlier line
        header = re.match(r"\s*(\[\[?)", line)
        if header:
            table = _toml_path(line)
            if header[1] == "[[":
                counts[table] = counts.get(table, -1) + 1
                table = (*table, counts[table])
            else:
                table = _inside_array(table, counts)
            yield table, number
        elif key := re.match(r"""\s*("[^"]*"|'[^']*'|[\w-]+)\s*[.=]""", line):
            yield (*table, key[1].strip("\"'")), number


def _without_lines(found: re.Match[str]) -> str:
    """A text of several lines as an empty one, with as many lines after it; anything else as it is."""
    return '""' + "\n" * found[0].count("\n") if found[0].startswith(('"""', "'''")) else found[0]


def _toml_path(header: str) -> Place:
    """The keys of ``[a."b c".d]``, as the parser itself reads them."""
    try:
        found: Any = tomllib.loads(header)
    except ValueError:
        return ()
    path: list[str | int] = []
    while found:
        if isinstance(found, list):
            found = found[0]
            continue
        [(key, found)] = found.items()
        path.append(key)
    return tuple(path)


def _inside_array(table: Place, counts: dict[Place, int]) -> Place:
    """``[entries.schedule]`` below ``[[entries]]`` belongs to the latest of these."""
    for length in range(1, len(table)):
        if table[:length] in counts:
            return (*table[:length], counts[table[:length]], *table[length:])
    return table

"""The stored form of the record of changes: who changed what, when, by what way and why.

A line of ``{p}:changes`` has the fields ``change``, JSON of action, actor, way and note; ``fields``, JSON of what an
edit changed; ``names``, JSON of the first; ``count``, of all of them. Its id begins with the server's time. In
``{p}:changed`` lies ``<id of the line>|<version>|<generation>|<change>`` for each entry, with version and generation as
the change left them: an entry that has others was edited by somebody who left no line.

Only the script that edits knows what it has really written. So it is given a :class:`Line`, and puts the names to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from ..actors import Who
from ..errors import CorruptEntry
from ..instants import from_ms
from ..public import public
from .json_values import dumps, loads

Action = Literal[
    "added",
    "edited",
    "removed",
    "paused",
    "resumed",
    "quarantined",
    "released",
    "discarded",
    "run now",
    "backfill",
    "lock cleared",
    "pipeline resumed",
    "pipeline cancelled",
    "term begun",
    "frozen",
    "thawed",
]

#: Those of no entry, although what they name may have the name of one.
OF_OTHERS = ("lock cleared", "pipeline resumed", "pipeline cancelled", "term begun")

#: A field of a definition before and after an edit, in their stored form; ``None``: it had its default, or is left out.
Difference = tuple[str, str | None, str | None]

#: Bytes of a note, and of all values of a line together.
_NOTE, _VALUES = 500, 500

#: Fields that a line tells, and bytes of the name of one: an entry has fewer, garbage may have any number.
_FIELDS, _FIELD = 30, 30


@public
@dataclass(frozen=True, slots=True)
class Change:
    """One line of the record of changes.

    Parameters:
        at: when, by the server's clock.
        action: ``"added"``, ``"edited"``, ``"removed"``, ``"paused"``, ``"resumed"``, ``"quarantined"``,
            ``"released"``, ``"discarded"``, ``"run now"``, ``"backfill"``, ``"lock cleared"``,
            ``"pipeline resumed"``, ``"pipeline cancelled"``, ``"term begun"``, ``"frozen"`` or ``"thawed"``.
        actor: who did it.
        way: ``"api"``, ``"cli"``, ``"web"``, ``"config"`` or ``"beat"``.
        names: of the entries, the first 20, in some 500 bytes; the key of a lock that was cleared; the
            id of a run of a pipeline.
        count: how many there were.
        fields: of an edit: each field that it changed, with its stored form before and after, all of them cut at 500
            bytes; ``None`` for a default. Both are ``None`` for arguments, whose values are not told, and where several
            entries were not changed alike.
        note: why, where somebody said so, or what there is to say besides; cut at 500 bytes.
    """

    at: datetime
    action: Action
    actor: str
    way: str
    names: tuple[str, ...] = ()
    count: int = 0
    fields: tuple[Difference, ...] = ()
    note: str = ""


class Line(NamedTuple):
    """What the record is told of one change, but for the name: JSON of it, and what an edit changed."""

    change: str
    fields: tuple[Difference, ...] = ()


@lru_cache(maxsize=32)  # of many entries that are stored at once, most have the same
def line_of(who: Who, action: Action, note: str = "", fields: tuple[Difference, ...] = ()) -> Line:
    """The line of a change, with what an edit changed."""
    return Line(dumps([action, *who, _cut(note, _NOTE)]), fields)


def together(lines: Iterable[Line | None]) -> dict[str, str]:
    """The lines of one call, one for each of its actions, with JSON of the fields that these edits changed.

    The values of a field are told where all of them are the same: of others nobody could say whose they are.
    """
    edits: dict[str, list[Line]] = {}
    for line in dict.fromkeys(lines):
        if line is not None:
            edits.setdefault(line.change, []).append(line)
    return {change: _fields_of(alike) for change, alike in edits.items()}


def _fields_of(edits: list[Line]) -> str:
    told: dict[str, Difference] = {}
    for each in (each for line in edits for each in line.fields):
        field = each[0]
        if field not in told and len(told) < _FIELDS:
            told[field] = each if all(each in line.fields for line in edits) else (field, None, None)
    room = _VALUES // (2 * len(told)) if told else 0
    return dumps([(_cut(field, _FIELD), _cut(was, room), _cut(is_, room)) for field, was, is_ in told.values()])


def of_stream(id_: bytes, line: dict[bytes, bytes]) -> Change:
    """The change that a line of the record tells; raises one of :data:`.streams.UNREADABLE` if it tells none."""
    names = tuple(map(str, _list(line[b"names"])))
    fields = tuple((str(field), _text(before), _text(after)) for field, before, after in _list(line[b"fields"]))
    return _change(id_, line[b"change"], names, int(line[b"count"]), fields)


def of_entry(name: str, kept: bytes) -> Change:
    """The last change of an entry, as it is kept with it; raises as :func:`of_stream`."""
    id_, _, _, change = kept.split(b"|", 3)
    return _change(id_, change, (name,), 1)


def is_of(kept: bytes, state: bytes | None) -> bool:
    """Whether an entry with this state was not edited since what is kept as its last change."""
    return state is not None and kept.split(b"|", 3)[1:3] == state.split(b"|", 2)[:2]


def _change(
    id_: bytes, change: bytes, names: tuple[str, ...], count: int, fields: tuple[Difference, ...] = ()
) -> Change:
    action, actor, way, note = map(str, _list(change))
    at = from_ms(int(id_.partition(b"-")[0]))
    return Change(at, action, actor, way, names, count, fields, note)  # type: ignore[arg-type]  # newer ones have more


def _list(raw: bytes) -> list[Any]:
    found = loads(raw.decode(errors="replace"))  # names may be any bytes
    if not isinstance(found, list):
        raise CorruptEntry("no list")
    return found


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _cut(value: Any, most: int) -> Any:
    """A text, or ``None``, cut to so many bytes."""
    raw = b"" if value is None else value.encode()
    return value if len(raw) <= most else raw[:most].decode(errors="ignore") + "…"

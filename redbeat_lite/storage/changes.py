"""The stored form of the record of changes: who changed what, when, by what way and why.

A line of ``{p}:changes`` has the fields ``change``, JSON of action, actor, way and note; ``fields``, JSON of what an
edit changed; ``names``, JSON of at most 20; ``count``, of all of them. Its id begins with the server's time. In
``{p}:changed`` lies ``<id of the line>|<change>`` for each entry, with a shorter note and without the rest.

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
    "lock cleared",
    "term begun",
]

#: A field of a definition before and after an edit, in their stored form; ``None``: it had its default, or is left out.
Difference = tuple[str, str | None, str | None]

#: Characters of a note, as long as that of a pause may be; and bytes of the one that is kept with the entry.
_NOTE, _SHORT_NOTE = 1000, 100

#: Bytes of all values of an edit together.
_VALUES = 500

#: Lines that one call with many entries writes: those that were changed alike share one.
_LINES = 20

#: What cannot be read of a line.
UNREADABLE = (CorruptEntry, KeyError, TypeError, ValueError, OverflowError)


@public
@dataclass(frozen=True, slots=True)
class Change:
    """One line of the record of changes.

    Parameters:
        at: when, by the server's clock.
        action: ``"added"``, ``"edited"``, ``"removed"``, ``"paused"``, ``"resumed"``, ``"quarantined"``,
            ``"released"``, ``"discarded"``, ``"run now"``, ``"lock cleared"`` or ``"term begun"``.
        actor: who did it.
        way: ``"api"``, ``"cli"``, ``"config"`` or ``"beat"``.
        names: of the entries, the first 20; the key of a lock that was cleared; keys of the schedule that a beat has
            removed because they were of a foreign type.
        count: how many there were.
        fields: of an edit: each field that it changed, with its stored form before and after, all of them cut at 500
            bytes; ``None`` for a default. Of arguments only the field is told.
        note: why, where somebody said so, or what there is to say besides.
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
    """What a script writes into the record, but for the names.

    Parameters:
        change: for the line.
        fields: for the line.
        short: for each entry; empty where it is no change of an entry.
    """

    change: str
    fields: str
    short: str


@lru_cache(maxsize=32)  # of many entries that are stored at once, most have the same
def line_of(who: Who, action: Action, note: str = "", fields: tuple[Difference, ...] = ()) -> Line:
    """The line of a change.

    Parameters:
        fields: what an edit changed; the values are cut so that they have room.
    """
    note = note[:_NOTE]
    room = _VALUES // (2 * len(fields)) if fields else 0
    told = [(field, _cut(before, room), _cut(after, room)) for field, before, after in fields]
    of_entries = action not in ("run now", "lock cleared", "term begun")
    short = dumps([action, *who, _cut(note, _SHORT_NOTE)]) if of_entries else ""
    return Line(dumps([action, *who, note]), dumps(told), short)


def numbered(lines: Iterable[Line | None]) -> tuple[list[Line], dict[Line | None, int]]:
    """The lines of one call, each once, and the number of each, from 1; that of ``None`` is 0.

    Where they are too many, edits are told without the fields that they changed, and share a line.
    """
    found = dict.fromkeys(line for line in lines if line is not None)
    kept = {line: line._replace(fields="[]") if len(found) > _LINES else line for line in found}
    numbers = {line: number for number, line in enumerate(dict.fromkeys(kept.values()), 1)}
    return [*numbers], {None: 0, **{line: numbers[each] for line, each in kept.items()}}


def of_stream(id_: bytes, line: dict[bytes, bytes]) -> Change:
    """The change that a line of the record tells.

    Raises:
        one of UNREADABLE: it tells none.
    """
    names = tuple(map(str, _list(line[b"names"])))
    fields = tuple((str(field), _text(before), _text(after)) for field, before, after in _list(line[b"fields"]))
    return _change(id_, line[b"change"], names, int(line[b"count"]), fields)


def of_entry(name: str, kept: bytes) -> Change:
    """The last change of an entry, as it is kept with it.

    Raises:
        one of UNREADABLE: it tells none.
    """
    id_, _, change = kept.partition(b"|")
    return _change(id_, change, (name,), 1)


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

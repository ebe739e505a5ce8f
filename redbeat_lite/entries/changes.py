"""Entries as Redis holds them, edits of them, and the record of changes.

The record says who changed which entries, when, how and why. ``{p}:changes`` is a stream with one
line per change:

- ``change``: JSON of action, actor, way (such as the command line or the API) and note
- ``fields``: JSON of the fields that an edit has changed
- ``names``: JSON of the names of the first changed entries
- ``count``: number of all changed entries

The id of a line begins with the server's time. The state of each entry holds its last change, too,
as ``<id of the line>|<change>``. If the user lacks the right to XADD, the stream gets no line, but
the state still holds the change.

Only the Lua script that makes the edits knows which of them it has made. So the script gets a
:class:`Line`, and adds the names of the changed entries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec

from .._base.actors import Who
from .._base.errors import UnsupportedFormat
from .._base.json_values import dumps
from .._base.public import public
from .._base.times import from_ms

_T = TypeVar("_T")

#: Version of the stored schedule. A process does not touch a schedule of another version.
FORMAT = 3

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

#: Actions on a lock, a run of a pipeline or a beat. The names in such a change are no entries, but
#: may be equal to names of entries.
OF_OTHERS = ("lock cleared", "pipeline resumed", "pipeline cancelled", "term begun")

#: A field of a definition and its stored form before and after an edit. ``None`` is the default of
#: the field, or a value that is not shown.
Difference = tuple[str, str | None, str | None]

# Maximum number of bytes of a note.
_NOTE = 500

# Maximum number of bytes of all values of a line together.
_VALUES = 500

# Maximum number of fields of a line, and of bytes of a field's name. Entries have fewer fields, but
# garbage may have any number.
_FIELDS = 30
_FIELD_NAME = 30


@public
@dataclass(frozen=True, slots=True)
class Change:
    """One line of the record of changes.

    Parameters:
        at: instant of the change, by the server's clock.
        action: ``"added"``, ``"edited"``, ``"removed"``, ``"paused"``, ``"resumed"``,
            ``"quarantined"``, ``"released"``, ``"discarded"``, ``"run now"``, ``"backfill"``,
            ``"lock cleared"``, ``"pipeline resumed"``, ``"pipeline cancelled"``, ``"term begun"``,
            ``"frozen"`` or ``"thawed"``.
        actor: author of the change.
        way: where it came from: ``"api"``, ``"cli"``, ``"web"``, ``"config"`` or ``"beat"``.
        names: names of the first 20 entries, in some 500 bytes; or the key of a lock that was
            cleared, or the id of a run of a pipeline.
        count: number of all names.
        fields: for an edit, each changed field with its stored form before and after. ``None``
            stands for the default. Only the name and the revision of a calendar are given. Both
            forms are ``None`` for arguments and options, which are not shown, and for a field that
            the edit changed differently in several entries. All forms have at most 500 bytes
            together.
        note: reason that somebody gave, or other details; at most 500 bytes.
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
    """A line of the record, without the names of its entries.

    Parameters:
        change: the change, as JSON.
        fields: fields that an edit has changed.
    """

    change: str
    fields: tuple[Difference, ...] = ()


class Stored(NamedTuple):
    """One entry as Redis holds it, not decoded.

    Parameters:
        score: due time in epoch ms; ``None`` if the entry will not fire by itself.
    """

    name: bytes
    score: int | None
    definition: bytes | None
    state: bytes | None

    @property
    def is_present(self) -> bool:
        """Whether a definition or a state of the entry is stored."""
        return bool(self.definition or self.state)

    @property
    def last_change(self) -> bytes:
        """Last change of the entry, as :func:`decode_last` reads it; empty if there is none."""
        # It is the second line of the state.
        return (self.state or b"").partition(b"\n")[2]


class Edit(NamedTuple):
    """Edit of one entry by :meth:`Store.put`, made only if the stored state is still ``expected``.

    Parameters:
        expected: stored state; ``None`` if there must be no entry.
        state: the new state; ``None`` removes the entry.
        definition: the new definition; ``None`` keeps the stored one.
        score: due time in epoch ms; ``None`` if the entry will not fire by itself.
        line: line in the record of changes; ``None`` records nothing.
        is_of_config: whether the entry is a config entry. If anybody but the leader stores its
            definition or removes it, the leader compares its configuration once more.
    """

    name: str | bytes
    expected: bytes | None
    state: str | None
    definition: str | None = None
    score: int | None = None
    line: Line | None = None
    is_of_config: bool = False


@lru_cache(maxsize=32)  # Entries that are stored together mostly have the same line.
def line_of(who: Who, action: Action, note: str = "", fields: tuple[Difference, ...] = ()) -> Line:
    """Return the line of a change, without the names of what was changed.

    Parameters:
        note: reason or details; cut to ``_NOTE`` bytes.
        fields: fields that an edit has changed.
    """
    return Line(dumps([action, *who, _cut(note, _NOTE)]), fields)


def fields_by_change(lines: Iterable[Line | None]) -> dict[str, str]:
    """Return the changes of one call: JSON of a change -> JSON of the fields that it changed.

    Edits that have the same action, author and note are one change. A value is shown only if all
    edits of the change have it.

    Parameters:
        lines: the line of each edit; ``None`` for an edit that leaves no line.
    """
    lines_by_change: dict[str, list[Line]] = {}
    # Thousands of edits may have the same line, so look at each different line once.
    for line in dict.fromkeys(lines):
        if line is not None:
            lines_by_change.setdefault(line.change, []).append(line)
    return {change: _encoded_fields(edits) for change, edits in lines_by_change.items()}


def _encoded_fields(edits: list[Line]) -> str:
    """Return JSON of the fields that these edits changed.

    The values of a field before and after are given only if they are the same in all edits.
    """
    counts = Counter(difference for edit in edits for difference in edit.fields)
    shown: dict[str, Difference] = {}
    for difference, number in counts.items():
        field, _, _ = difference
        if number == len(edits):
            shown[field] = difference
        else:  # Not all edits have changed the field in the same way.
            shown[field] = (field, None, None)
    differences = [*shown.values()][:_FIELDS]
    parts = []
    for field, before, after in differences:
        # All values share the bytes of the line, and each field has two values.
        longest = _VALUES // (2 * len(differences))
        parts.append((_cut(field, _FIELD_NAME), _cut(before, longest), _cut(after, longest)))
    return dumps(parts)


def decode_change(id_: bytes, line: dict[bytes, bytes]) -> Change:
    """Return the change of one line of the stream.

    Parameters:
        id_: id of the line.
        line: its fields and their values.

    Raises:
        one of :data:`.redis_values.UNREADABLE`: the line cannot be read.
    """
    names = _decode(tuple[str, ...], line[b"names"])
    fields = _decode(tuple[Difference, ...], line[b"fields"])
    return _change(id_, line[b"change"], names, int(line[b"count"]), fields)


def decode_last(name: str, record: bytes) -> Change | None:
    """Return the last change of an entry, as Redis keeps it; ``None`` if none can be read."""
    id_, _, change = record.partition(b"|")
    with suppress(ValueError, OverflowError):
        return _change(id_, change, (name,), 1)
    return None


def _change(
    id_: bytes,
    change: bytes,
    names: tuple[str, ...],
    count: int,
    fields: tuple[Difference, ...] = (),
) -> Change:
    """Return a change from the parts of its line.

    Parameters:
        id_: id of the line. It begins with the server's time in epoch ms.
        change: JSON of action, actor, way and note.
        names: names of the first changed entries.
        count: number of all changed entries.
    """
    action, actor, way, note = _decode(tuple[str, str, str, str], change)
    at = from_ms(int(id_.partition(b"-")[0]))
    # A newer version may have other actions.
    return Change(at, action, actor, way, names, count, fields, note)  # type: ignore[arg-type]


def _decode(kind: type[_T], raw: bytes) -> _T:
    """Return the value of a JSON text of this type."""
    # Names of entries may have bytes that are not UTF-8, which msgspec would refuse.
    return msgspec.json.decode(raw.decode(errors="replace"), type=kind)


def _cut(value: Any, longest: int) -> Any:
    """Return a text, cut to ``longest`` bytes if it has more; ``None`` for ``None``."""
    raw = b"" if value is None else value.encode()
    return value if len(raw) <= longest else raw[:longest].decode(errors="ignore") + "…"


def wrong_format(subject: str, number: object) -> UnsupportedFormat:
    """Return the error for a stored schedule, or a part of it, that has another format."""
    advice = "export the schedule with the older version, and import the file with this one"
    if isinstance(number, int) and number > FORMAT:
        advice = "update redbeat_lite here"
    reads = f"this redbeat_lite reads format {FORMAT}"
    return UnsupportedFormat(f"{subject} has format {number}; {reads}: {advice}")

"""Lines of the record of changes: the fields that a write changes in an entry."""

from __future__ import annotations

from typing import Any

from .._base.actors import Who
from ..store.changes import Action, Difference, Line, line_of
from ..store.json_values import dumps, loads_as
from ..store.records import Stored

#: Fields whose values the record leaves out, because they concern only the people that run the
#: task.
_SILENT = ("args", "kwargs", "options")


def line_of_write(
    who: Who, stored: Stored, definition: str | None, note: str = "", action: Action = "edited"
) -> Line:
    """Return the record's line for a write: "added" for a new entry, else ``action`` with the
    changed fields.

    Parameters:
        definition: the new definition; ``None`` if the stored one is kept.
    """
    if stored.definition is None:
        return line_of(who, "added", note)
    if definition is None:
        return line_of(who, action, note, ())
    return line_of(who, action, note, _differences(stored.definition, definition))


def _differences(before: bytes, after: str) -> tuple[Difference, ...]:
    old = _fields(before)
    new = _fields(after)
    fields = dict.fromkeys((*old, *new))
    changed = [field for field in fields if old.get(field) != new.get(field)]
    return tuple((field, _text(old, field), _text(new, field)) for field in changed)


def _fields(definition: bytes | str) -> dict[str, Any]:
    """Return the fields of a definition; a field that could not be stored has its readable text.

    Return an empty dict for a definition that cannot be read.
    """
    parts = loads_as(dict, definition)
    unstored = parts.pop("unstored", {})
    parts.pop("v", None)
    return {**parts, **unstored} if isinstance(unstored, dict) else parts


def _text(parts: dict[str, Any], field: str) -> str | None:
    if field in _SILENT:
        return None
    value = parts.get(field)
    if value is None or isinstance(value, str):
        return value
    return dumps(value)

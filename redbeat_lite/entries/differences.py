"""What an edit changes of an entry, as the record of changes tells it."""

from __future__ import annotations

from typing import Any

from .._base.actors import Who
from ..store.changes import Action, Difference, Line, line_of
from ..store.json_values import dumps, loads_as
from ..store.records import Stored

#: Their values are left out: arguments, and what headers hold, are the business of those who run
#: the task.
_SILENT = ("args", "kwargs", "options")


def line_of_write(
    who: Who, stored: Stored, definition: str | None, note: str = "", action: Action = "edited"
) -> Line:
    """The line of an entry that is written: added where there was none, else edited, with the
    fields that differ.

    Parameters:
        definition: ``None`` where the stored one is kept.
    """
    if stored.definition is None:
        return line_of(who, "added", note)
    return line_of(
        who, action, note, () if definition is None else _differences(stored.definition, definition)
    )


def _differences(before: bytes, after: str) -> tuple[Difference, ...]:
    was = _fields(before)
    is_ = _fields(after)
    changed = [field for field in dict.fromkeys((*was, *is_)) if was.get(field) != is_.get(field)]
    return tuple((field, _text(was, field), _text(is_, field)) for field in changed)


def _fields(definition: bytes | str) -> dict[str, Any]:
    """Return the fields of a definition, with the texts of those that could not be stored.

    A definition that cannot be read has none.
    """
    parts = loads_as(dict, definition)
    unstored = parts.pop("unstored", {})
    parts.pop("v", None)
    return {**parts, **unstored} if isinstance(unstored, dict) else parts


def _text(parts: dict[str, Any], field: str) -> str | None:
    value = None if field in _SILENT else parts.get(field)
    return value if value is None or isinstance(value, str) else dumps(value)

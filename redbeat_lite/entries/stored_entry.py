"""Stored entries: reading one as :class:`Entry` and :class:`EntryState`, and edits of it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from celery import Celery

from .._base.actors import Who
from .._base.errors import CorruptEntry, UnsupportedFormat
from .._base.json_values import MAX_BYTES, dumps, loads, loads_as
from .._base.text import text_of
from ..settings import MAX_NAME
from .changes import FORMAT, Action, Difference, Edit, Line, Stored, line_of, wrong_format
from .entry import Entry
from .lifecycle import set_state
from .model import FIELDS, MAY_BE_UNSTORED, UnstoredSchedule
from .state import EntryState

#: Errors of a stored entry that cannot be read: it is corrupt, or another version of this package
#: wrote it.
UNREADABLE = (CorruptEntry, UnsupportedFormat)


def entry_of(stored: Stored, app: Celery | None) -> Entry:
    """Return the stored entry without state; raise one of :data:`UNREADABLE`."""
    if stored.definition is None:
        raise CorruptEntry("its definition is gone from Redis")
    try:
        name = stored.name.decode()
    except UnicodeDecodeError as exc:
        raise CorruptEntry(f"its name is no UTF-8: {exc.reason} at byte {exc.start}") from None
    return decode(name, stored.definition, app)


def decode(name: str, definition: bytes, app: Celery | None = None) -> Entry:
    """Return the entry of a stored definition, without state.

    Raises:
        CorruptEntry: it is no definition.
        UnsupportedFormat: another version of this package wrote it.
    """
    # No valid definition is so long, and parsing such a text could take any time.
    if len(definition) > MAX_BYTES:
        raise CorruptEntry(f"definition has over {MAX_BYTES} bytes")
    stored = loads(definition)
    if not isinstance(stored, dict):
        raise CorruptEntry(f"definition is not an object but {type(stored).__name__}")
    version = stored.get("v", FORMAT)
    if version != FORMAT:
        raise wrong_format("definition", version)
    try:
        return _entry_with(name, stored, app)
    except CorruptEntry:  # The error says already what is wrong.
        raise
    except Exception as exc:
        raise CorruptEntry(f"definition is not usable: {text_of(exc)}") from exc


def _entry_with(name: str, stored: dict[str, Any], app: Celery | None) -> Entry:
    """Return the entry of a definition. Fields of a later version are ignored."""
    known_fields = [field for field in FIELDS if field in stored]
    fields = {field: FIELDS[field].load(stored[field]) for field in known_fields}
    # A field whose value could not be stored has only a text that describes it. An entry needs a
    # schedule, so a stand-in takes its place.
    texts = stored.get("unstored", {})
    unstored = {field: str(texts[field]) for field in MAY_BE_UNSTORED if field in texts}
    if "schedule" in unstored:
        fields["schedule"] = UnstoredSchedule(unstored["schedule"])
    entry = Entry.from_mapping(name, fields, app=app)
    entry.unstored = unstored
    entry.owner = None if stored.get("owner") is None else str(stored["owner"])
    return entry


def state_of(stored: Stored) -> EntryState:
    """Return the stored state; raise CorruptEntry if it cannot be read."""
    if stored.state is None:
        raise CorruptEntry("its state is gone from Redis")
    return EntryState.decode(stored.state)


def parts_of(stored: Stored, app: Celery) -> tuple[Entry, EntryState]:
    """Return the entry and its state; raise one of :data:`UNREADABLE`."""
    return entry_of(stored, app), state_of(stored)


def readable_parts(stored: Stored, app: Celery) -> tuple[Entry | None, EntryState | None]:
    """Return the entry and its state; a missing or unreadable one is ``None``."""
    entry = None
    with suppress(*UNREADABLE):
        entry = entry_of(stored, app)
    return entry, readable_state(stored.state)


def readable_state(text: bytes | None) -> EntryState | None:
    """Return the state of a stored text; ``None`` if the text is missing or unreadable."""
    with suppress(CorruptEntry):
        return EntryState.decode(text or b"")
    return None


def shown_name(stored: Stored) -> str:
    """Return the stored name as a text, also if it is no valid name."""
    # A valid name has up to MAX_NAME characters of up to 4 bytes.
    return stored.name[: 4 * MAX_NAME].decode("utf-8", "backslashreplace")


def edit_of(
    entry: Entry,
    state: EntryState,
    *,
    expected: bytes | None,
    definition: str | None = None,
    line: Line | None = None,
) -> Edit:
    """Return the edit that writes an entry. The entry gets the state and its due time.

    Parameters:
        expected: the stored state; the edit fails if it has changed. ``None`` for a new entry; then
            the edit fails if an entry of this name is stored.
        definition: the new definition; ``None`` keeps the stored one.
        line: line for the record of changes; ``None`` for none.
    """
    set_state(entry, state)
    return Edit(
        entry.name,
        expected,
        state.encode(),
        definition=definition,
        score=entry.due,
        line=line,
        is_of_config=entry.owner is not None,
    )


def removal(stored: Stored, line: Line) -> Edit:
    """Return the edit by which anybody but the leader removes an entry."""
    return Edit(
        stored.name,
        expected=stored.state,
        state=None,
        line=line,
        is_of_config=is_config(stored),
    )


def is_config(stored: Stored) -> bool:
    """Return whether this may be a config entry.

    Without a readable definition, nobody knows. If it was a runtime entry, the leader only compares
    its configuration once more.
    """
    definition = loads_as(dict, stored.definition)
    return not definition or "owner" in definition


# -- Lines of the record of changes: the fields that a write changes in an entry -------------------

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
        return line_of(who, action, note)
    return line_of(who, action, note, _differences(stored.definition, definition))


def _differences(before: bytes, after: str) -> tuple[Difference, ...]:
    """Return the fields that differ between two definitions, each with both values."""
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
    # The version of the format is no field of the entry.
    parts.pop("v", None)
    return {**parts, **unstored} if isinstance(unstored, dict) else parts


def _text(parts: dict[str, Any], field: str) -> str | None:
    """Return the value of a field as the record has it; ``None`` if it is missing or not shown."""
    if field in _SILENT:
        return None
    value = parts.get(field)
    if field == "calendar" and isinstance(value, str):
        # A calendar is stored as "<name>@<revision> <until> <days>". Name and revision are enough.
        return value.rsplit(" ", 2)[0]
    if value is None or isinstance(value, str):
        return value
    return dumps(value)

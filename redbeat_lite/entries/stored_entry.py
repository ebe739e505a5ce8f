"""From what Redis holds to an entry with its state, and back: the one reading, and the one building
of edits.
"""

from __future__ import annotations

from datetime import tzinfo
from typing import Any

from .._base.errors import CorruptEntry, UnsupportedFormat
from .._base.text import text_of
from ..settings import MAX_NAME
from ..store.changes import Line
from ..store.json_values import MAX_BYTES, loads
from ..store.keys import FORMAT
from ..store.records import Edit, Stored
from .entry import Entry
from .fields import FIELDS
from .lifecycle import due_time
from .state import EntryState
from .unstored import UnstoredSchedule

#: What reading a stored entry may raise: it is garbage, or a newer version of this package wrote
#: it.
UNREADABLE = (CorruptEntry, UnsupportedFormat)

#: In the place of the definition of an entry that is removed: it belongs to a configuration.
_CONFIGURED = "config"


def entry_of(stored: Stored) -> Entry:
    """Return the stored entry without state; raises one of :data:`UNREADABLE`."""
    if stored.definition is None:
        raise CorruptEntry("its definition is gone from Redis")
    try:
        name = stored.name.decode()
    except UnicodeDecodeError as exc:
        raise CorruptEntry(f"its name is no UTF-8: {exc.reason} at byte {exc.start}") from None
    return decode(name, stored.definition)


def decode(name: str, definition: bytes) -> Entry:
    """Return the entry of a stored definition, without state.

    Raises:
        CorruptEntry: it is no definition.
        UnsupportedFormat: a newer version of this package wrote it.
    """
    # No definition is so long, and reading one could take any time.
    if len(definition) > MAX_BYTES:
        raise CorruptEntry(f"definition has over {MAX_BYTES} bytes")
    stored = loads(definition)
    if not isinstance(stored, dict):
        raise CorruptEntry(f"definition is not an object but {type(stored).__name__}")
    version = stored.get("v")
    if isinstance(version, int) and version > FORMAT:
        raise UnsupportedFormat(
            f"definition has format {version}; this redbeat_lite reads up to {FORMAT}"
        )
    try:
        return _entry_with(name, stored)
    except CorruptEntry:
        raise
    except Exception as exc:
        raise CorruptEntry(f"definition is not usable: {text_of(exc)}") from exc


def _entry_with(name: str, stored: dict[str, Any]) -> Entry:
    """Return the entry of a definition. Fields of a later version are ignored."""
    fields: dict[str, Any] = {"task": None, "schedule": None}
    for field, forms in FIELDS.items():
        if field in stored:
            value = stored[field]
            fields[field] = None if value is None else forms.load(value)
    unstored = {str(field): str(text) for field, text in stored.get("unstored", {}).items()}
    if "schedule" in unstored:
        fields["schedule"] = UnstoredSchedule(unstored["schedule"])
    entry = Entry.from_mapping(name, fields)
    entry.unstored = unstored
    entry.owner = None if stored.get("owner") is None else str(stored["owner"])
    return entry


def state_of(stored: Stored) -> EntryState:
    """The state that is stored; raises CorruptEntry if it is none."""
    if stored.state is None:
        raise CorruptEntry("its state is gone from Redis")
    return EntryState.decode(stored.state)


def parts_of(stored: Stored) -> tuple[Entry, EntryState]:
    """The entry and its state; raises one of :data:`UNREADABLE`."""
    return entry_of(stored), state_of(stored)


def readable_parts(stored: Stored) -> tuple[Entry | None, EntryState | None]:
    """The definition and the state, each ``None`` where it is not there or cannot be read."""
    try:
        entry = entry_of(stored)
    except UNREADABLE:
        entry = None
    try:
        state = state_of(stored)
    except CorruptEntry:
        state = None
    return entry, state


def shown_name(stored: Stored) -> str:
    """The name in words, whatever it is."""
    return stored.name[: 4 * MAX_NAME].decode("utf-8", "backslashreplace")


def edit_of(
    entry: Entry,
    state: EntryState,
    zone: tzinfo,
    *,
    expected: bytes | None,
    definition: str | None = None,
    line: Line | None = None,
) -> Edit:
    """The edit that writes an entry.

    Parameters:
        expected: the state that is stored now; the edit is made only if it still is. ``None``: no
            entry is.
        definition: ``None`` keeps the stored one.
        line: what the record of changes tells of it; ``None``: nothing.
    """
    return Edit(
        entry.name, expected, state.encode(), definition, due_time(entry, state, zone), line
    )


def removal(stored: Stored, line: Line) -> Edit:
    """Return the edit that removes an entry.

    The edit tells the leader if the entry is a config entry, and the leader stores it again.
    """
    # A search in the text is enough. If only the arguments of a runtime entry contain this text,
    # the leader compares its configuration once more and changes nothing.
    is_configured = b'"owner":' in (stored.definition or b"")
    return Edit(stored.name, stored.state, None, _CONFIGURED if is_configured else None, line=line)

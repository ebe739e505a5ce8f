"""Definition of an entry as JSON: the text that Redis holds, and the values that files and scripts
have. Instants are in ISO 8601.

A config entry may have parts that cannot be stored, such as a ``BeatLazyFunc`` among its arguments.
Redis holds a text in place of such a part, and only for people to read. The leader takes the part
itself from its own configuration.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING, Any

from celery.schedules import BaseSchedule, schedstate

from .._base.errors import InvalidEntry
from .._base.text import shorten, storable
from ..store.json_values import MAX_BYTES, dumps
from ..store.keys import FORMAT
from .model import FIELDS

if TYPE_CHECKING:
    from .entry import Entry

#: Fields of a config entry that may hold a value that cannot be stored.
MAY_BE_UNSTORED = ("schedule", "args", "kwargs", "options")

#: Longest text in place of a part, in characters.
_MAX_TEXT = 500

#: Memory address in a default ``repr``.
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")

#: Fields whose default depends on the settings of the app, so they are always shown.
_ALWAYS = ("expires", "misfire")


def encode(entry: Entry, *, placeholders: bool = False) -> str:
    """Return the JSON text of an entry's definition, without the fields that have their default.

    Parameters:
        placeholders: write a readable text in place of a schedule or arguments that cannot be
            stored.

    Raises:
        InvalidEntry: a field cannot be stored, or the whole text is over 64 KiB.
    """
    stored = {"v": FORMAT, **_stored_fields(entry, placeholders)}
    if entry.owner is not None:
        stored["owner"] = entry.owner
    text = dumps(stored)
    size = len(text.encode())
    if size > MAX_BYTES:
        raise InvalidEntry(
            "entry", f"a definition of at most {MAX_BYTES} bytes", size, entry=entry.name
        )
    return text


def _stored_fields(entry: Entry, placeholders: bool) -> dict[str, Any]:
    """Return the fields that differ from their defaults, in their stored form.

    A field that could not be stored is a readable text under ``unstored``, now or when the entry
    was stored before.
    """
    stored: dict[str, Any] = {}
    unstored = dict(entry.unstored)
    for name, field in FIELDS.items():
        value = getattr(entry, name)
        if name in unstored or value == field.default:
            continue
        try:
            stored[name] = field.store(value)
        except InvalidEntry as exc:
            if not (placeholders and name in MAY_BE_UNSTORED):
                raise exc.of(entry.name) from None
            unstored[name] = readable_text(exc.value)
    if unstored:
        stored["unstored"] = unstored
    return stored


def entry_fields(entry: Entry, *, defaults: bool = False) -> dict[str, Any]:
    """Return the definition of an entry as JSON values.

    The fields of a config entry that could not be stored are texts under ``unstored``.

    Parameters:
        defaults: also the fields that have their default.
    """
    stored = _stored_fields(entry, placeholders=True)
    unstored = stored.get("unstored")
    if "calendar" in stored:
        # The stored form of a calendar holds all its days.
        stored["calendar"] = entry.calendar_name
    fields: dict[str, Any] = {}
    for name, field in FIELDS.items():
        if name in stored:
            fields[name] = stored[name]
        elif name not in (unstored or ()) and (defaults or name in _ALWAYS):
            fields[name] = field.store(field.default)
    if unstored:
        fields["unstored"] = unstored
    return fields


class UnstoredSchedule(BaseSchedule):  # type: ignore[misc]  # Celery ships no types
    """Stand-in for a schedule that only the configuration of its app holds.

    It only says that it wants to be asked again in a second. So a process without the configuration
    stores this question as the next run, and the leader asks the schedule itself.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def is_due(self, last_run_at: datetime) -> schedstate:
        """Return that nothing is due, and that the next question comes in a second."""
        return schedstate(is_due=False, next=1)

    def __repr__(self) -> str:
        return self.text


def readable_text(value: object) -> str:
    """Return the ``repr`` of a value without memory addresses, which differ between processes."""
    return storable(_ADDRESS.sub("", shorten(value, _MAX_TEXT)))

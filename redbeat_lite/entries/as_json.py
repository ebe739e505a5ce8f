"""Entries as JSON values, for files, scripts and pages. Instants are in ISO 8601."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ..rules import resolved_text, schedule_text
from ..store.json_values import loads
from .definition import encode
from .model import FIELDS

if TYPE_CHECKING:
    from .entry import Entry

#: Fields whose default depends on the settings of the app, so they are always shown.
_ALWAYS = ("expires", "misfire")

#: Attributes of an entry that are not part of its definition.
_READ = (
    "source",
    "status",
    "paused_note",
    "frozen_until",
    "next_run_at",
    "last_run_at",
    "total_run_count",
    "skipped_count",
    "last_task_id",
    "last_error",
    "version",
    "generation",
    "last_run",
    "last_success_at",
    "failures_in_a_row",
)


def entry_fields(entry: Entry, *, defaults: bool = False) -> dict[str, Any]:
    """Return the definition of an entry as JSON values.

    The fields of a config entry that could not be stored are texts under ``unstored``.

    Parameters:
        defaults: also the fields that have their default.
    """
    stored = loads(encode(entry, placeholders=True))
    unstored = stored.get("unstored", {})
    if "calendar" in stored:
        stored["calendar"] = entry.calendar_name
    fields: dict[str, Any] = {}
    for name, field in FIELDS.items():
        if name in stored:
            fields[name] = stored[name]
        elif name not in unstored and (defaults or name in _ALWAYS):
            fields[name] = field.store(field.default)
    if unstored:
        fields["unstored"] = unstored
    return fields


def as_json(entry: Entry) -> dict[str, Any]:
    """Return everything about an entry, as :meth:`Entry.as_dict` does."""
    attributes = {name: _plain(getattr(entry, name)) for name in _READ}
    if entry.last_run is not None:
        attributes["last_run"] = {
            name: _plain(value) for name, value in asdict(entry.last_run).items()
        }
    return {
        "name": entry.name,
        **entry_fields(entry, defaults=True),
        "schedule_text": schedule_text(entry.schedule),
        "resolved": resolved_text(entry.schedule),
        **attributes,
    }


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    return value

"""Entries as JSON has them, for files, scripts and pages: schedules as people write them, instants in ISO 8601."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from ..storage.json_values import loads
from .definition import DEFAULTS, encode
from .entry import Entry
from .fields import DEFINITION_FIELDS
from .on_calendar import calendar_name
from .schedule_text import resolved_text, schedule_fields, schedule_text

#: Fields whose default an app can set, so that they are always named.
_ALWAYS = ("task", "schedule", "expires", "misfire")

#: Attributes of an entry that are no part of its definition.
_READ = (
    *("source", "status", "paused_note", "frozen_until", "next_run_at", "last_run_at", "total_run_count"),
    *("skipped_count", "last_task_id", "last_error", "version", "generation"),
    *("last_run", "last_success_at", "failures_in_a_row"),
)


def entry_fields(entry: Entry, *, defaults: bool = False) -> dict[str, Any]:
    """The definition of an entry as JSON values; with ``defaults`` the fields that have theirs, too.

    A config entry may hold what cannot be stored; such fields are texts under ``unstored``.
    """
    stored = loads(encode(entry, placeholders=True))
    unstored = stored.pop("unstored", {})
    if "schedule" in stored:
        stored["schedule"] = schedule_fields(entry.schedule)
    if "calendar" in stored:
        stored["calendar"] = calendar_name(entry)
    wanted = {field: default for field, default in DEFAULTS.items() if defaults or field in _ALWAYS}
    fields = {**wanted, **stored}
    found = {field: fields[field] for field in DEFINITION_FIELDS if field in fields and field not in unstored}
    return {**found, "unstored": unstored} if unstored else found


def as_json(entry: Entry) -> dict[str, Any]:
    """Everything about an entry, as :meth:`Entry.as_dict` has it."""
    words = {"schedule_text": schedule_text(entry.schedule), "resolved": resolved_text(entry.schedule)}
    read = {name: _plain(getattr(entry, name)) for name in _READ}
    if entry.last_run is not None:
        read["last_run"] = {name: _plain(value) for name, value in asdict(entry.last_run).items()}
    return {"name": entry.name, **entry_fields(entry, defaults=True), **words, **read}


def _plain(value: Any) -> Any:
    return value.astimezone(UTC).isoformat() if isinstance(value, datetime) else value

"""Entries as records that can be written to a file and read back, in another server or by a person.

A record holds the fields of an entry as JSON can: its schedule as :mod:`redbeat_lite.interchange_schedules` writes it,
arguments as they are stored, instants in ISO 8601.
"""

from __future__ import annotations

from typing import Any

from .codec import loads
from .definition import encode
from .entry import DEFINITION_FIELDS, Entry
from .interchange_schedules import schedule_fields

#: Fields whose default an app can set, so that a record has to say them.
_ALWAYS = ("task", "schedule", "expires", "misfire")

_DEFAULTS: dict[str, Any] = {
    "args": [],
    "kwargs": {},
    "options": {},
    "expires": "interval",
    "once": None,
    "misfire": "coalesce",
    "jitter": 0.0,
    "start_at": None,
    "end_at": None,
    "max_runs": None,
    "enabled": True,
    "description": "",
    "remove_when_done": False,
}


def entry_fields(entry: Entry, *, defaults: bool = False) -> dict[str, Any]:
    """The definition of an entry as JSON values.

    Parameters:
        defaults: whether to name the fields that have their default, too.

    A config entry may hold what cannot be stored; such fields are missing, and named under ``local``.
    """
    stored = loads(encode(entry, allow_local=True))
    local = sorted({*stored.pop("local", ()), *entry.local})
    if "schedule" in stored and "schedule" not in local:
        stored["schedule"] = schedule_fields(entry.schedule)
    for field in local:
        stored.pop(field, None)
    wanted = {field: default for field, default in _DEFAULTS.items() if defaults or field in _ALWAYS}
    fields = {**wanted, **stored}
    found = {field: fields[field] for field in DEFINITION_FIELDS if field in fields and field not in local}
    return {**found, "local": local} if local else found

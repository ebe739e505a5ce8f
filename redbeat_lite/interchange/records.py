"""Entries as records that can be written to a file and read back, in another server or by a person.

A record holds the fields of an entry as JSON can: its schedule as :mod:`redbeat_lite.entries.schedule_text`
writes it, arguments as they are stored, instants in ISO 8601.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery import Celery

from ..entries.configured import entry_with_defaults
from ..entries.entry import Entry
from ..entries.schedule_text import instant_from, schedule_from
from ..entries.state import MAX_COUNT, MAX_NOTE, EntryState
from ..errors import CorruptEntry, InvalidEntry
from ..instants import from_ms, to_ms
from ..schedules import Question
from ..settings import Settings
from ..storage.json_values import unpack

#: Fields of a record that are none of the definition that a user writes.
_BESIDE = ("name", "owner", "local", "runs", "state")


def entry_from(settings: Settings, name: str, fields: Mapping[str, Any], *, app: Celery) -> Entry:
    """The entry of a record; what it leaves out has the defaults of the settings.

    Parameters:
        fields: as :func:`entry_fields` makes them; ``owner``, ``local`` and ``runs`` are those of a config entry.

    Raises:
        InvalidEntry: a field is missing, unknown or wrong.
    """
    given = {field: value for field, value in fields.items() if field not in _BESIDE}
    local = tuple(fields.get("local") or ())
    if "schedule" in local:
        given["schedule"] = 60  # stands for what its app alone knows, and is not stored
    entry = entry_with_defaults(settings, name, {f: _read(f, value) for f, value in given.items()}, app=app)
    entry.owner, entry.local, entry.runs = fields.get("owner"), local, _runs(fields.get("runs", []))
    return entry


def _runs(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or any(type(each) is not int for each in value):
        raise InvalidEntry("runs", "a list of epoch milliseconds", value)
    return tuple(value)


def state_fields(state: EntryState) -> dict[str, Any]:
    """The state of an entry as JSON values."""
    asked = {"asked": from_ms(state.nominal.asked).isoformat()} if isinstance(state.nominal, Question) else {}
    return {
        "next": None if state.nominal is None else from_ms(state.nominal).isoformat(),
        **asked,
        "last": None if state.last is None else from_ms(state.last).isoformat(),
        "count": state.count,
        "skipped": state.skipped,
        "paused": state.paused,
        "note": state.note,
        "error": state.error,
        **({"forgiven": from_ms(state.forgiven).isoformat()} if state.forgiven else {}),
        "generation": state.generation,
        "version": state.version,
    }


def state_from(fields: Any) -> EntryState:
    """The state of a record; raises InvalidEntry if a part of it is missing or wrong."""
    if not isinstance(fields, Mapping):
        raise InvalidEntry("state", "an object", fields)
    for field, kind, words in _STATE:
        value: Any = fields.get(field)
        if type(value) is not kind or not _can_be_stored(value):
            raise InvalidEntry(f"state.{field}", words, value)
    instants = {field: fields.get(field) for field in ("next", "last", "asked", "forgiven")}
    nominal, last, asked, forgiven = (
        None if value is None else to_ms(instant_from(f"state.{field}", value)) for field, value in instants.items()
    )
    generation = fields["generation"]
    if not generation.isalnum() or len(generation) > _MAX_GENERATION:
        raise InvalidEntry("state.generation", f"at most {_MAX_GENERATION} letters and digits", generation)
    return EntryState(
        fields["version"],
        generation,
        nominal if nominal is None or asked is None else Question(nominal, asked),
        last,
        fields["count"],
        fields["skipped"],
        paused=fields["paused"],
        note=fields["note"],
        error=fields["error"],
        forgiven=forgiven or 0,
    )


def _can_be_stored(value: Any) -> bool:
    if isinstance(value, int):
        return 0 <= value < MAX_COUNT
    return len(value) <= MAX_NOTE and value.encode(errors="replace").decode() == value


_MAX_GENERATION = 32
_TEXT = f"text of at most {MAX_NOTE} characters"
_STATE: tuple[tuple[str, type, str], ...] = (
    ("count", int, "a whole number from 0"),
    ("skipped", int, "a whole number from 0"),
    ("version", int, "a whole number from 0"),
    ("paused", bool, "true or false"),
    ("note", str, _TEXT),
    ("error", str, _TEXT),
    ("generation", str, _TEXT),
)


def _read(field: str, value: Any) -> Any:
    """A field as an entry takes it."""
    if field == "schedule":
        return value if value is None else schedule_from(value)
    if field in ("args", "kwargs", "options"):
        try:
            return unpack(value)
        except CorruptEntry as exc:
            raise InvalidEntry(field, f"values that can be read ({exc})", value) from None
    if field in ("start_at", "end_at"):
        return None if value is None else instant_from(field, value)
    return value

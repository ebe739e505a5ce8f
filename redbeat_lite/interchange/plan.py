"""A file of entries against the runtime entries in Redis: the difference, and making it none.

A file owns definitions. State (pauses, counters, the next run) is never in the difference, config entries belong to
their configuration, and what is not in the file stays unless it is to be pruned.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from celery import Celery

from ..api.reader import Reader
from ..api.schedules import Schedules
from ..clock import wall_ms
from ..entries import lifecycle
from ..entries.as_json import entry_fields
from ..entries.configured import configured
from ..entries.entry import Entry
from ..entries.on_calendar import give_calendar
from ..errors import InvalidEntry
from ..schedules import At, Manual
from ..storage.store import Store
from .document import Document
from .records import entry_from


@dataclass(frozen=True, slots=True)
class Change:
    """One thing to do: ``"add"``, ``"change"`` or ``"remove"``; before and after as a record holds the definition."""

    action: str
    name: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    entry: Entry | None = None


@dataclass(slots=True)
class FilePlan:
    """What an application of a file would do.

    Parameters:
        changes: in the order of the file, removals last.
        same: entries that are as the file says.
        unlisted: how many runtime entries are not in the file and stay.
        notes: name -> why an entry of the file is left alone.
    """

    changes: list[Change] = field(default_factory=list)
    same: int = 0
    unlisted: int = 0
    notes: dict[str, str] = field(default_factory=dict)


def make_plan(app: Celery, document: Document, *, prune: bool = False) -> FilePlan:
    """Compare a file with what is stored; ``prune`` removes runtime entries that are not in it. Writes nothing.

    Raises BadFile, which names the path of the field that is wrong.
    """
    schedules, reader = Schedules(app), Reader(app)
    settings = reader.settings
    listed = {record.name for record in document.records}
    stored = {entry.name: entry for entry in reader.readable(reader.store.present(listed))}
    calendars, found, own = schedules.calendars.all(), FilePlan(), configured(app)
    for record in document.records:
        before = stored.get(record.name)
        try:
            entry = entry_from(settings, record.name, record.fields, app=app)
            give_calendar(entry, lambda: calendars, wall_ms(), app.timezone, partial(stored.get, record.name))
            _check_own(entry, before, settings.owner if record.name in own else None)
            _compare(app, found, entry, before)
        except InvalidEntry as exc:
            raise document.wrong(record, exc) from None
    if not prune:
        found.unlisted = _unlisted(reader.store, listed)
        return found
    for entry in reader.readable(reader.store.present(sorted(reader.store.names()))):
        if entry.owner is None and entry.name not in listed:
            found.changes.append(Change("remove", entry.name, entry_fields(entry), None))
    return found


def _unlisted(store: Store, listed: set[str]) -> int:
    """How many runtime entries are not in the file: nobody has to read them for that."""
    configured = set[str]().union(*map(store.config_names, store.owners()))
    return store.count() - len(store.existing(listed | configured))


def apply_plan(app: Celery, planned: FilePlan) -> None:
    """Do what was planned. Where this is interrupted, planning and applying again does the rest.

    Raises ConfigOwned: a name was taken by a config entry meanwhile.
    """
    schedules = Schedules(app)
    schedules.add_many([change.entry for change in planned.changes if change.entry is not None], replace=True)
    for change in planned.changes:
        if change.entry is None:
            schedules.remove(change.name, missing_ok=True)


def _check_own(entry: Entry, before: Entry | None, configures: str | None) -> None:
    """Refuse a runtime entry that the file would add again and again, or whose name a configuration has."""
    if entry.owner is not None:
        return
    if entry.remove_when_done:
        hint = "once it is removed, the file would add it again"
        raise InvalidEntry("remove_when_done", "false in a file", True, hint=hint)
    owner = configures if before is None else before.owner
    if owner is not None:
        words = f"a name that the configuration of {owner!r} does not have"
        raise InvalidEntry("name", words, entry.name, hint="leave it out, or change it there")


def _compare(app: Celery, found: FilePlan, entry: Entry, before: Entry | None) -> None:
    fields = entry_fields(entry)
    if entry.owner is not None:
        found.notes[entry.name] = f"belongs to the configuration of {entry.owner!r}"
    elif before is not None and _text(before) == _text(entry):
        found.same += 1
    elif before is None and _is_over(app, entry):
        found.notes[entry.name] = "its last run lies in the past"
    else:
        lifecycle.check(entry, wall_ms(), app.timezone, lambda: before)
        action, was = ("add", None) if before is None else ("change", entry_fields(before))
        found.changes.append(Change(action, entry.name, was, fields, entry))


def _is_over(app: Celery, entry: Entry) -> bool:
    """Whether there is nothing left to run: an entry that was done with and removed must not come back."""
    now = wall_ms()
    if isinstance(entry.schedule, At) and entry.schedule.ms <= now:
        return True
    return not isinstance(entry.schedule, Manual) and lifecycle.created(entry, now, app.timezone).nominal is None


def _text(entry: Entry) -> str:
    """The definition as a text that is the same for the same definition."""
    return json.dumps(entry_fields(entry), sort_keys=True)

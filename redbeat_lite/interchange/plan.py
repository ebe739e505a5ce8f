"""Plan of a file of entries: its difference from the stored entries, and the changes to apply.

A plan compares definitions only, and never state such as pauses, counters and next runs. It never
changes config entries, which belong to their configuration. Runtime entries that are not in the
file stay, unless the plan is made with ``prune``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
from celery import Celery

from .._base.clock import wall_ms
from .._base.errors import InvalidEntry
from ..api.reader import Reader
from ..api.schedules import Schedules
from ..entries import lifecycle
from ..entries.configured import configured
from ..entries.entry import Entry
from ..entries.model import entry_fields
from ..entries.on_calendar import give_calendar
from ..rules import At, Manual
from ..rules.calendars import Calendar
from .document import Document, entry_from

#: Function that returns fields as a text. Texts differ for ``1``, ``1.0`` and ``true``, which are
#: equal in Python.
_json_of = msgspec.json.Encoder(order="sorted").encode


class Change(NamedTuple):
    """One step of a plan.

    Parameters:
        action: ``"add"``, ``"change"`` or ``"remove"``.
        before, after: the definition as a record; ``None`` if there is none.
    """

    action: str
    name: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None


@dataclass(slots=True)
class FilePlan:
    """Changes that the application of a file would make.

    Parameters:
        changes: the changes in the order of the file, removals last.
        entries: the entries to store.
        same: count of the entries that need no change.
        unlisted: count of the runtime entries that are not in the file and stay.
        notes: name of an entry of the file that is not stored -> the reason.
    """

    changes: list[Change] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    same: int = 0
    unlisted: int = 0
    notes: dict[str, str] = field(default_factory=dict)


def make_plan(app: Celery, document: Document, *, prune: bool = False) -> FilePlan:
    """Compare a file with the stored entries, all of which are read. Writes nothing.

    Parameters:
        prune: remove runtime entries that are not in the file.

    Raises:
        BadFile: a field is wrong. The error names its path.
    """
    reader = Reader(app)
    settings = reader.settings
    listed = {record.name for record in document.records}
    plan = FilePlan()
    stored: dict[str, Entry] = {}
    removals = []
    for entry in reader.readable(reader.store.pages()):
        if entry.name in listed:
            stored[entry.name] = entry
        elif entry.owner is None and prune:
            fields = entry_fields(entry)
            removals.append(Change("remove", entry.name, before=fields, after=None))
        elif entry.owner is None:
            plan.unlisted += 1
    calendars = Schedules(app).calendars.all()
    config_names = configured(app)
    for record in document.records:
        before = stored.get(record.name)
        # The owner of the name: if an entry is stored, the owner of that entry. Otherwise this app,
        # if its configuration has an entry of this name.
        owner = settings.owner if record.name in config_names else None
        if before is not None:
            owner = before.owner
        try:
            entry = entry_from(record, settings, app)
            _check_ownership(entry, owner)
            _compare(plan, calendars, entry, before)
        except InvalidEntry as exc:
            raise document.wrong(record, exc) from None
    plan.changes += sorted(removals, key=lambda change: change.name)
    return plan


def apply_plan(app: Celery, plan: FilePlan) -> None:
    """Write the changes of a plan. After an interruption, a new plan has the changes that are left.

    Raises:
        ConfigOwned: a config entry has taken a name meanwhile.
    """
    schedules = Schedules(app)
    schedules.add_many(plan.entries, replace=True)
    for change in plan.changes:
        if change.action == "remove":
            schedules.remove(change.name, missing_ok=True)


def _check_ownership(entry: Entry, owner: str | None) -> None:
    """Raise InvalidEntry for a runtime entry that must not be in a file.

    Such an entry has the name of a config entry, or removes itself after its last run. Then the
    file would add the removed entry again each time it is applied.

    Parameters:
        owner: owner of the config entry that has this name; ``None``: there is none.
    """
    if entry.owner is not None:
        return  # This is the config entry of an export. _compare() notes that it is not stored.
    if entry.remove_when_done:
        hint = "once it is removed, the file would add it again"
        raise InvalidEntry("remove_when_done", "false in a file", True, hint=hint)
    if owner is not None:
        expected = f"a name that the configuration of {owner!r} does not have"
        raise InvalidEntry("name", expected, entry.name, hint="leave it out, or change it there")


def _compare(
    plan: FilePlan, calendars: Mapping[str, Calendar], entry: Entry, before: Entry | None
) -> None:
    """Add one entry to a plan: as a change, as a note why it is not stored, or to ``same``.

    Parameters:
        calendars: the stored calendars by name.
        before: the stored entry; ``None`` if there is none.

    Raises:
        InvalidEntry: the entry cannot be stored. A schedule or a calendar that has ended is no
            error if the stored entry has the same one.
    """
    if entry.owner is not None:
        plan.notes[entry.name] = f"belongs to the configuration of {entry.owner!r}"
        return
    # If the entry names a calendar, attach the stored calendar to it.
    give_calendar(entry, lambda: calendars, wall_ms(), lambda: before)
    if before is None and _is_over(entry):
        plan.notes[entry.name] = "its last run lies in the past"
        return
    fields = entry_fields(entry)
    stored_fields = None if before is None else entry_fields(before)
    # The texts also differ where Python's values are equal, such as 1 and true.
    if _json_of(stored_fields) == _json_of(fields):
        plan.same += 1
        return
    # This only checks: it raises InvalidEntry if the entry has no next run, or if its jitter or
    # expectation does not fit its runs.
    lifecycle.check(entry, wall_ms(), lambda: before)
    action = "add" if before is None else "change"
    plan.changes.append(Change(action, entry.name, before=stored_fields, after=fields))
    plan.entries.append(entry)


def _is_over(entry: Entry) -> bool:
    """Return whether an entry has no run left.

    Such an entry may have removed itself after its last run, and must not be added again.
    """
    now = wall_ms()
    if isinstance(entry.schedule, At) and entry.schedule.ms <= now:
        return True
    if isinstance(entry.schedule, Manual):
        return False  # It has no occurrence, but can always be run by hand.
    return lifecycle.first(entry, now) is None

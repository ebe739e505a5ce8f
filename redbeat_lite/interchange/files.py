"""Files of entries, compared with the stored entries: plan and apply, export and import.

A plan compares definitions only, and never state such as pauses, counters and next runs. It never
changes config entries, which belong to their configuration. Runtime entries that are not in the
file stay, unless the plan is made with ``prune``.

An export has the state of entries, too, and an import restores it on another server or an empty
one. Occurrences that are due between export and import count as missed, and the misfire policy of
each entry decides about them, as after a time without a beat.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import msgspec
from celery import Celery
from msgspec.structs import replace

from .._base.actors import who
from .._base.clock import wall_ms
from .._base.errors import InvalidEntry
from .._base.times import from_ms, to_ms
from .._version import __version__
from ..api.backfills import Backfills
from ..api.reader import Reader
from ..api.schedules import Schedules
from ..api.writer import Writer
from ..entries import lifecycle
from ..entries.changes import Action, Stored
from ..entries.configured import configured, name_taken
from ..entries.entry import Entry
from ..entries.freeze import end_of, freeze_of
from ..entries.model import encode, entry_fields
from ..entries.on_calendar import assign_calendar, give_calendar, replanned
from ..entries.selection import Selection
from ..entries.state import EntryState
from ..entries.stored_entry import (
    UNREADABLE,
    edit_of,
    line_of_write,
    parts_of,
    readable_parts,
    shown_name,
)
from ..rules import at, manual
from ..rules.calendars import Calendar
from ..store.records import PAGE, chunks
from ..store.store import Store
from .document import Document, Record, backfill_fields, entry_from, state_fields, state_from
from .move_in import Step, left_out, store_steps

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
    """Compare a file with the stored entries. Writes nothing.

    Parameters:
        prune: remove runtime entries that are not in the file. Then all stored entries are read.

    Raises:
        BadFile: a field is wrong. The error names its path.
    """
    reader = Reader(app)
    settings = reader.settings
    listed = {record.name for record in document.records}
    plan = FilePlan()
    stored: dict[str, Entry] = {}
    removals = []
    # Without ``prune``, the other entries are only counted.
    candidates = reader.store.pages() if prune else reader.store.present(listed)
    for entry in reader.readable(candidates):
        if entry.name in listed:
            stored[entry.name] = entry
        elif entry.owner is None:
            removals.append(Change("remove", entry.name, before=entry_fields(entry), after=None))
    if not prune:
        plan.unlisted = _count_unlisted(reader.store, listed)
    calendars = reader.store.calendars()
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
            _compare(plan, calendars, entry, before, owner)
        except InvalidEntry as exc:
            raise document.wrong(record, exc) from None
    plan.changes += sorted(removals, key=lambda change: change.name)
    return plan


def _count_unlisted(store: Store, listed: set[str]) -> int:
    """Return how many runtime entries are not in the file.

    The result is the count of all stored entries, minus the count of the stored entries that are in
    the file or in the configuration of an owner. So the entries that are counted need not be read.

    Parameters:
        listed: names of the entries in the file.
    """
    not_counted = set(listed)
    for owner in store.owners():
        not_counted |= store.config_names(owner)
    return store.count() - len([*store.present(not_counted)])


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


def _compare(
    plan: FilePlan,
    calendars: Mapping[str, Calendar],
    entry: Entry,
    before: Entry | None,
    owner: str | None,
) -> None:
    """Add one entry to a plan: as a change, as a note why it is not stored, or to ``same``.

    Parameters:
        calendars: the stored calendars by name.
        before: the stored entry; ``None`` if there is none.
        owner: owner of the config entry that has this name; ``None``: there is none.

    Raises:
        InvalidEntry: the entry cannot be stored, or must not be in a file. A schedule or a calendar
            that has ended is no error if the stored entry has the same one.
    """
    if entry.owner is not None:  # This is the config entry of an export.
        plan.notes[entry.name] = f"belongs to the configuration of {entry.owner!r}"
        return
    if entry.remove_when_done:
        hint = "once it is removed, the file would add it again"
        raise InvalidEntry("remove_when_done", "false in a file", True, hint=hint)
    if owner is not None:
        expected = f"a name that the configuration of {owner!r} does not have"
        raise InvalidEntry("name", expected, entry.name, hint="leave it out, or change it there")
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
    if isinstance(entry.schedule, at) and entry.schedule.ms <= now:
        return True
    if isinstance(entry.schedule, manual):
        return False  # It has no occurrence, but can always be run by hand.
    return lifecycle.first(entry, now) is None


# -- Export and import -----------------------------------------------------------------------------


class Export:
    """Export of the entries of a selection with their state, ordered by name, as one JSON document.

    Entries that cannot be read or are in quarantine are left out. Once-locks, pipelines and
    messages are not part of the schedule. Entries are read 1,000 at a time, so the beat may change
    later entries while earlier ones are written.
    """

    def __init__(self, app: Celery, selection: Selection) -> None:
        self._app = app
        self._selection = selection
        reader = Reader(app)
        self._store = reader.store
        #: The fields of the document that come before its entries.
        self.head: dict[str, Any] = {
            "redbeat_lite": __version__,
            "exported_at": from_ms(wall_ms()).isoformat(),
            "calendars": [calendar.encode() for calendar in self._store.calendars().values()],
        }
        # The freeze and the backfills belong to the whole schedule, and not to a part of it.
        if selection.is_all:
            freeze = freeze_of(self._store.freeze(), wall_ms())
            backfills = [
                backfill for backfill in Backfills(reader, actor=None) if not backfill.ended
            ]
            self.head["freeze"] = None if freeze is None else freeze.encode()
            self.head["backfills"] = [backfill_fields(backfill) for backfill in backfills]
        #: Count of the records so far.
        self.number = 0
        #: Name and reason of each entry that is left out. Complete after the last record.
        self.left_out: list[dict[str, str]] = []

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield the record of each selected entry that can be read, and note the others."""
        # allows() looks at names, among() at stored definitions, and covers() at decoded entries.
        # The first two are quick, and leave out most entries that are not selected.
        names = sorted(filter(self._selection.allows, self._store.names()))
        for stored in self._selection.among(self._store.present(names)):
            try:
                entry, state = parts_of(stored, self._app)
                if not self._selection.covers(entry):
                    continue
                record = {"name": entry.name, **entry_fields(entry)}
            except (*UNREADABLE, InvalidEntry) as exc:
                self._leave_out(shown_name(stored), str(exc))
                continue
            if entry.owner is not None:
                record["owner"] = entry.owner
            self.number += 1
            yield {**record, "state": state_fields(state)}
        for name, row in sorted(self._store.quarantined().items()):
            # An entry in quarantine cannot be decoded. Its name and its stored definition decide
            # whether it is selected.
            quarantined = Stored(name.encode(), None, str(row.get("definition")).encode(), None)
            if any(self._selection.among([quarantined])):
                self._leave_out(name, f"in quarantine: {row.get('error')}")

    def _leave_out(self, name: str, reason: str) -> None:
        self.left_out.append({"name": name, "reason": reason})


class Restore:
    """Import of the entries of a file.

    Parameters:
        replace: overwrite stored entries and their state.

    Raises:
        BadFile: a field is wrong. The error names its path.
    """

    def __init__(self, app: Celery, document: Document, *, replace: bool = False) -> None:
        self._replace = replace
        reader = Reader(app)
        self._app = app
        self._settings = reader.settings
        self._store = reader.store
        self._writer = Writer(reader, actor=None)
        self._backfills = Backfills(reader, actor=None)
        #: Name of a calendar -> the stored calendar; the calendar of the file if none is stored.
        self._calendars = {calendar.name: calendar for calendar in document.calendars}
        self._calendars |= self._store.calendars()
        #: Freeze of the file, if it still holds and no stored freeze ends later.
        self.freeze = document.freeze
        end = max(end_of(self._store.freeze()), wall_ms())
        if self.freeze is not None and to_ms(self.freeze.until) <= end:
            self.freeze = None
        #: Backfills of the file that have not ended. Neither they nor later ones that continue them
        #: are stored.
        self.backfills = [*filter(self._backfills.lacks, document.backfills)]
        #: Name -> entry of the file.
        self._entries = {record.name: self._entry(document, record) for record in document.records}

    def plan(self) -> list[Step]:
        """Return what :meth:`apply` would do. Writes nothing."""
        steps: list[Step] = []
        for names in chunks(self._entries, PAGE):
            steps += map(self._decide, self._store.read(names))
        return steps

    def apply(self, plan: Sequence[Step]) -> list[Step]:
        """Write a plan, and return what was done.

        If the call is interrupted, repeat the import. It imports the remaining entries.
        """
        for calendar in self._calendars.values():
            self._store.restore_calendar(calendar)
        # Store the freeze before the entries, so that none of them fires.
        if self.freeze is not None:
            self.freeze = self._writer.hold_freeze(self.freeze)
        # store_steps() calls _decide() again for each entry, because other processes may have
        # changed the stored entry since the plan was made.
        done = store_steps(self._store, plan, self._decide)
        self._writer.calendars.settle(step.entry for step in done if step.entry is not None)
        for backfill in self.backfills:
            self._backfills.restore(backfill)
        return done

    def _entry(self, document: Document, record: Record) -> Entry:
        """Return the entry of a record, with the state of the record or, without one, a new state.

        Raises:
            BadFile: a field is wrong.
        """
        try:
            entry = entry_from(record, self._settings, self._app)
            if entry.calendar is not None:
                assign_calendar(entry, self._calendars)
            encode(entry)  # This raises InvalidEntry if the entry cannot be stored.
            if "state" in record.fields:
                _ = entry.rule  # This raises InvalidEntry if the schedule cannot be used.
                state = state_from(record.fields["state"])
                entry.state = state
                if entry.calendar is not None:
                    # The calendar may have changed since the export, and leave out the day of the
                    # next run. replanned() computes the next run again. It also raises the version,
                    # but the version must be that of the file.
                    after = replanned(entry, state, wall_ms())
                    entry.state = replace(after, version=state.version)
            else:
                # This only checks: it raises InvalidEntry if the entry has no next run, or if its
                # jitter or expectation does not fit its runs.
                lifecycle.check(entry, wall_ms())
                entry.state = lifecycle.created(entry, wall_ms())
        except InvalidEntry as exc:
            raise document.wrong(record, exc) from None
        return entry

    def _decide(self, stored: Stored) -> Step:
        """Decide whether an entry is added, replaces the stored one, or is left out.

        Parameters:
            stored: what is stored under its name. It has no definition if there is no such entry.
        """
        # Take a copy, because _stored() changes the entry, and this method may be called again for
        # the same name.
        entry = copy(self._entries[stored.name.decode()])
        definition = encode(entry)
        if stored.definition is None:
            return _stored(entry, stored, "add", definition)
        before, state = readable_parts(stored, self._app)
        if before is not None and state is not None:
            return self._decide_replacement(entry, definition, stored, before, state)
        if not self._replace:
            return left_out(entry.name, "what is stored cannot be read; --replace overwrites it")
        return _stored(entry, stored, "replace", definition)

    def _decide_replacement(
        self, entry: Entry, definition: str, stored: Stored, before: Entry, state: EntryState
    ) -> Step:
        """Decide whether an entry replaces the stored one, stays the same, or is left out.

        Parameters:
            entry: the entry of the file, with the state of the file.
            definition: its definition in the stored form.
            before, state: the stored entry and its state, decoded from ``stored``.
        """
        if before.owner != entry.owner:
            return left_out(entry.name, name_taken(before))
        is_redefined = definition != encode(before)
        is_configured = entry.owner is not None
        # The state to store begins as that of the file.
        restored = entry.state
        if is_redefined and is_configured:
            # The stored definition stays, because it comes from the configuration. So its next run
            # stays, too, with the generation: a random text from which its task id is made.
            restored = replace(restored, nominal=state.nominal, generation=state.generation)
        if (restored.generation, restored.last) == (state.generation, state.last):
            # The last run is the same. So keep the stored times of the recent runs, ``deltas``,
            # which a file does not have.
            restored = replace(restored, deltas=state.deltas)
        # A file has neither ``attempts`` (failed attempts to publish) nor ``change`` (the last
        # change), and versions may differ. So these fields make no difference.
        is_same = restored == replace(state, version=restored.version, attempts=0, change="")
        if is_same and (is_configured or not is_redefined):
            return Step(entry.name, "same", entry)
        if not self._replace:
            if not _was_stored_again(entry, state):
                return left_out(entry.name, "it is stored already; --replace overwrites it")
            # The beat has stored this config entry again, and has planned its next run. Keep this
            # next run, ``nominal``.
            restored = replace(restored, nominal=state.nominal)
        restored = replace(restored, version=max(restored.version, state.version) + 1)
        action: Action = "edited"
        if restored.paused != state.paused:
            action = "paused" if restored.paused else "resumed"
        if is_configured:
            # The definition comes from the configuration, so restore only the state.
            before.state = restored
            return _stored(before, stored, "replace", None, action)
        entry.state = restored
        return _stored(entry, stored, "replace", definition, action)


def _stored(
    entry: Entry,
    stored: Stored,
    action: Literal["add", "replace"],
    definition: str | None,
    recorded: Action = "edited",
) -> Step:
    """Return the step that stores an entry with its state. The entry gets its due time.

    Parameters:
        definition: the definition of the entry; ``None``: the stored one stays.
        recorded: action in the record of changes. For a new entry, this is "added" instead.
    """
    line = line_of_write(who(), stored, definition, "imported", recorded)
    edit = edit_of(entry, entry.state, expected=stored.state, definition=definition, line=line)
    return Step(entry.name, action, entry, edit=edit)


def _was_stored_again(entry: Entry, state: EntryState) -> bool:
    """Return whether a config entry may be overwritten without ``replace``.

    The stored entry may be overwritten if a beat has stored it again since the export, and nobody
    has edited it after that. It may not be overwritten if it has another pause than at the export.
    That pause is newer than the file: the beat has restored it.

    Parameters:
        entry: the entry of the file, with the state of the file.
        state: the stored state.
    """
    # An entry that is stored again begins with version 1 and a new generation (a random text). Each
    # edit raises the version.
    exported = entry.state
    is_untouched = state.version == 1 and state.generation != exported.generation
    has_same_pause = (
        exported.paused
        and exported.paused_until == state.paused_until
        and exported.note == state.note
    )
    return entry.owner is not None and is_untouched and (has_same_pause or not state.paused)

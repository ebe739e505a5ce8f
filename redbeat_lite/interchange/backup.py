"""Exporting a schedule with its state, and importing it again: into another server, or into one that lost its data.

What came due between the two counts as missed, as if no beat had run meanwhile, and the policy of each entry decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import tzinfo
from typing import Any, Literal

from celery import Celery

from .._version import __version__
from ..actors import who
from ..api.schedules import Schedules
from ..clock import wall_ms
from ..entries import lifecycle
from ..entries.as_json import entry_fields
from ..entries.definition import encode
from ..entries.differences import line_of_write
from ..entries.entry import Entry
from ..entries.freezes import Freeze
from ..entries.on_calendar import given, moved
from ..entries.selection import Selection
from ..entries.state import EntryState
from ..entries.stored_entry import UNREADABLE, edit_of, parts_of, readable_parts, shown_name
from ..errors import CorruptEntry, InvalidEntry
from ..instants import from_ms
from ..schedules.calendars import Calendar
from ..settings import Settings
from ..storage.backfills import Backfill
from ..storage.calendars import restore_calendar, stored_calendars
from ..storage.changes import Action
from ..storage.store import TRIES, Store
from ..storage.stored import PAGE, Edit, Stored, chunks
from .document import Document, Record
from .records import entry_from, fields_of, state_fields, state_from


class Export:
    """The entries of a selection with their state, in the order of their names, for one JSON document.

    Left out are entries that cannot be read or are in quarantine. Once-locks, pipelines and messages are no part of
    the schedule. 1,000 entries are read one after the other, so the beat may advance others meanwhile.
    """

    def __init__(self, app: Celery, selection: Selection) -> None:
        self._selection = selection
        self._store = Store.of(Settings.from_app(app))
        #: What the document begins with.
        self.head = {
            "redbeat_lite": __version__,
            "exported_at": from_ms(wall_ms()).isoformat(),
            "calendars": [calendar.encode() for calendar in stored_calendars(self._store).values()],
            **(_beside(app) if selection.is_all else {}),
        }
        #: How many records there were so far.
        self.number = 0
        #: What is left out, with the reason; complete once the records are through.
        self.left_out: list[dict[str, str]] = []

    def records(self) -> Iterator[dict[str, Any]]:
        """The entries, each as it is stored: an app that knows more of one than Redis does adds nothing."""
        names = sorted(filter(self._selection.allows, self._store.names()))
        for stored in self._selection.among(self._store.present(names)):
            try:
                entry, state = parts_of(stored)
                if self._selection.covers(entry):
                    owner = {} if entry.owner is None else {"owner": entry.owner}
                    told = {"name": entry.name, **entry_fields(entry), **owner, "state": state_fields(state)}
                    self.number += 1
                    yield told
            except (*UNREADABLE, InvalidEntry) as exc:
                self.left_out.append({"name": shown_name(stored), "reason": str(exc)})
        for name, held in sorted(self._store.quarantined().items()):
            if any(self._selection.among([Stored(name.encode(), None, str(held.get("definition")).encode(), None)])):
                self.left_out.append({"name": name, "reason": f"in quarantine: {held.get('error')}"})


def _beside(app: Celery) -> dict[str, Any]:
    """What goes with all entries: the freezes that hold, and the backfills that have not ended."""
    schedules = Schedules(app)
    return {
        "freezes": [fields_of(each) for each in schedules.freezes],
        "backfills": [fields_of(each) for each in schedules.backfills if not each.ended],
    }


@dataclass(slots=True)
class Restored:
    """What becomes of one entry of the file, which has its state, and the due time that is stored; or why not."""

    name: str
    action: Literal["add", "replace", "same", "left out"]
    entry: Entry
    note: str | None = None
    edit: Edit | None = None


class Restore:
    """Brings the entries of a file back; ``replace`` overwrites those that are stored already, and their state."""

    def __init__(self, app: Celery, *, replace: bool = False) -> None:
        self._app, self._replace = app, replace
        self._settings = Settings.from_app(app)
        self._store = Store.of(self._settings)
        self._zone: tzinfo = app.timezone
        self._schedules = Schedules(app)
        self._known: dict[str, Calendar] = {}
        #: Those of the file that hold, or have not ended, and are not stored.
        self.freezes, self.backfills = list[Freeze](), list[Backfill]()

    def plan(self, document: Document) -> list[Restored]:
        """What :meth:`apply` would do. Writes nothing.

        Raises BadFile, which names the path of the field that is wrong.
        """
        self._known = {calendar.name: calendar for calendar in document.calendars} | stored_calendars(self._store)
        there = {each.id for each in self._schedules.freezes.known().all}
        self.freezes = [each for each in document.freezes if each.holds(wall_ms()) and each.id not in there]
        self.backfills = [each for each in document.backfills if self._schedules.backfills.lacks(each)]
        entries = [self._entry(document, record) for record in document.records]
        return [found for chunk in chunks(entries, PAGE) for found in self._planned(chunk)]

    def apply(self, planned: Sequence[Restored]) -> None:
        """Store what was planned, 1,000 entries in a round trip. Interrupted and repeated, it does the rest."""
        for calendar in self._known.values():
            restore_calendar(self._store, calendar)
        for freeze in self.freezes:  # before there is anything that they keep from firing
            self._schedules.freezes.restore(freeze)
        self._store_all(planned)
        for backfill in self.backfills:
            self._schedules.backfills.restore(backfill)

    def _store_all(self, planned: Sequence[Restored]) -> None:
        self._remember_config_names(planned)
        left = [each for each in planned if each.edit is not None]
        for _ in range(TRIES):
            done = self._store.put(each.edit for each in left if each.edit is not None)
            left = [each for each, ok in zip(left, done, strict=True) if not ok]
            if not left:
                return
            for old, new in zip(left, self._planned([each.entry for each in left]), strict=True):
                old.action, old.note, old.edit = new.action, new.note, new.edit
            left = [each for each in left if each.edit is not None]
        for each in left:
            each.action, each.note = "left out", "it is being changed too often"

    def _entry(self, document: Document, record: Record) -> Entry:
        try:
            entry = entry_from(self._settings, record.name, record.fields, app=self._app)
            if entry.calendar is not None:
                given(entry, self._known, self._zone)
            encode(entry)
            if "state" in record.fields:
                entry.rule(self._zone)
                entry.state = state = state_from(record.fields["state"])
                if entry.calendar is not None:  # what it waits for may be left out by now
                    entry.state = replace(moved(entry, state, wall_ms(), self._zone), version=state.version)
            else:
                lifecycle.check(entry, wall_ms(), self._zone)
                entry.state = lifecycle.created(entry, wall_ms(), self._zone)
        except InvalidEntry as exc:
            raise document.wrong(record, exc) from None
        return entry

    def _planned(self, entries: Sequence[Entry]) -> Iterator[Restored]:
        for entry, stored in zip(entries, self._store.read([each.name for each in entries]), strict=True):
            yield self._one(entry, stored)

    def _one(self, entry: Entry, stored: Stored) -> Restored:
        if stored.definition is None:
            return Restored(entry.name, "add", entry, edit=self._edit(entry, stored, entry.known_state))
        try:
            before, state = parts_of(stored)
        except CorruptEntry:
            if not self._replace:
                return Restored(entry.name, "left out", entry, "what is stored cannot be read; --replace overwrites it")
            return Restored(entry.name, "replace", entry, edit=self._edit(entry, stored, entry.known_state))
        if before.owner != entry.owner:
            owner = "a runtime entry" if before.owner is None else f"the configuration of {before.owner!r}"
            return Restored(entry.name, "left out", entry, f"the name is taken by {owner}")
        lifecycle.keep_resolved(before, entry)
        redefined = encode(entry) != encode(before)
        wanted = self._over(entry, state, redefined=redefined)
        if wanted == replace(state, attempts=0) and (entry.owner is not None or not redefined):
            return Restored(entry.name, "same", entry)
        if not self._replace:
            if not _was_stored_again(entry, state):
                return Restored(entry.name, "left out", entry, "it is stored already; --replace overwrites it")
            wanted = replace(wanted, nominal=state.nominal)
        later = replace(wanted, version=max(wanted.version, state.version) + 1)
        kept = None if entry.owner is None else before
        return Restored(entry.name, "replace", entry, edit=self._edit(entry, stored, later, kept))

    def _over(self, entry: Entry, state: EntryState, *, redefined: bool) -> EntryState:
        """The state that the entry gets in place of the one it has; equal to that if there is nothing to do."""
        wanted = entry.known_state
        if (wanted.generation, wanted.last) == (state.generation, state.last):
            wanted = replace(wanted, deltas=state.deltas)  # no part of the file, and still true
        if redefined and entry.owner is not None:
            # The configuration owns the definition, so the plan that goes with it stays.
            return replace(wanted, nominal=state.nominal, generation=state.generation, version=state.version)
        same_plan = (wanted.nominal, wanted.generation) == (state.nominal, state.generation)
        return replace(wanted, version=state.version) if same_plan and not redefined else wanted

    def _edit(self, entry: Entry, stored: Stored, state: EntryState, kept: Entry | None = None) -> Edit:
        """The edit that stores the entry; or its state alone, where the definition ``kept`` stays stored."""
        definition = encode(entry) if kept is None else None
        stays = entry if kept is None else kept
        _, before = readable_parts(stored)
        pausing: Action = "paused" if state.paused else "resumed"
        action = pausing if before is not None and before.paused != state.paused else "edited"
        line = line_of_write(who(), stored, definition, "imported", action)
        edit = edit_of(stays, state, self._zone, expected=stored.state, definition=definition, line=line)
        entry.due = edit.score
        return edit

    def _remember_config_names(self, planned: Sequence[Restored]) -> None:
        owned: dict[str, set[str]] = {}
        for each in planned:
            if each.edit is not None and each.entry.owner is not None:
                owned.setdefault(each.entry.owner, set()).add(each.name)
        for owner, names in owned.items():
            self._store.add_config_names(owner, names)


def _was_stored_again(entry: Entry, state: EntryState) -> bool:
    """Return whether a beat has stored a config entry again since the export, and nobody edited it.

    A pause that the beat has restored is newer than the file, so the file must not end it.
    """
    exported = entry.known_state
    is_untouched = state.version == 1 and state.generation != exported.generation
    return entry.owner is not None and is_untouched and (exported.paused or not state.paused)

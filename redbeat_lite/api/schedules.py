"""The Python API: schedules added, changed and removed at runtime, from any process."""

from __future__ import annotations

from collections.abc import Collection, Iterable, MutableMapping
from contextlib import suppress
from functools import cache, partial
from typing import Any, Unpack

from celery import Celery

from ..actors import check_actor
from ..entries import lifecycle
from ..entries.configured import entry_with_defaults
from ..entries.definition import encode
from ..entries.entry import Entry
from ..entries.field_types import Args, Changes, Kwargs, Policies, Schedule
from ..entries.selection import Selection
from ..entries.state import storable_note
from ..entries.stored_entry import removal
from ..errors import EntryChanged, EntryNotFound, InvalidEntry
from ..public import public
from ..runs.incident import Incident
from ..storage.changes import line_of
from ..storage.lazy import lazy
from ..storage.store import TRIES
from ..storage.stored import PAGE, chunks
from .backfills import Backfills
from .calendars import Calendars
from .freezes import FreezeList
from .read_side import ReadSide
from .run_now import run_by_hand
from .selected import Selected
from .writer import Writer, check_taken


@public
class Schedules(ReadSide, MutableMapping[str, Entry]):
    """All entries of one schedule, as a mapping from name to :class:`Entry`.

    A change takes effect at once: it wakes the beat if the beat has to do something earlier because of it. Every
    method may raise redis-py's errors when the server cannot be reached.

    Parameters:
        app: the Celery app whose settings say where the schedule is. No connection is opened yet.
        actor: who the record of changes says it was, where no :func:`acting_as` does; 1 to 100 characters. By default
            the user and the host of this process.

    Raises:
        InvalidEntry: ``actor`` is none.
        ConfigurationError: ``app`` is no Celery app.
    """

    def __init__(self, app: Celery, *, actor: str | None = None) -> None:
        super().__init__(app)
        self._actor = None if actor is None else check_actor(actor)

    @lazy
    def _writer(self) -> Writer:
        return Writer(self._reader, self._actor)

    @property
    def calendars(self) -> Calendars:
        """The stored :class:`Calendar` objects, as a mapping from name to calendar; see :class:`Calendars`."""
        return self._writer.calendars

    @lazy
    def freezes(self) -> FreezeList:
        """The :class:`Freeze` objects that have not ended; see :class:`FreezeList`."""
        return FreezeList(self._store, lambda: self._writer.who)

    @lazy
    def backfills(self) -> Backfills:
        """Occurrences of the past that are sent late, or once more; see :class:`Backfills`."""
        return Backfills(self._reader, lambda: self._writer.who)

    def add(
        self,
        name: str,
        task: Any,
        schedule: Schedule,
        args: Args = (),
        kwargs: Kwargs = None,
        options: Kwargs = None,
        *,
        replace: bool = False,
        note: str = "",
        **policies: Unpack[Policies],
    ) -> Entry:
        """Store a new entry and return it; see :class:`Entry` for the parameters.

        Parameters:
            policies: any of the fields of :class:`Policies`, by name.
            replace: overwrite an entry of this name. Its history is kept, and its next run too unless the schedule is
                another, so that adding the same entry at every start of an application postpones nothing. One that has
                come to its ``end_at`` meanwhile stays finished; only a new entry must have an occurrence to come.
            note: why, for the record of changes.

        Raises:
            InvalidEntry: a field is wrong, or cannot be stored or sent; ``note`` is too long.
            EntryExists: the name is taken, and ``replace`` is not set.
            ConfigOwned: the name is taken by a config entry.
        """
        fields = {"task": task, "schedule": schedule, "args": args, "kwargs": kwargs, "options": options, **policies}
        entry = entry_with_defaults(self._reader.settings, name, fields, app=self._app)
        self._writer.checked(entry, replaces=replace)
        if replace:
            self._writer.replace([entry], storable_note(name, note))
        else:
            self._writer.create(entry, note=storable_note(name, note))
        return entry

    def add_many(self, entries: Iterable[Entry], *, replace: bool = False) -> None:
        """Store many entries, 1,000 in a round trip (two with ``replace``).

        Parameters:
            entries: a collection, of which all are checked before any is stored; or an iterator, which is taken 1,000
                at a time, in as much memory as they need.

        Raises:
            InvalidEntry: a field of an entry is wrong, or two entries have the same name and
                ``replace`` is not set. Nothing was stored, or only what an iterator gave before.
            EntryExists: names were taken, the message says which; all others are stored.
            ConfigOwned: as for :meth:`add`; entries of earlier round trips are stored.
        """
        calendars, told, taken = cache(self._writer.calendars.all), set[str](), list[str]()
        for some in [[*entries]] if isinstance(entries, Collection) else chunks(entries, PAGE):
            if not replace:
                taken += self._writer.added(some, calendars, told)
                continue
            checked = [self._writer.checked(each, replaces=True, warn=False, calendars=calendars) for each in some]
            self._writer.warn_of_unknown_tasks(checked, told)
            for entry in checked:
                encode(entry)
            self._writer.replace(checked)
        check_taken(taken)

    def __setitem__(self, name: str, entry: Entry) -> None:
        """Create or replace, as :meth:`add` with ``replace``."""
        if not isinstance(entry, Entry) or entry.name != name:
            raise InvalidEntry("entry", f"an Entry named {name!r}", entry)
        self._writer.replace([self._writer.checked(entry, replaces=True)])

    def update(  # type: ignore[override]
        self, name: str, *, if_version: int | None = None, note: str = "", **changes: Unpack[Changes]
    ) -> Entry:
        """Change the named fields of an entry and leave the others; returns the entry as it is now.

        Not ``MutableMapping.update``: use :meth:`add_many` for many entries. A changed schedule counts from now on and
        never fires for the past.

        Parameters:
            if_version: change the entry only if this is its version.
            note: why, for the record of changes.
            changes: fields of :class:`Entry` by name.

        Raises:
            EntryNotFound: there is no such entry.
            EntryChanged: its version is not ``if_version``.
            InvalidEntry: a field is unknown or wrong, or ``note`` is too long; nothing was changed.
            ConfigOwned: it is a config entry.
        """
        if not isinstance(name, str):
            raise InvalidEntry("name", "the name of one entry", name, hint="add_many writes many entries")
        return self._writer.update(name, changes, if_version, storable_note(name, note))

    def __delitem__(self, name: str) -> None:
        """Remove an entry, for good. A config entry comes back, as new, when the beats next see to it.

        Raises:
            EntryNotFound: there is none.
        """
        self.remove(name)

    def remove(self, name: str, *, missing_ok: bool = False, note: str = "") -> None:
        """Remove an entry.

        Parameters:
            missing_ok: whether it is fine that there is none.
            note: why, for the record of changes.

        Raises:
            EntryNotFound: there is none.
            InvalidEntry: ``note`` is too long.
        """
        line = line_of(self._writer.who, "removed", storable_note(name, note))
        with suppress(*[EntryNotFound] if missing_ok else []):
            self._writer.edit(name, lambda stored: (None, removal(stored, line)))

    def clear(self) -> None:
        """Remove every entry. Config entries come back when the beats next see to them.

        Raises:
            EntryChanged: entries are changed faster than they can be removed; some are left.
        """
        in_vain, line = 0, line_of(self._writer.who, "removed")
        while page := self._store.page(0, PAGE):
            in_vain = 0 if any(self._store.put(removal(stored, line) for stored in page)) else in_vain + 1
            if in_vain == TRIES:
                raise EntryChanged(f"{len(page)} entries are being changed too often to be removed")

    def pause(self, name: str, note: str = "") -> Entry:
        """Stop an entry from firing; it keeps its history, over restarts and config changes too.

        Parameters:
            note: why, for those who come after.

        Raises:
            EntryNotFound: there is none.
        """
        told = storable_note(name, note)
        line = line_of(self._writer.who, "paused", told)
        return self._writer.restate(name, lambda entry: lifecycle.paused(entry.known_state, told), line)

    def resume(self, name: str, *, catch_up: bool = False) -> Entry:
        """Let a paused entry fire again, from its next instant on; nothing happens if it is not paused.

        Parameters:
            catch_up: treat what the pause held back as missed, and leave it to the entry's misfire policy.

        Raises:
            EntryNotFound: there is none.
            ConfigOwned: its schedule cannot be stored, and this app's configuration does not have it.
        """
        line = line_of(self._writer.who, "resumed")
        return self._writer.restate(name, partial(self._writer.resumed, catch_up=catch_up), line)

    def run_now(self, name: str, *, args: Args = None, kwargs: Kwargs = None, note: str = "") -> str:
        """Publish one extra task with the entry's own options, and return its id. The plan is untouched.

        It takes the entry's once-lock; where another task holds that, the worker does as the policy says.

        Parameters:
            args, kwargs: for this run alone, in place of the entry's; ``None`` for the entry's.
            note: why, for the record of changes.

        Raises:
            InvalidEntry: ``args`` or ``kwargs`` cannot be sent, or the task does not take them; ``note`` is too long.
            EntryNotFound: there is none.
            ConfigOwned: it holds what cannot be stored, and this app's configuration does not have it.
            kombu.exceptions.OperationalError: the broker cannot be reached.
        """
        told = storable_note(name, note)
        given = {field: value for field, value in {"args": args, "kwargs": kwargs}.items() if value is not None}
        return run_by_hand(self._reader, self._writer.who, [self[name]], given, told)[name]

    def select(self, name: str = "*", *, tag: str | None = None, task: str | None = None) -> Selected:
        """Entries that are read, changed or run together: those of which all holds that is given.

        Parameters:
            name: pattern of names, as of files: ``billing-*``.
            tag: one of the entry's tags.
            task: pattern of names of tasks.

        Raises:
            InvalidEntry: names what is wrong.
        """
        return Selected(Selection.of(name, tag, "*" if task is None else task), self._reader, self._writer)

    def acknowledge(self, id: str, note: str) -> Incident:
        """Say of an open incident who has taken it up; returns it.

        Parameters:
            id: as :meth:`incidents` tells it.
            note: who, and what is done about it.

        Raises:
            EntryNotFound: no incident of this id is open.
            InvalidEntry: the note is empty or too long.
        """
        storable = storable_note(None, note, least=1)
        for case in self._incidents.open():
            if case.id == id and self._incidents.acknowledge(case, storable):
                return case._replace(note=storable).shown()
        raise EntryNotFound(f"no incident {id!r} is open")

    def release(self, name: str) -> Entry:
        """Put a quarantined entry back, as new, once what was wrong with it is mended.

        Raises:
            EntryNotFound: no entry of this name is in quarantine.
            CorruptEntry: its definition still cannot be used; it stays in quarantine.
            ConfigOwned: its schedule cannot be stored, and this app's configuration does not have it.
            EntryExists: the name is taken by now; it stays in quarantine.
        """
        return self._writer.release(name)

    def discard(self, name: str) -> None:
        """Forget a quarantined entry, for good.

        Raises:
            EntryNotFound: no entry of this name is in quarantine.
        """
        if not self._store.discard(name, line_of(self._writer.who, "discarded")):
            raise EntryNotFound(f"no entry {name!r} is in quarantine")

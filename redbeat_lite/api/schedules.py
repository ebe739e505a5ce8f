"""``Schedules``, with which any process adds, reads, changes and removes entries."""

from __future__ import annotations

from collections.abc import (
    Collection,
    ItemsView,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
    ValuesView,
)
from datetime import datetime
from functools import partial
from itertools import islice, takewhile
from typing import Any, Unpack

from celery import Celery
from msgspec.structs import replace

from .._base import times
from .._base.actors import check_actor
from .._base.clock import wall_ms
from .._base.errors import ConfigurationError, EntryChanged, EntryNotFound, InvalidEntry
from .._base.fields import whole
from .._base.lazy import lazy
from .._base.public import public
from .._base.times import Duration
from ..entries.changes import Change, line_of
from ..entries.configured import entry_with_defaults
from ..entries.entry import Entry
from ..entries.freeze import Freeze, freeze_of
from ..entries.model import Args, Changes, Kwargs, Policies, Schedule, is_name
from ..entries.preview import Upcoming, upcoming_runs
from ..entries.run import Outcome, Run
from ..entries.selection import Selection
from ..entries.state import storable_note
from ..entries.stored_entry import removal
from ..runs.incident import Incident
from ..runs.incident_store import IncidentStore
from ..store.records import PAGE, chunks
from ..store.redis_values import text
from ..store.store import Store
from .backfills import Backfills
from .calendars import Calendars
from .change_log import recorded
from .reader import Reader, Record
from .run_history import RunHistory, RunQuery
from .run_now import run_by_hand
from .selected import Selected
from .writer import Writer, end_after

#: Field kind of the parameters that are a count of entries, runs or changes. Its read() raises
#: InvalidEntry for any other value than a whole number from 0.
_COUNT = whole(0)

# The method list() hides the builtin ``list`` inside the class, so annotations use these names.
Entries = list[Entry]
Counts = list[int]
Occurrences = list[Upcoming]
RecordedChanges = list[Change]
Runs = list[Run]
Incidents = list[Incident]


@public
class Schedules(MutableMapping[str, Entry]):
    """Entries of a schedule, as a mapping from name to :class:`Entry`.

    A change takes effect at once, because it wakes the beat if the beat must act sooner. Every
    method may raise redis-py's errors if the server cannot be reached.

    Parameters:
        app: the Celery app whose settings name the server. No connection is opened yet.
        actor: author of the changes, for the record of changes, unless :func:`acting_as` names
            another one; 1 to 100 characters. By default the user and the host of this process.

    Raises:
        InvalidEntry: ``actor`` is no text of 1 to 100 characters.
        ConfigurationError: ``app`` is no Celery app.
    """

    def __init__(self, app: Celery, *, actor: str | None = None) -> None:
        if not isinstance(app, Celery):
            raise ConfigurationError(f"app: expected a Celery app, got {app!r}")
        self._app = app
        self._actor = None if actor is None else check_actor(actor)

    def __repr__(self) -> str:
        where = f"{self._store.backend.display_url} under {self._store.keys.prefix}"
        return f"<Schedules of {self._app.main!r}: {where}>"

    @lazy
    def _reader(self) -> Reader:
        return Reader(self._app)

    @lazy
    def _writer(self) -> Writer:
        return Writer(self._reader, self._actor)

    @property
    def _store(self) -> Store:
        return self._reader.store

    @property
    def _incidents(self) -> IncidentStore:
        return IncidentStore(self._store.backend.client, self._store.keys.prefix)

    @property
    def calendars(self) -> Calendars:
        """The stored :class:`Calendar` objects by name; see :class:`Calendars`."""
        return self._writer.calendars

    @lazy
    def backfills(self) -> Backfills:
        """The :class:`Backfill` objects, which send past occurrences; see :class:`Backfills`."""
        return Backfills(self._reader, self._actor)

    # -- Reading ----------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Entry:
        """Return the entry of this name, with its state and its last change.

        Raises:
            EntryNotFound: there is none; a ``KeyError``.
            CorruptEntry: the stored entry cannot be read.
        """
        return self._reader.whole(name)

    def record_of(self, name: str, *, runs: int = 20, changes: int = 20) -> Record:
        """Return the entry of this name with its last runs and changes.

        Its parts are those that ``[name]``, :meth:`runs` and :meth:`changes` return.

        Parameters:
            runs: maximum number of runs.
            changes: maximum number of changes.

        Raises:
            EntryNotFound: there is none; a ``KeyError``.
            CorruptEntry: the stored entry cannot be read.
        """
        # These calls only check the numbers.
        _COUNT.read("runs", runs)
        _COUNT.read("changes", changes)
        # Read the entry before its runs. Otherwise a run that is sent in between is missing.
        entry = self[name]
        last_runs = self.run_history.of_stored(name, entry, RunQuery.of(limit=runs))
        return Record(entry, last_runs, self.changes(name, limit=changes), self.frozen())

    def __contains__(self, name: object) -> bool:
        return is_name(name) and self._store.exists(name)

    def __len__(self) -> int:
        return self._store.count()

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names in due order."""
        return map(text, self._store.names())

    def items(self) -> ItemsView[str, Entry]:
        """Return names and entries in due order, read 1,000 at a time.

        An entry whose due time changes meanwhile is not missed.
        """
        return _Items(self)

    def values(self) -> ValuesView[Entry]:
        """Return the entries in due order, read 1,000 at a time.

        An entry whose due time changes meanwhile is not missed.
        """
        return _Values(self)

    def list(self, offset: int = 0, limit: int = 100) -> Entries:
        """Return a page of entries in due order, with one round trip per 1,000 entries.

        Entries that are due at the same instant are sorted by name. Entries without a next run come
        last.

        Parameters:
            offset: count of the entries before the page.
            limit: maximum number of entries of the page.
        """
        # These calls only check the numbers.
        _COUNT.read("offset", offset)
        _COUNT.read("limit", limit)
        # ranked() reads at most PAGE entries at a time, and only as many pages as are needed here.
        ranked = islice(self._store.ranked(offset, min(limit, PAGE)), limit)
        # Make a dict by name, because an entry is read twice if its due time changes between two
        # round trips.
        by_name = {stored.name: stored for stored in ranked}
        return [*self._reader.readable(by_name.values())]

    def due_counts(self, edges: Sequence[datetime]) -> Counts:
        """Return how many entries run next in each span of time between these instants.

        The first count is of the time before the first instant, and the last count of the time
        after the last instant. The call takes one round trip and reads no entry, so the counts for
        each minute of a day take some milliseconds, however many entries are stored. A freeze
        is ignored, because it has no effect on a run before the run is due.

        Parameters:
            edges: aware datetimes, the earliest first.
        """
        return self._store.due_counts([times.to_ms(edge, "edges") for edge in edges])

    def load_runs(self, entries: Sequence[Entry]) -> None:
        """Let these entries read their last runs together, 1,000 in a round trip.

        The first access to ``last_run`` or a similar attribute reads the runs, and later ones need
        no further round trip.
        """
        for page in chunks(entries, PAGE):
            self._reader.give_rows(page)

    def upcoming(self, until: datetime, limit: int = 1000) -> Occurrences:
        """Return the next occurrences of all entries in order of time, as the beat will plan them.

        Entries are read in due order, and only as many as are needed.

        Parameters:
            until: aware; the last instant.
            limit: maximum number of occurrences.
        """
        return [occurrence for occurrence, _ in self._upcoming(until, limit)]

    def soonest(
        self, until: datetime, limit: int = 100, *, begin: datetime | None = None
    ) -> Sequence[tuple[Upcoming, Entry]]:
        """Return the next occurrence of each entry, with the entry, in order of time.

        Each entry comes only once, so an entry that fires every second does not hide other entries.

        Parameters:
            until: aware; the last instant.
            limit: maximum number of occurrences.
            begin: aware; nothing fires before it. ``None``: the present, or the end of a freeze.
        """
        return [*self._upcoming(until, limit, begin, once=True)]

    def _upcoming(
        self, until: datetime, limit: int, begin: datetime | None = None, *, once: bool = False
    ) -> Iterator[tuple[Upcoming, Entry]]:
        """Return the next occurrences with their entries, in order of time.

        Parameters:
            begin: as for :meth:`soonest`.
            once: return only the next occurrence of each entry.
        """
        _COUNT.read("limit", limit)  # This only checks the number.
        last = times.to_ms(until, "until")
        if begin is None:
            freeze = self.frozen()
            begin = times.from_ms(wall_ms()) if freeze is None else freeze.until
        now = times.to_ms(begin)
        entries = self._reader.readable(self._store.ranked())
        # Entries come in due order. upcoming_runs() ends at the first one without a due time.
        first_ones = takewhile(lambda entry: entry.due is None or entry.due <= last, entries)
        runs = upcoming_runs(first_ones, now=now, first_only=once)
        return islice(takewhile(lambda run: run[0].at <= until, runs), limit)

    def runs(
        self,
        name: str | Entry | Collection[str] | None = None,
        *,
        outcome: Outcome | Collection[Outcome] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 100,
    ) -> Runs:
        """Return runs with their outcomes, the newest first.

        Of each entry, at most as many runs are kept as its ``history`` says.

        Parameters:
            name: an entry or its name; the entry may have been removed. ``None`` stands for all
                entries. With ``None`` or several names, only runs whose end is recorded are
                returned, the last to end first.
            outcome: only runs with this outcome, or with one of these outcomes.
            since: aware; only runs with a nominal time from then on.
            until: aware; only runs with a nominal time up to then.
            limit: maximum number of runs.

        Raises:
            EntryNotFound: there is no such entry, and no run of it is recorded.
            CorruptEntry: the stored entry cannot be read.
        """
        _COUNT.read("limit", limit)  # This only checks the number.
        query = RunQuery.of(limit, outcome, since, until)
        history = self.run_history
        if name is None:
            return history.of_all(query)
        if isinstance(name, Collection) and not isinstance(name, str):
            return history.of_all(query, frozenset(name).__contains__)
        return history.of_entry(name, query)

    @property
    def run_history(self) -> RunHistory:
        """Reader of the records of runs, for a caller that has to bound the cost."""
        return RunHistory(self._reader)

    def incidents(self, *, closed: bool = False, limit: int = 100) -> Incidents:
        """Return the open incidents, the oldest first, or the closed ones, the newest first.

        Parameters:
            closed: return the closed incidents instead of the open ones. About 1,000 of them are
                kept.
            limit: maximum number of incidents.
        """
        _COUNT.read("limit", limit)  # This only checks the number.
        return self._incidents.closed(limit) if closed else self._incidents.open()[:limit]

    def quarantined(self, limit: int | None = None) -> dict[str, dict[str, Any]]:
        """Return name -> record of the entries in quarantine.

        A record has ``error``, ``definition``, ``state`` and ``at`` (epoch milliseconds).

        Parameters:
            limit: maximum number of entries, approximately, in any order; ``None``: all.
        """
        return self._store.quarantined(limit)

    def refused(self) -> Mapping[str, str]:
        """Return name -> error of the entries of ``beat_schedule`` that the leading beat refuses.

        Only the first hundred of these errors are stored.
        """
        return self._store.refused().errors

    def changes(
        self,
        name: str | None = None,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 100,
    ) -> RecordedChanges:
        """Return the recorded changes, the newest first.

        The record has one line per call and keeps about 10,000 lines.

        Parameters:
            name: only changes of the entry of this name, which may have been removed.
            since: aware; only changes from then on.
            until: aware; only changes up to then.
            limit: maximum number of changes.
        """
        _COUNT.read("limit", limit)  # This only checks the number.
        return recorded(self._store, name, since, until, limit)

    # -- Writing ----------------------------------------------------------------------------------

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
            replace: overwrite an entry of this name. Its history stays. Unless the schedule has
                changed, its next run stays, too, so an application may add the same entry at every
                start. An entry that has passed its ``end_at`` stays finished; only a new entry must
                have a coming occurrence.
            note: reason, for the record of changes.

        Raises:
            InvalidEntry: a field is wrong, or cannot be stored or sent; ``note`` is too long.
            EntryExists: the name is taken, and ``replace`` is not set.
            ConfigOwned: the name is taken by a config entry.
        """
        fields = {
            "task": task,
            "schedule": schedule,
            "args": args,
            "kwargs": kwargs,
            "options": options,
            **policies,
        }
        entry = entry_with_defaults(self._reader.settings, name, fields, self._app)
        self._writer.add([entry], storable_note(name, note), replaces=replace)
        return entry

    def add_many(self, entries: Iterable[Entry], *, replace: bool = False) -> None:
        """Store many entries, 250 per round trip (two round trips with ``replace``).

        Parameters:
            entries: a collection, which is checked as a whole before anything is stored; or an
                iterator, whose entries are checked and stored 1,000 at a time.
            replace: overwrite entries of these names, as :meth:`add` does.

        Raises:
            InvalidEntry: a field of an entry is wrong, or two entries have the same name and
                ``replace`` is not set. Nothing of a collection was stored; of an iterator, earlier
                thousands were stored.
            EntryExists: some names are taken; the error lists them. All other entries were stored.
            ConfigOwned: a name is taken by a config entry. Entries of earlier round trips were
                stored.
        """
        self._writer.add(entries, replaces=replace)

    def __setitem__(self, name: str, entry: Entry) -> None:
        """Create or replace, as :meth:`add` with ``replace``."""
        if not isinstance(entry, Entry) or entry.name != name:
            raise InvalidEntry("entry", f"an Entry named {name!r}", entry)
        self._writer.add([entry], replaces=True)

    def update(  # type: ignore[override]
        self,
        name: str,
        *,
        if_version: int | None = None,
        note: str = "",
        **changes: Unpack[Changes],
    ) -> Entry:
        """Change fields of an entry, and return the changed entry. The other fields stay.

        This is not ``MutableMapping.update``; for many entries use :meth:`add_many`. A changed
        schedule counts from now on, and never fires for the past.

        Parameters:
            if_version: change the entry only if it has this version.
            note: reason, for the record of changes.
            changes: fields of :class:`Entry` by name.

        Raises:
            EntryNotFound: there is no such entry.
            EntryChanged: its version is not ``if_version``.
            InvalidEntry: a field is unknown or wrong, or ``note`` is too long; nothing was changed.
            ConfigOwned: it is a config entry.
        """
        if not isinstance(name, str):
            hint = "add_many writes many entries"
            raise InvalidEntry("name", "the name of one entry", name, hint=hint)
        return self._writer.update(name, changes, if_version, storable_note(name, note))

    def __delitem__(self, name: str) -> None:
        """Remove an entry.

        The beat soon adds a removed config entry again, as a new one.

        Raises:
            EntryNotFound: there is none.
        """
        self.remove(name)

    def remove(self, name: str, *, missing_ok: bool = False, note: str = "") -> None:
        """Remove an entry.

        Parameters:
            missing_ok: do nothing if there is no such entry.
            note: reason, for the record of changes.

        Raises:
            EntryNotFound: there is none.
            InvalidEntry: ``note`` is too long.
        """
        line = line_of(self._writer.who, "removed", storable_note(name, note))
        try:
            # edit() expects a result and an edit. A removal has no result.
            self._writer.edit(name, lambda stored: (None, removal(stored, line)))
        except EntryNotFound:
            if not missing_ok:
                raise

    def clear(self) -> None:
        """Remove every entry. The beat soon adds config entries again.

        Raises:
            EntryChanged: other processes change entries faster than this call can remove them. Some
                are left.
        """
        line = line_of(self._writer.who, "removed")
        names = self._store.names()
        # rewrite() retries entries that others change meanwhile, and returns the removed names.
        removed = self._store.rewrite(names, lambda stored: removal(stored, line))
        left = len(names) - len(removed)
        if left:
            raise EntryChanged(f"{left} entries are being changed too often to be removed")

    def pause(self, name: str, note: str = "", *, seconds: Duration | None = None) -> Entry:
        """Stop an entry from firing until :meth:`resume`, also over restarts and config changes.

        An entry that is paused for longer already, perhaps without an end, does not change.

        Parameters:
            note: reason, which is shown with the entry.
            seconds: length of the pause, as seconds, a timedelta or a text such as ``"2h"``. At its
                end the entry fires again, and its misfire policy decides on the runs that were due
                meanwhile. ``None``: the pause has no end.

        Raises:
            EntryNotFound: there is none.
            InvalidEntry: a parameter is wrong.
        """
        pause, line = self._writer.pausing(storable_note(name, note), seconds)
        return self._writer.restate(name, pause, line)

    def resume(self, name: str, *, catch_up: bool = False) -> Entry:
        """Let a paused entry fire again, from its next occurrence on.

        If the entry is not paused, nothing changes.

        Parameters:
            catch_up: count as missed the runs that the pause has prevented. Then the entry's
                misfire policy decides about them.

        Raises:
            EntryNotFound: there is none.
        """
        return self._writer.restate(
            name,
            partial(self._writer.resumed, catch_up=catch_up),
            line_of(self._writer.who, "resumed"),
        )

    def freeze(self, seconds: Duration, note: str = "") -> Freeze:
        """Keep all entries from firing for a time, without an edit, and return the freeze.

        Entries that are added meanwhile do not fire either. Messages that were sent already, and
        their retries, are not affected. At the end of the freeze, each entry's misfire policy
        decides on the runs that were due meanwhile. A freeze that holds already and ends later
        stays as it is, and is returned.

        Once this call has returned, a beat that commits and sends in one step sends no message. If
        the broker is another server, the beat may still send the batch that it is sending just
        then.

        Parameters:
            seconds: length of the freeze, as seconds, a timedelta or a text such as ``"2h"``.
            note: reason, which is shown with the freeze.

        Raises:
            InvalidEntry: a parameter is wrong.
            EntryChanged: somebody else has made or ended a freeze just now.
            UnsupportedFormat: another version of redbeat_lite uses this schedule.
        """
        now = wall_ms()
        until = times.from_ms(end_after(now, seconds))
        stored_note = storable_note(None, note)
        freeze = Freeze(times.from_ms(now), until, stored_note, self._writer.who.actor)
        return self._writer.hold_freeze(freeze)

    def thaw(self, *, if_since: datetime | None = None) -> None:
        """End the freeze before its time.

        Parameters:
            if_since: ``since`` of the freeze to end; ``None``: the one that holds.

        Raises:
            EntryNotFound: no freeze holds.
            EntryChanged: another freeze holds than that of ``if_since``, or somebody else has made
                or ended a freeze just now.
        """
        before = self._store.freeze()
        freeze = freeze_of(before, wall_ms())
        if freeze is None:
            raise EntryNotFound("no freeze holds")
        if if_since not in (None, freeze.since):
            raise EntryChanged("somebody else has made another freeze meanwhile")
        self._writer.set_freeze(before, None, line_of(self._writer.who, "thawed"))

    def frozen(self) -> Freeze | None:
        """Return the freeze that holds at present; ``None`` if there is none."""
        return freeze_of(self._store.freeze(), wall_ms())

    def run_now(
        self, name: str, *, args: Args = None, kwargs: Kwargs = None, note: str = ""
    ) -> str:
        """Publish one extra task with the entry's options, and return its id.

        The next run of the entry stays the same. The task needs the entry's once-lock. If another
        task has the lock, the worker follows the once policy.

        Parameters:
            args: positional arguments of this run alone; ``None`` for the entry's.
            kwargs: keyword arguments of this run alone; ``None`` for the entry's.
            note: reason, for the record of changes.

        Raises:
            InvalidEntry: ``args`` or ``kwargs`` cannot be sent, or the task does not take them;
                ``note`` is too long.
            EntryNotFound: there is none.
            ConfigOwned: its arguments cannot be stored, and this app's configuration does not have
                them.
            kombu.exceptions.OperationalError: the broker cannot be reached.
        """
        stored_note = storable_note(name, note)
        # For a parameter that is left out here, the run gets the arguments of the entry.
        both = {"args": args, "kwargs": kwargs}
        arguments = {field: value for field, value in both.items() if value is not None}
        task_ids = run_by_hand(self._reader, self._writer.who, [self[name]], arguments, stored_note)
        return task_ids[name]

    def select(
        self, name: str = "*", *, tag: str | None = None, task: str | None = None
    ) -> Selected:
        """Select entries that are read, changed or run together.

        An entry is selected if it matches all parameters.

        Parameters:
            name: pattern of names, as of files: ``billing-*``.
            tag: one of the entry's tags.
            task: pattern of names of tasks.

        Raises:
            InvalidEntry: a parameter is wrong.
        """
        selection = Selection.of(name, tag, "*" if task is None else task)
        return Selected(selection, self._reader, self._writer)

    def acknowledge(self, id: str, note: str) -> Incident:
        """Write a note on an open incident, so that people see that somebody takes care of it.

        Parameters:
            id: id of the incident, as :meth:`incidents` returns it.
            note: text, such as the name of the person and the planned measure.

        Returns:
            the incident with the note.

        Raises:
            EntryNotFound: no incident of this id is open.
            InvalidEntry: the note is empty or too long.
        """
        stored_note = storable_note(None, note, least=1)
        for incident in self._incidents.open():
            # acknowledge() returns False if the incident was closed meanwhile.
            if incident.id == id and self._incidents.acknowledge(incident, stored_note):
                return replace(incident, acknowledged=stored_note)
        raise EntryNotFound(f"no incident {id!r} is open")

    def release(self, name: str) -> Entry:
        """Store a quarantined entry again, as a new entry, after its fault was repaired.

        Raises:
            EntryNotFound: no entry of this name is in quarantine.
            CorruptEntry: its definition still cannot be used. It stays in quarantine.
            EntryExists: the name is taken by now. The entry stays in quarantine.
        """
        return self._writer.release(name)

    def discard(self, name: str) -> None:
        """Delete a quarantined entry. If the configuration has it, the beat soon adds it again.

        Raises:
            EntryNotFound: no entry of this name is in quarantine.
        """
        if not self._store.discard(name, line_of(self._writer.who, "discarded")):
            raise EntryNotFound(f"no entry {name!r} is in quarantine")


class _Items(ItemsView[str, Entry]):
    """View of all names and entries, which reads 1,000 entries at a time."""

    _mapping: Schedules

    def __iter__(self) -> Iterator[tuple[str, Entry]]:
        return ((entry.name, entry) for entry in self._mapping.values())


class _Values(ValuesView[Entry]):
    """View of all entries, which reads 1,000 entries at a time."""

    _mapping: Schedules

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._mapping.select())

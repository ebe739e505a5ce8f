"""The reading half of the Python API: entries, what will fire, what is set aside."""

from __future__ import annotations

from collections.abc import Collection, ItemsView, Iterator, Mapping, Sequence, ValuesView
from datetime import datetime
from typing import Any

from celery import Celery

from .. import instants
from ..clock import wall_ms
from ..entries.entry import Entry
from ..entries.fields import is_name
from ..entries.freezes import Freezes
from ..entries.preview import Upcoming, upcoming
from ..errors import ConfigurationError, InvalidEntry
from ..runs.incident import Incident
from ..runs.incident_store import IncidentStore
from ..runs.run import Outcome, Run
from ..storage.changes import Change
from ..storage.lazy import lazy
from ..storage.patience import briefly
from ..storage.replies import text
from ..storage.store import Store
from .change_log import Scan, recorded
from .one_entry import Record, read_one
from .reader import Reader, there
from .run_history import RunHistory, Wanted

# ReadSide.list() hides the builtin from annotations inside the class.
Entries = list[Entry]
Counts = list[int]
Occurrences = list[Upcoming]
Changes = list[Change]
Runs = list[Run]
Incidents = list[Incident]


class ReadSide(Mapping[str, Entry]):
    """What of :class:`Schedules` changes no entry."""

    def __init__(self, app: Celery) -> None:
        if not isinstance(app, Celery):
            raise ConfigurationError(f"app: expected a Celery app, got {app!r}")
        self._app = app

    def __repr__(self) -> str:
        where = f"{self._store.backend.display_url} under {self._store.keys.prefix}"
        return f"<Schedules of {self._app.main!r}: {where}>"

    @lazy
    def _reader(self) -> Reader:
        return Reader(self._app)

    @property
    def _store(self) -> Store:
        return self._reader.store

    @lazy
    def _incidents(self) -> IncidentStore:
        return IncidentStore(self._store.backend.client, self._store.keys.prefix)

    def __getitem__(self, name: str) -> Entry:
        """The entry of this name, with its state and its last change.

        Raises:
            EntryNotFound: there is none; a ``KeyError``.
            CorruptEntry: what Redis holds cannot be read.
        """
        return self._reader.whole(name)

    def record_of(self, name: str, *, runs: int = 20, changes: int = 20) -> Record:
        """Return the entry of this name with its last runs and changes, in three round trips.

        Its parts are those that ``[name]``, :meth:`runs` and :meth:`changes` return.

        Parameters:
            runs, changes: how many at most.

        Raises:
            EntryNotFound: there is none; a ``KeyError``.
            CorruptEntry: what Redis holds cannot be read.
        """
        check_count("runs", runs)
        check_count("changes", changes)
        found = read_one(self._reader, name, runs, Scan(self._store, name, changes))
        return Record(there(name, found.entry), found.runs, found.changes, found.freezes)

    def __contains__(self, name: object) -> bool:
        return is_name(name) and self._store.exists(name)

    def __len__(self) -> int:
        return self._store.count()

    def __iter__(self) -> Iterator[str]:
        """The names, in due order."""
        return map(text, self._store.names())

    def items(self) -> ItemsView[str, Entry]:
        """Names and entries, in due order, read a page per round trip."""
        return _Items(self)

    def values(self) -> ValuesView[Entry]:
        """The entries, in due order, read a page per round trip."""
        return _Values(self)

    def list(self, offset: int = 0, limit: int = 100) -> Entries:
        """Return a page of entries in due order, in a round trip per 1,000 of them.

        Entries that are due at the same instant are sorted by name. Entries that will not fire by
        themselves come last.

        Parameters:
            offset: how many to leave out first.
            limit: how many at most.
        """
        check_count("offset", offset)
        check_count("limit", limit)
        return self._reader.next_due(offset, limit)

    def due_counts(self, edges: Sequence[datetime], among: Sequence[Entry] = ()) -> Counts:
        """How many entries run next before the first of these instants, between each two, and after the last.

        One round trip, and no entry is read: a day by the minute takes some milliseconds, however many are stored. A
        freeze puts off no next run; it holds it when it is due.

        Parameters:
            edges: aware, in order.
            among: entries whose last runs are read in the same round trip.
        """
        counted = self._store.counting_due([instants.to_ms(instants.aware("edges", each)) for each in edges])
        return self._reader.read_rows(among, *counted)

    def load_runs(self, entries: Sequence[Entry]) -> None:
        """Read the last runs of these entries in one round trip, which ``last_run`` and the like then need not do."""
        self._reader.read_rows(entries)

    def upcoming(self, until: datetime, limit: int = 1000, *, freezes: Freezes | None = None) -> Occurrences:
        """What will fire from now on, in order, as the beat itself would plan it; only what comes first is read.

        Parameters:
            until: aware; the last instant to look at.
            limit: how many occurrences at most.
            freezes: where they were read already.
        """
        return self._upcoming(until, limit, freezes)

    def soonest(
        self, until: datetime, limit: int = 100, *, freezes: Freezes | None = None
    ) -> Sequence[tuple[Upcoming, Entry]]:
        """The entries that will fire from now on, each with its first occurrence, in the order of these; else as
        :meth:`upcoming`: one that fires every second hides no other."""
        read = dict[str, Entry]()
        found = self._upcoming(until, limit, freezes, once=True, ahead=lambda entry: read.setdefault(entry.name, entry))
        return [(each, read[each.name]) for each in found]

    def _upcoming(self, until: datetime, limit: int, freezes: Freezes | None, **more: Any) -> Occurrences:
        check_count("limit", limit)
        last = instants.to_ms(instants.aware("until", until))
        frozen = Freezes.of(self._store.freezes()) if freezes is None else freezes
        if (frozen.until(now := wall_ms()) or 0) > last:
            return []  # all of them are held for longer
        how = {"zone": self._reader.zone, "walk_on": briefly(), "freezes": frozen, **more}
        return upcoming(self._reader.soonest(), now=now, until=last, limit=limit, **how)

    def runs(
        self,
        name: str | Entry | Collection[str] | None = None,
        *,
        outcome: Outcome | Collection[Outcome] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 100,
    ) -> Runs:
        """What became of occurrences, the newest first: as many of an entry as its history has.

        Parameters:
            name: of an entry, or the entry as it was read; or of one that was removed and left runs behind.
                With ``None``, the runs of all entries whose end is recorded, the last to end first;
                with several names, the same of these entries.
            outcome: only runs of this outcome, or of these.
            since, until: aware; only runs with a nominal time between these.
            limit: how many at most.

        Raises:
            EntryNotFound: there is no such entry, and no run of one.
            CorruptEntry: what Redis holds of the entry cannot be read.
        """
        check_count("limit", limit)
        wanted = Wanted.of(outcome, since, until, limit)
        history = self.run_history
        if name is None or (isinstance(name, Collection) and not isinstance(name, str)):
            return history.of_all(wanted, name and frozenset(name))
        return history.of_entry(name, wanted)

    @property
    def run_history(self) -> RunHistory:
        """The records of runs, for a reader that has to bound what it costs."""
        return RunHistory(self._reader)

    def incidents(self, *, closed: bool = False, limit: int = 100) -> Incidents:
        """The incidents that are open, the oldest first; or those that were closed last, the newest first.

        Parameters:
            closed: those that were closed, of which some 1,000 are kept.
            limit: how many at most.
        """
        check_count("limit", limit)
        cases = self._incidents.closed(limit) if closed else self._incidents.open()[:limit]
        return [case.shown() for case in cases]

    def quarantined(self, limit: int | None = None) -> dict[str, dict[str, Any]]:
        """Entries that were set aside, or any of them, about ``limit``: name -> ``error``, ``definition``, ``state``,
        ``at`` (epoch milliseconds)."""
        return self._store.quarantined(limit)

    def refused(self) -> Mapping[str, str]:
        """Entries of ``beat_schedule`` that the leading beat refuses: name -> what is wrong; the first hundred."""
        return self._store.refused().errors

    def changes(
        self, name: str | None = None, *, since: datetime | None = None, until: datetime | None = None, limit: int = 100
    ) -> Changes:
        """Who changed what, newest first, as far as it is recorded: about 10,000 lines, one for what each call did.

        Parameters:
            name: only changes of the entry of this name, which need not be stored any more.
            since, until: aware; both are part of the time looked at.
            limit: how many at most.
        """
        check_count("limit", limit)
        return recorded(self._store, name, since, until, limit)


class _Items(ItemsView[str, Entry]):
    _mapping: ReadSide

    def __iter__(self) -> Iterator[tuple[str, Entry]]:
        return ((entry.name, entry) for entry in self._mapping.values())


class _Values(ValuesView[Entry]):
    _mapping: ReadSide

    def __iter__(self) -> Iterator[Entry]:
        return self._mapping._reader.all()


def check_count(field: str, value: object) -> None:
    """Raise a ValueError that names the parameter if it is no number of entries."""
    if type(value) is not int or value < 0:
        raise InvalidEntry(field, "a whole number from 0", value)

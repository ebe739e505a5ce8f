"""Config entries of one app, which the leader stores in Redis.

The configuration decides the definition of its entries, and Redis has their state. The leader reads
the configuration when its term begins, and again when a part of the schedule is lost. While an
entry is refused, the leader reads it every few leases, because a taken name may be free by then.

- An entry that is not in the configuration any more is removed.
- An entry that is refused keeps its last good definition and its state in Redis, so that a typo
  costs no history and no pause. The error is stored, too, so that every process can show it.
- An entry that was added at runtime is never changed.
- An entry of another owner is changed only if its name is in this configuration and no beat of that
  owner runs. Then the app was renamed, and this owner takes over the entry with its history.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, tzinfo
from typing import Any

from celery import Celery
from celery.utils.log import get_logger
from msgspec.structs import replace

from .._base.actors import MAX_ACTOR, Who
from .._base.errors import CorruptEntry, RedbeatError
from .._base.ids import random_hex
from .._base.times import from_ms, in_zone
from ..entries import lifecycle
from ..entries.changes import Edit, Stored, line_of
from ..entries.configured import name_taken
from ..entries.entry import Entry
from ..entries.model import encode
from ..entries.on_calendar import with_calendar
from ..entries.state import EntryState
from ..entries.stored_entry import edit_of, line_of_write, readable_parts
from ..entries.words import counted, listed
from ..rules import Question
from ..rules.calendars import Calendar
from ..settings import Settings
from ..store.leader_store import LeaderStore
from ..store.records import Refused, Term
from .config_check import Configuration, fault_text, has_definition, is_shared
from .status import read

logger = get_logger(f"celery.{__name__}")


@dataclass(eq=False)
class ConfigPauses:
    """Pauses of one owner's config entries, with notes and ends, in the memory of the leader.

    If the server loses its data, the leader stores the config entries again within a second.
    Without this memory, a paused entry would run again.
    """

    store: LeaderStore
    owner: str

    def __post_init__(self) -> None:
        #: Name of a paused entry -> its state.
        self._paused: dict[str, EntryState] = {}
        #: Stamp of the last pause or resumption that :meth:`look` has read.
        self.seen = b""

    def look(self, stamp: bytes = b"") -> None:
        """Read from Redis which entries are paused.

        An entry that is not stored any more keeps its pause in this memory.

        Parameters:
            stamp: stamp of the last pause or resumption, which the caller has read before this
                call. The leader calls this method again when Redis has another stamp.
        """
        client: Any = self.store.backend.client
        names = [*self.store.config_names(self.owner)]
        # HMGET without a name is an error.
        states = client.hmget(self.store.keys.state, names) if names else []
        for name, stored_state in zip(names, states, strict=True):
            # decode() raises CorruptEntry for an unreadable state. A missing state is read as b"",
            # which is unreadable, too.
            with suppress(CorruptEntry):
                state = EntryState.decode(stored_state or b"")
                self._paused.pop(name, None)
                if state.paused:
                    self._paused[name] = state
        self.seen = stamp

    def restored(self, name: str, created: EntryState) -> EntryState:
        """Return the state with which an entry that is not in Redis is stored.

        Parameters:
            created: state of a new entry. It is returned unless the entry was paused when it was
                last read; then it is returned with that pause.
        """
        before = self._paused.get(name)
        if before is None:
            return created
        logger.warning("beat: config entry %r was gone from Redis, and is paused as before", name)
        return replace(created, paused=True, paused_until=before.paused_until, note=before.note)


@dataclass(eq=False)
class ConfigEntries:
    """Config entries of one app. Each :meth:`sync` reads the configuration again.

    Parameters:
        added: function that returns the entries that code has added to the scheduler, by name.
        progress: function that is called often with the current work, in words for a log.
    """

    app: Celery
    store: LeaderStore
    settings: Settings
    added: Callable[[], Mapping[str, Any]]
    progress: Callable[[str], None]

    def __post_init__(self) -> None:
        self.configuration = Configuration(self.app, self.store, self.settings, self.added)
        self._zone: tzinfo = self.app.timezone
        self._who = Who(f"config of {socket.gethostname()}"[:MAX_ACTOR], "config")
        self.pauses = ConfigPauses(self.store, self.settings.owner)

        # Each sync sets the attributes below.
        #: Entries that code had added to the scheduler by the last sync.
        self._synced_additions: Mapping[str, Any] = {}
        #: Name of an entry that is neither refused nor quarantined -> the entry.
        self._entries: dict[str, Entry] = {}
        #: Name of a refused entry -> its error.
        self._refused: dict[str, str] = {}
        #: Name of an entry that the previous sync refused -> its error, which is not logged again.
        self._refused_before: dict[str, str] = {}
        #: Name of an entry that was taken over -> its previous owner.
        self._inherited: dict[str, str] = {}
        #: Random text that the last sync has stored. If Redis does not have it any more, other data
        #: of that sync may be lost, too.
        self.stamp = ""

    def __len__(self) -> int:
        """Return how many config entries Redis must hold: those neither refused nor quarantined."""
        return len(self._entries)

    def completed(self, entry: Entry) -> Entry:
        """Return a stored entry with all its fields.

        Redis cannot hold some fields of some entries (``entry.unstored``). For such an entry, the
        method returns the one that the last sync has read from the configuration. Any other entry,
        and one that the configuration does not have, is returned as it is stored.
        """
        own = self._entries.get(entry.name) if entry.unstored else None
        # Keep the stored calendar, which may be newer than the one of the last sync.
        return entry if own is None else with_calendar(own, entry.calendar)

    @property
    def refused(self) -> int:
        """Count of the config entries that the last :meth:`sync` has refused."""
        return len(self._refused)

    @property
    def has_new_additions(self) -> bool:
        """Whether the entries that code has added differ from those at the last :meth:`sync`."""
        return self.added() != self._synced_additions

    def sync(self, term: Term, now: int) -> None:
        """Store the configuration in Redis.

        A wrong entry is refused and logged. The others are stored.

        Parameters:
            term: term of this leader. Nothing is written once it is over.
            now: epoch ms.
        """
        owner = self.settings.owner
        self.stamp = random_hex()
        # end_sync() replaces this text by the stamp, unless somebody removes a config entry first.
        placeholder = f"begun {self.stamp}"
        self.store.remember("synced", placeholder, term)
        # The entries that are read below name calendars. If the server has lost these, an entry
        # would be refused, so first restore those of the last sync.
        self._restore_calendars()
        # Read which entries are paused, because an entry that is stored again must be paused again.
        # Keep the old stamp, because no new one was read.
        self.pauses.look(self.pauses.seen)
        stored_names = self.store.config_names(owner)
        self._synced_additions = dict(self.added())
        configured_names = self._read_entries(now)
        # The stored form of a refused entry stays, so its name still belongs to this owner. Collect
        # these names before rewrite(), because that also refuses entries whose name belongs to
        # another owner.
        refused_names = stored_names & self._refused.keys()
        quarantined_names = self._find_quarantined()
        for name in quarantined_names:
            del self._entries[name]
        self._inherited = {}

        # Entries that the configuration does not have any more.
        former_names = stored_names - configured_names
        names = [*self._entries, *former_names]
        # rewrite() reads each of these entries, and makes the edits that the function returns.
        self.store.rewrite(names, lambda stored: self._edits(stored, now), term)
        self._log_inherited()
        own_names = self._entries.keys() | refused_names | quarantined_names
        if stored_names != own_names:
            self.store.set_config_names(owner, own_names, term)
        # If a config entry was removed by hand meanwhile, or a fail-over has undone the beginning,
        # this writes nothing. Then the next renewal misses the stamp, and the leader syncs again.
        self.store.end_sync(placeholder, self.stamp, Refused.of(owner, self._refused), term)

    def _restore_calendars(self) -> None:
        """Store the calendars of the last sync's entries again, if the server has lost them."""
        calendars = {entry.calendar for entry in self._entries.values()}
        for calendar in calendars:
            if isinstance(calendar, Calendar):
                self.store.restore_calendar(calendar)

    def _read_entries(self, now: int) -> set[str]:
        """Read the configuration, and sort its entries into good and refused ones.

        Returns:
            the names of both.
        """
        self._refused_before = self._refused
        self._refused = {}
        self._entries = {}
        checked = self.configuration.check(now)
        for name, result in checked.items():
            if isinstance(result, Exception):
                self._refuse(name, result)
            else:
                self._entries[name] = result
        return {*checked}

    def _refuse(self, name: str, exc: Exception) -> None:
        """Note that an entry is refused, and log it unless the last sync has done so.

        The log has a traceback if the error comes from a user's code, and not from this package.
        """
        error = fault_text(name, exc)
        self._refused[name] = error
        if self._refused_before.get(name) != error:
            trace = None if isinstance(exc, RedbeatError) else exc
            logger.error("beat: config entry %r is refused: %s", name, error, exc_info=trace)

    def _find_quarantined(self) -> set[str]:
        """Return the names of entries in quarantine whose definition is still the faulty one.

        If they were stored again, they would be quarantined again.
        """
        names = set()
        for name, record in self.store.quarantined().items():
            entry = self._entries.get(name)
            if entry is None or encode(entry) != record.get("definition"):
                continue
            # If decode() raises, the stored state was the fault, and not the definition. Then the
            # name is left out, so that the entry is stored again with a new state.
            with suppress(CorruptEntry):
                EntryState.decode(str(record.get("state")).encode(errors="replace"))
                names.add(name)
        return names

    def _edits(self, stored: Stored, now: int) -> list[Edit]:
        """Return a list with the edit that stores one entry as configured; empty: no change.

        If the schedule of the entry raises an error, the entry is refused, and not edited.
        """
        self.progress("reading the configuration")
        try:
            return self._edits_or_raise(stored, now)
        except Exception as exc:  # noqa: BLE001 - A user's schedule may raise anything.
            name = stored.name.decode()
            self._refuse(name, exc)
            if stored.definition is None:
                # Nothing is stored under its name, so the name does not belong to this owner yet. A
                # stored entry keeps its last good definition, and its name.
                self._entries.pop(name, None)
            return []

    def _edits_or_raise(self, stored: Stored, now: int) -> list[Edit]:
        """Return a list with the edit that stores one entry as configured; empty: no change.

        An entry that another owner has stored is taken over if no beat of that owner runs.
        Otherwise the other owner keeps the name, and nothing is edited.

        Raises:
            Exception: a user's schedule may raise any error.
        """
        name = stored.name.decode()
        configured = self._entries.get(name)
        existing, state = readable_parts(stored, self.app)
        is_own = existing is not None and existing.owner == self.settings.owner
        if configured is None:  # The configuration has no such entry any more.
            line = line_of(self._who, "removed")
            removal = Edit(stored.name, expected=stored.state, state=None, line=line)
            # Another owner may have stored an entry of this name since. That entry stays.
            return [removal] if is_own else []
        if stored.definition is None:
            # The entry is new, or it was removed by hand, or it was set aside as faulty.
            return [self._fresh(configured, stored, now)]
        if existing is None:
            text = "beat: the stored config entry %r cannot be read and is replaced"
            logger.error(text, name)
            return [self._fresh(configured, stored, now)]
        if not is_own:
            # A leader that died before this one does not count as running, because its lease, and
            # so more than half a lease, had to pass first. A leader that has released its lease is
            # not listed any more.
            owners = read(self.store).owners(within=self.settings.lease / 2)
            # Leave the name to a runtime entry, which has no owner, and to an owner with a running
            # beat.
            if existing.owner is None or existing.owner in owners:
                self._leave_name(configured, existing, stored)
                return []
            # No beat of the other owner runs, so take over its entry.
            self._inherited[name] = existing.owner
        if state is None:  # The stored state cannot be read.
            return [self._fresh(configured, stored, now)]
        return self._revision(configured, existing, state, stored, now)

    def _revision(
        self,
        configured: Entry,
        existing: Entry,
        state: EntryState,
        stored: Stored,
        now: int,
    ) -> list[Edit]:
        """Return a list with the edit that changes a stored entry to the configured one.

        It is empty if both are the same.

        Parameters:
            existing, state: the stored entry and its state, decoded from ``stored``.
        """
        if not has_definition(stored, configured):
            revised = lifecycle.revised(existing, state, configured, now)
            edit = self._edit(configured, revised, stored)
            self._log_omitted_run(configured.name, now, before=stored.score, after=edit.score)
            return [edit]
        if "schedule" in existing.unstored and not isinstance(state.nominal, Question):
            # A schedule that cannot be stored may have changed although its stored text is the
            # same. Then its next run may be earlier than the stored one. A Question is no run, but
            # the time at which the planner asks the schedule again.
            earlier = lifecycle.pulled_back(configured, state, now)
            if earlier is not state:  # pulled_back() returns the same object for the same next run.
                return [edit_of(configured, earlier, expected=stored.state)]
        return []

    def _fresh(self, configured: Entry, stored: Stored, now: int) -> Edit:
        """Return the edit that stores an entry with a new state, paused if it was paused before."""
        created = lifecycle.created(configured, now)
        return self._edit(configured, self.pauses.restored(configured.name, created), stored)

    def _edit(self, configured: Entry, state: EntryState, stored: Stored) -> Edit:
        """Return the edit that stores a config entry with a state, and its line for the record."""
        definition = encode(configured)
        line = line_of_write(self._who, stored, definition)
        return edit_of(
            configured,
            state,
            expected=stored.state,
            definition=definition,
            line=line,
        )

    def _leave_name(self, configured: Entry, existing: Entry, stored: Stored) -> None:
        """Leave the name of a config entry to a runtime entry or to the entry of another app.

        The config entry is refused, unless another app has stored the same definition. For example,
        Celery adds the same entry ``celery.backend_cleanup`` to every app.
        """
        del self._entries[configured.name]
        if is_shared(configured, existing, stored):
            return
        self._refuse(configured.name, RedbeatError(name_taken(existing)))

    def _log_omitted_run(
        self, name: str, now: int, *, before: int | None, after: int | None
    ) -> None:
        """Log if an entry was due later today by its old schedule, and is not by its new one.

        Parameters:
            before, after: due times by the old and the new schedule, in epoch ms; ``None``: the
                entry is not due at all.
        """

        def local_date(ms: int) -> date:
            return from_ms(ms).astimezone(self._zone).date()

        today = local_date(now)
        # The old schedule had no run later today.
        if before is None or before <= now or local_date(before) != today:
            return
        # The new schedule has one, too.
        if after is not None and local_date(after) == today:
            return
        logger.info(
            "beat: config entry %r does not run today by its new schedule; "
            "by the old one it would have run at %s",
            name,
            in_zone(from_ms(before), self._zone),
        )

    def _log_inherited(self) -> None:
        """Log which entries were taken over from owners without a beat."""
        if self._inherited:
            logger.warning(
                "beat: %s taken over from the configuration of %s, which has no beat: %s",
                counted(len(self._inherited), "entry", "entries"),
                listed(sorted({*self._inherited.values()})),
                listed(sorted(self._inherited)),
            )

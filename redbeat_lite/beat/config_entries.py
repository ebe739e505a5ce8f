"""Sync of the config entries: the leader stores the entries of ``beat_schedule`` in Redis.

A config entry belongs to an owner (``redbeat_lite_owner``), by default the name of its app. The
definition of the entry comes from the configuration of the app, and its state is in Redis alone.

The leader syncs when its term begins, when code has added entries to the scheduler, when a part of
the schedule is lost, when another process has stored or removed a config entry, and after an entry
was quarantined. While it refuses an entry, it syncs every few leases, because the error may be a
name that was taken and is free by now.

- An entry of this owner is removed when the configuration does not have it any more.
- A refused entry keeps its last good definition and its state in Redis. So a typo loses neither the
  history nor a pause. The error is stored, too, so that every process can show it.
- An entry that was added at runtime is never changed.
- An entry of another owner is changed only if this configuration has an entry of its name, and no
  beat of the other owner runs. This happens when an app is renamed: the new owner takes over the
  entry with its history.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import Any

from celery import Celery
from celery.utils.log import get_logger
from msgspec.structs import replace

from .._base.actors import MAX_ACTOR, Who
from .._base.errors import RedbeatError
from .._base.ids import random_hex
from .._base.times import from_ms, in_zone
from ..entries import lifecycle
from ..entries.changes import Edit, Stored, line_of
from ..entries.configured import name_taken
from ..entries.entry import Entry
from ..entries.model import encode
from ..entries.on_calendar import with_calendar
from ..entries.state import EntryState
from ..entries.stored_entry import (
    edit_of,
    is_config,
    line_of_write,
    readable_parts,
    readable_state,
)
from ..entries.words import counted, listed
from ..rules import Question
from ..rules.calendars import Calendar
from ..settings import Settings
from ..store.leader_store import LeaderStore
from ..store.records import Refused, Term
from .config_check import Configuration, fault_text, has_definition, is_shared
from .status import read_status

logger = get_logger(f"celery.{__name__}")


@dataclass(eq=False)
class ConfigPauses:
    """Memory of which config entries of one owner are paused, with the note and end of each pause.

    If the server loses its data, the leader soon stores the config entries again. Without this
    memory, an entry that was paused would run again.
    """

    store: LeaderStore
    owner: str

    def __post_init__(self) -> None:
        #: Name of a paused entry -> its state.
        self._paused: dict[str, EntryState] = {}
        #: Redis gets a new stamp whenever an entry is paused or resumed. If Redis has another stamp
        #: than this one, the leader reads the pauses again.
        self.stamp = b""

    def read(self) -> None:
        """Read from Redis which entries are paused.

        This object remembers the pause of an entry that is not stored any more, because the entry
        is paused again if it is stored again.
        """
        client: Any = self.store.backend.client
        names = [*self.store.config_names(self.owner)]
        # HMGET without a name is an error.
        texts = client.hmget(self.store.keys.state, names) if names else []
        for name, text in zip(names, texts, strict=True):
            state = readable_state(text)
            if state is None:
                continue  # It is gone or cannot be read, so remember what was read before.
            if state.paused:
                self._paused[name] = state
            else:
                self._paused.pop(name, None)

    def read_as_of(self, stamp: bytes) -> None:
        """Read the pauses, and keep the stamp, which the caller has read before this call.

        If an entry is paused between the two readings, Redis has another stamp than this one, so
        the leader reads the pauses again.
        """
        self.read()
        self.stamp = stamp

    def pause_as_before(self, name: str, created: EntryState) -> EntryState:
        """Return the state of a new entry; paused, if this memory has a pause for its name.

        Parameters:
            created: state of the new entry, without a pause.
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
        progress: function that tells the watchdog what the beat is doing, so that a long sync does
            not count as a hang.
    """

    app: Celery
    store: LeaderStore
    settings: Settings
    added: Callable[[], Mapping[str, Any]]
    progress: Callable[[str], None]

    def __post_init__(self) -> None:
        self.configuration = Configuration(self.app, self.store, self.settings, self.added)
        #: Actor of the changes that a sync records.
        self._who = Who(f"config of {socket.gethostname()}"[:MAX_ACTOR], "config")
        self.pauses = ConfigPauses(self.store, self.settings.owner)

        # Each sync sets the attributes below.
        #: Entries that code had added to the scheduler before the last sync.
        self._synced_additions: Mapping[str, Any] = {}
        #: Name of a config entry that Redis must hold -> the entry.
        self._entries: dict[str, Entry] = {}
        #: Name of a refused entry -> its error.
        self._refused: dict[str, str] = {}
        #: Name of an entry that the previous sync has refused -> its error. The same error is not
        #: logged again.
        self._refused_before: dict[str, str] = {}
        #: Name of an entry that was taken over -> its previous owner.
        self._inherited: dict[str, str] = {}
        #: Random text that the last sync has stored. If Redis does not have it any more, other data
        #: of that sync may be lost, too.
        self.stamp = ""

    @property
    def stored_count(self) -> int:
        """Number of config entries that the last :meth:`sync` left in Redis."""
        return len(self._entries)

    @property
    def refused_count(self) -> int:
        """Number of config entries that the last :meth:`sync` has refused."""
        return len(self._refused)

    @property
    def has_new_additions(self) -> bool:
        """Whether the entries that code has added differ from those at the last :meth:`sync`."""
        return self.added() != self._synced_additions

    def completed(self, entry: Entry) -> Entry:
        """Return a stored entry with all its fields.

        Some values cannot be stored, such as a ``BeatLazyFunc`` among the arguments. Redis holds a
        text in place of such a field, and ``entry.unstored`` names the field. For an entry with
        such fields, this returns the entry of the configuration, as the last sync has read it. Any
        other entry is returned unchanged.
        """
        configured = self._entries.get(entry.name) if entry.unstored else None
        if configured is None:
            return entry
        # The days of a calendar may change in Redis at any time. So keep those of the stored entry.
        return with_calendar(configured, entry.calendar)

    # -- sync --------------------------------------------------------------------------------------

    def sync(self, term: Term, now: int) -> None:
        """Store the configuration in Redis.

        A wrong entry is refused and logged. The others are stored.

        Parameters:
            term: term of this leader.
            now: epoch ms.

        Raises:
            Lost: the term is over.
        """
        self.stamp = random_hex()
        # During the sync, this text stands in place of the stamp. If somebody stores or removes a
        # config entry meanwhile, this replaces the text, so that end_sync() notices it.
        placeholder = f"begun {self.stamp}"
        self.store.remember("synced", placeholder, term)
        # An entry is refused if it names a calendar that is not stored. If the server has lost
        # calendars, restore those that the last sync has used.
        for calendar in self._used_calendars():
            self.store.restore_calendar(calendar)
        # An entry that is stored again must be paused again, so read which entries are paused.
        self.pauses.read()
        self._read_configuration(now)
        self._store_entries(term, now)
        # If somebody has changed a calendar meanwhile, the stored entries may have its old days. So
        # return without writing the stamp. The leader sees that the placeholder is still there, and
        # syncs again.
        if self._used_calendars().difference(self.store.calendars().values()):
            return
        # The placeholder is gone if somebody has stored or removed a config entry meanwhile, or if
        # a fail-over has undone the write of the placeholder. In both cases end_sync() writes
        # nothing. The next renewal of the lease misses the stamp, and the leader syncs again.
        refused = Refused.of(self.settings.owner, self._refused)
        self.store.end_sync(placeholder, self.stamp, refused, term)

    def _used_calendars(self) -> set[Calendar]:
        """Return the calendars of the entries that the last sync has read."""
        return {
            entry.calendar
            for entry in self._entries.values()
            if isinstance(entry.calendar, Calendar)
        }

    def _read_configuration(self, now: int) -> None:
        """Read the configuration, and sort its entries into good and refused ones."""
        # Remember what code has added by now, so that ``has_new_additions`` sees later additions.
        self._synced_additions = dict(self.added())
        # Remember the refusals of the last sync, so that _refuse() logs only new ones.
        self._refused_before = self._refused
        self._refused = {}
        entries = {}
        for name, result in self.configuration.check(now):
            self.progress("reading the configuration")
            if isinstance(result, Exception):
                self._refuse(name, result)
            else:
                entries[name] = result
        self._entries = entries

    def _store_entries(self, term: Term, now: int) -> None:
        """Store the good entries, and remove the entries that are not configured any more."""
        owner = self.settings.owner
        # Redis has a list of the config entries of each owner. This is the list of this owner.
        stored_names = self.store.config_names(owner)
        # A refused entry stays in Redis as it is, so its name still belongs to this owner. Collect
        # these names now: rewrite() below also refuses entries whose name belongs to another owner.
        refused_names = stored_names & self._refused.keys()
        former_names = stored_names - self._entries.keys() - refused_names
        # The name of a quarantined entry stays in the list of config entries, because somebody may
        # release the entry. If it is not configured any more by then, the leader removes it only if
        # its name is in the list.
        quarantined_names = self._drop_quarantined(stored_names)
        # The edits below collect here which entries they take over.
        self._inherited = {}
        # Add the names of new entries before the entries are stored. If this beat dies in between,
        # a later leader without them in its configuration must find the entries to remove them.
        # Leave out a name that a runtime entry has. A beat reads the pauses of the listed entries,
        # and would take a pause of the runtime entry for one of the config entry.
        new_names = self._entries.keys() - stored_names
        taken_names = {
            stored.name.decode()
            for stored in self.store.present(new_names)
            if not is_config(stored)
        }
        listed_names = stored_names | (new_names - taken_names)
        if listed_names != stored_names:
            self.store.set_config_names(owner, listed_names, term)
        # Read each of these entries from Redis, and make the edit that it needs. If an entry cannot
        # be stored, because its schedule raises an error or its name belongs to somebody else, this
        # takes it out of ``_entries``.
        self.store.rewrite(
            [*self._entries, *former_names], lambda stored: self._edit_or_refuse(stored, now), term
        )
        self._log_inherited()
        # List the names that belong to this owner after these edits.
        own_names = self._entries.keys() | refused_names | quarantined_names
        if listed_names != own_names:
            self.store.set_config_names(owner, own_names, term)
        # Remember the pauses of entries that were taken over, too.
        self.pauses.read()

    def _refuse(self, name: str, exc: Exception) -> None:
        """Note that an entry is refused, and log the error unless the last sync has logged it.

        If the error comes from a user's code, the log has the traceback, too.
        """
        error = fault_text(name, exc)
        self._refused[name] = error
        if self._refused_before.get(name) != error:
            trace = None if isinstance(exc, RedbeatError) else exc
            logger.error("beat: config entry %r is refused: %s", name, error, exc_info=trace)

    def _drop_quarantined(self, stored_names: Set[str]) -> Set[str]:
        """Remove from ``_entries`` those in quarantine whose faulty definition is configured still.

        If such an entry were stored again, it would be quarantined again.

        Parameters:
            stored_names: stored list of this owner's names.

        Returns:
            their names, and those in ``stored_names`` that are in quarantine.
        """
        quarantined = self.store.quarantined()
        names = stored_names & quarantined.keys()
        for name, record in quarantined.items():
            entry = self._entries.get(name)
            if entry is None or encode(entry) != record.get("definition"):
                continue
            # If the recorded state can be read, the definition was the fault, and the configuration
            # still has this definition. Otherwise the state was the fault, so the entry is stored
            # again with a new state. Without a state in the record, str() makes it unreadable, too.
            state = str(record.get("state")).encode(errors="replace")
            if readable_state(state) is not None:
                names.add(name)
                del self._entries[name]
        return names

    # -- edit of one entry -------------------------------------------------------------------------

    def _edit_or_refuse(self, stored: Stored, now: int) -> Edit | None:
        """Return the edit that an entry needs; ``None`` if it needs none.

        If the schedule of the entry raises an error, the entry is refused, and not edited.
        """
        self.progress("reading the configuration")
        try:
            return self._edit(stored, now)
        except Exception as exc:  # noqa: BLE001 - A user's schedule may raise anything.
            name = stored.name.decode()
            self._refuse(name, exc)
            # ``_entries`` are the entries whose names belong to this owner. An entry that is stored
            # remains one of them, with its last good definition in Redis.
            if stored.definition is None:
                self._entries.pop(name, None)
            return None

    def _edit(self, stored: Stored, now: int) -> Edit | None:
        """Return the edit that an entry needs; ``None`` if it needs none.

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
            if not is_own:
                return None  # It is gone, cannot be read, or belongs to another owner.
            return Edit(
                stored.name,
                expected=stored.state,
                state=None,
                line=line_of(self._who, "removed"),
            )
        if existing is None:
            # Usually nothing is stored: the entry is new, was removed by hand, or was lost by the
            # server. Or it was quarantined for its old definition or its state, and comes back.
            if stored.definition is not None:
                # A definition is stored, and cannot be read.
                logger.error(
                    "beat: the stored config entry %r cannot be read and is replaced", name
                )
            return self._creation(configured, stored, now)
        if not is_own:
            # A renamed app takes over the entries of its old owner, if no beat of that owner runs
            # any more. The old leader may have died. Its last renewal is then at least a whole
            # lease ago, or this beat could not lead. So with half a lease, it does not count as
            # running, and a stand-by that calls a little late still does.
            running_owners = read_status(self.store).owners(within=self.settings.lease / 2)
            # A runtime entry has no owner.
            if existing.owner is None or existing.owner in running_owners:
                self._leave_name(configured, existing, stored)
                return None
            self._inherited[name] = existing.owner
        if state is None:  # The stored state cannot be read.
            return self._creation(configured, stored, now)
        return self._revision(configured, existing, state, stored, now)

    def _revision(
        self, configured: Entry, existing: Entry, state: EntryState, stored: Stored, now: int
    ) -> Edit | None:
        """Return the edit that makes a stored entry the configured one; ``None`` if it needs none.

        Parameters:
            existing, state: the stored entry and its state, decoded from ``stored``.
        """
        if not has_definition(stored, configured):
            changed = lifecycle.after_edit(existing, state, configured, now)
            edit = self._edit_with_line(configured, changed, stored)
            self._log_omitted_run(configured.name, now, before=stored.score, after=edit.score)
            return edit
        if "schedule" in existing.unstored and not isinstance(state.nominal, Question):
            # This schedule cannot be stored, so Redis holds only a text in its place. The text may
            # be the same although the schedule has changed, and the next run may be earlier than
            # the stored one (``state.nominal``). Then take the earlier one by pulled_back().
            # If the stored one is a Question, it is no run, but only the time at which the planner
            # asks the schedule again.
            earlier = lifecycle.pulled_back(configured, state, now)
            if earlier is not state:  # pulled_back() returns the same object for the same next run.
                return edit_of(configured, earlier, expected=stored.state)
        return None

    def _creation(self, configured: Entry, stored: Stored, now: int) -> Edit:
        """Return the edit that stores an entry with a new state; a known pause is kept."""
        state = self.pauses.pause_as_before(configured.name, lifecycle.created(configured, now))
        return self._edit_with_line(configured, state, stored)

    def _edit_with_line(self, configured: Entry, state: EntryState, stored: Stored) -> Edit:
        """Return the edit that stores a config entry, with its line in the record of changes."""
        definition = encode(configured)
        return edit_of(
            configured,
            state,
            expected=stored.state,
            definition=definition,
            line=line_of_write(self._who, stored, definition),
        )

    def _leave_name(self, configured: Entry, existing: Entry, stored: Stored) -> None:
        """Leave the name of a config entry to a runtime entry or to the entry of another app.

        The config entry is refused, unless another app has stored the same definition. For example,
        Celery adds the same entry ``celery.backend_cleanup`` to every app.
        """
        del self._entries[configured.name]
        if not is_shared(configured, existing, stored):
            self._refuse(configured.name, RedbeatError(name_taken(existing)))

    def _log_omitted_run(
        self, name: str, now: int, *, before: int | None, after: int | None
    ) -> None:
        """Log if an entry had a run later today by its old schedule, and has none by its new one.

        Parameters:
            before, after: due times by the old and the new schedule, in epoch ms; ``None``: the
                entry is not due at all.
        """
        zone = self.app.timezone
        today = from_ms(now).astimezone(zone).date()

        def is_today(due: int | None) -> bool:
            return due is not None and from_ms(due).astimezone(zone).date() == today

        # By the old schedule, the entry had no run to come, or the run was due already.
        if before is None or before <= now:
            return
        if is_today(before) and not is_today(after):
            logger.info(
                "beat: config entry %r does not run today by its new schedule; "
                "by the old one it would have run at %s",
                name,
                in_zone(from_ms(before), zone),
            )

    def _log_inherited(self) -> None:
        """Log which entries this sync has taken over from owners without a running beat."""
        if self._inherited:
            logger.warning(
                "beat: %s taken over from the configuration of %s, which has no beat: %s",
                counted(len(self._inherited), "entry", "entries"),
                listed(sorted({*self._inherited.values()})),
                listed(sorted(self._inherited)),
            )

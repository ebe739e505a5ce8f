"""Config entries: what ``beat_schedule`` says, brought into Redis by the leader, which takes a renamed app's over.

It does so when it begins, and when a part is gone or a name becomes free. The configuration owns the definition of its
entries, Redis owns their state. Entries that left the configuration are removed; one that is in it but refused keeps
what Redis holds of it, its last good definition and its state, so that a slip of the pen costs no history and no pause.
What was refused is left in Redis with its error, where every process finds it.
Entries made at runtime are never touched, and those of another owner only where a name is wanted here and no beat of
that owner is there: then its app was renamed.
"""

from __future__ import annotations

import socket
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import tzinfo
from typing import Any

from celery import Celery
from celery.utils.log import get_logger

from ..actors import MAX_ACTOR, Who
from ..entries import lifecycle
from ..entries.configured import configured
from ..entries.definition import encode
from ..entries.differences import line_of_write
from ..entries.entry import Entry
from ..entries.on_calendar import on
from ..entries.state import EntryState
from ..entries.stored_entry import edit_of, readable_parts
from ..entries.words import counted, in_zone, listed
from ..errors import InvalidEntry
from ..instants import from_ms
from ..schedules import Question
from ..schedules.calendars import Calendar
from ..settings import Settings
from ..storage.calendars import restore_calendar, stored_calendars
from ..storage.changes import line_of
from ..storage.leader_store import LeaderStore
from ..storage.patience import briefly
from ..storage.refused import Refused
from ..storage.stored import Edit, Stored, Term
from .config_check import checked, differs_in_owner_alone, fault
from .config_pauses import ConfigPauses
from .status import present

logger = get_logger(f"celery.{__name__}")


class ConfigEntries:
    """The config entries of one app, whose ``beat_schedule`` is read anew at each :meth:`sync`.

    Parameters:
        added: returns the entries that code gave to the scheduler, by name.
        progress: called often, with what is being done.
    """

    def __init__(
        self,
        app: Celery,
        store: LeaderStore,
        settings: Settings,
        added: Callable[[], Mapping[str, Any]],
        progress: Callable[[str], None],
    ) -> None:
        self._app = app
        self._added = added
        self._synced_additions: Mapping[str, Any] = {}
        self._store = store
        self._settings = settings
        self._zone: tzinfo = app.timezone
        self._progress = progress
        self._who = Who(f"config of {socket.gethostname()}"[:MAX_ACTOR], "config")
        self.pauses = ConfigPauses(store, settings.owner)
        self._entries: dict[str, Entry] = {}
        self._set_aside: set[str] = set()
        self._refused: dict[str, str] = {}
        self._clashes: dict[str, str] = {}
        self._shared: set[str] = set()
        self._rivals: set[str] = set()
        self._taken: set[str] = set()
        self._awaited: set[str] = set()
        self._there: Collection[str] = ()
        self._inherited: defaultdict[str, set[str]] = defaultdict(set)

    def completed(self, entry: Entry) -> Entry:
        """Return the entry as the configuration holds it, if Redis does not hold all of it."""
        own = self._entries.get(entry.name) if entry.unstored else None
        if own is None:
            return entry
        # Redis has the newer revision of the calendar, if somebody stored one since the configuration was read.
        return own if own.calendar == entry.calendar else on(own, entry.calendar)

    def __len__(self) -> int:
        """How many of them Redis should hold."""
        return len(self._entries) - len(self._set_aside)

    @property
    def refused(self) -> int:
        """How many of those in the configuration the last :meth:`sync` has refused."""
        return len(self._refused) + len(self._clashes)

    @property
    def vacated(self) -> bool:
        """Whether a name that the last :meth:`sync` had to leave to somebody else may be had now, or a calendar."""
        if self._awaited and not self._awaited.isdisjoint(stored_calendars(self._store)):
            return True
        if self._rivals and not self._rivals <= present(self._store, self._settings):
            return True
        return any(stored.definition is None for stored in self._store.read([*self._taken]))

    @property
    def contested(self) -> bool:
        """Whether there are such names."""
        return bool(self._rivals or self._taken or self._awaited)

    @property
    def has_new_additions(self) -> bool:
        """Whether code gave other entries to the scheduler since the last :meth:`sync`."""
        return self._added() != self._synced_additions

    def sync(self, term: Term, now: int) -> None:
        """Bring Redis in line with the configuration. What is wrong with one entry is told, and leaves the others.

        Parameters:
            now: epoch milliseconds.
        """
        for calendar in {each.calendar for each in self._entries.values() if isinstance(each.calendar, Calendar)}:
            restore_calendar(self._store, calendar)  # as the entries themselves, if the server has lost it
        self.pauses.look(self.pauses.seen)
        known = self._store.config_names(self._settings.owner)
        self._synced_additions = dict(self._added())
        in_configuration = configured(self._app, self._synced_additions)
        written = {str(name): fields for name, fields in in_configuration.items()}
        self._entries = dict(self._read(written, known, now))
        self._set_aside = self._quarantined()
        self._shared, self._rivals, self._taken = set(), set(), set()
        self._inherited.clear()
        self._there = present(self._store, self._settings)
        names = [*self._entries, *(known - written.keys())]
        self._store.rewrite(names, lambda stored: self._edits(stored, now), term)
        self._tell_inherited()
        ours = (self._entries.keys() - self._shared) | (known & self._refused.keys())
        if known != ours:
            self._store.set_config_names(self._settings.owner, ours, term)
        refused = Refused.of(self._settings.owner, {**self._refused, **self._clashes})
        self._store.remember("refused", refused.encode(), term)

    def _read(self, written: dict[str, Any], known: set[str], now: int) -> Iterator[tuple[str, Entry]]:
        self._refused, self._clashes, self._awaited = {}, {}, set()
        for name, fields in written.items():
            try:
                entry = checked(self._app, self._store, self._settings, name, fields, now)
            except Exception as exc:  # noqa: BLE001 - what a user wrote may raise anything; the others must run
                self._refuse(name, name in known, exc)
            else:
                entry.owner = self._settings.owner
                yield name, entry

    def _refuse(self, name: str, is_known: bool, exc: Exception) -> None:
        self._refused[name] = why = fault(name, exc)
        trace = None if isinstance(exc, InvalidEntry) else exc
        if isinstance(exc, InvalidEntry) and exc.field == "calendar":
            self._awaited.add(str(exc.value))
        if is_known:
            logger.error("beat: config entry %r is refused and goes on as stored before: %s", name, why, exc_info=trace)
        else:
            logger.error("beat: config entry %r is refused: %s", name, why, exc_info=trace)

    def _quarantined(self) -> set[str]:
        """Those that were set aside as they are configured now. Stored again, they would only be set aside again."""
        records = self._store.quarantined()
        return {name for name in records.keys() & self._entries.keys() if self._is_to_blame(name, records[name])}

    def _is_to_blame(self, name: str, record: dict[str, Any]) -> bool:
        """Whether a record of the quarantine blames the definition, and not a state that only this record has."""
        definition, state = record.get("definition"), record.get("state")
        if not isinstance(definition, str) or not isinstance(state, str):
            return False
        held = Stored(name.encode(), None, definition.encode(errors="replace"), state.encode(errors="replace"))
        _, state_before = readable_parts(held)
        return state_before is not None and encode(self._entries[name], placeholders=True) == definition

    def _edits(self, stored: Stored, now: int) -> list[Edit]:
        self._progress("reading the configuration")
        try:
            return self._decided(stored, now)
        except Exception as exc:  # noqa: BLE001 - a schedule may raise whenever it is asked; the others must run
            name, is_stored = stored.name.decode(), stored.definition is not None
            self._refuse(name, is_stored, exc)
            if not is_stored:
                self._entries.pop(name, None)
            return []

    def _decided(self, stored: Stored, now: int) -> list[Edit]:
        name = stored.name.decode()
        wanted = self._entries.get(name)
        existing, state = readable_parts(stored)
        is_ours = existing is not None and existing.owner == self._settings.owner
        if wanted is None:
            return [Edit(stored.name, stored.state, None, line=line_of(self._who, "removed"))] if is_ours else []
        if stored.definition is None:
            return [] if name in self._set_aside else [self._fresh(wanted, stored, now)]
        if existing is None:
            logger.error("beat: what Redis holds for config entry %r cannot be read and is replaced", name)
            return [self._fresh(wanted, stored, now)]
        if not is_ours:
            if existing.owner is None or existing.owner in self._there:
                self._leave(wanted, existing, stored)
                return []
            self._inherited[existing.owner].add(name)
        if state is None:
            return [self._fresh(wanted, stored, now)]
        lifecycle.keep_resolved(existing, wanted)
        if encode(wanted, placeholders=True).encode() != stored.definition:
            revised = lifecycle.revised(existing, state, wanted, now, self._zone, briefly())
            edit = self._edit(wanted, revised, stored)
            self._log_omitted_run(name, stored.score, edit.score, now)
            return [edit]
        earlier = self._brought_forward(existing, state, now)
        return [] if earlier is state else [edit_of(wanted, earlier, self._zone, expected=stored.state)]

    def _brought_forward(self, existing: Entry, state: EntryState, now: int) -> EntryState:
        """Return the state with an earlier run, if a schedule that cannot be stored has one.

        Its text may be the same although it has changed.
        """
        if "schedule" not in existing.unstored or isinstance(state.nominal, Question):
            return state
        return lifecycle.pulled_back(self._entries[existing.name], state, now, self._zone)

    def _log_omitted_run(self, name: str, before: int | None, after: int | None, now: int) -> None:
        """Log it if an entry was due later today, and is not by its new schedule."""
        if before is None or before <= now:
            return
        run = from_ms(before).astimezone(self._zone)
        today = from_ms(now).astimezone(self._zone).date()
        if run.date() != today:
            return
        if after is None or from_ms(after).astimezone(self._zone).date() != today:
            text = "beat: config entry %r does not run today by its new schedule; by the old one it would have at %s"
            logger.info(text, name, in_zone(run, self._zone))

    def _leave(self, wanted: Entry, existing: Entry, stored: Stored) -> None:
        """Leave a name to whom it belongs; without a word where both say the same, as of what Celery adds to all."""
        name, owner = wanted.name, existing.owner
        if differs_in_owner_alone(wanted, existing, stored):
            self._shared.add(name)
            return
        if owner is None:
            self._taken.add(name)
        else:
            self._rivals.add(owner)
        whose = "a runtime entry" if owner is None else f"the configuration of {owner!r}"
        self._clashes[name] = f"the name is taken by {whose}"
        logger.error("beat: config entry %r is refused: %s", name, self._clashes[name])
        del self._entries[name]

    def _tell_inherited(self) -> None:
        for owner, names in self._inherited.items():
            which = counted(len(names), "entry", "entries")
            logger.warning(
                "beat: %s taken over from the configuration of %r, of which no beat is there: %s",
                which,
                owner,
                listed(sorted(names)),
            )

    def _fresh(self, wanted: Entry, stored: Stored, now: int) -> Edit:
        state = self.pauses.restored(wanted.name, lifecycle.created(wanted, now, self._zone))
        return self._edit(wanted, state, stored)

    def _edit(self, wanted: Entry, state: EntryState, stored: Stored) -> Edit:
        definition = encode(wanted, placeholders=True)
        line = line_of_write(self._who, stored, definition)
        return edit_of(wanted, state, self._zone, expected=stored.state, definition=definition, line=line)

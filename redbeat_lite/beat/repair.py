"""Repair of the whole schedule by the leader.

:class:`Repair` restores parts of entries that the server has lost. :class:`Replanning` reschedules
all entries after a change of the server's clock or of the app's time zone. A large schedule takes
seconds, so the leader reschedules it in slices between its dispatches.
Redis notes unfinished work, for the next leader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import tzinfo
from typing import Any

from celery.utils.log import get_logger

from .._base.actors import BEAT
from .._base.clock import elapsed
from .._base.errors import CorruptEntry, InvalidEntry
from ..entries import lifecycle
from ..entries.entry import Entry
from ..entries.state import EntryState
from ..entries.stored_entry import UNREADABLE, edit_of, entry_of, parts_of, state_of
from ..rules.zones import zone_name, zone_of
from ..store.changes import line_of
from ..store.json_values import dumps, loads_as
from ..store.leader_store import LeaderStore
from ..store.records import PAGE, Edit, Stored, Term, chunks
from .config_entries import ConfigPauses
from .server_clock import ServerClock

logger = get_logger(f"celery.{__name__}")

#: Seconds that the repair works at a time. So long a due entry may have to wait for it, or as long
#: as one page takes.
_SLICE = 0.1


class Repair:
    """Restores parts of entries that the server has lost.

    Parameters:
        progress: function that is called for each page of entries, with a text for the log.
        pauses: pauses of config entries in the memory of this process.
    """

    def __init__(
        self,
        store: LeaderStore,
        zone: tzinfo,
        progress: Callable[[str], None],
        pauses: ConfigPauses,
    ) -> None:
        self._store = store
        self._zone = zone
        self._progress = progress
        self._pauses = pauses

    def run(self, term: Term, now: int) -> None:
        """Remove entries that have lost their definition. Restore lost states and due times.

        Entries are read only if the counts of definitions, states and due times differ. So a large
        and healthy schedule takes little time.
        """
        scripts = self._store.backend.scripts
        entries, states, due = scripts.run("schedule/counts", self._store.keys)
        if not entries == states == due:
            self._rebuild(term, now)

    def _rebuild(self, term: Term, now: int) -> None:
        """Restore or remove each entry whose definition, state or due time is lost."""
        logger.error(
            "beat: parts of the schedule are gone from Redis; rebuilding them from what is left"
        )
        client: Any = self._store.backend.client
        keys = self._store.keys
        names = {name for name, _ in self._store.scan()}
        for key in (keys.entries, keys.state):
            names.update(name for name, _ in client.hscan_iter(key, count=PAGE))
        restore = _leave_faulty(lambda stored: [self._restoration(stored, now)])
        for chunk in chunks(names, PAGE):
            self._progress("mending the schedule")
            self._store.rewrite(chunk, restore, term)

    def _restoration(self, stored: Stored, now: int) -> Edit:
        """Return the edit that restores the lost parts of an entry, or removes the entry."""
        if stored.definition is None:
            logger.error("beat: the definition of %r is gone, so the entry is removed", stored.name)
            line = line_of(BEAT, "removed", "its definition was gone from Redis")
            return Edit(stored.name, expected=stored.state, state=None, line=line)
        try:
            entry = entry_of(stored)
        except UNREADABLE:
            # Make the entry due now. The tick that meets it will quarantine it.
            state_text = EntryState.new(now).encode()
            return Edit(stored.name, expected=stored.state, state=state_text, score=now)
        try:
            state = state_of(stored).edited()
        except CorruptEntry:
            # The state is lost. Begin with a new one, paused if the entry was paused.
            state = self._pauses.restored(entry.name, lifecycle.created(entry, now, self._zone))
        return edit_of(entry, state, self._zone, expected=stored.state)


class Replanning:
    """Reschedules all entries after a change of the server's clock or of the app's time zone.

    Parameters:
        clock: clock by which the beat plans.
        completed: function that returns an entry with the parts that only the app's configuration
            has.
        progress: function that is called for each page of entries, with a text for the log.
    """

    def __init__(
        self,
        store: LeaderStore,
        zone: tzinfo,
        clock: ServerClock,
        completed: Callable[[Entry], Entry],
        progress: Callable[[str], None],
    ) -> None:
        self._store = store
        self._zone = zone
        self._clock = clock
        self._completed = completed
        self._progress = progress
        #: Mark of the last change of the server's clock that was handled.
        self._mark = b""
        #: Whether entries must still be rescheduled because the server's clock was set back.
        self._is_set_back = False
        #: Other time zones in which entries may have been planned.
        self._zones: list[tzinfo] = []
        #: Iterator that reschedules one page at each step; ``None``: begin with the first page.
        self._pages: Iterator[None] | None = None

    @property
    def unfinished(self) -> bool:
        """Whether :meth:`advance` has entries left to reschedule."""
        return bool(self._is_set_back or self._zones)

    def begin(self, term: Term, zones: str) -> None:
        """Find out whether a new leader has another time zone, and note its own.

        Parameters:
            zones: JSON of the time zones in which entries were planned, noted by an earlier leader.
        """
        self._mark = b""
        self._is_set_back = False
        self._pages = None
        own = zone_name(self._zone)
        names = [name for name in loads_as(list, zones) if isinstance(name, str)]
        others = [name for name in names if name != own]
        self._zones = _find_zones(others)
        if self._zones:
            before = " and ".join(map(repr, others))
            logger.warning(
                "beat: the app's time zone is %r, and was %s; rescheduling entries that use it",
                own,
                before,
            )
        if names != [own]:
            # Until all entries are rescheduled, the note has the other zones, too.
            noted = [*others, own] if self._zones else [own]
            self._store.remember("zones", dumps(noted), term)

    def is_new(self, mark: bytes) -> bool:
        """Return whether a mark is of a change of the server's clock that was not handled yet."""
        return bool(mark) and mark != self._mark

    def clock_went_back(self, mark: bytes) -> None:
        """Begin to reschedule entries that would wait too long, now that the clock was set back."""
        logger.warning("beat: the clock of the server went back; rescheduling every entry")
        self._mark = mark
        self._is_set_back = True
        self._pages = None

    def advance(self, term: Term) -> None:
        """Reschedule entries for one slice of time, if any are left."""
        if not self.unfinished:
            return
        pages = self._pages or self._reschedule_pages(term)
        # If a page raises an error, the generator ends. So forget it now, and keep it below only
        # after a slice without error. After an error, the next call begins with the first page.
        self._pages = None
        until = elapsed() + _SLICE
        for _ in pages:
            if elapsed() >= until:
                self._pages = pages
                return
        if self._is_set_back:
            self._store.remember("set_back", "", term)
        if self._zones:
            self._store.remember("zones", dumps([zone_name(self._zone)]), term)
        self._is_set_back = False
        self._zones = []

    def _reschedule_pages(self, term: Term) -> Iterator[None]:
        """Reschedule one page of entries at each step, so that the caller can work in between."""
        names = (name for name, _ in self._store.scan())
        for chunk in chunks(names, PAGE):
            self._progress("rescheduling every entry")
            self._store.rewrite(chunk, _leave_faulty(self._edits), term)
            yield

    def _edits(self, stored: Stored) -> list[Edit]:
        """Return the edit that reschedules an entry; none if it keeps its due time."""
        now = self._clock.now_ms()
        entry, state = parts_of(stored)
        entry = self._completed(entry)
        planned = lifecycle.rezoned(entry, state, now, self._zone, self._zones)
        if self._is_set_back:
            planned = lifecycle.pulled_back(entry, planned, now, self._zone)
        edit = edit_of(entry, planned, self._zone, expected=stored.state)
        if planned is not state:
            return [edit]
        # After a failed publish, the due time is that of the next attempt, which the state does not
        # have. By the earlier clock, that time may be far in the future.
        is_retry = self._is_set_back and _is_sooner(edit.score, stored.score)
        return [edit] if is_retry else []


def _leave_faulty(
    decide: Callable[[Stored], list[Edit]],
) -> Callable[[Stored], list[Edit]]:
    """Return a function that edits entries as ``decide``, except those whose schedule fails."""

    def edits(stored: Stored) -> list[Edit]:
        try:
            return decide(stored)
        except Exception as exc:  # noqa: BLE001 - a user's schedule may raise anything
            logger.debug("beat: %r is left to the tick that meets it: %s", stored.name, exc)
            return []

    return edits


def _is_sooner(score: int | None, other: int | None) -> bool:
    return score is not None and other is not None and score < other


def _find_zones(names: list[str]) -> list[tzinfo]:
    """Return the time zones of these names. Names that this machine does not know are left out."""
    zones = []
    for name in names:
        with suppress(InvalidEntry):
            zones.append(zone_of(name))
    return zones

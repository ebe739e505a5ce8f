"""Repair of the whole schedule by the leader.

The leader restores parts of entries that the server has lost. It reschedules all entries after a
change of the server's clock or of the app's time zone. A large schedule takes seconds, so the
leader reschedules it in slices between its dispatches. Redis notes unfinished work for the next
leader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from celery import Celery
from celery.utils.log import get_logger

from .._base.actors import BEAT
from .._base.clock import elapsed
from ..entries import lifecycle
from ..entries.changes import Edit, Stored, line_of
from ..entries.state import EntryState
from ..entries.stored_entry import edit_of, parts_of, readable_parts
from ..rules.zones import zone_name
from ..store.leader_store import LeaderStore
from ..store.records import PAGE, Term, chunks
from ..store.redis_values import text
from .config_entries import ConfigEntries
from .server_clock import ServerClock

logger = get_logger(f"celery.{__name__}")

#: Note in place of the name of a time zone while entries are rescheduled from one zone to another.
_SEVERAL_ZONES = "several zones"

#: Seconds after which a slice of the rescheduling ends, once the page that it works on is done. Due
#: entries wait until then.
_SLICE = 0.1


@dataclass(eq=False)
class Repair:
    """Repair of lost parts of entries, and of due times that are wrong by now.

    Parameters:
        clock: clock by which the beat plans.
        config: config entries of the app. They have the parts that cannot be stored, and the pauses
            that this process remembers.
        progress: function that is called for each page of entries, with a text for the log.
    """

    store: LeaderStore
    app: Celery
    clock: ServerClock
    config: ConfigEntries
    progress: Callable[[str], None]

    def __post_init__(self) -> None:
        #: Mark of the last setback of the server's clock for which this beat has begun to
        #: reschedule entries; empty if this term has seen none. Redis gets another mark each time
        #: its clock is set back.
        self._mark = b""
        #: Whether :meth:`reschedule` has entries left.
        self.unfinished = False
        #: Iterator that reschedules one page at each step; ``None``: begin with the first page.
        self._pages: Iterator[None] | None = None

    # -- lost parts -------------------------------------------------------------------------------

    def restore(self, term: Term, now: int) -> None:
        """Remove entries that have lost their definition. Restore lost states and due times.

        Entries are read only if the counts of definitions, states and due times differ. So a large
        and healthy schedule takes little time.

        Parameters:
            now: epoch ms.
        """
        keys = self.store.keys
        # A whole entry has one of each. An entry that does not fire by itself has a due time, too,
        # which is infinite.
        entries, states, due = self.store.backend.scripts.run("schedule/counts", keys)
        if entries == states == due:
            return
        logger.error(
            "beat: parts of the schedule are gone from Redis; rebuilding them from what is left"
        )
        # Collect the names of entries of which at least one part is left.
        client: Any = self.store.backend.client
        names = {name for name, _ in self.store.scan()}
        for key in (keys.entries, keys.state):
            names.update(name for name, _ in client.hscan_iter(key, count=PAGE))
        self._rewrite(names, lambda stored: [self._restore_entry(stored, now)], term)

    def _restore_entry(self, stored: Stored, now: int) -> Edit:
        """Return the edit that restores the lost parts of an entry, or removes the entry."""
        if stored.definition is None:
            logger.error("beat: the definition of %r is gone, so the entry is removed", stored.name)
            line = line_of(BEAT, "removed", "its definition was gone from Redis")
            return Edit(stored.name, expected=stored.state, state=None, line=line)
        entry, state = readable_parts(stored, self.app)
        if entry is None:
            # The definition cannot be read. Make the entry due now. Then a tick quarantines it.
            state_text = EntryState.new(now).encode()
            return Edit(stored.name, expected=stored.state, state=state_text, score=now)
        if state is not None:
            # The state is good. Store it again, with the next version, because the edit also
            # restores the due time.
            state = state.edited()
        else:
            # The state is lost. Begin with a new one, paused if the entry was paused.
            created = lifecycle.created(entry, now)
            state = self.config.pauses.restored(entry.name, created)
        return edit_of(entry, state, expected=stored.state)

    # -- wrong due times --------------------------------------------------------------------------

    def compare_zones(self, term: Term, zones: bytes) -> None:
        """Note the app's time zone; have entries rescheduled if an earlier leader noted another.

        This is called when a term begins.

        Parameters:
            zones: name of the time zone in which entries were planned, noted by an earlier leader;
                ``_SEVERAL_ZONES`` if that leader has not rescheduled all entries. It is empty if
                none was noted.
        """
        # Forget what an earlier term of this beat has handled, because other beats may have led
        # since.
        self._mark = b""
        self._pages = None
        own = zone_name(self.app.timezone)
        before = text(zones)
        self.unfinished = before not in ("", own)
        if self.unfinished:
            logger.warning(
                "beat: the app's time zone is %r, and was %r; rescheduling entries that use it",
                own,
                before,
            )
        # Until all entries are rescheduled, the note in Redis names no zone. So the next leader
        # goes on with this work, whatever its zone is.
        noted = _SEVERAL_ZONES if self.unfinished else own
        if noted != before:
            self.store.remember("zones", noted, term)

    def is_new(self, mark: bytes) -> bool:
        """Return whether the server's clock was set back, and this beat has not handled it yet.

        Parameters:
            mark: mark of the last setback of the server's clock; empty: there was none.
        """
        return bool(mark) and mark != self._mark

    def reschedule(self, term: Term, set_back: bytes) -> None:
        """Reschedule entries for one slice of time, if any are left.

        Parameters:
            set_back: mark of the last change of the server's clock; empty if there is none.
        """
        if self.is_new(set_back):
            logger.warning("beat: the clock of the server went back; rescheduling every entry")
            self._mark = set_back
            self.unfinished = True
            # This concerns every entry, so begin again with the first page.
            self._pages = None
        if not self.unfinished:
            return
        pages = self._pages or self._reschedule_pages(term)
        # If a page raises an error, the generator ends. So forget the generator now, and keep it
        # below only after a slice without error. After an error, the next call begins with the
        # first page.
        self._pages = None
        until = elapsed() + _SLICE
        for _ in pages:  # Each step reschedules one page.
            if elapsed() >= until:
                self._pages = pages
                return
        # All entries are rescheduled, so remove from Redis the notes of this work.
        if self._mark:
            self.store.remember("set_back", "", term)
        self.store.remember("zones", zone_name(self.app.timezone), term)
        self.unfinished = False

    def _reschedule_pages(self, term: Term) -> Iterator[None]:
        """Reschedule one page of entries at each step, so that the caller can work in between."""
        for page in chunks(self.store.scan(), PAGE):
            names = [name for name, _ in page]
            self._rewrite(names, self._reschedule_entry, term)
            yield

    def _reschedule_entry(self, stored: Stored) -> list[Edit]:
        """Return the edit that plans an entry again; none if it keeps its due time.

        The time zone of the app has changed, or the server's clock was set back (``_mark``).
        """
        now = self.clock.now_ms()
        entry, state = parts_of(stored, self.app)
        entry = self.config.completed(entry)
        # rezoned() and pulled_back() return the same state if the next occurrence does not change.
        planned = lifecycle.rezoned(entry, state, now)
        if self._mark:
            planned = lifecycle.pulled_back(entry, planned, now)
        edit = edit_of(entry, planned, expected=stored.state)
        if planned is not state:
            return [edit]
        # The next occurrence stays. But if the clock was set back, the stored due time (``score``)
        # may be the time of a retry by the old clock, which is too late now.
        if not self._mark or edit.score is None or stored.score is None:
            return []
        return [edit] if edit.score < stored.score else []

    # -- edits of many entries, one page at a time -------------------------------------------------

    def _rewrite(
        self, names: Iterable[bytes], decide: Callable[[Stored], list[Edit]], term: Term
    ) -> None:
        """Edit entries as ``decide`` says, except those whose schedule fails."""

        def edits(stored: Stored) -> list[Edit]:
            try:
                return decide(stored)
            except Exception as exc:  # noqa: BLE001 - a user's schedule may raise anything
                logger.debug("beat: %r is left to the tick that meets it: %s", stored.name, exc)
                return []

        for chunk in chunks(names, PAGE):
            self.progress("mending the schedule")
            self.store.rewrite(chunk, edits, term)

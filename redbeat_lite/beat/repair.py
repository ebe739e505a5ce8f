"""Repair of the stored schedule by the leader.

The leader restores parts of entries that the server has lost. It reschedules all entries when the
server's clock was set back, or when the app's time zone has changed.

A large schedule takes seconds, and due entries must not wait so long. So the leader reschedules it
in slices of time, and dispatches between them. Until all entries are rescheduled, a note in Redis
tells the next leader to continue.
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
from ..entries.stored_entry import edit_of, parts_of, readable_parts, shown_name
from ..rules.zones import zone_name
from ..store.leader_store import LeaderStore
from ..store.records import PAGE, Term, chunks
from ..store.redis_values import text
from .config_entries import ConfigEntries
from .server_clock import ServerClock

logger = get_logger(f"celery.{__name__}")

#: Text that is stored in place of the app's time zone while entries are rescheduled from one zone
#: to another.
_SEVERAL_ZONES = "several zones"

#: After this many seconds, a slice completes the page that it is rescheduling, and ends. Entries
#: that are due wait until then.
_SLICE = 0.1


@dataclass(eq=False)
class Repair:
    """Repair of lost parts of entries, and of due times that are wrong by now.

    Parameters:
        clock: clock by which the beat plans.
        config: config entries of the app. They also have what Redis cannot hold (for example, a
            schedule class of a user), and the pauses that this process remembers.
        progress: function that tells the watchdog what the beat is doing, so that a long repair
            does not count as a hang.
    """

    store: LeaderStore
    app: Celery
    clock: ServerClock
    config: ConfigEntries
    progress: Callable[[str], None]

    def __post_init__(self) -> None:
        #: Mark for which this beat has begun to reschedule the entries; empty: none in this term.
        #: Each time the server's clock is set back, a new mark is stored in Redis.
        self._handled_mark = b""
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
        # An entry without damage has one of each. An entry that does not fire by itself has an
        # infinite due time.
        entries, states, due = self.store.backend.scripts.run("schedule/counts", keys)
        if entries == states == due:
            return
        logger.error(
            "beat: parts of the schedule are gone from Redis; rebuilding them from what is left"
        )
        # Collect the names of entries of which at least one part is left. names() reads those of
        # the due times.
        client: Any = self.store.backend.client
        names = {*self.store.names()}
        for key in (keys.entries, keys.state):
            names.update(name for name, _ in client.hscan_iter(key, count=PAGE))
        self._rewrite(names, lambda stored: self._restore_entry(stored, now), term)

    def _restore_entry(self, stored: Stored, now: int) -> Edit:
        """Return the edit that restores the lost parts of an entry, or removes the entry."""
        if stored.definition is None:
            logger.error(
                "beat: the definition of %r is gone, so the entry is removed", shown_name(stored)
            )
            return Edit(
                stored.name,
                expected=stored.state,
                state=None,
                line=line_of(BEAT, "removed", "its definition was gone from Redis"),
            )
        entry, state = readable_parts(stored, self.app)
        if entry is None:
            # The definition cannot be read. Make the entry due now, because the planner quarantines
            # a due entry that it cannot read.
            return Edit(
                stored.name,
                expected=stored.state,
                state=EntryState.new(now).encode(),
                score=now,
            )
        if state is None:
            # The state is lost or cannot be read. Begin with a new one. The entry is paused again
            # if this beat remembers its pause.
            created = lifecycle.created(entry, now)
            state = self.config.pauses.pause_as_before(entry.name, created)
        else:
            # Definition and state still exist, so at most the due time is lost. edit_of() below
            # writes it again. An edit also gives the state its next version number.
            state = state.edited()
        return edit_of(entry, state, expected=stored.state)

    # -- wrong due times --------------------------------------------------------------------------

    def compare_zones(self, term: Term, zones: bytes) -> None:
        """Find out at the beginning of a term whether the app's time zone has changed.

        If so, :meth:`reschedule` has to reschedule the entries. The time zone is stored in Redis,
        so that the next leader can compare it with its own.

        Parameters:
            zones: name of the time zone that an earlier leader has stored; ``_SEVERAL_ZONES`` if
                that leader has not rescheduled all entries; empty if no zone is stored.
        """
        # Begin again with the first page, because other beats may have led since the last term of
        # this beat.
        self._handled_mark = b""
        self._pages = None
        own = zone_name(self.app.timezone)
        before = text(zones)
        self.unfinished = before not in ("", own)
        zone_to_store = own
        if self.unfinished:
            logger.warning(
                "beat: the app's time zone is %r, and was %r; rescheduling entries that use it",
                own,
                before,
            )
            # Until all entries are rescheduled, the next leader must continue to reschedule,
            # whatever its own zone is.
            zone_to_store = _SEVERAL_ZONES
        if zone_to_store != before:
            self.store.remember("zones", zone_to_store, term)

    def clock_went_back(self, mark: bytes) -> bool:
        """Return whether the server's clock was set back since :meth:`reschedule` last began.

        Parameters:
            mark: mark in Redis that the server's clock was set back; empty: no mark is stored.
        """
        return bool(mark) and mark != self._handled_mark

    def reschedule(self, term: Term, set_back: bytes) -> None:
        """Spend about ``_SLICE`` seconds on rescheduling entries. The next call continues.

        Entries are rescheduled after the server's clock was set back, and after the app's time zone
        has changed (see :meth:`compare_zones`).

        Parameters:
            set_back: mark in Redis that the server's clock was set back; empty: no mark is stored.
        """
        if self.clock_went_back(set_back):
            logger.warning("beat: the clock of the server went back; rescheduling every entry")
            self._handled_mark = set_back
            self.unfinished = True
            # Entries of all pages are affected, so begin again with the first page.
            self._pages = None
        if not self.unfinished:
            return
        pages = self._pages or self._reschedule_pages(term)
        # A generator ends when it raises an error. So forget it for now, and keep it only at the
        # end of a slice without error. After an error, the next call begins with the first page.
        self._pages = None
        until = elapsed() + _SLICE
        for _ in pages:  # Each step reschedules one page.
            if elapsed() >= until:
                self._pages = pages
                return
        # All entries are rescheduled. Say so in Redis, so that the next leader does not repeat it.
        if self._handled_mark:
            self.store.remember("set_back", "", term)
        self.store.remember("zones", zone_name(self.app.timezone), term)
        self.unfinished = False

    def _reschedule_pages(self, term: Term) -> Iterator[None]:
        """Reschedule one page of entries at each step, so that the caller can work in between."""
        for page in chunks(self.store.scan(), PAGE):
            self._rewrite([name for name, _ in page], self._reschedule_entry, term)
            yield

    def _reschedule_entry(self, stored: Stored) -> Edit | None:
        """Return the edit that reschedules an entry; ``None`` if its due time stays.

        The app's time zone may have changed, or the server's clock may have been set back.
        """
        # The attribute is empty unless reschedule() was called with a mark that the clock was set
        # back.
        was_set_back = bool(self._handled_mark)
        now = self.clock.now_ms()
        entry, state = parts_of(stored, self.app)
        entry = self.config.completed(entry)
        # rezoned() and pulled_back() return the same state if the next occurrence does not change.
        planned = lifecycle.rezoned(entry, state, now)
        if was_set_back:
            planned = lifecycle.pulled_back(entry, planned, now)
        edit = edit_of(entry, planned, expected=stored.state)
        if planned is not state:
            return edit
        # The next occurrence stays. But if the clock was set back, the stored due time (``score``)
        # may be that of a retry, which the old clock has set too late. In this case, store the due
        # time of the occurrence.
        if was_set_back and edit.score and stored.score and edit.score < stored.score:
            return edit
        return None

    # -- edits of many entries ---------------------------------------------------------------------

    def _rewrite(
        self, names: Iterable[bytes], decide: Callable[[Stored], Edit | None], term: Term
    ) -> None:
        """Make the edit that ``decide`` returns for each entry; ``None`` for no edit.

        If ``decide`` raises an error, the entry stays unchanged. If the error comes again when the
        entry is due, the planner handles it.
        """

        def edit(stored: Stored) -> Edit | None:
            self.progress("mending the schedule")
            try:
                return decide(stored)
            except Exception as exc:  # noqa: BLE001 - a user's schedule may raise anything
                logger.debug("beat: %r is left to the tick that meets it: %s", stored.name, exc)
                return None

        self.store.rewrite(names, edit, term)

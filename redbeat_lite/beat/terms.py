"""What a beat does when it comes to lead, while it leads, while it stands by, and when it has lost its lease."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import tzinfo
from typing import Any

from celery import Celery
from celery.utils.log import get_logger

from ..clock import elapsed, wall_ms
from ..entries.words import counted
from ..settings import Settings
from ..storage.key_types import check_types
from ..storage.leader_store import LeaderStore
from ..storage.server_check import Fault, failover, faults, server_of
from ..storage.stored import Term
from .config_check import log_differing, log_left_behind, log_not_stored
from .config_entries import ConfigEntries
from .freezing import Freezing
from .leader import Leader
from .repair import Repair
from .replanning import ClockWatch, Replanning
from .tokens import Beat
from .vitals import Vitals

logger = get_logger(f"celery.{__name__}")

#: A new leader has stored its configuration after so many leases, however large it is.
_SETTLING = 5


class Terms:
    """Brings a beat into its terms and out of them, and the schedule in line at the beginning of each, and keeps it so.

    Configuration, repair and planning anew are what a leader owes the schedule as a whole.

    Parameters:
        added: returns the entries that code gave to the scheduler, by name.
    """

    def __init__(
        self,
        app: Celery,
        store: LeaderStore,
        settings: Settings,
        leader: Leader,
        vitals: Vitals,
        added: Callable[[], Mapping[str, Any]],
    ) -> None:
        zone: tzinfo = app.timezone
        self._app = app
        self._added = added
        self._leader = leader
        self._store = store
        self._settings = settings
        self._vitals = vitals
        self._begun: Term | None = None
        self._started = False
        self.introduced = False  #: whether a server has answered
        #: A key of one entry, lock or task that another program has used. It is checked before this beat leads again.
        self.foreign_key: str | None = None
        self.standing_by = False
        self._next_look = 0.0
        self._seen: Beat | None = None
        self._compare_at = 0.0
        self.config = ConfigEntries(app, store, settings, added, leader.checkpoint)
        self._repair = Repair(store, zone, leader.checkpoint, self.config.pauses)
        self.replanning = Replanning(store, zone, self.config.completed, leader.checkpoint)
        self._clock = ClockWatch()
        self.freezing = Freezing(store, zone, leader.checkpoint)
        vitals.freezes = lambda: self.freezing.known

    def enter(self) -> float:
        """Lead, and return 0; or stand by, and return the seconds until it is worth another look."""
        if not self._leader.in_office:
            if self._leader.yields_for:
                return self._leader.yields_for
            self._introduce()
            self._check_keys()
            waiting = self._leader.acquire()
            if waiting:
                self._stand_by()
                return waiting
        if self._leader.term != self._begun:
            self._begin(self._leader.term)
        return 0.0

    def begin_anew(self) -> None:
        """Take nothing for done: the next :meth:`enter` begins the term over, even one that looks like this."""
        self._begun = None

    def leave(self) -> str:
        """End the term on this side; says why it ended."""
        self._begun = None  # A flush takes the term counter away too, so the next term may look like this one.
        why = self._leader.step_down()
        self._vitals.lost(why)
        return why

    def yield_lease(self, why: str) -> None:
        """Let the other beats try, because this one fails."""
        self._leader.yield_lease()
        self._begun = None
        self._vitals.lost(why)
        seconds = self._leader.yields_for
        logger.warning("beat: giving up the lead for %.0f s, so that another beat can try: %s", seconds, why)

    @property
    def is_called_for(self) -> bool:
        """Whether there is something to do that cannot wait for the next deadline."""
        has_news = self._has_new_pauses or self.config.has_new_additions
        return self._leader.damaged or self._clock.was_set or has_news

    @property
    def _has_new_pauses(self) -> bool:
        return self._leader.pauses != self.config.pauses.seen

    @property
    def look_again_in(self) -> float:
        """Seconds after which it is worth another look, whatever is due."""
        return self._settings.lease if self.config.contested else float("inf")

    def go_on(self, term: Term) -> None:
        """Mend a schedule that lost a part of itself, take names that became free, and plan anew, a slice at a time.

        Anew is planned what went by another zone, or by a clock that was set back: no entry must wait until that has
        caught up again.
        """
        if self._leader.damaged or self.config.has_new_additions:
            self._make_whole(term)
        elif self.config.contested and elapsed() >= self._next_look:
            # The other beat may be gone, as where an app is renamed with several of its beats running; or the runtime
            # entry that had the name.
            self._next_look = elapsed() + self._settings.lease
            if self.config.vacated:
                self._make_whole(term)
        if self._has_new_pauses:
            self.config.pauses.look(self._leader.pauses)
        if back := self._clock.look():
            self.replanning.clock_went_back(term, back)
        self.replanning.advance(term)

    def _introduce(self) -> None:
        """Warn once of faults: of the broker's URLs at once, of the server when it answers."""
        if not self._started:
            self._started = True
            _warn_of(failover(self._app))
        if not self.introduced:
            _warn_of(faults(server_of(self._store.backend.client)))
            self.introduced = True

    def _check_keys(self) -> None:
        """Raise ForeignKey if another program uses a key of ours."""
        others = [] if self.foreign_key is None else [self.foreign_key]
        check_types(self._store.backend.client, self._store.keys.prefix, others)
        self.foreign_key = None

    def _stand_by(self) -> None:
        self.freezing.look()
        self.config.pauses.look()
        leader = self._leader.incumbent()
        self._compare_with(leader)
        if not self.standing_by:
            self.standing_by = True
            self._vitals.standing_by()
            logger.info("beat: standing by; %s leads", leader or "another beat")
            if leader is not None:
                log_not_stored(self._app, self._store, self._settings, leader.owner)

    def _compare_with(self, leader: Beat | None) -> None:
        """Warn once if a leader has another configuration, after the time to store its own."""
        if leader != self._seen:
            self._seen = leader
            self._compare_at = elapsed() + _SETTLING * self._settings.lease
        if leader is not None and leader.owner == self._settings.owner and elapsed() >= self._compare_at:
            self._compare_at = float("inf")
            log_differing(self._app, self._store, self._settings, leader, self._added())

    def _begin(self, term: Term) -> None:
        """Do what a new leader owes the schedule; done over if the server went away in the middle of it."""
        self._make_whole(term)
        self.replanning.begin(term, self._leader.last_clock, self._leader.last_zones)
        log_left_behind(self._store, self._settings)
        self._clock.look()
        logger.info("beat: leading (term %d), %s", term.number, counted(self._store.count(), "entry", "entries"))
        self.standing_by = False
        self._begun = term
        self._vitals.leading(term.number)

    def _make_whole(self, term: Term) -> None:
        """Bring Redis in line with the configuration, and mend what it has lost."""
        now = wall_ms()
        self._leader.progress("reading the configuration")
        self._repair.run(term, now)
        self._store.remember("removed", "", term)  # before it is looked what is not there
        self.config.sync(term, now)
        self._vitals.refused = self.config.refused
        self._leader.damaged, self._leader.least = False, len(self.config)


def _warn_of(found: Iterator[Fault]) -> None:
    for fault in found:
        logger.warning("beat: %s. %s %s", fault.what, fault.why, fault.todo)

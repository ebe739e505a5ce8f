"""Leadership of one beat: it acquires the lease or stands by, and keeps the schedule whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import tzinfo
from typing import Any

from celery import Celery
from celery.utils.log import get_logger

from .._base.clock import elapsed
from ..entries.words import counted
from ..settings import Settings
from ..store.keys import check_types
from ..store.leader_store import LeaderStore
from ..store.records import Term
from ..store.server_check import Fault, failover, faults, server_of
from .beat_state import BeatState
from .beat_token import Beat
from .config_check import log_differing, log_left_behind, log_not_stored
from .config_entries import ConfigEntries
from .freezing import Freezing
from .leader import Leader
from .repair import Repair, Replanning

logger = get_logger(f"celery.{__name__}")

#: A new leader has stored its configuration after so many leases, however large it is.
_SETTLING = 5


class Leadership:
    """Way of one beat into its terms, through them and out of them.

    As leader it stores the configuration, restores lost parts of the schedule, and reschedules
    entries after a change of the server's clock or the time zone.

    Parameters:
        added: returns the entries that code gave to the scheduler, by name.
    """

    def __init__(
        self,
        app: Celery,
        store: LeaderStore,
        settings: Settings,
        leader: Leader,
        state: BeatState,
        added: Callable[[], Mapping[str, Any]],
    ) -> None:
        zone: tzinfo = app.timezone
        self._app = app
        self._store = store
        self._settings = settings
        self._leader = leader
        self._state = state
        self._added = added
        self.config = ConfigEntries(app, store, settings, added, leader.checkpoint)
        self.freezing = Freezing(store, leader, state, zone)
        self.replanning = Replanning(
            store, zone, leader.clock, self.config.completed, leader.checkpoint
        )
        self._repair = Repair(store, zone, leader.checkpoint, self.config.pauses)
        #: The term that this beat has prepared to lead.
        self._begun: Term | None = None
        #: Whether a server has answered, so that its setup was looked at.
        self.introduced = False
        #: A key of one entry, lock or run that another program has used, if one was met. The keys
        #: that the whole schedule shares are looked at in any case.
        self.foreign_key: str | None = None
        self.standing_by = False
        self._has_checked_broker = False
        #: When to check again whether a contested name is free, in seconds of :func:`elapsed`.
        self._next_look = 0.0
        #: The leader that was last seen while standing by.
        self._seen: Beat | None = None
        #: When to compare its configuration with ours, in seconds of :func:`elapsed`.
        self._compare_at = 0.0

    def enter(self) -> float:
        """Lead, and return 0; or stand by, and return the seconds until the next try.

        Raises:
            Lost: the term was lost meanwhile.
        """
        if not self._leader.in_office:
            if self._leader.yields_for:
                return self._leader.yields_for
            self._check_services()
            if self._leader.incumbent() is None:
                self._check_keys()
            waiting = self._leader.acquire()
            if waiting:
                self._stand_by()
                return waiting
        if self._leader.term != self._begun:
            self._begin(self._leader.term)
        return 0.0

    def start_over(self) -> None:
        """Make the next :meth:`enter` begin the term again."""
        self._begun = None

    def leave(self) -> str:
        """End the term on this side, without a command to Redis; return why it ended."""
        # A flush also removes the count of terms, so the next term may get the same number.
        self._begun = None
        why = self._leader.step_down()
        self._state.end_term(why)
        return why

    def yield_lease(self, why: str) -> None:
        """Release the lease and leave it to other beats for a while, because this one fails."""
        self._leader.yield_lease()
        self._begun = None
        self._state.end_term(why)
        seconds = self._leader.yields_for
        text = "beat: giving up the lead for %.0f s, so that another beat can try: %s"
        logger.warning(text, seconds, why)

    @property
    def has_work(self) -> bool:
        """Whether the leader has something to do that cannot wait for the next due time."""
        has_news = self._has_new_pauses or self.config.has_new_additions
        was_set_back = self.replanning.is_new(self._leader.set_back)
        return self._leader.damaged or was_set_back or has_news

    @property
    def _has_new_pauses(self) -> bool:
        return self._leader.pauses != self.config.pauses.seen

    @property
    def longest_wait(self) -> float:
        """Longest time in seconds until the next turn."""
        return self._settings.lease if self.config.contested else float("inf")

    def keep_whole(self, term: Term) -> None:
        """Restore lost parts, take names that became free, and go on rescheduling."""
        if self._leader.damaged or self.config.has_new_additions:
            self._make_whole(term)
        elif self.config.contested and elapsed() >= self._next_look:
            # A refused entry may fit by now. Its name is free if the old beat of a renamed app has
            # stopped, or if somebody has removed a runtime entry of that name.
            self._next_look = elapsed() + self._settings.lease
            if self.config.vacated:
                self._make_whole(term)
        if self._has_new_pauses:
            self.config.pauses.look(self._leader.pauses)
        set_back = self._leader.set_back
        if self.replanning.is_new(set_back):
            self.replanning.clock_went_back(set_back)
        self.replanning.advance(term)

    def _check_services(self) -> None:
        """Warn once of wrong broker URLs, and of a wrong setup of the server when it answers."""
        if not self._has_checked_broker:
            self._has_checked_broker = True
            _warn_of(failover(self._app))
        if not self.introduced:
            _warn_of(faults(server_of(self._store.backend.client)))
            self.introduced = True

    def _check_keys(self) -> None:
        """Raise ForeignKey if another program uses a key of ours, before this beat leads."""
        others = [] if self.foreign_key is None else [self.foreign_key]
        check_types(self._store.backend.client, self._store.keys.prefix, others)
        self.foreign_key = None

    def _stand_by(self) -> None:
        """Read what this beat has to know when it leads, and log who leads if that is new."""
        self.freezing.look()
        self.config.pauses.look()
        leader = self._leader.incumbent()
        self._compare_with(leader)
        if self.standing_by:
            return
        self.standing_by = True
        self._state.begin_standby()
        logger.info("beat: standing by; %s leads", leader or "another beat")
        if leader is not None:
            log_not_stored(self._app, self._store, self._settings, leader.owner)

    def _compare_with(self, leader: Beat | None) -> None:
        """Warn once if the leader is a beat of this app with another configuration.

        This is checked once a new leader has had the time to store its configuration.
        """
        if leader != self._seen:
            self._seen = leader
            self._compare_at = elapsed() + _SETTLING * self._settings.lease
        is_ours = leader is not None and leader.owner == self._settings.owner
        if leader is not None and is_ours and elapsed() >= self._compare_at:
            self._compare_at = float("inf")
            log_differing(self._app, self._store, self._settings, leader, self._added())

    def _begin(self, term: Term) -> None:
        """Prepare to lead. If the server fails in between, the next turn does it again."""
        self._make_whole(term)
        self.replanning.begin(term, self._leader.last_zones)
        log_left_behind(self._store, self._settings)
        number = counted(self._store.count(), "entry", "entries")
        logger.info("beat: leading (term %d), %s", term.number, number)
        self.standing_by = False
        self._begun = term
        self._state.begin_term(term.number)

    def _make_whole(self, term: Term) -> None:
        """Restore lost parts of the schedule, and store the configuration."""
        now = self._leader.clock.now_ms()
        self._leader.progress("reading the configuration")
        self._repair.run(term, now)
        # This flag says that config entries were removed by hand. It is cleared before the names
        # are read, so that a removal in between sets it again.
        self._store.remember("removed", "", term)
        self.config.sync(term, now)
        self._state.refused = self.config.refused
        self._leader.damaged = False
        self._leader.least = len(self.config)


def _warn_of(faults: Iterator[Fault]) -> None:
    for fault in faults:
        logger.warning("beat: %s. %s %s", fault.what, fault.why, fault.todo)

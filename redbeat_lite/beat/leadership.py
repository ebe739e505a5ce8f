"""Leadership of one beat: it acquires the lease or stands by.

A leader keeps the schedule whole. A schedule is whole if every entry has all its parts in Redis,
and all good entries of the configuration are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from celery import Celery
from celery.utils.log import get_logger

from .._base.clock import elapsed
from ..entries.words import counted, listed
from ..settings import Settings
from ..store.keys import check_types
from ..store.leader_store import LeaderStore
from ..store.records import Term
from ..store.server_check import Fault, failover_faults, server_faults, server_of
from .config_entries import ConfigEntries
from .freezing import FreezeMemory
from .leader import Leader
from .repair import Repair
from .status import Beat

logger = get_logger(f"celery.{__name__}")

#: Time between two checks of the leader's keys and of its refused entries, as a multiple of the
#: length of a lease. A stand-by waits so long, too, before it compares its configuration with that
#: of a new leader, because the leader first has to store it.
_SETTLING = 5

#: After a beat has yielded the lease, it does not try to lead for this multiple of the length of a
#: lease, so that every stand-by can try.
_YIELDED_LEASES = 2

#: Longest such pause in seconds, even if the lease is long. Without a stand-by, nothing is sent
#: during the pause.
_LONGEST_YIELD = 60.0


@dataclass(eq=False)
class Leadership:
    """Begin, upkeep and end of one beat's terms as leader.

    During a term, the beat stores its configuration, restores lost parts of the schedule, and
    reschedules entries if the server's clock was set back or the app's time zone has changed.

    Parameters:
        added: function that returns the entries that code has added to the scheduler, by name.
    """

    app: Celery
    store: LeaderStore
    settings: Settings
    leader: Leader
    added: Callable[[], Mapping[str, Any]]

    def __post_init__(self) -> None:
        leader = self.leader
        store = self.store
        progress = leader.checkpoint
        self.config = ConfigEntries(self.app, store, self.settings, self.added, progress)
        self.repair = Repair(store, self.app, leader.clock, self.config, progress)
        self.freeze_memory = FreezeMemory(store, leader)
        #: Whether :meth:`enter` must begin the term when this beat leads, and so check the whole
        #: schedule: because the term is new, or because turns have failed.
        self.must_begin = True
        #: Whether the URLs of the broker were checked.
        self._has_checked_broker = False
        #: Whether the setup of the server was checked. If so, the server has accepted the password
        #: of this beat at least once.
        self.has_checked_server = False
        #: Keys of single entries, locks or tasks that another program has used. :meth:`_check_keys`
        #: checks the keys that every schedule has, and these.
        self.foreign_keys: list[str] = []
        #: Whether the last :meth:`enter` has found that another beat leads.
        self.standing_by = False
        # Instants are in seconds of :func:`elapsed`.
        #: Instant until which this beat leaves the lease to others.
        self._yields_until = 0.0
        #: When the leader checks its keys and its refused entries again.
        self._next_check = 0.0
        #: The leader that was last seen while standing by; ``None`` if none was seen since the last
        #: term of this beat.
        self._seen_leader: Beat | None = None
        #: When to compare the configuration of this beat with what ``_seen_leader`` has stored;
        #: infinite once they were compared.
        self._compare_at = 0.0

    def enter(self) -> float:
        """Try to lead, unless this beat leads already. As leader, maintain the schedule.

        Returns:
            0 if this beat leads; otherwise the seconds until it should try again.

        Raises:
            Lost: the term was lost meanwhile.
            ForeignKey: another program uses a key of ours.
        """
        if not self.leader.has_term:
            waiting = self._try_to_lead()
            if waiting:
                return waiting
            self.must_begin = True
        term = self.leader.term
        # The flag is also set after some failures, or if the last turn failed in _begin_term().
        if self.must_begin:
            self._begin_term(term)
        self._maintain_schedule(term)
        return 0.0

    def _try_to_lead(self) -> float:
        """Ask for the lease. Return 0.0 if this beat leads; otherwise the seconds to wait."""
        self.standing_by = False  # _stand_by() sets it if another beat leads.
        # After failures, this beat leaves the lease to others for a while.
        pause = self._yields_until - elapsed()
        if pause > 0:
            return pause
        self._check_services()
        # A leader checks the keys itself. So check them here only if no other beat leads.
        if self.leader.incumbent() is None:
            self._check_keys()
        waiting = self.leader.acquire()
        if waiting:  # Another beat leads.
            self._stand_by()
        return waiting

    def leave(self) -> str:
        """End the term in this process, and return why it ended.

        This sends no command to Redis. If the lease is not lost already, it expires by itself.
        """
        why = self.leader.step_down()
        self.leader.state.end_term(why)
        return why

    def yield_lease(self, why: str) -> None:
        """Release the lease and leave it to other beats for a while, because this one fails."""
        self.leader.resign()
        self.leader.state.end_term(why)
        lease = self.settings.lease
        # All beats may pause at the end of an outage of the broker, and then none of them sends. So
        # the pause is the shortest of three. In so many leases, every stand-by has time to try. In
        # a lease and a stall timeout, a stand-by has time to lead and to fail. And no pause is
        # longer than _LONGEST_YIELD.
        pause = min(_YIELDED_LEASES * lease, lease + self.settings.stall_timeout, _LONGEST_YIELD)
        self._yields_until = elapsed() + pause
        text = "beat: giving up the lead for %.0f s, so that another beat can try: %s"
        logger.warning(text, pause, why)

    @property
    def has_work(self) -> bool:
        """Whether the leader has work that must not wait for the next due time."""
        has_changes = self._has_new_pauses or self.config.has_new_additions
        was_set_back = self.repair.clock_went_back(self.leader.clock_set_back)
        return self.leader.needs_repair or was_set_back or has_changes or self._is_check_due

    @property
    def _has_new_pauses(self) -> bool:
        """Whether an entry was paused or resumed since this beat last read the pauses."""
        return self.leader.pause_stamp != self.config.pauses.stamp

    @property
    def _is_check_due(self) -> bool:
        return elapsed() >= self._next_check

    def _maintain_schedule(self, term: Term) -> None:
        """Keep the stored schedule whole and up to date, at the beginning of each turn.

        This restores what is missing, reads new pauses, and reschedules entries if need be. At
        intervals of ``_SETTLING`` lease lengths, it also checks whether another program uses the
        keys, and tries to store refused entries again.
        """
        # Additions are entries that code has added to the scheduler since the last sync.
        must_restore = self.leader.needs_repair or self.config.has_new_additions
        if self._is_check_due:
            self._next_check = elapsed() + _SETTLING * self.settings.lease
            self._check_keys()
            # If an entry was refused because its name was taken, the name may be free by now: the
            # old beat of a renamed app has stopped, or a runtime entry was removed.
            must_restore = must_restore or self.config.refused_count > 0
        if must_restore:
            self._restore_schedule(term)
        if self._has_new_pauses:
            # If the server loses a paused entry, the restored one must be paused, too.
            self.config.pauses.read_as_of(self.leader.pause_stamp)
        # This does nothing unless the clock was set back, the app's time zone has changed, or an
        # earlier turn has not rescheduled all entries.
        self.repair.reschedule(term, self.leader.clock_set_back)

    def _check_services(self) -> None:
        """Log a warning of wrong broker URLs and of a wrong setup of the server, once each."""
        if not self._has_checked_broker:
            self._has_checked_broker = True
            _warn_of(failover_faults(self.app))
        if not self.has_checked_server:
            _warn_of(server_faults(server_of(self.store.backend.client)))
            self.has_checked_server = True

    def _check_keys(self) -> None:
        """Raise ForeignKey if another program uses a key of ours."""
        # This checks the keys that every schedule has, and those that another program has used.
        check_types(self.store.backend.client, self.store.keys.prefix, self.foreign_keys)
        self.foreign_keys = []  # The check has passed, so no other program uses them now.

    def _stand_by(self) -> None:
        """Prepare to lead next: remember data that the server may lose, and watch the leader.

        A flush removes the freeze and the pauses together with the lease. The beat that leads next
        must know them, so that it can restore them.
        """
        self.freeze_memory.remember()
        self.config.pauses.read()
        # ``None`` if the other beat's lease has ended meanwhile, or its token cannot be read.
        leader = self.leader.incumbent()
        self.standing_by = True
        self.leader.state.begin_standby()
        if leader != self._seen_leader:
            logger.info("beat: standing by; %s leads", leader or "another beat")
            # Another beat leads now. Compare the configurations later, because a new leader first
            # has to store its own.
            self._seen_leader = leader
            self._compare_at = elapsed() + _SETTLING * self.settings.lease
        if leader is not None and elapsed() >= self._compare_at:
            self._compare_at = float("inf")  # One comparison with a leader is enough.
            self._compare_with(leader)

    def _compare_with(self, leader: Beat) -> None:
        """Log a warning of config entries that the leader has stored differently, or not at all.

        The two beats may have different versions of the code, or different owners.
        """
        names = self.config.configuration.differences().differing_names
        if names:
            logger.warning(
                "beat: %s not stored as here, because %s leads with the configuration of %r: %s",
                counted(len(names), "entry of beat_schedule is", "entries of beat_schedule are"),
                leader,
                leader.owner,
                listed(names),
            )

    def _begin_term(self, term: Term) -> None:
        """Restore the schedule, and announce the term if it is new.

        If this fails halfway, ``must_begin`` stays set for the next turn.
        """
        self._restore_schedule(term)
        # If an earlier leader has planned entries in another zone, they must be rescheduled.
        self.repair.compare_zones(term, self.leader.previous_zone)
        logger.info(
            "beat: leading (term %d), %s",
            term.number,
            counted(self.store.count(), "entry", "entries"),
        )
        self._seen_leader = None  # If this beat stands by again, it logs who leads.
        self.must_begin = False
        self.leader.state.begin_term(term.number)

    def _restore_schedule(self, term: Term) -> None:
        """Restore lost parts of the schedule, and store the configuration."""
        now = self.leader.clock.now_ms()
        self.leader.progress("reading the configuration")
        self.repair.restore(term, now)
        self.config.sync(term, now)
        self.leader.state.refused = self.config.refused_count
        # If Redis has another stamp or fewer entries than this, the next renewal sets needs_repair.
        self.leader.sync_stamp = self.config.stamp
        self.leader.min_entries = self.config.stored_count
        self.leader.needs_repair = False
        # Count from the end of the sync, which may take longer than the interval.
        self._next_check = elapsed() + _SETTLING * self.settings.lease


def _warn_of(faults: Iterator[Fault]) -> None:
    for fault in faults:
        logger.warning("beat: %s. %s %s", fault.what, fault.why, fault.todo)

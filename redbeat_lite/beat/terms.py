"""What a beat does when it comes to lead, while it stands by, and when it has lost its lease."""

from __future__ import annotations

from celery.utils.log import get_logger

from ..entries.words import counted
from ..storage.server_check import faults, server_of
from ..storage.store import Store
from ..storage.stored import Term
from .leader import Leader
from .upkeep import Upkeep
from .vitals import Vitals

logger = get_logger(__name__)


class Terms:
    """Brings a beat into its terms and out of them."""

    def __init__(self, leader: Leader, store: Store, upkeep: Upkeep, vitals: Vitals) -> None:
        self._leader = leader
        self._store = store
        self._upkeep = upkeep
        self._vitals = vitals
        self._begun: Term | None = None
        self.introduced = False  #: whether a server has answered
        self.standing_by = False

    def enter(self) -> float:
        """Lead, and return 0; or stand by, and return the seconds until it is worth another look."""
        if not self._leader.in_office:
            self._introduce()
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

    def _introduce(self) -> None:
        """Say once, at the first contact, what about the server a person should know."""
        if self.introduced:
            return
        for _, _, what, why, todo in faults(server_of(self._store.backend.client)):
            logger.warning("beat: %s. %s %s", what, why, todo)
        self.introduced = True

    def _stand_by(self) -> None:
        self._upkeep.freezing.look()
        if not self.standing_by:
            self.standing_by = True
            self._vitals.standing_by()
            leader = self._leader.incumbent()
            logger.info("beat: standing by; %s leads", leader or "another beat")
            if leader is not None:
                self._upkeep.owners.tell_not_stored(leader.owner)

    def _begin(self, term: Term) -> None:
        """Do what a new leader owes the schedule; done over if the server went away in the middle of it."""
        self._upkeep.begin(term)
        logger.info("beat: leading (term %d), %s", term.number, counted(self._store.count(), "entry", "entries"))
        self.standing_by = False
        self._begun = term
        self._vitals.leading(term.number)

"""Freezes of a schedule. A beat restores them if they are lost, and removes them when they end."""

from __future__ import annotations

from celery.utils.log import get_logger

from .._base.times import to_ms
from ..entries.changes import Stored
from ..entries.freezes import Freezes
from ..store.leader_store import LeaderStore
from ..store.records import Refrozen, Term
from .leader import Leader
from .repair import Repair

logger = get_logger(f"celery.{__name__}")


class Freezing:
    """Freezes of a schedule, as this beat knows them. ``leader.state`` has them.

    Parameters:
        repair: repair of the schedule, which reschedules the entries of thawed freezes.
    """

    def __init__(self, store: LeaderStore, leader: Leader, repair: Repair) -> None:
        self._store = store
        self._leader = leader
        self._state = leader.state
        self._repair = repair
        #: The last stored text of the freezes, to be restored if the server loses it.
        self._seen = b""

    def look(self) -> None:
        """Read the freezes, for a beat that stands by. Restore them if they are lost."""
        text = self._store.freezes()
        # If freezes were restored, this text lacks them. The next look reads the new text.
        if not self._restore_lost(text):
            self._seen = text
        # The text ``?`` is never stored. So it differs from the stored text, and the first peek as
        # leader reads the freezes again.
        self._state.freezes = Freezes(text=b"?")

    def peek(self, term: Term, now: int, limit: int) -> tuple[list[Stored], int | None]:
        """Return due entries, and the next due time in epoch ms, as the freezes allow.

        While all entries are frozen, none is returned. If the freezes have changed, none is
        returned either, and the next due time is now, so that the beat begins another turn. That
        turn first reschedules the entries of thawed freezes, which were ended early.
        """
        freezes = self._state.freezes
        # When the last freeze that holds all entries ends; ``None`` if no such freeze is active.
        frozen_until = freezes.until(now)
        most = 0 if frozen_until else limit
        try:
            # The server compares this revision with that of the stored freezes, and refuses the
            # command if they differ.
            due, upcoming = self._store.peek(term, now, most, freezes.revision)
        except Refrozen as exc:
            # The error carries the stored text of the new freezes.
            self._learn(exc.args[0])
            return [], now
        if not due and not frozen_until and not self._repair.unfinished:
            # No entry is due, and the repair has rescheduled all entries of thawed freezes. So no
            # entry waits for the end of a freeze, and freezes that have ended can be removed.
            self._drop_ended(now)
        return due, frozen_until or upcoming

    def _learn(self, text: bytes) -> None:
        """Use the freezes of a stored text from now on, and have thawed entries rescheduled."""
        if self._restore_lost(text):
            return  # The next peek brings the text with the restored freezes.
        freezes = Freezes.of(text)
        self._state.freezes = freezes
        self._seen = text
        # A thawed freeze stays stored until all its entries are rescheduled. If this leader ends
        # before that, the next leader begins again.
        thawed = [freeze for freeze in freezes.all if freeze.thawed]
        self._repair.note_thawed({to_ms(freeze.until) for freeze in thawed})

    def _restore_lost(self, text: bytes) -> bool:
        """Restore freezes that the server has lost. Return whether it has lost any.

        Parameters:
            text: stored text of the freezes.
        """
        stored = Freezes.of(text)
        # A freeze is lost if this beat has seen it, it has not ended, and nobody has removed it.
        lost = stored.lost(Freezes.of(self._seen), self._leader.clock.now_ms())
        if lost:
            logger.warning("beat: the freezes were gone from Redis, and are put back")
            self._store.set_freezes(text, stored.replaced(*lost, *stored.all).text)
        return bool(lost)

    def _drop_ended(self, now: int) -> None:
        """Remove freezes that have ended, if any have. No entry may be waiting for their end."""
        known = self._state.freezes
        in_force = known.holding(now)
        if len(in_force) == len(known.all):
            return
        revised = known.replaced(*in_force)
        # This stores nothing, and returns False, if somebody has changed the freezes meanwhile.
        if self._store.set_freezes(known.text, revised.text):
            self._state.freezes = revised
            self._seen = revised.text

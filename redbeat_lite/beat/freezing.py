"""Memory of the freeze, so that a beat can restore it.

A freeze is a time in which no entry fires, and a thaw ends it early. If the server loses the last
freeze or thaw, a beat that has seen it stores it again.
"""

from __future__ import annotations

from dataclasses import dataclass

from celery.utils.log import get_logger

from ..entries.changes import Stored
from ..entries.freeze import end_of, made_at_of
from ..store.leader_store import LeaderStore
from ..store.records import Term
from .leader import Leader

logger = get_logger(f"celery.{__name__}")


@dataclass(eq=False)
class FreezeMemory:
    """Last freeze or thaw that this beat has seen in Redis."""

    store: LeaderStore
    leader: Leader
    #: Stored text of the last freeze or thaw that this beat has seen; empty if it has seen none.
    seen: bytes = b""

    def remember(self) -> None:
        """Read the last freeze or thaw, for a beat that stands by. Restore it if it is lost."""
        self._remember_or_restore(self.store.freeze(), self.leader.clock.now_ms())

    def peek(self, term: Term, now: int, limit: int) -> tuple[list[Stored], int | None]:
        """Return the due entries, and when the first entry of all is due, in epoch ms.

        While a freeze holds, no entry is due, and the time is the end of the freeze.

        If this call restores a lost freeze or thaw, the entries were read without it. So it returns
        no entries and the present time, and the beat peeks again.
        """
        peek = self.store.peek(term, now, limit)
        if self._remember_or_restore(peek.freeze, now):
            return [], now
        return peek.due, peek.first_due

    def _remember_or_restore(self, stored: bytes, now: int) -> bool:
        """Remember the stored freeze or thaw, or restore the remembered one if it is lost.

        The server may lose a freeze with its data, or in a fail-over to a replica that did not have
        it yet. In both cases, the stored text is missing or older than the remembered one.

        Returns:
            whether it was lost.
        """
        is_lost = made_at_of(stored) < made_at_of(self.seen)
        if is_lost:
            logger.warning("beat: the last freeze or thaw was gone from Redis, and is put back")
            # Replace the stored text by the remembered one, unless somebody has made another freeze
            # meanwhile.
            self.store.set_freeze(stored, self.seen)
        else:
            self.seen = stored
        self.leader.state.is_frozen = end_of(self.seen) > now
        return is_lost

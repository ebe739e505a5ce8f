"""Memory of the freeze.

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
class Freezing:
    """Last freeze or thaw that this beat has seen in the store."""

    store: LeaderStore
    leader: Leader
    #: Stored text of the last freeze or thaw that this beat has seen; empty if it has seen none.
    seen: bytes = b""

    def look(self) -> None:
        """Read the freeze, for a beat that stands by. Put it back if the server has lost it."""
        self._note(self.store.freeze(), self.leader.clock.now_ms())

    def peek(self, term: Term, now: int, limit: int) -> tuple[list[Stored], int | None]:
        """Return due entries, and the next due time in epoch ms.

        While a freeze holds, no entry is due, and the next due time is the end of the freeze. If
        this call puts back a lost freeze or thaw, the entries were read without it. So it returns
        no entries and the present time, and the beat peeks again.
        """
        due, upcoming, freeze = self.store.peek(term, now, limit)
        if self._note(freeze, now):
            return [], now
        return due, upcoming

    def _note(self, stored: bytes, now: int) -> bool:
        """Remember the stored freeze in ``seen``, or put back ``seen`` if the server has lost it.

        The server may lose a freeze with its data, or in a fail-over to a replica that did not have
        it yet. In both cases, the stored text is missing or older than ``seen``.

        Returns:
            whether the server had lost it.
        """
        is_lost = made_at_of(stored) < made_at_of(self.seen)
        if is_lost:
            logger.warning("beat: the last freeze or thaw was gone from Redis, and is put back")
            # If somebody has made another freeze meanwhile, this stores nothing.
            self.store.set_freeze(stored, self.seen)
        else:
            self.seen = stored
        self.leader.state.is_frozen = end_of(self.seen) > now
        return is_lost

"""Memory of the freeze. A beat puts back a freeze or a thaw that the server has lost."""

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
    #: Its stored text; empty if there was none.
    seen: bytes = b""

    def look(self) -> None:
        """Read the freeze, for a beat that stands by. Put back the noted one if it is lost."""
        self._note(self.store.freeze(), self.leader.clock.now_ms())

    def peek(self, term: Term, now: int, limit: int) -> tuple[list[Stored], int | None]:
        """Return due entries, and the next due time in epoch ms.

        While a freeze holds, there are no due entries, and the next due time is its end. After a
        lost freeze was put back, the next due time is now, so that the beat peeks again.
        """
        due, upcoming, freeze = self.store.peek(term, now, limit)
        if self._note(freeze, now):
            return [], now
        return due, upcoming

    def _note(self, stored: bytes, now: int) -> bool:
        """Note the stored freeze, or put back the noted one. Return whether that was lost.

        The server loses it with its data, or in a fail-over to a replica that did not have it yet.
        Then the stored text is missing or older.
        """
        is_lost = made_at_of(stored) < made_at_of(self.seen)
        if is_lost:
            logger.warning("beat: the last freeze or thaw was gone from Redis, and is put back")
            # This stores nothing if somebody has made another freeze meanwhile.
            self.store.set_freeze(stored, self.seen)
        else:
            self.seen = stored
        self.leader.state.is_frozen = end_of(self.seen) > now
        return is_lost

"""Memory of the freeze. A beat restores the freeze if the server has lost it."""

from __future__ import annotations

from dataclasses import dataclass

from celery.utils.log import get_logger

from ..entries.changes import Stored
from ..entries.freeze import end_of
from ..store.leader_store import LeaderStore
from ..store.records import Term
from .leader import Leader

logger = get_logger(f"celery.{__name__}")


@dataclass(eq=False)
class Freezing:
    """Last freeze that this beat has seen in the store."""

    store: LeaderStore
    leader: Leader
    #: Its stored text; empty if there was none.
    seen: bytes = b""

    def look(self) -> None:
        """Read the freeze, for a beat that stands by. Restore it if it is lost."""
        self._note(self.store.freeze(), self.leader.clock.now_ms())

    def peek(self, term: Term, now: int, limit: int) -> tuple[list[Stored], int | None]:
        """Return due entries, and the next due time in epoch ms.

        While a freeze holds, there are no due entries, and the next due time is its end. After the
        restoration of a lost freeze, the next due time is now, so that the beat peeks again.
        """
        due, upcoming, freeze = self.store.peek(term, now, limit)
        if self._note(freeze, now):
            return [], now
        return due, upcoming

    def _note(self, stored: bytes, now: int) -> bool:
        """Note the stored freeze, or restore the noted one. Return whether it was lost.

        A thaw leaves a text in the store. So if there is no text, the server has lost it.
        """
        is_lost = not stored and end_of(self.seen) > now
        if is_lost:
            logger.warning("beat: the freeze was gone from Redis, and is put back")
            # This stores nothing if somebody has made another freeze meanwhile.
            self.store.set_freeze(b"", self.seen)
        else:
            self.seen = stored
        self.leader.state.is_frozen = end_of(self.seen) > now
        return is_lost

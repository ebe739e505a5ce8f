"""The freezes as a beat knows them, and what a leader does when they change and end."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import tzinfo

from celery.utils.log import get_logger

from ..clock import wall_ms
from ..entries.freezes import Freezes
from ..entries.stored_entry import edit_of, parts_of
from ..instants import to_ms
from ..storage.leader_store import LeaderStore
from ..storage.stored import AT_ONCE, Edit, Refrozen, Stored, Term

logger = get_logger(__name__)


class Freezing:
    """Keeps the freezes of a schedule. Progress is told what is done, again and again while it goes on."""

    def __init__(self, store: LeaderStore, zone: tzinfo, progress: Callable[[str], None]) -> None:
        self._store = store
        self._zone = zone
        self._progress = progress
        self.known = Freezes()
        self._seen = b""  #: the last text of them, to be put back if it is lost

    def look(self) -> None:
        """Have a look at them, for a beat that stands by."""
        if not self._put_back(text := self._store.freezes()):
            self._seen = text
        self.known = Freezes(text=b"?")  # which is no revision: it asks for them when it leads

    def peek(self, term: Term, now: int, limit: int) -> tuple[list[Stored], int | None]:
        """As :meth:`LeaderStore.peek`, for what these freezes say; while they hold everything, nothing is read."""
        while True:
            frozen = self.known.until(now)
            try:
                due, upcoming = self._store.peek(term, now, 0 if frozen else limit, self.known.revision)
            except Refrozen as exc:
                self._learn(exc.args[0], term)
                continue
            if not due and not frozen:
                self._drop_ended(now)
            return due, frozen or upcoming

    def _learn(self, text: bytes, term: Term) -> None:
        """Have what waits for the end of a freeze that was thawed wait no longer; then go by this text."""
        if self._put_back(text):
            return
        found = Freezes.of(text)
        for each in found.all:
            if each.thawed:
                self._store.rewrite(self._store.due_at(to_ms(each.until)), self._edits, term, AT_ONCE)
        # Not before that is done: if it breaks off, it is done over.
        self.known, self._seen = found, text

    def _put_back(self, text: bytes) -> bool:
        """Whether freezes were gone from Redis, and are put back beside those that were made since."""
        found = Freezes.of(text)
        lost = found.lost(Freezes.of(self._seen), wall_ms())
        if lost:
            logger.warning("beat: the freezes were gone from Redis, and are put back")
            self._store.set_freezes(text, found.replaced(*lost, *found.all).text)
        return bool(lost)

    def _edits(self, stored: Stored) -> list[Edit]:
        self._progress("thawing entries")
        with suppress(Exception):  # what cannot be read or asked is left to the tick that meets it
            edit = edit_of(*parts_of(stored), self._zone, expected=stored.state)
            return [edit] if edit.score != stored.score else []
        return []

    def _drop_ended(self, now: int) -> None:
        """Forget those that have ended: nothing is due that waited for that."""
        left = self.known.in_force(now)
        if len(left) < len(self.known.all):
            later = self.known.replaced(*left)
            if self._store.set_freezes(self.known.text, later.text):
                self.known, self._seen = later, later.text

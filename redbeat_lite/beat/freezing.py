"""The freezes as a beat knows them, and what a leader does when they change and end."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import tzinfo

from celery.utils.log import get_logger

from ..clock import wall_ms
from ..entries.freezes import Freezes
from ..entries.stored_entry import edit_of, parts_of
from ..errors import UnsupportedFormat
from ..instants import to_ms
from ..storage.leader_store import LeaderStore
from ..storage.stored import AT_ONCE, Edit, Refrozen, Stored, Term

logger = get_logger(f"celery.{__name__}")


class Freezing:
    """Keeps the freezes of a schedule. Progress is told what is done, again and again while it goes on."""

    def __init__(self, store: LeaderStore, zone: tzinfo, progress: Callable[[str], None]) -> None:
        self._store = store
        self._zone = zone
        self._progress = progress
        self.known = Freezes()
        self._seen = b""  #: the last text of them, to be put back if it is lost
        #: When those that were thawed would have ended, epoch ms: what waits for that is still to be given back. Of
        #: what is due at the last of these times, so many stay, and this is the last of them by name.
        self._thawing: list[int] = []
        self._stay, self._last = 0, b""

    def look(self) -> None:
        """Have a look at them, for a beat that stands by."""
        if not self._put_back(text := self._store.freezes()):
            self._seen = text
        self.known = Freezes(text=b"?")  # which is no revision: it asks for them when it leads

    def peek(self, term: Term, now: int, limit: int) -> tuple[list[Stored], int | None]:
        """As :meth:`LeaderStore.peek`, for what these freezes say; while they hold everything, nothing is read.

        Before each look, some of those that wait for the end of a freeze that was thawed are given back; until all are,
        more comes at once.
        """
        while True:
            if self._thawing:
                self._thaw(self._thawing[-1], term)
            frozen = self.known.until(now)
            try:
                due, upcoming = self._store.peek(term, now, 0 if frozen else limit, self.known.revision)
            except Refrozen as exc:
                self._learn(exc.args[0])
                continue
            if self._thawing:
                return due, now
            if not due and not frozen:
                self._drop_ended(now)
            return due, frozen or upcoming

    def _learn(self, text: bytes) -> None:
        if self._put_back(text):
            return
        self.known, self._seen = Freezes.of(text), text
        # Those that were thawed are forgotten when that is done, not before: who leads next does it over.
        self._thawing = [to_ms(each.until) for each in self.known.all if each.thawed]
        self._stay = 0

    def _thaw(self, until: int, term: Term) -> None:
        """Have at most ``AT_ONCE`` of those that wait for this end of a freeze wait no longer."""
        self._progress("thawing entries")
        names = self._store.due_at(until, max(self._stay - 1, 0), AT_ONCE)
        if self._stay and names[:1] != [self._last]:
            self._stay = 0  # others came or went before it: nobody may be missed
            return
        self._store.rewrite(names[1:] if self._stay else names, self._edits, term)
        if len(names) < AT_ONCE:
            self._thawing.pop()
            self._stay = 0

    def _put_back(self, text: bytes) -> bool:
        """Whether freezes were gone from Redis, and are put back beside those that were made since."""
        found = Freezes.of(text)
        lost = found.lost(Freezes.of(self._seen), wall_ms())
        if lost:
            logger.warning("beat: the freezes were gone from Redis, and are put back")
            # Where a beat leads that would not keep to them, this one does it when it leads.
            with suppress(UnsupportedFormat):
                self._store.set_freezes(text, found.replaced(*lost, *found.all).text)
        return bool(lost)

    def _edits(self, stored: Stored) -> list[Edit]:
        with suppress(Exception):  # what cannot be read or asked is left to the tick that meets it
            edit = edit_of(*parts_of(stored), self._zone, expected=stored.state)
            if edit.score != stored.score:
                return [edit]
        self._stay, self._last = self._stay + 1, stored.name
        return []

    def _drop_ended(self, now: int) -> None:
        """Forget those that have ended: nothing is due that waited for that."""
        left = self.known.holding(now)
        if len(left) < len(self.known.all):
            later = self.known.replaced(*left)
            if self._store.set_freezes(self.known.text, later.text):
                self.known, self._seen = later, later.text

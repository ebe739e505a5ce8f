"""Freezes of a schedule: a beat restores them if they are lost, and removes them when they end."""

from __future__ import annotations

from contextlib import suppress
from datetime import tzinfo

from celery.utils.log import get_logger

from .._base.errors import UnsupportedFormat
from .._base.times import to_ms
from ..entries.freezes import Freezes
from ..entries.stored_entry import edit_of, parts_of
from ..store.leader_store import LeaderStore
from ..store.records import AT_ONCE, Edit, Refrozen, Stored, Term
from .beat_state import BeatState
from .leader import Leader

logger = get_logger(f"celery.{__name__}")


class Freezing:
    """Freezes of a schedule, as this beat knows them."""

    def __init__(self, store: LeaderStore, leader: Leader, state: BeatState, zone: tzinfo) -> None:
        self._store = store
        self._leader = leader
        self._state = state
        self._zone = zone
        #: The last stored text of the freezes, to be restored if the server loses it.
        self._seen = b""
        #: Planned ends of thawed freezes, in epoch ms. Entries that wait for one of them are
        #: rescheduled.
        self._thawing: list[int] = []
        #: Entries that stay due at the end that is being rescheduled: their number, and the name
        #: of the last one.
        self._unmoved = 0
        self._last_unmoved = b""

    @property
    def known(self) -> Freezes:
        """The freezes that this beat knows."""
        return self._state.freezes

    def look(self) -> None:
        """Read the freezes, for a beat that stands by."""
        text = self._store.freezes()
        if not self._restore_lost(text):
            self._seen = text
        # No stored freezes have this revision, so the first peek as leader reads them again.
        self._state.freezes = Freezes(text=b"?")

    def peek(self, term: Term, now: int, limit: int) -> tuple[list[Stored], int | None]:
        """Return due entries and the next due time, with respect to freezes.

        While a freeze holds everything, no entry is read. Before each peek, some entries that wait
        for the end of a thawed freeze are rescheduled; until all are, the next due time is now.
        """
        while True:
            if self._thawing:
                self._reschedule_thawed(self._thawing[-1], term)
            frozen_until = self.known.until(now)
            number = 0 if frozen_until else limit
            try:
                due, upcoming = self._store.peek(term, now, number, self.known.revision)
            except Refrozen as exc:
                self._learn(exc.args[0])
                continue
            if self._thawing:
                return due, now
            if not due and not frozen_until:
                self._drop_ended(now)
            return due, frozen_until or upcoming

    def _learn(self, text: bytes) -> None:
        """Take over the freezes of a new revision."""
        if self._restore_lost(text):
            return
        self._state.freezes = Freezes.of(text)
        self._seen = text
        # A thawed freeze stays stored until all its entries are rescheduled. If this leader ends
        # before that, the next one begins again.
        self._thawing = [to_ms(freeze.until) for freeze in self.known.all if freeze.thawed]
        self._unmoved = 0

    def _reschedule_thawed(self, until: int, term: Term) -> None:
        """Reschedule at most ``AT_ONCE`` of the entries that wait for this end of a freeze.

        Entries that stay due at this end are skipped by their number in the next batch. Each batch
        begins with the last one of them, as a check that their number is still right.
        """
        self._leader.checkpoint("thawing entries")
        names = self._store.due_at(until, max(self._unmoved - 1, 0), AT_ONCE)
        if self._unmoved and names[:1] != [self._last_unmoved]:
            # Entries before the last one came or went, so begin again in order to miss none.
            self._unmoved = 0
            return
        waiting = names[1:] if self._unmoved else names
        self._store.rewrite(waiting, self._edits, term)
        if len(names) < AT_ONCE:
            self._thawing.pop()
            self._unmoved = 0

    def _edits(self, stored: Stored) -> list[Edit]:
        """Return the edit that reschedules an entry, unless it keeps its due time."""
        with suppress(Exception):  # The tick that meets a faulty entry quarantines it.
            entry, state = parts_of(stored)
            edit = edit_of(entry, state, self._zone, expected=stored.state)
            if edit.score != stored.score:
                return [edit]
        self._unmoved += 1
        self._last_unmoved = stored.name
        return []

    def _restore_lost(self, text: bytes) -> bool:
        """Restore freezes that the server has lost; return whether there were any."""
        stored = Freezes.of(text)
        lost = stored.lost(Freezes.of(self._seen), self._leader.clock.now_ms())
        if lost:
            logger.warning("beat: the freezes were gone from Redis, and are put back")
            # If an older beat leads that ignores freezes, this one restores them when it leads.
            with suppress(UnsupportedFormat):
                self._store.set_freezes(text, stored.replaced(*lost, *stored.all).text)
        return bool(lost)

    def _drop_ended(self, now: int) -> None:
        """Remove freezes that have ended. No entry is due, so none waits for their end."""
        holding = self.known.holding(now)
        if len(holding) == len(self.known.all):
            return
        revised = self.known.replaced(*holding)
        if self._store.set_freezes(self.known.text, revised.text):
            self._state.freezes = revised
            self._seen = revised.text

"""Freezes of a schedule. A beat restores them if they are lost, and removes them when they end."""

from __future__ import annotations

from contextlib import suppress
from datetime import tzinfo

from celery.utils.log import get_logger

from .._base.times import to_ms
from ..entries.freezes import Freezes
from ..entries.stored_entry import edit_of, parts_of
from ..store.leader_store import LeaderStore
from ..store.records import AT_ONCE, Edit, Refrozen, Stored, Term
from .leader import Leader

logger = get_logger(f"celery.{__name__}")


class Freezing:
    """Freezes of a schedule, as this beat knows them."""

    def __init__(self, store: LeaderStore, leader: Leader, zone: tzinfo) -> None:
        self._store = store
        self._leader = leader
        self._state = leader.state
        self._zone = zone
        #: The last stored text of the freezes, to be restored if the server loses it.
        self._seen = b""
        #: Ends, in epoch ms, that were planned for freezes which were thawed before. Entries that
        #: a freeze had put off to its end are rescheduled, a batch in each turn.
        self._thawing: list[int] = []
        #: Place at which the next batch begins: count of the entries that are due at that end by
        #: their own schedule, and so stay in front, and the name of the last of them.
        self._kept = 0
        self._last_kept = b""

    @property
    def known(self) -> Freezes:
        """Freezes as this beat has read them last."""
        return self._state.freezes

    def look(self) -> None:
        """Read the freezes, for a beat that stands by. Restore them if they are lost."""
        text = self._store.freezes()
        if not self._restore_lost(text):
            self._seen = text
        # This text is never stored. So it differs from the stored one, and the first peek as leader
        # reads the freezes again.
        self._state.freezes = Freezes(text=b"?")

    def peek(self, term: Term, now: int, limit: int) -> tuple[list[Stored], int | None]:
        """Return due entries, and the next due time in epoch ms, as the freezes allow.

        While all entries are frozen, none is returned. After a thaw, each call first reschedules
        a batch of the entries that wait for the planned end of the freeze. Until all are
        rescheduled, the next due time is now.
        """
        while True:
            if self._thawing:
                self._reschedule_thawed(self._thawing[-1], term)
            frozen_until = self.known.until(now)
            most = 0 if frozen_until else limit
            try:
                # The server compares this revision with the stored freezes, and refuses if they
                # differ.
                due, upcoming = self._store.peek(term, now, most, self.known.revision)
            except Refrozen as exc:
                # The freezes have changed. The error carries the new ones.
                self._learn(exc.args[0])
                continue
            # More entries may have to be rescheduled, so take the next batch at once.
            if self._thawing:
                return due, now
            if not due and not frozen_until:
                self._drop_ended(now)
            return due, frozen_until or upcoming

    def _learn(self, text: bytes) -> None:
        """Use the freezes of a stored text from now on, and begin to reschedule thawed entries."""
        if self._restore_lost(text):
            return  # The next peek brings the text with the restored freezes.
        self._state.freezes = Freezes.of(text)
        self._seen = text
        # A thawed freeze stays stored until all its entries are rescheduled. If this leader ends
        # before that, the next leader begins again.
        self._thawing = [to_ms(freeze.until) for freeze in self.known.all if freeze.thawed]
        self._kept = 0

    def _reschedule_thawed(self, until: int, term: Term) -> None:
        """Reschedule the next ``AT_ONCE`` entries that are due at the end of a thawed freeze.

        An entry that is due at this instant by its own schedule keeps its due time, so it stays in
        the list of such entries, in front of the next batch. A batch begins with the last kept
        entry. If another entry is in its place, entries before it have come or gone.
        """
        self._leader.checkpoint("thawing entries")
        names = self._store.due_at(until, max(self._kept - 1, 0), AT_ONCE)
        is_last_batch = len(names) < AT_ONCE
        if self._kept:
            if names[:1] != [self._last_kept]:
                self._kept = 0  # Begin again, so that no entry is missed.
                return
            names = names[1:]
        # _edits() notes the entries that keep their due time.
        self._store.rewrite(names, self._edits, term)
        if is_last_batch:
            self._thawing.pop()
            self._kept = 0

    def _edits(self, stored: Stored) -> list[Edit]:
        """Return the edit that reschedules an entry, or note that it keeps its due time."""
        with suppress(Exception):  # The tick that meets a faulty entry quarantines it.
            entry, state = parts_of(stored)
            edit = edit_of(entry, state, self._zone, expected=stored.state)
            if edit.score != stored.score:
                return [edit]
        self._kept += 1
        self._last_kept = stored.name
        return []

    def _restore_lost(self, text: bytes) -> bool:
        """Restore freezes that the server has lost. Return whether it has lost any.

        Parameters:
            text: stored text of the freezes.
        """
        stored = Freezes.of(text)
        lost = stored.lost(Freezes.of(self._seen), self._leader.clock.now_ms())
        if lost:
            logger.warning("beat: the freezes were gone from Redis, and are put back")
            self._store.set_freezes(text, stored.replaced(*lost, *stored.all).text)
        return bool(lost)

    def _drop_ended(self, now: int) -> None:
        """Remove freezes that have ended. No entry is due, so no entry waits for their end."""
        in_force = self.known.holding(now)
        if len(in_force) == len(self.known.all):
            return
        revised = self.known.replaced(*in_force)
        if self._store.set_freezes(self.known.text, revised.text):
            self._state.freezes = revised
            self._seen = revised.text

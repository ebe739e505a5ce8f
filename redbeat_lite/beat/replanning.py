"""Planning every entry anew, where what its next run was planned by is no more: the wall clock, or the app's time zone.

A large schedule takes seconds. So a leader does this in slices between its dispatches, what is due soonest first. What
is not done yet is noted in Redis, for the next leader if this one does not come to the end of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import tzinfo

from celery.utils.log import get_logger

from ..clock import elapsed, wall_ms
from ..entries import lifecycle
from ..entries.entry import Entry
from ..entries.stored_entry import edit_of, parts_of
from ..errors import InvalidEntry
from ..schedules.zones import zone_name, zone_of
from ..storage.json_values import dumps, loads_as
from ..storage.leader_store import LeaderStore
from ..storage.stored import Edit, Stored, Term

logger = get_logger(f"celery.{__name__}")

#: Seconds that dispatches wait for a slice, or for a page of entries if that takes longer.
_SLICE = 0.1


class Replanning:
    """What a leader has to plan anew."""

    def __init__(
        self, store: LeaderStore, zone: tzinfo, completed: Callable[[Entry], Entry], progress: Callable[[str], None]
    ) -> None:
        self._store = store
        self._zone = zone
        self._completed = completed
        self._progress = progress
        self._ahead = 0
        self._were: list[tzinfo] = []
        self._pages: Iterator[None] | None = None

    @property
    def unfinished(self) -> bool:
        """Whether :meth:`advance` has something left to do."""
        return bool(self._ahead or self._were)

    def begin(self, term: Term, clock: int, zones: str) -> None:
        """Take up what a new leader finds to be planned anew, and note by which zone it plans.

        What an earlier term of this process left is in there.

        Parameters:
            clock: the latest wall clock that entries were planned by, in epoch milliseconds; 0 if none is known.
            zones: the time zones that they were planned by, as the leader before noted them.
        """
        self._ahead, self._were, self._pages = 0, [], None
        if clock - (now := wall_ms()) > SLACK:
            self.clock_went_back(term, clock - now)
        names, own = _names(zones), zone_name(self._zone)
        others = [name for name in names if name != own]
        self._were = _known(others)
        if self._were:
            known = " and ".join(map(repr, others))
            logger.warning("beat: the app's time zone is %r, and was %s; planning anew what goes by it", own, known)
        if names != [own]:
            self._store.remember("zones", dumps([*others, own] if self._were else [own]), term)

    def clock_went_back(self, term: Term, milliseconds: int) -> None:
        """Let no entry wait for longer than its schedule says, after the wall clock was set back by so much."""
        logger.warning("beat: the clock went back by %.1f s; planning every entry anew", milliseconds / 1000)
        self._ahead, self._pages = max(self._ahead, wall_ms() + milliseconds), None
        self._store.remember("ahead", str(self._ahead), term)

    def advance(self, term: Term) -> None:
        """Work for a tenth of a second, if there is something to do."""
        if not self.unfinished:
            return
        # Begun from the start if it breaks off: a generator that raised would pass for one that is through.
        pages, self._pages = self._pages or self._walk(term), None
        until = elapsed() + _SLICE
        for _ in pages:
            if elapsed() >= until:
                self._pages = pages
                return
        if self._ahead:
            self._store.remember("ahead", "", term)
        if self._were:
            self._store.remember("zones", dumps([zone_name(self._zone)]), term)
        self._ahead, self._were = 0, []

    def _walk(self, term: Term) -> Iterator[None]:
        for page in self._store.paged():
            self._progress("planning every entry anew")
            edits = [edit for stored in page for edit in self._edits(stored)]
            done = self._store.put(edits, term)
            self._store.rewrite((edit.name for edit, ok in zip(edits, done, strict=True) if not ok), self._edits, term)
            yield

    def _edits(self, stored: Stored) -> list[Edit]:
        try:
            return self._edit(stored, wall_ms())
        except Exception as exc:  # noqa: BLE001 - a schedule may raise anything; the others must be planned
            logger.debug("beat: %r is left to the tick that meets it: %s", stored.name, exc)
            return []

    def _edit(self, stored: Stored, now: int) -> list[Edit]:
        entry, state = parts_of(stored)
        entry = self._completed(entry)
        moved = lifecycle.rezoned(entry, state, now, self._zone, self._were)
        if self._ahead:
            moved = lifecycle.pulled_back(entry, moved, now, self._zone)
        edit = edit_of(entry, moved, self._zone, expected=stored.state)
        # The clock that was ahead planned the retry of a failed publish for a time that is far away now.
        waits_for_that = self._ahead and _is_sooner(edit.score, stored.score)
        return [edit] if moved is not state or waits_for_that else []


def _is_sooner(score: int | None, other: int | None) -> bool:
    return score is not None and other is not None and score < other


def _known(names: list[str]) -> list[tzinfo]:
    known = []
    for name in names:
        with suppress(InvalidEntry):  # unknown on this machine, or no name at all
            known.append(zone_of(name))
    return known


def _names(zones: str) -> list[str]:
    return [name for name in loads_as(list, zones) if isinstance(name, str)]


#: Milliseconds by which the wall clock may differ from the time that passed before it counts as having been set.
SLACK = 1000


class ClockWatch:
    """Notices that somebody has set the wall clock: it and the time that passed since the last look do not agree."""

    def __init__(self) -> None:
        self._seen: tuple[int, float] | None = None

    @property
    def was_set(self) -> bool:
        """Whether the clock was set since the last look, forwards or back."""
        return abs(self._shift()) > SLACK

    def look(self) -> int:
        """Remember what time it is; returns the milliseconds by which the clock has gone back, or 0.

        A clock that was set back by less than has passed since the last look has been everywhere already.
        """
        now, back = wall_ms(), -self._shift()
        went_back = self._seen is not None and back > SLACK and now < self._seen[0]
        self._seen = (now, elapsed())
        return back if went_back else 0

    def _shift(self) -> int:
        if self._seen is None:
            return 0
        wall, passed = self._seen
        return wall_ms() - wall - round(1000 * (elapsed() - passed))

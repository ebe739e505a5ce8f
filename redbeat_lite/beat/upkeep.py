"""What a leader does for the schedule as a whole: brings it in line at the beginning of a term, and keeps it so."""

from __future__ import annotations

from datetime import tzinfo

from celery import Celery

from ..clock import elapsed, wall_ms
from ..entries.entry import Entry
from ..settings import Settings
from ..storage.leader_store import LeaderStore
from ..storage.stored import Term
from .config_entries import ConfigEntries
from .freezing import Freezing
from .leader import Leader
from .owners import Owners
from .repair import Repair
from .replanning import ClockWatch, Replanning, planned_by
from .vitals import Vitals


class Upkeep:
    """The configuration, the repair and the planning anew of one beat."""

    def __init__(self, app: Celery, store: LeaderStore, settings: Settings, leader: Leader, vitals: Vitals) -> None:
        zone: tzinfo = app.timezone
        self._leader = leader
        self._vitals = vitals
        self._store = store
        self._look_again = settings.lease
        self._next_look = 0.0
        self.owners = Owners(app, store, settings)
        self._config = ConfigEntries(app, store, settings, self.owners.present, leader.progress)
        self._repair = Repair(store, zone, leader.progress)
        self._replanning = Replanning(store, zone, self._config.get, leader.progress)
        self._clock = ClockWatch()
        self.freezing = Freezing(store, zone, leader.progress)
        vitals.freezes = lambda: self.freezing.known

    def local(self, name: str) -> Entry | None:
        """The config entry of this name, with what cannot be stored."""
        return self._config.get(name)

    @property
    def unfinished(self) -> bool:
        """Whether :meth:`go_on` has something left to do."""
        return self._replanning.unfinished

    @property
    def is_called_for(self) -> bool:
        """Whether there is something to do that cannot wait for the next deadline."""
        return self._leader.damaged or self._clock.was_set

    @property
    def look_again_in(self) -> float:
        """Seconds after which it is worth another look, whatever is due."""
        return self._look_again if self._config.contested else float("inf")

    def begin(self, term: Term) -> None:
        """Do what a new leader has to do before anything else."""
        self._make_whole(term)
        self._replanning.begin(term, self._leader.last_clock, self._leader.last_zones)
        self.owners.tell_left_behind()
        self._clock.look()

    def go_on(self, term: Term) -> None:
        """Mend a schedule that lost a part of itself, take names that became free, and plan anew, a slice at a time.

        Anew is planned what went by another zone, or by a clock that was set back: no entry must wait until that has
        caught up again.
        """
        if self._leader.damaged:
            self._make_whole(term)
        elif self._config.contested and elapsed() >= self._next_look:
            # The other beat may be gone, as where an app is renamed with several of its beats running; or the runtime
            # entry that had the name.
            self._next_look = elapsed() + self._look_again
            if self._config.vacated:
                self._make_whole(term)
        if back := self._clock.look():
            self._replanning.clock_went_back(term, back)
        self._replanning.advance(term)

    def _make_whole(self, term: Term) -> None:
        """Bring Redis in line with the configuration, and mend what it has lost."""
        now = wall_ms()
        self._leader.progress("reading the configuration")
        self._repair.run(term, now)
        self._store.remember("removed", "", term)  # before it is looked what is not there
        self._config.sync(term, now, planned_by(self._leader.last_zones))
        self._vitals.refused = self._config.refused
        self._leader.made_whole(least=len(self._config))

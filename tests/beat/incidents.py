"""A beat in the process of the test, the records of a worker, and a listener of incidents."""

from __future__ import annotations

from typing import Any

import redis
from celery import Celery

from redbeat_lite import Scheduler, Schedules
from redbeat_lite.events import Hooks, IncidentClosed, IncidentOpened, subscribe
from redbeat_lite.runs.incident_store import IncidentStore
from redbeat_lite.runs.run_store import RunKeys
from tests.support.frozen import Clock
from tests.support.in_process import MakeBeat
from tests.support.run_records import Worker
from tests.support.waiting import eventually

DEADLINES = RunKeys("redbeat-lite").deadlines


class Listener(Hooks):
    """Remembers the incidents it hears of."""

    def __init__(self) -> None:
        self.heard: list[IncidentOpened | IncidentClosed] = []

    def incident_opened(self, event: IncidentOpened) -> None:
        self.heard.append(event)

    def incident_closed(self, event: IncidentClosed) -> None:
        self.heard.append(event)

    def hears(self, *expected: str) -> None:
        """Wait until it has heard of exactly these incidents, as `lines` writes them."""
        count = len(expected)
        eventually(lambda: len(self.heard) >= count, what=f"{expected}, not {self.lines()}")
        assert self.lines() == [*expected]

    def lines(self) -> list[str]:
        """Return kind and entry of each incident, with a "-" before those that were closed."""
        lines = []
        for event in self.heard:
            sign = "-" if isinstance(event, IncidentClosed) else ""
            lines.append(f"{sign}{event.kind} {event.entry or ''}".strip())
        return lines


class Stage:
    """A beat, a worker and a listener, at the time of a clock that the test sets."""

    def __init__(self, app: Celery, make_beat: MakeBeat, client: redis.Redis, clock: Clock) -> None:
        self.app = app
        self.clock = clock
        self.client = client
        self.listener = Listener()
        subscribe(app, self.listener)
        self.schedules = Schedules(app)
        self._make_beat = make_beat
        self.beat: Scheduler = make_beat(app)
        self.worker = Worker(client)
        self.worker.reports()
        self.turn()

    def turn(self, *seconds: float) -> None:
        """Let these times pass. After each, the beat sends due runs and looks for incidents."""
        for step in seconds or (0,):
            self.clock.forward(step)
            self.beat.run_due()
            self.look()

    def look(self) -> None:
        """Let the beat look for incidents."""
        self.beat._parts.incidents.check()

    def fail_over(self) -> None:
        """Let another beat lead, after it is stored which incidents the listener has heard of."""
        store = IncidentStore(self.client, "redbeat-lite")

        def all_stored() -> bool:
            self.look()
            return not store.read_facts(0).unannounced

        eventually(all_stored, what="the stored incidents")
        self.hand_over()
        self.turn()

    def hand_over(self) -> None:
        """Let a new beat lead, which has done nothing yet."""
        self.beat.leader.resign()
        self.beat = self._make_beat(self.app)
        self.beat.leader.acquire()

    def deadlines(self) -> dict[str, float]:
        """Return the deadlines of runs, in epoch seconds."""
        deadlines: Any = self.client.zrange(DEADLINES, 0, -1, withscores=True)
        return {member.decode(): score / 1000 for member, score in deadlines}

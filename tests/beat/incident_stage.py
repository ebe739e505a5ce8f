"""A beat, a worker as far as its records go, and somebody who hears of incidents."""

from __future__ import annotations

from typing import Any

import redis
from celery import Celery

from redbeat_lite import Scheduler, Schedules
from redbeat_lite.events import Hooks, IncidentClosed, IncidentOpened, subscribe
from redbeat_lite.runs.incident_store import IncidentStore
from redbeat_lite.runs.keys import RunKeys
from tests.support.frozen import Clock
from tests.support.in_process import MakeBeat
from tests.support.run_records import Worker
from tests.support.waiting import eventually

DEADLINES = RunKeys("redbeat-lite").deadlines


class Listener(Hooks):
    """Writes down which incidents it hears of."""

    def __init__(self) -> None:
        self.heard: list[IncidentOpened | IncidentClosed] = []

    def incident_opened(self, event: IncidentOpened) -> None:
        self.heard.append(event)

    def incident_closed(self, event: IncidentClosed) -> None:
        self.heard.append(event)

    def hears(self, *wanted: str) -> None:
        """Wait until it has heard exactly this: kind and entry, with a "-" where the incident was closed."""
        eventually(lambda: len(self.heard) >= len(wanted), what=f"{wanted}, not {self.told()}")
        assert self.told() == [*wanted]

    def told(self) -> list[str]:
        signs = {IncidentOpened: "", IncidentClosed: "-"}
        return [f"{signs[type(each)]}{each.kind} {each.entry or ''}".strip() for each in self.heard]


class Stage:
    """A beat, a worker as far as its records go, and somebody who listens."""

    def __init__(self, app: Celery, make_beat: MakeBeat, client: redis.Redis, clock: Clock) -> None:
        self.app, self.clock, self.client = app, clock, client
        self.listener = Listener()
        subscribe(app, self.listener)
        self.schedules = Schedules(app)
        self._make_beat = make_beat
        self.beat: Scheduler = make_beat(app)
        self.worker = Worker(client)
        self.worker.reports()
        self.turn()

    def turn(self, *seconds: float) -> None:
        """Let time pass, and the beat take a turn and a look after each of these."""
        for each in seconds or (0,):
            self.clock.forward(each)
            self.beat.run_due()
            self.look()

    def look(self) -> None:
        self.beat._incidents.look()

    def fails_over(self) -> None:
        """Have another beat lead, once it is written down what was told."""
        store = IncidentStore(self.client, "redbeat-lite")

        def all_told() -> bool:
            self.look()
            return all(case.told and case.until is None for case in store._stored())

        eventually(all_told, what="what was told is written down")
        self.is_succeeded()
        self.turn()

    def is_succeeded(self) -> None:
        """Have another beat lead that has done nothing yet."""
        self.beat.leader.resign()
        self.beat = self._make_beat(self.app)
        self.beat.leader.acquire()

    def deadlines(self) -> dict[str, float]:
        found: Any = self.client.zrange(DEADLINES, 0, -1, withscores=True)
        return {member.decode(): score / 1000 for member, score in found}

"""Workers and beats killed at random instants, messages that come twice: the record of runs says what bodies did."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery

from redbeat_lite import Schedules
from tests.faults.conftest import On
from tests.harness.scenario import PERIOD_MS, load
from tests.faults.fates import Struck, judge_fates
from tests.faults.journal import Journal
from tests.faults.strikes import LEASE, TRANSPORT, Faults, strike
from tests.faults.troupe import QUEUE
from tests.support.processes import Process
from tests.support.server import DURABLE, Server
from tests.support.waiting import eventually

MINUTES = float(os.environ.get("SOAK_MINUTES", "2"))

LONG = pytest.param(
    60 * MINUTES, 2.0, id="long", marks=[pytest.mark.soak, pytest.mark.alone, pytest.mark.timeout(120 * MINUTES + 300)]
)

#: Each of them: how long its bodies take at most in seconds, how they end, and more of its entries.
KINDS: list[tuple[float, str, dict[str, Any]]] = [
    (0.02, "well", {}),
    (0.02, "either", {"misfire": {"policy": "skip", "grace": 1}}),
    (0.02, "again", {}),
    (0.1, "either", {}),
    (0.02, "either", {"expires": 0.1}),
]

#: What one worker may have in its hands, at most: the ends of two bodies, and a message that it has just taken.
IN_HAND = 3

#: What there is time for in the ordinary run.
FEW = ("kill_the_leader", "kill_a_child", "send_copies")


def entries(count: int) -> dict[str, Any]:
    """A ``beat_schedule`` of so many entries of every kind, for tasks of each class."""
    found = {}
    for n in range(count):
        task, (seconds, end, more) = ("guarded", "late", "plain")[n % 3], KINDS[n // 3 % len(KINDS)]
        found[f"r{n:03}"] = {
            "task": f"proj.{task}",
            "args": [seconds, end],
            "schedule": PERIOD_MS / 1000,
            "misfire": "all",
            "expires": 3600,
            "history": 1000,
            "options": {"queue": QUEUE},
            **more,
        }
    return found


class MoreFaults(Faults):
    """Those of workers and what they depend on, and messages that come again."""

    def kill_a_child(self) -> None:
        self.takers += 1
        super().kill_a_child()

    def send_copies(self) -> None:
        found: dict[bytes, str] = {}
        with self._server.client() as client:
            seen_enough = time.monotonic() + 0.5
            while time.monotonic() < seen_enough or not found:  # bodies are short: there may be none for a while
                found.update({tag: _copy(json.loads(raw)[0]) for tag, raw in client.hgetall("unacked").items()})
            self._stage.pause(1, 2)
            client.lpush(QUEUE, *found.values())


def _copy(message: Any) -> str:
    message["properties"]["delivery_tag"] = str(uuid4())  # by which a worker knows what it has
    return json.dumps(message)


@pytest.mark.parametrize(("seconds", "lease"), [pytest.param(4, 1.0, id="short"), LONG])
def test_the_record_of_runs_says_what_bodies_did(
    own_server: Callable[..., Server],
    on: On,
    seconds: float,
    lease: float,
    make_app: Callable[..., Celery],
    tmp_path: Path,
) -> None:
    is_long = seconds > 4
    server, journal = own_server(**DURABLE), Journal(tmp_path / "journal")
    recorded, others = entries(100 if is_long else 15), load(10)
    conf = {"beat_schedule": {**others, **recorded}, "broker_transport_options": TRANSPORT}
    scenario = on(server, conf=conf, once_lease=LEASE)
    schedules = Schedules(make_app(broker_url=server.url))

    def start() -> Process:
        return scenario.worker(PROJ_JOURNAL=tmp_path / "journal")

    for _ in range(3 if is_long else 1):
        start()
    scenario.begin()
    eventually(lambda: schedules.runs(limit=1), within=30, what="a run that has ended")
    faults = MoreFaults(scenario, server, lease, start)
    strike(scenario, faults, () if is_long else FEW)
    scenario.verdict(entries=others)

    def run_on() -> list[str]:
        return [name for name in recorded if schedules.runs(name, outcome="running")]

    eventually(lambda: not run_on(), within=60, what="the end of all leases")
    runs = {name: schedules.runs(name, limit=10_000) for name in recorded}
    states = {name: schedules[name].known_state for name in recorded}
    struck = Struck(scenario.killed, faults.away)
    fates = judge_fates(states, runs, PERIOD_MS, journal.bodies(), struck, time.time() - time.monotonic())
    print(f"{fates.outcomes.total()} occurrences, {faults.takers} that died with something in hand: {fates.causes}")
    print(*(f"{count:6} {outcome}" for outcome, count in fates.outcomes.most_common()), *fates.untold, sep="\n")
    assert not fates.wrong, "\n".join(fates.wrong)
    assert not fates.unexplained, "\n".join(fates.unexplained)
    assert fates.causes["in hand"] <= IN_HAND * faults.takers
    assert {"succeeded", "failed", "expired"} <= {*fates.outcomes}
    assert len(fates.untold) <= max(faults.takers, IN_HAND), (
        "one for each that was killed before it could tell, at most"
    )

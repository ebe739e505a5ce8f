"""Workers and beats killed at random instants, messages that come twice: the record of runs says what bodies did."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery

from redbeat_lite import Schedules
from redbeat_lite._base.times import to_ms
from redbeat_lite.entries.run import Run
from tests.faults.conftest import MakeScenario, StartServer
from tests.faults.scenario import PERIOD_MS, load
from tests.faults.strikes import LEASE, TRANSPORT, Strikes, due_records
from tests.faults.workers import FaultWorkers
from tests.harness.history import HistoryLog
from tests.support.audit import Record, check
from tests.support.server import DURABLE
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
            "options": {"queue": FaultWorkers.queue},
            **more,
        }
    return found


class MoreStrikes(Strikes):
    """Those of workers and what they depend on, and messages that come again."""

    names = (*Strikes.names, "send_copies")

    def kill_a_child(self) -> None:
        self.takers += 1
        super().kill_a_child()

    def send_copies(self) -> None:
        copies: dict[bytes, str] = {}
        with self._server.client() as client:
            end = time.monotonic() + 0.5
            # Bodies are short, so for a while there may be no unacknowledged message.
            while time.monotonic() < end or not copies:
                unacked = client.hgetall("unacked")
                copies |= {tag: copy_of(json.loads(raw)[0]) for tag, raw in unacked.items()}
            self._scenario.pause(1, 2)
            client.lpush(FaultWorkers.queue, *copies.values())


def copy_of(message: Any) -> str:
    message["properties"]["delivery_tag"] = str(uuid4())  # by which a worker knows what it has
    return json.dumps(message)


def outcome_record(run: Run) -> Record:
    """Return the schedule's record of a run, in the form that the audit reads."""
    first, last = to_ms(run.scheduled_at), to_ms(run.until or run.scheduled_at)
    nominals = list(range(first, last + 1, PERIOD_MS))
    assert run.count == len(nominals), run
    end = {"outcome": run.outcome, "id": run.task_id, "attempts": run.attempts}
    return {"kind": "outcome", "entry": run.name, "nominals": nominals, **end}


@pytest.mark.parametrize(("seconds", "lease"), [pytest.param(4, 1.0, id="short"), LONG])
def test_the_record_of_runs_says_what_bodies_did(
    own_server: StartServer,
    scenario_on: MakeScenario,
    seconds: float,
    lease: float,
    make_app: Callable[..., Celery],
    log: HistoryLog,
) -> None:
    is_long = seconds > 4
    server = own_server(**DURABLE)
    recorded, others = entries(100 if is_long else 15), load(10)
    conf = {"beat_schedule": {**others, **recorded}, "broker_transport_options": TRANSPORT}
    scenario = scenario_on(server, conf=conf, once_lease=LEASE)
    schedules = Schedules(make_app(broker_url=server.url))
    for _ in range(3 if is_long else 1):
        scenario.workers.start()
    scenario.begin()
    eventually(lambda: schedules.runs(limit=1), what="a run that has ended")
    strikes = MoreStrikes(scenario, server, lease)
    strikes.strike(() if is_long else FEW)
    scenario.verdict(entries=others)
    running = [*recorded]

    def names_running() -> list[str]:
        """Look again at those that ran at the last look; no other run begins any more."""
        running[:] = [name for name in running if schedules.runs(name, outcome="running")]
        return running

    eventually(lambda: not names_running(), what="the end of all leases")
    runs = [run for name in recorded for run in schedules.runs(name, limit=10_000)]
    log.append({"kind": "setup", "takers": strikes.takers, "hands": IN_HAND})
    log.append(*due_records({name: schedules[name].state for name in recorded}, PERIOD_MS, "outcome"))
    log.append(*map(outcome_record, runs))
    counts: Counter[str] = Counter()
    for run in runs:
        counts[run.outcome] += run.count
    print(f"{counts.total()} occurrences, {strikes.takers} with something in hand: {counts}")
    check(log.records())
    assert {"succeeded", "failed", "expired"} <= {*counts}

"""Workers, their beats and their server killed at random instants: one run of a key at a time, and none is stuck."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

import pytest
import redis
from celery import Celery

from redbeat_lite import Schedules
from redbeat_lite.entries.state import EntryState
from tests.faults.conftest import MakeScenario, Publish, StartServer
from tests.faults.scenario import ONCE_KEYS, Scenario, load
from tests.faults.strikes import LEASE, TRANSPORT, Strikes, due_records
from tests.faults.verdict import work_of
from tests.faults.workers import HANGS, UNREAD, FaultWorkers
from tests.harness.history import HistoryLog, now_ms
from tests.harness.workers import Worker
from tests.support.audit import Record, check
from tests.support.messages import queued
from tests.support.server import DURABLE, Server
from tests.support.waiting import eventually

PERIOD_MS = 500

#: Of which one run at a time may be.
NAMES = [f"once{n}" for n in range(6)]
ENTRY = {
    "task": "proj.work",
    "schedule": PERIOD_MS / 1000,
    "once": True,
    "expires": 3600,
    "options": {"queue": FaultWorkers.queue},
}

#: What there is time for in the ordinary run, beside what :mod:`tests.faults.test_fates` draws. Workers that are frozen
#: or stopped are in :mod:`tests.once.test_faults`.
FEW = ("kill_a_worker", "crash_the_server")


class LockWatch:
    """Looks at the once-locks of running tasks all the time, by one client after another."""

    def __init__(self, connect: Callable[[], redis.Redis]) -> None:
        self._seen: dict[str, int] = {}
        self._connect = connect
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(0.1):
            with suppress(redis.RedisError), self._connect() as client:  # tests kill the server
                while not self._stopped.wait(0.1):
                    self._look(client)

    def _look(self, client: redis.Redis) -> None:
        now = now_ms()
        pipe = client.pipeline(transaction=False)
        for key in client.scan_iter(ONCE_KEYS.lock("*"), count=1000):
            pipe.hmget(key, "state", "task")
        for state, task in pipe.execute():
            if state == b"running":
                self._seen[task.decode()] = now

    def stop(self) -> list[Record]:
        """Stop, and return a record of each lock."""
        self._stopped.set()
        self._thread.join(5)
        return [{"kind": "lock", "id": task, "at": at} for task, at in self._seen.items()]


def message_records(workers: Iterable[Worker], *, stayed: bool) -> list[Record]:
    """Return a record of each task that these workers received or refused, as their output says.

    ``stayed`` says whether they ran to the end of the scenario and never lost their broker.
    """
    records: list[Record] = []
    for worker in workers:
        for task in re.findall(r"Task proj\.\w+\[([-0-9a-f]+)\] received", worker.output):
            records.append({"kind": "received", "id": task, "stayed": stayed})
        for task in re.findall(r"Skipped proj\.\w+\[([-0-9a-f]+)\]", worker.output):
            records.append({"kind": "refused", "id": task})
    return records


def test_workers_killed_at_random_instants(
    own_server: StartServer,
    scenario_on: MakeScenario,
    publish: Publish,
    seconds: float,
    lease: float,
    make_app: Callable[..., Celery],
    log: HistoryLog,
) -> None:
    server = own_server(**DURABLE)
    schedule = {**load(), **{name: {**ENTRY, "args": [name]} for name in NAMES}}
    conf = {"beat_schedule": schedule, "broker_transport_options": TRANSPORT}
    scenario = scenario_on(server, conf=conf, once_lease=LEASE)
    schedules = Schedules(make_app(broker_url=server.url))

    def states() -> dict[str, EntryState]:
        return {name: schedules[name].state for name in NAMES}

    scenario.workers.start()
    scenario.workers.start()
    locks = LockWatch(server.client)
    scenario.begin()
    before = states()
    eventually(lambda: ran(log) == set(NAMES), what="a run of each entry")
    strikes = Strikes(scenario, server, lease)
    struck = strikes.strike(() if seconds > 5 else FEW)
    verdict = scenario.verdict()
    log.append(*locks.stop(), *due_records(states(), PERIOD_MS, "received", before))
    workers = scenario.workers
    log.append(*message_records(workers.ended, stayed=False))
    log.append(*message_records(workers.stayed, stayed=True))
    longest = round(1000 * (LEASE + 0.5 + verdict.withheld))
    log.append({"kind": "setup", "lease": longest, "takers": strikes.takers})
    records = log.records()
    verdict.faults = struck
    verdict.work = work_of(records)
    print(verdict.work)
    check(records)
    assert verdict.work["runs"] > len(NAMES)
    publish("workers", verdict)


def ran(log: HistoryLog) -> set[str]:
    """The entries of which a body ran."""
    return {body["entry"] for body in log.bodies()}


@pytest.mark.soak
@pytest.mark.parametrize("package", ["with", "without"])
def test_a_stop_just_as_a_child_begins_a_task_may_take_as_long_as_celery_waits_for_it(
    own_server: StartServer,
    scenario_on: MakeScenario,
    make_app: Callable[..., Celery],
    package: str,
) -> None:
    """Why a worker gets more than ``HANGS``: it is the same with plain Celery, as the guide for workers says."""
    server = own_server()
    scenario = scenario_on(server, conf={"broker_transport_options": TRANSPORT}, once_lease=LEASE)
    env = {"PROJ_PLAIN": "1"} if package == "without" else {}
    app = make_app(broker_url=server.url)
    took = 0.0
    # Whether the main process has read by then that a child began is chance: half of them, or nearly all.
    for _ in range(8):
        if took < UNREAD:
            took = _stop_as_a_child_begins(scenario, scenario.workers.start(**env), app, server)
    assert HANGS < UNREAD < took


def _stop_as_a_child_begins(scenario: Scenario, worker: Worker, app: Celery, server: Server) -> float:
    """How many seconds the stop of a worker takes whose children are frozen, and thawed two seconds later."""
    worker.ready()
    children = worker.children()

    def signal_all(number: int) -> None:
        for pid in children:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    signal_all(signal.SIGSTOP)
    sent = app.send_task("proj.work", args=["one"], queue=FaultWorkers.queue)
    worker.says("received")
    time.sleep(0.5)  # until it has written the task to a child, of which nothing can be seen
    thaw = threading.Timer(2, signal_all, [signal.SIGCONT])
    thaw.start()
    start = time.monotonic()
    scenario.workers.stop(worker)
    took = time.monotonic() - start
    # It runs the task, or gives the message back if it has not heard by its end that the child began.
    with server.client() as client:
        given_back = [message.id for message in queued(client, FaultWorkers.queue)]
        client.delete(FaultWorkers.queue)
    assert given_back == [sent.id] or worker.lines(f"{sent.id}.*succeeded in")
    return took

"""Workers, their beats and their server killed at random instants: one run of a key at a time, and none is stuck."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import pytest
from celery import Celery

from redbeat_lite import Schedules
from redbeat_lite.entries.state import EntryState
from tests.harness.scenario import Scenario, load
from tests.faults.journal import Journal, Locks, judge_work
from tests.faults.strikes import LEASE, TRANSPORT, Faults, strike
from tests.faults.troupe import QUEUE, STOP, UNREAD
from tests.support.messages import queued
from tests.support.process_table import descendants
from tests.support.processes import Process
from tests.support.server import DURABLE, Server
from tests.support.waiting import eventually


PERIOD_MS = 500

#: Of which one run at a time may be.
NAMES = [f"once{n}" for n in range(6)]
ENTRY = {"task": "proj.work", "schedule": PERIOD_MS / 1000, "once": True, "expires": 3600, "options": {"queue": QUEUE}}

#: What there is time for in the ordinary run, beside what :mod:`tests.faults.test_fates` draws.
FEW = ("kill_a_worker", "freeze_a_worker", "stop_a_worker", "crash_the_server")


def test_workers_killed_at_random_instants(
    own_server: Callable[..., Server],
    on: On,
    publish: Publish,
    seconds: float,
    lease: float,
    make_app: Callable[..., Celery],
    tmp_path: Path,
) -> None:
    server, journal = own_server(**DURABLE), Journal(tmp_path / "journal")
    schedule = {**load(), **{name: {**ENTRY, "args": [name]} for name in NAMES}}
    scenario = on(server, conf={"beat_schedule": schedule, "broker_transport_options": TRANSPORT}, once_lease=LEASE)
    schedules = Schedules(make_app(broker_url=server.url))

    def start() -> Process:
        return scenario.worker(PROJ_JOURNAL=tmp_path / "journal")

    def states() -> dict[str, EntryState]:
        return {name: entry.state for name in NAMES if (entry := schedules[name]).state}

    start()
    start()
    locks = Locks(server.client)
    scenario.begin()
    before = states()
    eventually(lambda: {body.key for body in journal.bodies()} == set(NAMES), within=30, what="a run of each key")
    faults = Faults(scenario, server, lease, start)
    struck = strike(scenario, faults, () if seconds > 5 else FEW)
    verdict = scenario.verdict()
    locks.stop()
    output, stayed = ("".join(each.output for each in workers) for workers in (scenario.ended, scenario.stayed))
    work = judge_work(before, states(), PERIOD_MS, journal.bodies(), output, stayed, locks.seen, faults.away)
    print(work)
    assert work.overlaps == 0
    assert not work.vanished, _history(work.vanished, output)
    assert work.taken + work.unfinished <= faults.takers, (
        "one message for each worker that was killed while it took one, at most"
    )
    assert work.stuck < LEASE + 0.5 + verdict.withheld
    assert work.runs > len(NAMES)
    verdict.faults, verdict.work = struck, work
    publish("workers", verdict)


def _history(task_ids: Iterable[str], output: str) -> str:
    """What workers said of these."""
    return "\n".join(line for line in output.splitlines() if any(each in line for each in task_ids))


@pytest.mark.soak
@pytest.mark.parametrize("package", ["with", "without"])
def test_a_stop_just_as_a_child_begins_a_task_may_take_as_long_as_celery_waits_for_it(
    own_server: Callable[..., Server], on: On, make_app: Callable[..., Celery], tmp_path: Path, package: str
) -> None:
    """Why a worker gets more than ``STOP``: with plain Celery it is the same, which the guide for workers says, too."""
    server = own_server()
    scenario = on(server, conf={"broker_transport_options": TRANSPORT}, once_lease=LEASE)
    env = {"PROJ_JOURNAL": tmp_path / "journal", **({"PROJ_PLAIN": "1"} if package == "without" else {})}
    app, took = make_app(broker_url=server.url), 0.0
    # Whether the main process has read by then that a child began is chance: half of them, or nearly all.
    for _ in range(8):
        if took < UNREAD:
            took = _stop_as_a_child_begins(scenario, scenario.worker(**env), app, server)
    assert STOP < UNREAD < took


def _stop_as_a_child_begins(scenario: Scenario, worker: Process, app: Celery, server: Server) -> float:
    """How many seconds the stop of a worker takes whose children are frozen, and thawed two seconds later."""
    worker.says(r" ready\.$")
    children = descendants(worker.pid)

    def signal_all(number: int) -> None:
        for pid in children:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    signal_all(signal.SIGSTOP)
    sent = app.send_task("proj.work", args=["k"], queue=QUEUE)
    worker.says("received")
    time.sleep(0.5)  # until it has written the task to a child, of which nothing can be seen
    thaw = threading.Timer(2, signal_all, [signal.SIGCONT])
    thaw.start()
    start = time.monotonic()
    scenario.beats.stop(worker)
    took = time.monotonic() - start
    # It runs the task, or gives the message back if it has not heard by its end that the child began.
    with server.client() as client:
        given_back = [message.id for message in queued(client, QUEUE)]
        client.delete(QUEUE)
    assert given_back == [sent.id] or worker.lines(f"{sent.id}.*succeeded in")
    return took

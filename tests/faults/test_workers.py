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
from tests.faults.driver import BACK, Stage, load
from tests.faults.journal import Journal, Locks, judge_work
from tests.faults.troupe import QUEUE, STOP, UNREAD
from tests.support.messages import queued
from tests.support.process_table import descendants
from tests.support.processes import Process
from tests.support.server import Server
from tests.support.waiting import eventually

On = Callable[..., Stage]
Publish = Callable[..., None]

PERIOD_MS = 500

#: Seconds that the lock of a dead worker lasts: longer than a busy machine holds up one that lives.
LEASE = 3

#: Of which one run at a time may be.
NAMES = [f"once{n}" for n in range(6)]
ENTRY = {"task": "proj.work", "schedule": PERIOD_MS / 1000, "once": True, "expires": 3600, "options": {"queue": QUEUE}}

#: A message that a worker had taken comes again after three seconds; by default, after an hour.
TRANSPORT = {
    "visibility_timeout": 3,
    "unacked_restore_interval": 1,
    "unacked_restore_throttle": 1,
    "unacked_mutex_expire": 2,
}


class Faults:
    """What can happen to the workers and to what they depend on. Each is over soon, and what ended is there anew."""

    #: When the server was away, or workers were about to find it again: on the monotonic clock.
    away: list[tuple[float, float]]

    #: Workers that may have had a message in their hands when they or the server were killed.
    takers: int

    def __init__(self, stage: Stage, server: Server, lease: float, start: Callable[[], Process]) -> None:
        self._stage, self._server, self._lease, self._start = stage, server, lease, start
        self.away = []
        self.takers = 0

    def kill_the_leader(self) -> None:
        self._stage.struck(self._lease + 1.5)
        self._stage.kill(self._stage.leader())
        self._stage.beat()
        self._stage.flows()

    def kill_a_worker(self) -> None:
        self.takers += 1
        self._stage.kill(self._stage.any_worker())
        self._start()

    def lose_the_machine_of_a_worker(self) -> None:
        self.takers += 1
        self._stage.kill(self._stage.any_worker(), whole=True)
        self._start()

    def kill_a_child(self) -> None:
        self._stage.kill_child()

    def stop_a_worker(self) -> None:
        self._stage.stop(self._stage.any_worker())
        self._start()

    def freeze_a_worker(self) -> None:
        with self._stage.frozen(self._stage.any_worker()):
            self._stage.pause(0.2, LEASE / 2)

    def crash_the_server(self) -> None:
        start = time.monotonic()
        self.takers += len(self._stage.workers)
        with self._stage.loss_of_their_broker(), self._stage.outage():
            self._server.stop(kill=True)
            self._stage.pause(0.2, 1)
            self._server.start()
        self.away.append((start, time.monotonic() + BACK))


def test_workers_killed_at_random_instants(
    own_server: Callable[..., Server],
    on: On,
    publish: Publish,
    lease: float,
    make_app: Callable[..., Celery],
    tmp_path: Path,
) -> None:
    server, journal = own_server(appendonly="yes"), Journal(tmp_path / "journal")
    schedule = {**load(), **{name: {**ENTRY, "args": [name]} for name in NAMES}}
    stage = on(server, conf={"beat_schedule": schedule, "broker_transport_options": TRANSPORT}, once_lease=LEASE)
    schedules = Schedules(make_app(broker_url=server.url))

    def start() -> Process:
        return stage.worker(PROJ_JOURNAL=tmp_path / "journal")

    def states() -> dict[str, EntryState]:
        return {name: entry.state for name in NAMES if (entry := schedules[name]).state}

    start()
    start()
    locks = Locks(server.client)
    stage.begin()
    before = states()
    eventually(lambda: {body.key for body in journal.bodies()} == set(NAMES), within=30, what="a run of each key")
    faults = Faults(stage, server, lease, start)
    kinds = [name for name in vars(Faults) if not name.startswith("_")]
    struck = 0
    while struck < len(kinds) or stage.left > 0:
        if struck % len(kinds) == 0:
            stage.chance.shuffle(kinds)
        print(f"{time.monotonic():.2f} {kinds[struck % len(kinds)]}")
        getattr(faults, kinds[struck % len(kinds)])()
        struck += 1
        stage.pause(0.2, 1)
        stage.revive()
    verdict = stage.verdict()
    locks.stop()
    assert (verdict.lost, verdict.doubled) == (0, 0)
    output, stayed = ("".join(each.output for each in workers) for workers in (stage.ended, stage.stayed))
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
    stage = on(server, conf={"broker_transport_options": TRANSPORT}, once_lease=LEASE)
    env = {"PROJ_JOURNAL": tmp_path / "journal", **({"PROJ_PLAIN": "1"} if package == "without" else {})}
    app, took = make_app(broker_url=server.url), 0.0
    # Whether the main process has read by then that a child began is chance: half of them, or nearly all.
    for _ in range(8):
        if took < UNREAD:
            took = _stop_as_a_child_begins(stage, stage.worker(**env), app, server)
    assert STOP < UNREAD < took


def _stop_as_a_child_begins(stage: Stage, worker: Process, app: Celery, server: Server) -> float:
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
    stage.stop(worker)
    took = time.monotonic() - start
    # It runs the task, or gives the message back if it has not heard by its end that the child began.
    with server.client() as client:
        given_back = [message.id for message in queued(client, QUEUE)]
        client.delete(QUEUE)
    assert given_back == [sent.id] or worker.lines(f"{sent.id}.*succeeded in")
    return took

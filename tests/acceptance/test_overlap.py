"""Entries with a once-lock, or that expire with their interval, under real beats and workers.

The audit has no law that counts queued messages together with bodies that run, so these tests count
them. Workers take the messages, so no queue shows all of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat_lite import Schedules, every, locks
from tests.harness.workers import Worker
from tests.support.messages import of_entry
from tests.support.processes import Process
from tests.support.server import Server
from tests.support.stopwatch import Stopwatch
from tests.support.waiting import eventually

Start = Callable[[], Process]
CONF = json.dumps({"redbeat_lite_lease": 1, "redbeat_lite_once_lease": 2, "worker_prefetch_multiplier": 1})


@pytest.fixture
def start_worker(server: Server, owned: ExitStack) -> Start:
    """Starts workers with room for four tasks at a time."""
    options: dict[str, Any] = {"pool": "threads", "concurrency": 4, "PROJ_URL": server.url, "PROJ_CONF": CONF}
    return lambda: owned.enter_context(Worker("tests.acceptance.onceproj", **options))


@pytest.fixture
def schedules(app: object) -> Schedules:
    app.conf.redbeat_lite_once_lease = 2  # type: ignore[attr-defined]
    return Schedules(app)  # type: ignore[arg-type]


def alive(client: redis.Redis, worker: Process, name: str) -> int:
    """Messages of the entry that are queued or running."""
    ended = worker.lines(r"proj\.slow.*succeeded|Discarding revoked task: proj\.slow")
    return len(of_entry(client, name)) + len(worker.lines(r"proj\.slow.*received")) - len(ended)


def test_a_task_that_outlasts_its_interval_is_queued_or_running_once(
    beat: Callable[..., Process], start_worker: Start, client: redis.Redis, schedules: Schedules
) -> None:
    worker = start_worker()
    schedules.add("slow", "proj.slow", every(0.3), args=(1.5,), once=True)
    running = beat(PROJ_CONF=CONF)
    running.says("leading")

    def two_runs() -> bool:
        if alive(client, worker, "slow") > 1:
            # A worker gives the lock back before it says so, and the next may be queued in between.
            with Stopwatch(worker, running) as watch:
                eventually(lambda: alive(client, worker, "slow") <= 1, what="the end of one of two")
            watch.at_most(0.1)
        return len(worker.lines(r"proj\.slow.*succeeded")) >= 2

    eventually(two_runs, what="two runs")
    entry = schedules["slow"]
    assert entry.skipped_count >= 4
    assert running.lines(r"'slow' is left out while its once-lock is held")
    assert not running.lines("ERROR")


def test_a_worker_that_is_killed_delays_the_next_run_by_the_lease_at_most(
    beat: Callable[..., Process], start_worker: Start, app: Celery, server: Server, schedules: Schedules
) -> None:
    worker = start_worker()
    schedules.add("slow", "proj.slow", every(0.3), args=(60,), once=True)
    running = beat(PROJ_CONF=CONF)
    # Until the body runs, the lock lasts as long as the message in the queue.
    eventually(lambda: [held.state for held in locks(app).list()] == ["running"], what="a run that holds the lock")
    eventually(lambda: schedules["slow"].skipped_count >= 2, what="the lock at work")
    sent = schedules["slow"].total_run_count
    with Stopwatch(running, server) as watch:
        worker.kill()
        eventually(lambda: schedules["slow"].total_run_count > sent, what="the next run")
    watch.at_most(2 + 0.3 + 1)


def test_workers_that_were_away_for_many_periods_run_the_task_once(
    beat: Callable[..., Process], start_worker: Start, client: redis.Redis, schedules: Schedules
) -> None:
    schedules.add("often", "proj.add", every(0.5), expires="interval")
    beat(PROJ_CONF=json.dumps({**json.loads(CONF), "redbeat_lite_clock_slack": 0}))
    eventually(lambda: len(of_entry(client, "often")) >= 10, what="a backlog")
    backlog = {message.id for message in of_entry(client, "often")}
    worker = start_worker()

    def met(pattern: str) -> set[str]:
        return set(re.findall(r"proj\.add\[([^]]+)\]", "\n".join(worker.lines(pattern))))

    # The beat has gone on, so there is something fresh to run.
    eventually(lambda: met(r"proj\.add\[.*succeeded") - backlog, what="a run")
    discarded = r"Discarding revoked task: proj\.add"
    eventually(lambda: backlog <= met(rf"{discarded}|proj\.add\[.*succeeded"), what="the end of the backlog")
    assert len(met(discarded) & backlog) >= len(backlog) - 1

"""Retries of scheduled tasks, with a real beat and a real worker: ``expires`` of the first message is not theirs.

The worker takes the messages from the queue, so no audit of the queue fits. The record of runs is what is tested.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta

import pytest
import redis

from redbeat_lite import Pause, Schedules, at, every
from redbeat_lite.runs.run_store import RunKeys
from tests.harness.workers import Worker
from tests.support.beats import KEYS
from tests.support.processes import Process, run_celery
from tests.support.server import Server
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(90)

APP = "tests.acceptance.retryproj"


@pytest.fixture
def worker(server: Server, owned: ExitStack) -> Callable[..., Process]:
    """Starts workers; keyword arguments are environment variables of the app."""

    def start(pool: str = "threads", concurrency: int = 8, **env: str) -> Process:
        return owned.enter_context(Worker(APP, pool=pool, concurrency=concurrency, PROJ_URL=server.url, **env))

    return start


def test_a_retry_that_is_due_after_the_next_run_runs(
    beat: Callable[..., Process], worker: Callable[..., Process], schedules: Schedules
) -> None:
    running = worker(PROJ_INSTALL="1")
    for name in ("foreign", "ours"):
        schedules.add(name, f"retries.{name}", every(0.5), max_runs=3)
    beat(APP)
    for name in ("foreign", "ours"):
        eventually(
            lambda name=name: len(schedules.runs(name, outcome="succeeded")) == 3,
            what=f"three runs of {name!r} that succeeded",
        )
        assert [run.attempts for run in schedules.runs(name, outcome="succeeded")] == [2] * 3
    assert not running.lines("Discarding revoked task")


def test_a_run_whose_child_died_and_whose_retry_succeeds_is_no_failure(
    beat: Callable[..., Process], worker: Callable[..., Process], schedules: Schedules, client: redis.Redis
) -> None:
    running = worker("prefork", 3, PROJ_INSTALL="1")
    for name in ("dies", "dies_ours"):
        schedules.add(name, f"retries.{name}", every(3600), on_failure=Pause(after=1))
    beat(APP)
    eventually(lambda: client.hexists(KEYS.meta, "feed"), what="the leader reads the ends of runs")
    for name in ("dies", "dies_ours"):
        schedules.run_now(name)
        eventually(lambda name=name: schedules.runs(name, outcome="succeeded"), what=name)
    feed = RunKeys("redbeat-lite").feed
    last = client.xrevrange(feed, count=1)[0][0]
    eventually(lambda: client.hget(KEYS.meta, "feed") == last, what="the leader has read the ends")
    assert [fields[b"outcome"] for _, fields in client.xrange(feed)] == [b"y", b"s"] * 2
    assert {entry.status for entry in schedules.values()} == {"waiting"}
    # The retry is due after the next run, and runs all the same.
    schedules.add("often", "retries.dies", every(0.5), max_runs=3)
    eventually(lambda: len(schedules.runs("often", outcome="succeeded")) == 3, what="three retries that ran")
    assert not running.lines("Discarding revoked task")


def test_a_retry_that_expires_by_its_own_expires_has_failed_and_counts(
    server: Server,
    beat: Callable[..., Process],
    worker: Callable[..., Process],
    schedules: Schedules,
    client: redis.Redis,
) -> None:
    worker(PROJ_INSTALL="1")
    schedules.add("own", "retries.own_expires", every(3600), on_failure=Pause(after=1))
    beat(APP)
    eventually(lambda: client.hexists(KEYS.meta, "feed"), what="the leader reads the ends of runs")
    schedules.run_now("own")
    eventually(lambda: schedules.runs("own", outcome="failed"), what="a run that failed")
    [run] = schedules.runs("own")
    assert (run.error, run.attempts) == ("ValueError: as asked", 1)
    assert run.began_at is not None
    assert run.seconds is not None
    assert run.retry_at is not None
    assert run.retry_at > run.began_at + timedelta(seconds=1)
    env = {**os.environ, "PROJ_URL": server.url, "COLUMNS": "200"}
    assert "its retry expired; ValueError: as asked" in run_celery(APP, "redbeat", "runs", "own", env=env).stdout
    said = run_celery(APP, "redbeat", "why", "own", env=env).stdout
    assert "'own' ran for" in said
    assert "and failed; its message expired before its retry, due at" in said
    assert schedules["own"].failures_in_a_row == 1
    eventually(lambda: schedules["own"].status == "paused", what="its pause")


def test_without_install_the_beat_names_the_entries_whose_retries_are_lost(
    beat: Callable[..., Process], worker: Callable[..., Process], schedules: Schedules
) -> None:
    without = worker()
    leader = beat(APP)
    leader.says("beat: leading")
    for name in ("foreign", "ours", "unbound"):
        schedules.add(name, f"retries.{name}", every(0.5))
    schedules.add("for ever", "retries.foreign", every(0.5), expires=None)
    leader.says("no worker with install.. reports, so a retry of 'foreign' is discarded")
    schedules.add("once", "retries.foreign", at(datetime.now(UTC)))  # The last message of an entry does not expire.
    leader.says("'once' has finished")
    without.says("Discarding revoked task: retries.foreign")
    eventually(lambda: len(without.lines(r"Task retries.ours\S+ succeeded")) > 1, what="retries of ours")
    assert len(leader.lines("so a retry of")) == 1

"""Backfills under beats that are killed, and beside live entries."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
import redis
from celery import Celery

from redbeat_lite import Backfill, Entry, Schedules, cron, every
from redbeat_lite._base.times import to_ms
from tests.faults.test_kill import leader_of
from tests.harness.queues import check_messages, queued
from tests.support.beats import conf
from tests.support.messages import of_entry, parse
from tests.support.processes import Process
from tests.support.stopwatch import Stopwatch
from tests.support.waiting import eventually

NOW = datetime.now(UTC).replace(second=0, microsecond=0)
Beat = Callable[..., Process]


def started(schedules: Schedules, number: int, rate: int = 1000) -> Backfill:
    """A backfill of so many minutes."""
    schedules.add("a", "proj.add", cron("* * * * *", tz="UTC"), options={"queue": "old"}, max_runs=1, enabled=False)
    span = NOW - timedelta(minutes=number), NOW - timedelta(minutes=1)
    return schedules.backfills.start("a", *span, max_active=None, rate=rate)


@pytest.mark.parametrize(
    ("number", "kills"), [(400, 1), pytest.param(10_000, 20, marks=[pytest.mark.soak, pytest.mark.timeout(600)])]
)
def test_beats_are_killed_and_each_occurrence_is_in_the_queue_once(
    beat: Beat, app: Celery, client: redis.Redis, number: int, kills: int
) -> None:
    schedules = Schedules(app)
    backfill = started(schedules, number)
    running = [beat(PROJ_CONF=conf(lease=1)), beat(PROJ_CONF=conf(lease=1))]
    for kill in range(kills):
        leader = eventually(lambda: leader_of(running))  # noqa: B023 - called at once
        least = number * kill // (kills + 1)
        eventually(lambda least=least: client.llen("old") > least)  # type: ignore[misc]
        client.blpop(["never"], timeout=random.uniform(0.001, 0.06))  # type: ignore[arg-type]  # an instant drawn by lot
        leader.kill()
        running = [*(process for process in running if process is not leader), beat(PROJ_CONF=conf(lease=1))]
    eventually(lambda: schedules.backfills[backfill.id].ended)
    messages = queued(client, "old")
    check_messages(messages, ["a"], 60_000)
    assert messages[0].nominal == to_ms(NOW - timedelta(minutes=number))
    assert schedules.backfills[backfill.id].sent == len(messages) == number


def test_cancelled_it_stops_at_once(beat: Beat, app: Celery, client: redis.Redis) -> None:
    schedules = Schedules(app)
    schedules.add("live", "proj.add", every(0.1), expires=None)
    backfill, process = started(schedules, 20_000), beat(PROJ_CONF=conf(lease=2))
    eventually(lambda: client.llen("old") > 100)
    with Stopwatch(process) as watch:
        schedules.backfills.cancel(backfill.id)
        left = client.llen("old")
    watch.at_most(1)
    live = len(of_entry(client, "live"))
    eventually(lambda: len(of_entry(client, "live")) > live + 3)
    assert client.llen("old") == left


@pytest.mark.soak
@pytest.mark.alone
@pytest.mark.timeout(300)
def test_live_entries_are_as_punctual_as_without(beat: Beat, app: Celery, client: redis.Redis) -> None:
    schedules = Schedules(app)
    schedules.add_many([Entry(f"e{n}", "proj.add", every(0.5), expires=None) for n in range(20)])
    beat("tests.acceptance.proj", "-l", "WARNING", PROJ_CONF=conf(lease=4))
    backfill = started(schedules, 20_000, rate=100)
    late: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(24):
        runs = turn % 4 in (1, 2)
        change = schedules.backfills.resume if runs else schedules.backfills.pause
        change(backfill.id)
        client.delete("celery")  # what waits there since before
        ends = time.monotonic() + 3
        while time.monotonic() < ends:
            found = client.blpop(["celery"], timeout=1)
            assert found is not None
            nominal = parse(found[1]).scheduled_at  # type: ignore[index]
            assert nominal is not None
            late[runs].append(time.time() - nominal.timestamp())
    assert client.llen("old") > 2_000
    with_, without = (sorted(late[runs])[len(late[runs]) * 99 // 100] for runs in (True, False))
    print(f"p99 {1000 * with_:.1f} ms beside a backfill, {1000 * without:.1f} ms without")
    assert with_ < 1.1 * without

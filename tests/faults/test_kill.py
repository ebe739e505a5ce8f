"""Beats killed at random instants: where broker and schedule are one database, nothing is lost or doubled."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
import redis
from celery import Celery

from redbeat_lite import Entry, Schedules, every
from tests.harness.queues import check_queue
from tests.support.beats import leader_pid
from tests.support.chance import draw_seed
from tests.support.processes import Process
from tests.support.waiting import eventually

ENTRIES = 50
PERIOD_MS = 200


def leader_of(running: list[Process]) -> Process | None:
    return next((process for process in running if process.lines("leading")), None)


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_beats_killed_200_times_lose_and_double_nothing(
    beat: Callable[..., Process], app: Celery, client: redis.Redis
) -> None:
    chance = random.Random(draw_seed())
    conf = json.dumps({"redbeat_lite_lease": 1, "redbeat_lite_batch_size": 20})
    Schedules(app).add_many(
        [Entry(f"e{n}", "add", every(PERIOD_MS / 1000), misfire="all", expires=None) for n in range(ENTRIES)]
    )
    running = [beat(PROJ_CONF=conf), beat(PROJ_CONF=conf)]
    for _ in range(200):
        leader = eventually(lambda: leader_of(running))  # noqa: B023 - called at once
        sent = client.llen("celery")
        eventually(lambda sent=sent: client.llen("celery") > sent)  # type: ignore[misc]
        pause = chance.uniform(0, PERIOD_MS / 1000)
        client.blpop(["never"], timeout=pause)  # type: ignore[arg-type]  # an instant drawn by lot, on purpose
        leader.kill()
        running = [*(process for process in running if process is not leader), beat(PROJ_CONF=conf)]
    last_kill = datetime.now(UTC)

    def have_caught_up() -> bool:
        return all(entry.last_run_at and entry.last_run_at > last_kill for entry in Schedules(app).values())

    eventually(have_caught_up)
    for process in running:
        process.says("beat: (leading|standing by)")  # before that, a signal may find Python without a handler
        process.stop()
    check_queue(client, [f"e{n}" for n in range(ENTRIES)], PERIOD_MS)


def add_herd(schedules: Schedules, herd: int) -> None:
    """Add entries that become due at one time, soon after the last of them has been added."""
    seconds = 2 + herd / 4000
    begin = datetime.now(UTC)
    while begin <= datetime.now(UTC):
        begin = datetime.now(UTC) + timedelta(seconds=seconds)
        entries = [Entry(f"e{n}", "add", every(3600), start_at=begin, expires=None) for n in range(herd)]
        schedules.add_many(entries, replace=True)
        # A busy machine may need longer, and an entry that is added too late would not run for an hour.
        seconds *= 2


@pytest.mark.parametrize(
    ("herd", "kills"), [(2000, 2), pytest.param(100_000, 20, marks=[pytest.mark.soak, pytest.mark.timeout(600)])]
)
def test_beats_killed_while_a_herd_drains_send_each_of_it_once(
    beat: Callable[..., Process], app: Celery, client: redis.Redis, herd: int, kills: int
) -> None:
    conf = json.dumps({"redbeat_lite_lease": 1, "redbeat_lite_batch_size": 20})
    chance = random.Random(herd)
    add_herd(Schedules(app), herd)
    running = [beat(PROJ_CONF=conf), beat(PROJ_CONF=conf)]
    for _ in range(kills):
        sent = client.llen("celery")
        eventually(lambda sent=sent: client.llen("celery") > sent)  # type: ignore[misc]
        client.blpop(["never"], timeout=chance.uniform(0.01, 0.1))  # type: ignore[arg-type]
        pid = leader_pid(client)
        [leader] = [process for process in running if process.pid == pid]
        leader.kill()
        assert client.llen("celery") < herd, "while it drains"
        running = [*(process for process in running if process is not leader), beat(PROJ_CONF=conf)]
    eventually(lambda: client.llen("celery") >= herd, within=120)
    check_queue(client, [f"e{n}" for n in range(herd)], 3_600_000)
    assert client.llen("celery") == herd

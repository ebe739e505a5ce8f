"""Broker and schedule are two servers of two kinds: at least once, and what comes twice has the same id."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from contextlib import ExitStack

import pytest
import redis
from celery import Celery

from redbeat_lite import Entry, Schedules, every
from tests.harness.queues import Sent, check_messages, drained
from tests.support.beats import leader_pid, settled
from tests.support.chance import draw_seed
from tests.support.processes import Process
from tests.support.proxy import Proxy
from tests.support.rabbit import SCRIPT, Rabbit
from tests.support.server import Server
from tests.support.stopwatch import Stopwatch
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(300),
    pytest.mark.skipif(SCRIPT is None, reason="no RabbitMQ is installed"),
]

#: A confirmed publish takes RabbitMQ some 10 ms, as it writes to disk.
ENTRIES = 10
PERIOD_MS = 500


@pytest.fixture
def rabbit(owned: ExitStack) -> Rabbit:
    return owned.enter_context(Rabbit())


@pytest.fixture
def start(beat: Callable[..., Process], server: Server, rabbit: Rabbit, app: Celery) -> Callable[[], Process]:
    """Starts beats that send ten entries, twice a second each, to RabbitMQ."""
    Schedules(app).add_many(
        [Entry(f"e{n}", "add", every(PERIOD_MS / 1000), misfire="all", expires=None) for n in range(ENTRIES)]
    )
    settings = {
        "redbeat_lite_url": server.url,
        "redbeat_lite_lease": 1,
        "broker_transport_options": {"confirm_publish": True},
    }
    return lambda: beat(url=rabbit.url, PROJ_CONF=json.dumps(settings))


def check(messages: list[Sent]) -> None:
    """Nothing may be missing; a message may be there again, under its own id."""
    check_messages(messages, [f"e{n}" for n in range(ENTRIES)], PERIOD_MS, delivery="at least")


def sent(app: Celery) -> int:
    """How many runs the schedule has counted."""
    return sum(entry.total_run_count for entry in Schedules(app).list())


def stopped(process: Process) -> None:
    process.stop()
    assert "Traceback" not in process.output, process.output


def test_beats_killed_at_random_instants_lose_nothing(
    start: Callable[[], Process], rabbit: Rabbit, app: Celery, client: redis.Redis
) -> None:
    chance = random.Random(draw_seed())
    running = [start(), start()]
    for _ in range(20):
        leader, other = settled(running, client)
        before = sent(app)
        eventually(lambda before=before: sent(app) > before, what="a run")  # type: ignore[misc]
        client.blpop(["never"], timeout=chance.uniform(0, PERIOD_MS / 1000))  # type: ignore[arg-type]  # drawn by lot
        leader.kill()
        running = [*other, start()]
        eventually(lambda leader=leader: leader_pid(client) not in (None, leader.pid))  # type: ignore[misc]
    for process in running:
        process.says("beat: (leading|standing by)")
        stopped(process)
    messages = drained(rabbit.url)
    check(messages)
    occurrences = {message.identity for message in messages}
    print(f"{len(occurrences)} occurrences, {len(messages)} messages")


def test_a_broker_that_crashes_and_comes_back_loses_nothing(
    start: Callable[[], Process], rabbit: Rabbit, app: Celery
) -> None:
    process = start()
    process.says("messages go out one by one .at least once")
    eventually(lambda: sent(app) > 5 * ENTRIES, what="the stream")
    rabbit.kill()
    process.says("ERROR.*cannot reach the broker")
    stood = sent(app)
    rabbit.start()
    process.says("working again")
    eventually(lambda: sent(app) > stood + 5 * ENTRIES, what="the stream")
    stopped(process)
    check(drained(rabbit.url))


def test_a_message_over_which_the_channel_is_closed_fails_alone(
    start: Callable[[], Process], rabbit: Rabbit, app: Celery
) -> None:
    nowhere = {"exchange": "nowhere", "routing_key": "x", "declare": []}
    Schedules(app).add("bad", "add", every(PERIOD_MS / 1000), options=nowhere)
    process = start()
    process.says("could not publish 'bad'.*no exchange 'nowhere'")
    eventually(lambda: sent(app) > 10 * ENTRIES, what="the stream")
    stopped(process)
    assert process.output.count("cannot reach the broker") == Schedules(app)["bad"].total_run_count == 0
    check_messages(drained(rabbit.url), [f"e{n}" for n in range(ENTRIES)], PERIOD_MS)


def test_an_entry_that_is_alone_outlives_a_connection_that_was_cut(
    beat: Callable[..., Process], server: Server, rabbit: Rabbit, app: Celery
) -> None:
    """Over AMQP a connection that was cut stays so; nothing else is due that would ask for a new one."""
    Schedules(app).add("single", "add", every(0.5), misfire="all", expires=None)
    with Proxy(rabbit.port) as proxy:
        process = beat(url=rabbit.behind(proxy.port), PROJ_CONF=json.dumps({"redbeat_lite_url": server.url}))
        eventually(lambda: sent(app) > 2, what="the stream")
        proxy.reset()
        process.says("could not publish 'single'")
        stood = sent(app)
        eventually(lambda: sent(app) > stood + 5, what="the stream")
        stopped(process)


def test_a_broker_that_hangs_keeps_no_beat_from_stopping(start: Callable[[], Process], rabbit: Rabbit) -> None:
    process = start()
    process.says("Sending due task")
    rabbit.freeze()
    with Stopwatch(process) as watch:
        stopped(process)
    watch.at_most(2)

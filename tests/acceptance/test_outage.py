"""A server or a broker is out of reach for a while, or turns fail in a way that nobody foresaw."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import redis

from tests.harness.queues import check_queue
from tests.support.beats import EACH, FAST, INTERVAL, KEYS, STEP, conf, gaps, leader_pid, leads, stream
from tests.support.processes import Process
from tests.support.proxy import Proxy
from tests.support.server import DURABLE, Server
from tests.support.stopwatch import Stopwatch
from tests.support.waiting import eventually

#: Seconds that the server is away.
OUTAGE = 6.0


def test_beats_outlive_a_restart_of_their_server(
    beat: Callable[..., Process], own_server: Callable[..., Server]
) -> None:
    server = own_server(**DURABLE)
    settings = conf(schedule={"each": EACH, "fast": FAST})
    leader = beat(url=server.url, PROJ_CONF=settings)
    with server.client() as client:
        leads(leader, client)
        other = beat(url=server.url, PROJ_CONF=settings)
        other.says("standing by")
        eventually(lambda: len(stream(client, "each")) >= 5, what="the stream")
    gone = time.monotonic()
    server.stop(kill=True)
    eventually(lambda: time.monotonic() - gone >= OUTAGE, within=OUTAGE + 1, what="the end of the outage")
    server.start()
    with server.client() as client:
        before = client.llen("celery")
        with Stopwatch(leader, other) as watch:
            eventually(lambda: client.llen("celery") > before, what="the first message after the outage")
        watch.at_most(5)
        eventually(lambda: len(stream(client, "each")) >= (OUTAGE + 2) / INTERVAL, what="the stream")
        # Nothing is lost for the entry that wants each run, one run makes up for all with the other, and nothing is
        # sent twice.
        check_queue(client, ["each"], STEP)
        assert 1000 * (OUTAGE - INTERVAL) < max(gaps(stream(client, "fast"))) < 1000 * (OUTAGE + 5 + watch.withheld)
    for process in (leader, other):
        assert process.alive
        process.says("WARNING.*working again after")
        errors = process.lines("ERROR")
        assert 2 <= len(errors) <= 5, errors
        assert all(re.search("trying again in [123] s$", line) for line in errors), "tries grow too rare"
        assert all("cannot use redis://127.0.0.1" in line or "cannot reach the broker" in line for line in errors)
        assert not process.lines("CRITICAL|Traceback")


Beat = Callable[..., Process]


def test_a_turn_that_fails_unforeseen_is_begun_again(beat: Beat, client: redis.Redis) -> None:
    process = beat(PROJ_CRASHES=2, PROJ_CONF=conf(schedule={"each": EACH}))
    assert "a turn failed: RuntimeError: a defect nobody foresaw; trying again in 1 s" in process.says("ERROR.*trying")
    process.says("WARNING.*working again after")
    eventually(lambda: len(stream(client, "each")) >= 3, what="a stream")
    check_queue(client, ["each"], STEP)
    assert len(process.lines("Traceback")) == 1
    assert len(process.lines("trying again in")) == 2
    assert not process.lines("giving up the lead")


def test_alone_it_tries_again_after_two_leases(beat: Beat, client: redis.Redis) -> None:
    process = beat(PROJ_CRASHES=4, PROJ_CONF=conf(schedule={"each": EACH}, lease=1))
    process.says("giving up the lead for 2 s")
    assert not client.exists(KEYS.leader)
    process.says("WARNING.*working again after")
    eventually(lambda: len(stream(client, "each")) >= 3, what="a stream")
    check_queue(client, ["each"], STEP)


def test_a_leader_that_cannot_reach_the_broker_lets_another_try(
    beat: Beat, client: redis.Redis, server: Server, own_server: Callable[..., Server]
) -> None:
    broker = own_server()
    settings = conf(schedule={"each": EACH}, url=server.url, lease=30, stall_timeout=2, publish_timeout=1)
    with Proxy(broker.port) as proxy, broker.client() as queue:
        cut_off = beat(url=proxy.url, PROJ_CONF=settings)
        leads(cut_off, client)
        eventually(lambda: stream(queue, "each"), what="a stream")
        other = beat(url=broker.url, PROJ_CONF=settings)
        other.says("standing by")
        proxy.refuse()
        assert "no message could be sent for" in cut_off.says("WARNING.*giving up the lead for 32 s")
        leads(other, client)
        seen = len(stream(queue, "each"))
        eventually(lambda: len(stream(queue, "each")) > seen + 5, what="the stream goes on")
        # A message that was on its way when the broker went away may be sent twice.
        check_queue(queue, ["each"], STEP, delivery="at least")
    assert cut_off.alive
    assert not cut_off.lines("Traceback")


def test_without_another_beat_it_leads_again_and_sends_when_the_broker_is_back(
    beat: Beat, client: redis.Redis, server: Server, own_server: Callable[..., Server]
) -> None:
    broker = own_server()
    settings = conf(schedule={"each": EACH}, url=server.url, lease=1, stall_timeout=2, publish_timeout=1)
    with Proxy(broker.port) as proxy, broker.client() as queue:
        process = beat(url=proxy.url, PROJ_CONF=settings)
        eventually(lambda: stream(queue, "each"), what="a stream")
        proxy.refuse()
        process.says("giving up the lead for 2 s")
        assert leader_pid(client) is None
        eventually(lambda: leader_pid(client) == process.pid, what="another term")
        proxy.heal()
        seen = len(stream(queue, "each"))
        eventually(lambda: len(stream(queue, "each")) > seen + 5, what="the stream goes on")
        # A message that was on its way when the broker went away may be sent twice.
        check_queue(queue, ["each"], STEP, delivery="at least")

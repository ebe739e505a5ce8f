"""A server that forgets, or holds rubbish: what is sound goes on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from celery import Celery

from redbeat_lite import Entry, Schedules, every
from tests.acceptance.test_garbage import DEFINITIONS
from tests.faults.conftest import LONG
from tests.faults.driver import On, Own, Publish, Stage, load
from tests.support.beats import KEYS
from tests.support.server import Server
from tests.support.waiting import eventually

#: In place of a key: whatever the server holds.
ALL = "*"


@pytest.mark.parametrize("seconds", [pytest.param(60, marks=LONG)], indirect=True)
def test_flushall(own_server: Own, on: On, publish: Publish, lease: float) -> None:
    server = own_server()
    stage = on(server)
    stage.begin()
    while stage.left > 0:
        stage.pause(0.5, 1.5)
        stage.struck(lease + 1.5)
        forget(server, ALL)
        stage.flows()
        stage.pause(1, 2)
    verdict = stage.verdict(period=None)  # they begin anew at each flush, so their phase is another one
    assert verdict.doubled == 0
    assert (
        verdict.wait < 1 + lease / 4 + 1.5 + verdict.withheld
    )  # an interval, the next renewal, an interval from then on
    publish("flushed", verdict)


def test_eviction_of_a_key_that_follows_from_others(own_server: Own, on: On, publish: Publish, lease: float) -> None:
    verdict = evict(on, own_server(), lease, KEYS.due, KEYS.meta, KEYS.leader).verdict()
    assert (verdict.lost, verdict.doubled) == (0, 0)
    assert verdict.wait < 1 + lease / 4 + 1.5 + verdict.withheld
    publish("evicted", verdict)


def test_eviction_of_what_entries_are(own_server: Own, on: On, publish: Publish, lease: float, seconds: float) -> None:
    victims = (KEYS.state, KEYS.entries) if seconds == 60 else (KEYS.state, KEYS.entries, ALL)
    verdict = evict(on, own_server(), lease, *victims).verdict(period=None)  # entries begin anew
    assert verdict.doubled == 0
    assert verdict.wait < 1 + lease / 4 + 1.5 + verdict.withheld
    publish("evicted definitions", verdict)


def evict(on: On, server: Server, lease: float, *victims: str) -> Stage:
    """A stage on which each of these keys has gone once."""
    stage = on(server)
    stage.begin()
    for victim in victims:
        stage.pause(0.5, 1.5)
        stage.struck(lease + 2)
        forget(server, victim)
        stage.flows()
    return stage


def forget(server: Server, victim: str) -> None:
    """Remove a key that is there, or all of them."""
    with server.client() as client, client.pipeline() as pipe:
        if victim == ALL:
            assert pipe.flushall().dbsize().execute() == [True, 0]
        else:
            assert client.delete(victim)


def test_two_hundred_poisoned_entries_among_a_thousand(
    own_server: Own, on: On, publish: Publish, make_app: Callable[..., Celery]
) -> None:
    server = own_server()
    stage = on(server)
    stage.beat()
    stage.begin()
    schedules = Schedules(make_app(broker_url=server.url))
    schedules.add_many(Entry(f"more{n:03}", "proj.add", every(1), misfire="all", expires=3600) for n in range(500))
    names, sound = ([f"more{n:03}" for n in some] for some in (range(200), range(200, 500)))
    stage.pause(0.5, 1)
    stage.struck(1)
    with server.client() as client:
        client.hset(KEYS.entries, mapping={name: DEFINITIONS[n % len(DEFINITIONS)] for n, name in enumerate(names)})
    eventually(lambda: set(schedules.quarantined()) == set(names), within=30, what="the quarantine")
    verdict = stage.verdict(entries=[*load(), *sound])
    assert (verdict.lost, verdict.doubled) == (0, 0)
    publish("poisoned", verdict)

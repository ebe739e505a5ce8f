"""A worker says that nobody leads."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
import redis
from celery import Celery

from redbeat_lite import Schedules, every
from redbeat_lite.once.lock_client import LockClient
from redbeat_lite.once.worker.keeper import look_for_leader
from redbeat_lite.store.keys import Keys
from redbeat_lite.store.redis_values import server_ms

KEYS = Keys.of("redbeat-lite")


@pytest.fixture
def app(make_app: Callable[..., Celery], client: redis.Redis) -> Celery:
    """Of a schedule that no beat leads for longer than it may be."""
    app = make_app(redbeat_lite_lease=4)
    Schedules(app).add("e", "add", every(60))
    client.hset(KEYS.meta, "ticked", server_ms(client) - 14_100)
    return app


def test_workers_open_it_once(app: Celery, client: redis.Redis, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    for _ in "ab":
        look_for_leader(LockClient.of(app))
    [incident] = Schedules(app).incidents()
    assert (incident.kind, incident.entry, incident.text) == ("no_leader", None, "no beat has led for 14 s")
    assert [line.getMessage() for line in caplog.records] == [
        f"Incident {incident.id} is open, no_leader: no beat has led for 14 s"
    ]


def leads(client: redis.Redis) -> None:
    client.hset(KEYS.leader, "token", "x")


def has_just_led(client: redis.Redis) -> None:
    client.hset(KEYS.meta, "ticked", server_ms(client) - 13_000)


def was_just_asked_for(client: redis.Redis) -> None:
    client.hset(KEYS.meta, "ticked", server_ms(client) - 60_000)
    client.zadd(KEYS.beats, {"stuck": server_ms(client) - 60_000, "stands by": server_ms(client) - 9000})
    client.pexpire(KEYS.beats, 60_000)


def never_led(client: redis.Redis) -> None:
    client.hdel(KEYS.meta, "ticked")


def has_no_entries(client: redis.Redis) -> None:
    client.delete(KEYS.entries)


@pytest.mark.parametrize("instead", [leads, has_just_led, was_just_asked_for, never_led, has_no_entries])
def test_it_does_not_where_nobody_has_to_lead(
    app: Celery, client: redis.Redis, instead: Callable[[redis.Redis], None]
) -> None:
    instead(client)
    look_for_leader(LockClient.of(app))
    assert not Schedules(app).incidents()

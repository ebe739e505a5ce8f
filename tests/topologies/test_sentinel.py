"""Behind Sentinel a beat connects to the sentinels, and to the master that they name; to no other server."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery
from kombu import Connection

from redbeat_lite import Entry, Scheduler, Schedules, every
from redbeat_lite._base.celery_app import publish_timeouts
from redbeat_lite.settings import Settings
from redbeat_lite.store.connections import Backend
from tests.support.deployments import Sentinels
from tests.support.processes import Process
from tests.support.stopwatch import Stopwatch
from tests.support.waiting import eventually

#: More than one batch of the smallest size.
ENTRIES = 250


@pytest.fixture(scope="module")
def sentinels() -> Iterator[Sentinels]:
    with Sentinels() as sentinels:
        yield sentinels


@pytest.fixture
def app(sentinels: Sentinels) -> Iterator[Celery]:
    app = Celery("sentinels", broker=sentinels.url, set_as_current=False)
    app.conf.broker_transport_options = sentinels.options
    with sentinels.client() as client:
        client.flushall()
    yield app
    app.close()


def test_a_beat_connects_to_no_server_that_sentinel_does_not_name(
    sentinels: Sentinels, app: Celery, beat: Callable[..., Process]
) -> None:
    Schedules(app).add_many(Entry(f"e{number}", "add", every(1), expires=None) for number in range(ENTRIES))
    settings = json.dumps({"broker_transport_options": sentinels.options})
    process = beat("tests.topologies.dialling", url=sentinels.url, PROJ_CONF=settings)
    with sentinels.client() as client:
        eventually(lambda: client.llen("celery") >= 2 * ENTRIES, what="two runs of each entry")
    process.stop()
    ports = {int(line.split(",")[1].strip(" )")) for line in process.lines("^dialled")}
    named = {int(port) for port in re.findall(r":(\d+)", sentinels.url)}
    assert sentinels.master.port in ports
    assert ports <= named | {sentinels.master.port}


def test_a_command_that_is_sent_again_after_a_loss_goes_to_the_master_of_now(sentinels: Sentinels, app: Celery) -> None:
    backend = Backend(Settings.from_app(app))
    client = backend.client.client()  # of one connection
    assert client.ping()
    before = client.connection.port
    sentinels.fail_over()
    pool: Any = client.connection_pool
    eventually(lambda: pool.get_master_address()[1] != before, what="a new master")
    client.connection.disconnect()  # as redis-py does between the two tries of a command
    assert client.ping()
    assert client.connection.port == sentinels.master.port != before
    client.close()
    backend.close()


def test_a_sentinel_that_hangs_costs_the_beat_seconds(sentinels: Sentinels, app: Celery) -> None:
    # kombu takes those alone that are written with their scheme.
    app.conf.broker_url = sentinels.url.replace(";", ";sentinel://")
    app.conf.redbeat_lite_publish_timeout = 1
    Schedules(app).add("entry", "add", every(0.05), expires=None)
    scheduler = Scheduler(app)
    hanging = sentinels._sentinels[0]
    with sentinels.client() as client:
        hanging.freeze()
        try:
            with Stopwatch() as watch:
                eventually(lambda: scheduler.run_due() is not None and client.llen("celery"), what="a message")
        finally:
            hanging.thaw()
            scheduler.close()
    watch.at_most(12)


def test_a_shorter_timeout_of_the_user_holds_for_sentinels() -> None:
    options = {"master_name": "main", "socket_timeout": 0.2, "sentinel_kwargs": {"password": "secret"}}
    with Connection("sentinel://127.0.0.1:26379", transport_options=options) as connection:
        limits = publish_timeouts(connection, 4.0)
    assert limits["socket_timeout"] == 0.2
    assert limits["sentinel_kwargs"]["socket_timeout"] == 0.2
    assert limits["sentinel_kwargs"]["socket_connect_timeout"] == 1.0
    assert limits["sentinel_kwargs"]["password"] == "secret"

"""A server that refuses to write: nothing is advanced that was not sent, and it goes on when the server does."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator

import pytest
import redis
from celery import Celery

from redbeat_lite import Scheduler, Schedules, every
from redbeat_lite.beat.dispatch.publisher import BrokerDown
from tests.faults.conftest import MakeScenario, Publish, StartServer
from tests.harness.queues import check_queue
from tests.support.messages import of_entry
from tests.support.server import Server
from tests.support.waiting import eventually


@pytest.fixture
def server_of_its_own(own_server: Callable[..., Server]) -> Server:
    return own_server()


@pytest.fixture
def scheduler(server_of_its_own: Server, make_app: Callable[..., Celery]) -> Iterator[Scheduler]:
    app = make_app(broker_url=server_of_its_own.url)
    Schedules(app).add("entry", "add", every(0.05), misfire="all", expires=None)
    scheduler = Scheduler(app)
    yield scheduler
    scheduler.close()


def is_due(client: redis.Redis, scheduler: Scheduler, name: str = "entry") -> None:
    """Wait until an entry is due."""
    while client.zscore(scheduler.store.keys.due, name) > time.time() * 1000:
        pass


def run_on(scheduler: Scheduler) -> None:
    """Dispatch until it raises; the leader's clock may be some milliseconds behind this one."""
    while True:
        scheduler.run_due()


@pytest.mark.parametrize(
    ("refuse", "allow", "error"),
    [
        ("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0", "used memory > .maxmemory"),
        ("CONFIG SET min-replicas-to-write 1", "CONFIG SET min-replicas-to-write 0", "enough good replicas"),
        ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE", "read only replica"),
    ],
)
def test_what_the_server_refuses_stays_due(
    scheduler: Scheduler, server_of_its_own: Server, refuse: str, allow: str, error: str
) -> None:
    with server_of_its_own.client() as client:
        scheduler.run_due()
        is_due(client, scheduler)
        client.execute_command(*refuse.split())
        before = client.hget(scheduler.store.keys.state, "entry"), client.llen("celery")
        with pytest.raises((redis.RedisError, BrokerDown), match=error):
            run_on(scheduler)
        assert (client.hget(scheduler.store.keys.state, "entry"), client.llen("celery")) == before
        client.execute_command(*allow.split())
        while client.llen("celery") < before[1] + 2:
            scheduler.run_due()
        check_queue(client, ["entry"], 50)


def test_one_refused_message_does_not_hold_up_the_others(
    scheduler: Scheduler, server_of_its_own: Server, make_app: Callable[..., Celery]
) -> None:
    schedules = Schedules(make_app(broker_url=server_of_its_own.url))
    schedules.add("refused", "add", every(0.05), options={"queue": "broken"})
    with server_of_its_own.client() as client:
        client.set("broken", "not a list")
        is_due(client, scheduler, "refused")
        eventually(lambda: scheduler.run_due() and schedules["refused"].last_error, what="a refused message")
        assert of_entry(client, "entry")
        refused = schedules["refused"]
        assert "WRONGTYPE" in (refused.last_error or "")
        assert refused.total_run_count == 0
        client.delete("broken")
        nominal = refused.state.nominal if refused.state else 0
        while client.llen("broken") == 0:
            scheduler.run_due()
        [message, *_] = of_entry(client, "refused", "broken")
        assert message.nominal >= (nominal or 0)
        assert schedules["refused"].last_error is None


def test_a_disk_that_is_full(
    own_server: StartServer, scenario_on: MakeScenario, publish: Publish, seconds: float
) -> None:
    """The server's log of writes may grow no more, so it refuses to write (MISCONF)."""
    server = own_server(appendonly="yes", appendfsync="everysec")
    scenario = scenario_on(server)
    scenario.begin()
    scenario.pause(0.5, 1)
    full = 2 if seconds < 60 else 15
    with scenario.outage(quiet=1.5):
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
        eventually(lambda: _refuses(server), what="the refusal")
        scenario.pause(full)
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        eventually(lambda: not _refuses(server), what="the end of it")
    verdict = scenario.verdict()
    publish("disk full", verdict)


def _refuses(server: Server) -> bool:
    with server.client() as client:
        try:
            client.delete("probe")
        except redis.ResponseError as exc:
            return "MISCONF" in str(exc)
    return False

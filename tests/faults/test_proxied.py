"""Servers behind a name or a proxy: one that is demoted keeps its connections, one that is cut off keeps silent."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from celery import Celery
from redis.exceptions import ReadOnlyError

from redbeat_lite import Scheduler, Schedules, every, lock, manual
from redbeat_lite.beat.dispatch.publisher import BrokerDown
from tests.support.in_process import MakeBeat
from tests.support.proxy import Proxy
from tests.support.server import GuardedServer
from tests.support.stopwatch import Stopwatch
from tests.support.waiting import eventually

PUBLISH_TIMEOUT = 0.5


def ticks_until(scheduler: Scheduler, condition: Callable[[], bool], *, within: float = 60.0) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, f"not within {within} s"
        scheduler.tick()


def test_a_leader_follows_a_fail_over_that_leaves_its_connections_open(
    own_server: Callable[..., GuardedServer],
    make_app: Callable[..., Celery],
    make_beat: MakeBeat,
) -> None:
    old, new = (own_server(**{"repl-diskless-sync-delay": "0"}) for _ in range(2))
    with Proxy(old.port) as proxy, old.client() as to_old, new.client() as to_new:
        to_new.replicaof("127.0.0.1", str(old.port))
        app = make_app(broker_url=old.behind(proxy.port), redbeat_lite_lease=1)
        Schedules(app).add("entry", "add", every(0.2), expires=None)
        scheduler = make_beat(app)
        ticks_until(scheduler, lambda: to_new.llen("celery") >= 2)
        to_new.replicaof("NO", "ONE")
        proxy.target = new.port
        to_old.replicaof("127.0.0.1", str(new.port))
        sent = to_new.llen("celery")
        ticks_until(scheduler, lambda: to_new.llen("celery") > sent)


def test_a_process_that_edits_and_locks_follows_such_a_fail_over(
    own_server: Callable[..., GuardedServer], make_app: Callable[..., Celery]
) -> None:
    old, new = (own_server(**{"repl-diskless-sync-delay": "0"}) for _ in range(2))
    with Proxy(old.port) as proxy, old.client() as to_old, new.client() as to_new:
        app = make_app(broker_url=old.behind(proxy.port))
        schedules = Schedules(app)
        schedules.add("entry", "add", manual())
        with lock(app, "key"):
            pass
        to_new.replicaof("127.0.0.1", str(old.port))
        eventually(lambda: to_new.info("replication")["master_link_status"] == "up", what="a replica")
        to_new.replicaof("NO", "ONE")
        proxy.target = new.port
        to_old.replicaof("127.0.0.1", str(new.port))
        with lock(app, "key"):  # It asks again for some seconds, as a task with a lock does.
            pass
        with pytest.raises(ReadOnlyError):
            schedules.pause("entry")
        schedules.pause("entry")


@pytest.mark.parametrize("dispatch", ["plain", "batch"])
def test_a_broker_that_is_cut_off_costs_the_timeout_and_not_the_lease(
    own_server: Callable[..., GuardedServer],
    make_app: Callable[..., Celery],
    make_beat: MakeBeat,
    caplog: pytest.LogCaptureFixture,
    dispatch: str,
) -> None:
    schedule, broker = own_server(), own_server()
    with Proxy(broker.port) as proxy, broker.client() as to_broker:
        app = make_app(
            broker_url=broker.behind(proxy.port),
            redbeat_lite_url=schedule.url,
            redbeat_lite_dispatch=dispatch,
            redbeat_lite_publish_timeout=PUBLISH_TIMEOUT,
            broker_transport_options={"socket_timeout": 300},  # meant for workers; must not hang the beat
            # Less than what a publish and a new connection take together.
            redbeat_lite_stall_timeout=2.6 * PUBLISH_TIMEOUT,
            redbeat_lite_lease=1,
        )
        Schedules(app).add("entry", "add", every(0.2), expires=None)
        scheduler = make_beat(app)
        ticks_until(scheduler, lambda: to_broker.llen("celery") >= 2)
        proxy.black_hole = True
        time.sleep(0.2)  # until something is due
        with Stopwatch() as watch:
            scheduler.run_due()  # The publish fails, and the entry waits for a second.
        watch.at_most(PUBLISH_TIMEOUT + 1)
        assert "could not publish 'entry'" in caplog.text
        for _ in range(2):
            time.sleep(1)  # until it is due again
            with Stopwatch() as watch, pytest.raises(BrokerDown):
                scheduler.run_due()
            watch.at_most(2 * PUBLISH_TIMEOUT + 1)
            scheduler.leader.progress("waiting")
        assert scheduler.leader.holds_lease
        assert "no progress" not in caplog.text
        proxy.black_hole = False
        sent = to_broker.llen("celery")
        ticks_until(scheduler, lambda: to_broker.llen("celery") > sent)

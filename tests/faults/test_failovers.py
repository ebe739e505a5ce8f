"""A replica that takes over under load, named by Sentinel or by the nodes of a Cluster."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack

import pytest
from celery import Celery

from redbeat_lite import Scheduler, Schedules, every
from redbeat_lite.settings import Settings
from redbeat_lite.store.connections import Backend
from tests.faults.conftest import MakeScenario, Publish, StartServer
from tests.faults.scenario import PERIOD_MS, load
from tests.harness.queues import check_messages, queued
from tests.support.beats import KEYS
from tests.support.deployments import Cluster, Sentinels
from tests.support.messages import of_entry
from tests.support.server import SECRET, Server
from tests.support.waiting import eventually


@pytest.fixture
def sentinels(owned: ExitStack) -> Sentinels:
    return owned.enter_context(Sentinels(SECRET, SECRET))


@pytest.fixture
def cluster(owned: ExitStack) -> Cluster:
    return owned.enter_context(Cluster(replicas=True, password=SECRET))


@pytest.mark.parametrize("kill", [pytest.param(False, marks=pytest.mark.soak), True], ids=["switched", "killed"])
def test_a_replica_promoted_by_sentinel(
    sentinels: Sentinels, make_scenario: MakeScenario, lease: float, publish: Publish, kill: bool
) -> None:
    conf = {"broker_transport_options": sentinels.options}
    scenario = make_scenario(sentinels.client, sentinels.url, conf=conf, lease=lease)
    scenario.begin()
    scenario.pause(0.2, 1)
    old = sentinels.master
    with scenario.outage():
        if kill:
            old.stop(kill=True)
            eventually(lambda: sentinels.master is not old, what="another master")
        else:
            sentinels.fail_over()  # The old master lives, and takes what those send that are connected to it.
            scenario.collector.move()
    verdict = scenario.verdict(delivery="at least")
    # A message and the plan that it belongs to reach the replica together or not at all, so each
    # occurrence is in the replica's queue once.
    with sentinels.client() as client:
        messages = queued(client)
    check_messages(messages, load(), PERIOD_MS)
    verdict.doubled = len(messages) - len({message.identity for message in messages})
    publish(f"sentinel {'killed' if kill else 'switched'}", verdict)


def test_clients_follow_to_a_new_master_while_the_old_one_lives(
    sentinels: Sentinels, make_app: Callable[..., Celery]
) -> None:
    backend = Backend(Settings.from_app(make_app(broker_url=sentinels.url, broker_transport_options=sentinels.options)))
    old = sentinels.master

    def port() -> int:
        return int(backend.client.config_get("port")["port"])

    assert port() == old.port
    sentinels.fail_over()
    eventually(lambda: port() == sentinels.master.port, within=3, what="the new master")
    with old.client() as client:
        assert client.role()[0] == b"master", "until Sentinel tells it otherwise"
    sentinels.stop()
    time.sleep(1.1)  # until it is time to look again
    assert port() != old.port, "without Sentinel, too"
    backend.close()


@pytest.mark.parametrize("dispatch", ["auto", pytest.param("plain", marks=pytest.mark.soak)])
def test_a_beat_sends_to_the_new_master_while_the_old_one_lives(
    sentinels: Sentinels, make_app: Callable[..., Celery], dispatch: str
) -> None:
    app = make_app(broker_url=sentinels.url, broker_transport_options=sentinels.options, redbeat_lite_dispatch=dispatch)
    Schedules(app).add("entry", "add", every(0.2), misfire="all", expires=None)
    scheduler, old = Scheduler(app), sentinels.master

    def sent(server: Server) -> list[float]:
        with server.client() as client:
            messages = of_entry(client, "entry")
        return sorted({message.scheduled_at.timestamp() for message in messages if message.scheduled_at})

    def until(condition: Callable[[], bool]) -> None:
        eventually(lambda: scheduler.tick() is None or condition(), what="messages")

    until(lambda: len(sent(old)) >= 3)
    first = sent(old)[0]
    sentinels.fail_over()
    # Apart from the schedule, some come twice: when one sentinel names the new master, and when all of them do.
    wanted = [round(0.2 * n, 1) for n in range(15)]
    until(lambda: [round(at - first, 1) for at in sent(sentinels.master)][:15] == wanted)
    with old.client() as client:
        assert client.role()[0] == b"master", "until Sentinel tells it otherwise"
    scheduler.close()


@pytest.mark.soak
def test_a_master_that_hangs_and_has_no_replica(
    sentinels: Sentinels,
    make_scenario: MakeScenario,
    lease: float,
    publish: Publish,
    seconds: float,
) -> None:
    """Its late replies belong to nobody by then."""
    master = sentinels.master
    [replica] = (each for each in sentinels.servers if each is not master)
    replica.stop(kill=True)
    conf = {"broker_transport_options": sentinels.options}
    scenario = make_scenario(sentinels.client, sentinels.url, conf=conf, lease=lease)
    scenario.begin()
    for _ in range(max(1, round(seconds / 20))):
        scenario.pause(0.2, 1)
        with scenario.outage(quiet=1.5):
            master.freeze()
            scenario.pause(5, 9)
            master.thaw()
    verdict = scenario.verdict()
    publish("sentinel hangs", verdict)


def test_a_cluster_whose_node_fails_over(
    cluster: Cluster,
    make_scenario: MakeScenario,
    own_server: StartServer,
    lease: float,
    publish: Publish,
) -> None:
    broker = own_server()
    conf = {"redbeat_lite_url": cluster.url}
    scenario = make_scenario(cluster.client, broker.url, broker=broker.client, conf=conf, lease=lease)
    scenario.begin()
    scenario.pause(0.2, 1)
    old = cluster.master_of(KEYS.due)
    with scenario.outage(quiet=1):
        old.stop(kill=True)
        eventually(lambda: _moved(cluster, old), what="another node")
    verdict = scenario.verdict(delivery="at least")
    assert verdict.doubled <= 500, "no more than the batch that was under way"
    publish("cluster", verdict)


def _moved(cluster: Cluster, old: Server) -> bool:
    try:
        return cluster.master_of(KEYS.due) is not old
    except Exception:
        return False

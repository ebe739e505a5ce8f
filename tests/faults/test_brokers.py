"""A broker on another server than the schedule's, that swallows, refuses, or is full."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from tests.faults.conftest import LONG, MakeScenario, Publish, StartServer, only_long
from tests.faults.scenario import ENTRIES, load
from tests.support.beats import KEYS
from tests.support.proxy import Proxy
from tests.support.server import GuardedServer
from tests.support.waiting import eventually


@pytest.fixture
def server(own_server: StartServer) -> GuardedServer:
    return own_server()


@pytest.mark.parametrize(
    ("faults", "seconds"),
    [
        pytest.param(("swallowed", "full"), 5, id="swallowed and full"),
        *(pytest.param((fault,), 60, marks=LONG, id=fault) for fault in ("swallowed", "refusing", "full")),
    ],
    indirect=["seconds"],
)
def test_a_broker_on_another_server(
    server: GuardedServer,
    proxy: Proxy,
    own_server: StartServer,
    scenario_on: MakeScenario,
    publish: Publish,
    seconds: float,
    faults: tuple[str, ...],
) -> None:
    """What is due stays due; delivery is at least once, under the same ids."""
    schedule = own_server()
    scenario = scenario_on(
        schedule,
        url=server.behind(proxy.port),
        broker=server.client,
        conf={"redbeat_lite_url": schedule.url},
        publish_timeout=1,
    )
    scenario.begin()
    away = 2 if seconds < 60 else 20
    for fault in faults:
        scenario.pause(0.2, 1)
        with scenario.outage(quiet=1.5), server.client() as client:
            if fault == "full":
                client.config_set("maxmemory", "1")
            elif fault == "swallowed":
                proxy.black_hole = True
            else:
                proxy.refuse()
            scenario.pause(away)
            client.config_set("maxmemory", "0")
            if fault == "swallowed":
                proxy.reset()
            proxy.heal()
    with schedule.client() as client:
        assert client.exists(KEYS.leader)
    verdict = scenario.verdict(delivery="at least")
    # One batch may have arrived without anybody knowing.
    assert verdict.doubled <= ENTRIES
    publish(f"broker {faults[0]}", verdict)


# In `make test`, a promise has one leader frozen in the middle of a batch:
# test_a_leader_that_was_frozen_sends_no_batch_to_another_broker.
@only_long
def test_a_leader_frozen_past_its_lease_whose_broker_is_elsewhere(
    own_server: StartServer, scenario_on: MakeScenario, publish: Publish, lease: float
) -> None:
    """Thawed in the middle of a batch, it sends no more of it but the message at which it stood."""
    # A message needs some 8 ms of waiting on its way, so that a quarter of each second is spent in the middle of a
    # batch, and half of each where a machine has so much else to do that it takes twice as long.
    entries = load(30)
    schedule, server = own_server(), own_server()
    conf = {"redbeat_lite_url": schedule.url, "beat_schedule": entries}
    with Proxy(server.port) as slow:
        slow.delay = 0.004
        scenario = scenario_on(
            schedule,
            url=server.behind(slow.port),
            broker=server.client,
            conf=conf,
            dispatch="plain",
        )
        scenario.begin()
        freezes = 0
        while scenario.left > 0:
            scenario.pause(0.2, 1.2)
            leader = scenario.beats.leader()
            scenario.note_fault(lease + 2)
            freezes += 1
            with leader.frozen():
                scenario.pause(lease + 0.6, lease + 1)
            scenario.pause(0.5)
        # A backlog of seconds takes seconds.
        verdict = scenario.verdict(
            delivery="at least",
            strays=freezes,
            batch=backlog(entries, lease),
            late=2 * lease + 4,
            entries=entries,
        )
    assert verdict.handovers >= freezes
    publish("frozen elsewhere", verdict)


def test_a_leader_cut_off_from_its_schedule_in_the_middle_of_a_batch(
    own_server: StartServer, scenario_on: MakeScenario, lease: float
) -> None:
    """It stops sending before another one may lead, though nobody can tell it so and its broker takes all it sends."""
    entries = load(50)
    schedule, server = own_server(), own_server()
    with Proxy(schedule.port) as way, Proxy(server.port) as slow:
        own = {"redbeat_lite_url": schedule.url, "beat_schedule": entries}
        scenario = scenario_on(
            schedule,
            url=server.url,
            broker=server.client,
            conf=own,
            dispatch="plain",
        )
        behind = scenario.beats.start(
            url=server.behind(slow.port), conf={"redbeat_lite_url": schedule.behind(way.port)}
        )
        scenario.begin()
        scenario.beats.start().says("standing by")
        slow.delay = 0.03  # so that 50 messages take three seconds
        scenario.pause(1.2, 1.5)
        scenario.note_fault(lease + 2.5)
        way.black_hole = True
        eventually(lambda: scenario.beats.leader() is not behind, what="another leader")
        scenario.pause(2)
        way.reset()
        way.heal()
        slow.heal()
        behind.says("standing by")
        # The broker is slow.
        batch = backlog(entries, lease)
        verdict = scenario.verdict(delivery="at least", batch=batch, late=lease + 4, entries=entries)
    assert verdict.handovers == 1


def backlog(entries: Collection[str], lease: float) -> int:
    """Return how many messages of one second each are due after a lease without a leader."""
    return round(len(entries) * (lease + 4))

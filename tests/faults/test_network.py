"""Networks that swallow, cut and delay between the beats and their server."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.faults.conftest import MakeScenario, Publish, StartServer, only_long
from tests.support.proxy import Proxy
from tests.support.server import GuardedServer
from tests.support.waiting import eventually


@pytest.fixture
def server(own_server: StartServer) -> GuardedServer:
    return own_server()


def _swallow(proxy: Proxy) -> None:
    proxy.black_hole = True


def _swallow_requests(proxy: Proxy) -> None:
    proxy.swallow_requests = True


def _swallow_replies(proxy: Proxy) -> None:
    proxy.swallow_replies = True


def _cut(proxy: Proxy) -> None:
    proxy.refuse()


@pytest.mark.parametrize(
    "cut",
    [
        _swallow_replies,
        # Much like the one above, so they wait for the soak. In `make test`, a promise swallows the requests of a
        # leader (test_a_leader_that_cannot_renew_stops_before_its_lease_ends), and another one refuses its
        # connections (test_messages_reach_the_broker_when_the_schedule_moves_to_another_server).
        pytest.param(_swallow, marks=pytest.mark.soak),
        pytest.param(_swallow_requests, marks=pytest.mark.soak),
        pytest.param(_cut, marks=pytest.mark.soak),
    ],
    ids=lambda cut: cut.__name__[1:],
)
def test_a_leader_cut_off_from_the_server(
    server: GuardedServer,
    proxy: Proxy,
    scenario_on: MakeScenario,
    publish: Publish,
    lease: float,
    cut: Callable[[Proxy], None],
) -> None:
    """Another beat, which is not cut off, leads meanwhile; the first one stands by when it is back."""
    scenario = scenario_on(server)
    behind = scenario.beats.start(url=server.behind(proxy.port))
    scenario.begin()
    direct = scenario.beats.start()
    direct.says("standing by")
    scenario.pause(0.2, 1)
    scenario.note_fault(lease + 2.5)
    cut(proxy)
    while scenario.beats.leader() is behind:
        time.sleep(0.02)
    scenario.pause(1.5)
    proxy.reset()  # what was swallowed leaves each connection out of step, as a firewall's forgotten state does
    proxy.heal()
    behind.says("standing by")
    verdict = scenario.verdict(back=lease + 0.5 + 1)
    assert verdict.handovers == 1
    publish(cut.__name__[1:], verdict)


@only_long
def test_a_slow_network(
    server: GuardedServer,
    proxy: Proxy,
    scenario_on: MakeScenario,
    publish: Publish,
) -> None:
    """Twenty milliseconds each way cost that much for each round trip, and nothing else."""
    scenario = scenario_on(server, url=server.behind(proxy.port))
    scenario.begin()
    proxy.delay = 0.02
    scenario.note_fault(0)
    scenario.rest()
    proxy.heal()
    verdict = scenario.verdict()
    assert verdict.late > 2 * 0.02
    assert verdict.handovers == 0
    publish("slow", verdict)


def test_connections_cut_again_and_again(
    server: GuardedServer, proxy: Proxy, scenario_on: MakeScenario, publish: Publish
) -> None:
    scenario = scenario_on(server, url=server.behind(proxy.port))
    scenario.begin()
    while scenario.left > 0:
        scenario.pause(0.3, 1)
        scenario.note_fault(4)
        cut = proxy.connections
        proxy.reset()
        assert cut
        eventually(lambda cut=cut: not cut & proxy.connections, what="their end")  # type: ignore[misc]  # of a lambda
    verdict = scenario.verdict()
    publish("resets", verdict)

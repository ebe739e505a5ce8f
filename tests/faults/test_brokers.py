"""A broker on another server than the schedule's, that swallows, refuses, or is full."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.faults.driver import Stage
from tests.support.beats import KEYS
from tests.support.proxy import Proxy
from tests.support.server import Server

On = Callable[..., Stage]
Publish = Callable[..., None]
Own = Callable[..., Server]


@pytest.fixture
def server(own_server: Own) -> Server:
    return own_server()


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy(server.port) as proxy:
        yield proxy


@pytest.mark.parametrize("fault", ["swallowed", pytest.param("refusing", marks=pytest.mark.soak), "full"])
def test_a_broker_on_another_server(
    server: Server, proxy: Proxy, own_server: Own, on: On, publish: Publish, seconds: float, fault: str
) -> None:
    """What is due stays due; delivery is at least once, under the same ids."""
    schedule = own_server()
    stage = on(
        schedule, url=proxy.url, broker=server.client, conf={"redbeat_lite_url": schedule.url}, publish_timeout=1
    )
    stage.beat()
    stage.beat()
    stage.begin()
    stage.pause(0.2, 1)
    with stage.outage(), server.client() as client:
        if fault == "full":
            client.config_set("maxmemory", "1")
        elif fault == "swallowed":
            proxy.black_hole = True
        else:
            proxy.refuse()
        stage.pause(2 if seconds <= 10 else 20)
        client.config_set("maxmemory", "0")
        if fault == "swallowed":
            proxy.reset()
        proxy.heal()
    stage.finish()
    with schedule.client() as client:
        assert client.exists(KEYS.leader)
    verdict = stage.verdict()
    assert verdict.lost == 0
    # One batch may have arrived without anybody knowing.
    assert verdict.doubled <= 500
    publish(f"broker {fault}", verdict)

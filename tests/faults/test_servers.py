"""A server that restarts or hangs: beats stay alive and go on within five seconds."""

from __future__ import annotations

import pytest

from tests.faults.conftest import LONG, MakeScenario, Publish, StartServer
from tests.support.server import DURABLE


@pytest.mark.parametrize(
    ("faults", "seconds"),
    [
        pytest.param(("restart killed", "hangs"), 5, id="killed and hung"),
        *(pytest.param((fault,), 60, marks=LONG, id=fault) for fault in ("restart stopped", "restart killed", "hangs")),
    ],
    indirect=["seconds"],
)
def test_a_restart_with_its_data_and_a_server_that_hangs(
    own_server: StartServer,
    scenario_on: MakeScenario,
    publish: Publish,
    seconds: float,
    faults: tuple[str, ...],
) -> None:
    server = own_server(**DURABLE)
    scenario = scenario_on(server)
    scenario.begin()
    hangs = 3 if seconds < 60 else 20
    away = 2 if seconds < 60 else 60
    for fault in faults:
        scenario.pause(0.5, 1.5)
        with scenario.outage(quiet=1.5):
            if fault == "hangs":
                server.freeze()
                scenario.pause(hangs)
                server.thaw()
            else:
                server.stop(kill=fault == "restart killed")
                scenario.pause(away)
                server.start()
    verdict = scenario.verdict()
    publish(faults[0], verdict)


def test_a_restart_without_its_data(
    own_server: StartServer, scenario_on: MakeScenario, publish: Publish, seconds: float
) -> None:
    server = own_server()
    scenario = scenario_on(server)
    scenario.begin()
    scenario.pause(0.5, 1.5)
    away = 2 if seconds < 60 else 20
    with scenario.outage(quiet=1.5, new_phase=True):
        server.stop(kill=True)
        scenario.pause(away)
        server.start()
    # The server has forgotten when entries were due, so they begin again, with another phase.
    verdict = scenario.verdict(period=None, silent=away + scenario.bound)
    publish("restart empty", verdict)

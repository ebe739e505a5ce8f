"""A server that restarts or hangs: beats stay alive and go on within five seconds."""

from __future__ import annotations

import pytest

from tests.faults.conftest import LONG
from tests.faults.driver import On, Own, Publish
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
    own_server: Own, on: On, publish: Publish, seconds: float, faults: tuple[str, ...]
) -> None:
    server = own_server(**DURABLE)
    stage = on(server)
    stage.begin()
    for fault in faults:
        stage.pause(0.5, 1.5)
        with stage.outage(quiet=1.5):
            if fault == "hangs":
                server.freeze()
                stage.pause(3 if seconds < 60 else 20)
                server.thaw()
            else:
                server.stop(kill=fault == "restart killed")
                stage.pause(2 if seconds < 60 else 60)
                server.start()
    verdict = stage.verdict()
    assert (verdict.lost, verdict.doubled) == (0, 0)
    publish(faults[0], verdict)


def test_a_restart_without_its_data(own_server: Own, on: On, publish: Publish, seconds: float) -> None:
    server = own_server()
    stage = on(server)
    stage.begin()
    stage.pause(0.5, 1.5)
    away = 2 if seconds < 60 else 20
    with stage.outage(quiet=1.5):
        server.stop(kill=True)
        stage.pause(away)
        server.start()
    # What was to come meanwhile is known to nobody: entries begin anew, out of step with what they were.
    verdict = stage.verdict(period=None)
    assert verdict.doubled == 0
    assert verdict.wait < away + stage.bound + verdict.withheld
    publish("restart empty", verdict)

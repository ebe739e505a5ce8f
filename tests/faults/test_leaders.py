"""Leaders that are killed, told to stop, frozen and thawed, under load: one stream all the same."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from tests.faults.conftest import LONG
from tests.faults.driver import On, Own, Publish, Stage

Fault = Callable[[Stage, float], None]


def killed(stage: Stage, lease: float) -> None:
    stage.pause(0.5, 1.5)
    leader = stage.leader()
    stage.struck(lease + 1.5)
    stage.kill(leader)
    stage.beat()
    stage.leader()
    stage.flows()


def stopped(stage: Stage, lease: float) -> None:
    stage.pause(0.5, 1.5)
    leader = stage.leader()
    stage.beat().says("standing by")
    stage.struck(1.5)
    stage.stop(leader)
    stage.leader()
    stage.flows()


def frozen(stage: Stage, lease: float) -> None:
    stage.pause(0.2, 1)
    leader = stage.leader()
    stage.struck(lease + 2)
    with stage.frozen(leader):
        stage.pause(lease + 0.6, lease + 1.5)
    stage.pause(0.5)


@pytest.mark.parametrize(
    ("faults", "seconds"),
    [
        pytest.param((killed, stopped, frozen), 5, id="each once"),
        *(pytest.param((fault,), 60, marks=LONG, id=fault.__name__) for fault in (killed, stopped, frozen)),
    ],
    indirect=["seconds"],
)
def test_a_leader_goes_and_another_one_takes_over(
    own_server: Own, on: On, publish: Publish, lease: float, faults: tuple[Fault, ...]
) -> None:
    stage = on(own_server())
    stage.begin()
    for n in itertools.count():
        if n >= len(faults) and stage.left <= 0:
            break
        faults[n % len(faults)](stage, lease)
    verdict = stage.verdict()
    assert (verdict.lost, verdict.doubled) == (0, 0)
    assert verdict.handovers == verdict.faults
    # A period, until the next one is due.
    assert verdict.back < (2 if faults == (stopped,) else lease + 0.5 + 1) + verdict.withheld
    publish(faults[0].__name__, verdict)

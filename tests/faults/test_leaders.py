"""Leaders that are killed, told to stop, frozen and thawed, under load: one stream all the same."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from tests.faults.conftest import LONG, MakeScenario, Publish, StartServer
from tests.faults.scenario import Scenario

Fault = Callable[[Scenario, float], None]


def killed(scenario: Scenario, lease: float) -> None:
    scenario.pause(0.5, 1.5)
    scenario.kill_leader(lease)


def stopped(scenario: Scenario, lease: float) -> None:
    scenario.pause(0.5, 1.5)
    leader = scenario.beats.leader()
    scenario.beats.start().says("standing by")
    scenario.note_fault(1.5)
    scenario.beats.stop(leader)
    scenario.beats.leader()
    scenario.await_message()


def frozen(scenario: Scenario, lease: float) -> None:
    scenario.pause(0.2, 1)
    leader = scenario.beats.leader()
    scenario.note_fault(lease + 2)
    with leader.frozen():
        scenario.pause(lease + 0.6, lease + 1.5)
    scenario.pause(0.5)


@pytest.mark.parametrize(
    ("faults", "seconds"),
    [
        pytest.param((killed, stopped, frozen), 5, id="each once"),
        *(pytest.param((fault,), 60, marks=LONG, id=fault.__name__) for fault in (killed, stopped, frozen)),
    ],
    indirect=["seconds"],
)
def test_a_leader_goes_and_another_one_takes_over(
    own_server: StartServer,
    scenario_on: MakeScenario,
    publish: Publish,
    lease: float,
    faults: tuple[Fault, ...],
) -> None:
    scenario = scenario_on(own_server())
    scenario.begin()
    for n in itertools.count():
        if n >= len(faults) and scenario.left <= 0:
            break
        faults[n % len(faults)](scenario, lease)
    # The lease of a leader that was stopped is free at once. A period passes until the next run.
    back = 2 if faults == (stopped,) else lease + 0.5 + 1
    verdict = scenario.verdict(back=back)
    assert verdict.handovers == verdict.faults
    publish(faults[0].__name__, verdict)

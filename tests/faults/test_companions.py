"""Beats that do not agree: about their configuration, their version, or the time."""

from __future__ import annotations

import itertools
import subprocess
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from tests.faults.conftest import MakeScenario, Publish, StartServer, only_long
from tests.faults.scenario import Scenario, load
from tests.faults.test_leaders import frozen
from tests.support.processes import ROOT, Process


def hand_over_to(scenario: Scenario, follower: Process, lease: float) -> None:
    """Kill the leader a moment after this beat stands by, and wait until it leads and sends."""
    follower.says("standing by")
    scenario.pause(0.2, 1)
    scenario.note_fault(lease + 1.5)
    scenario.beats.kill(scenario.beats.leader())
    follower.says("beat: leading")
    scenario.await_message()


@only_long
def test_two_configurations(
    own_server: StartServer,
    scenario_on: MakeScenario,
    publish: Publish,
    lease: float,
) -> None:
    """The leader's counts. What both have goes on as it was."""
    scenario = scenario_on(own_server())
    more = {f"x{name}": entry for name, entry in load(50).items()}
    kinds = [{"beat_schedule": load()}, {"beat_schedule": {**load(), **more}}]
    scenario.beats.start(conf=kinds[0])
    scenario.begin()
    turn = 0
    while scenario.left > 0 or turn < 2:
        turn += 1
        follower = scenario.beats.start(conf=kinds[turn % 2])
        follower.says("standing by")
        scenario.note_fault(lease + 1.5)
        scenario.beats.kill(scenario.beats.leader())
        follower.says("beat: leading")
        scenario.await_message()
        before = len(scenario.collector.messages)
        scenario.pause(2.2)
        later = scenario.collector.messages[before:]
        by_follower = {message.entry for message in later if message.sender == follower.pid}
        expected = set(more) if turn % 2 else set()
        assert by_follower & set(more) == expected
    verdict = scenario.verdict()
    assert verdict.handovers == verdict.faults
    publish("two configurations", verdict)


@pytest.fixture
def former(tmp_path: Path) -> Path:
    """The package as the previous commit has it."""
    command = ["git", "-C", str(ROOT), "archive", "HEAD~1", "redbeat_lite"]
    archive = subprocess.run(command, capture_output=True)
    if archive.returncode:
        pytest.skip("there is no previous commit to be had: this is no checkout")
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as tar:
        tar.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.2 has none
        tar.extractall(tmp_path)
    return tmp_path


def test_the_previous_commit_beside_this_one(
    own_server: StartServer, scenario_on: MakeScenario, publish: Publish, lease: float, former: Path
) -> None:
    scenario = scenario_on(own_server())
    older = {"PYTHONPATH": f"{former}:{ROOT}", "PYTHONSAFEPATH": "1"}
    scenario.beats.start(**older).says(f"redbeat_lite of {former}")
    scenario.begin()
    if scenario.seconds < 60:
        # A beat of the older version takes long to start, so it leads again after the newer one.
        follower = scenario.beats.start()
        follower.says(f"redbeat_lite of {ROOT}")
        follower.says("standing by")
        for _ in range(2):
            frozen(scenario, lease)
    turn = 0
    while scenario.left > 0 and scenario.seconds >= 60:
        turn += 1
        if turn % 2:
            follower = scenario.beats.start()
            follower.says(f"redbeat_lite of {ROOT}")
        else:
            follower = scenario.beats.start(**older)
            follower.says(f"redbeat_lite of {former}")
        hand_over_to(scenario, follower, lease)
    verdict = scenario.verdict()
    assert verdict.handovers == verdict.faults
    publish("two versions", verdict)


# In `make test`, promises have one beat whose clock is wrong or is set:
# test_a_beat_whose_clock_is_wrong_sends_in_time and test_a_clock_that_is_set_leaves_out_and_repeats_no_run.
@pytest.mark.soak
def test_beats_whose_clocks_are_two_hours_apart(
    own_server: StartServer,
    scenario_on: MakeScenario,
    publish: Publish,
    lease: float,
    tmp_path: Path,
) -> None:
    """One that goes wrong leads, one that goes right follows it, and again; ahead and behind."""
    scenario = scenario_on(own_server())
    scenario.beats.start()
    scenario.begin()
    clocks = itertools.count()
    while scenario.left > 2 * (lease + 3) or next(clocks) < 1:
        for shift in (scenario.chance.choice(["7200", "-7200"]), "0"):
            clock = tmp_path / f"clock {next(clocks)}"
            clock.write_text(shift)
            follower = scenario.beats.start(PROJ_CLOCK=str(clock))
            hand_over_to(scenario, follower, lease)
    verdict = scenario.verdict(shifted=True)
    assert verdict.handovers == verdict.faults
    publish("clocks", verdict)


def test_a_clock_that_is_set_by_two_hours(
    own_server: StartServer, scenario_on: MakeScenario, publish: Publish, tmp_path: Path
) -> None:
    """Nobody notices: beats go by the clock of the server."""
    clock = tmp_path / "clock"
    scenario = scenario_on(own_server())
    scenario.beats.start(PROJ_CLOCK=str(clock))
    scenario.beats.start(PROJ_CLOCK=str(clock))
    leader = scenario.begin()
    for shift in ("7200", "-7200", "0"):
        scenario.pause(1, 2)
        scenario.note_fault(0)
        clock.write_text(shift)
    verdict = scenario.verdict(shifted=True)
    assert len(leader.lines("beat: leading")) == 1
    assert verdict.handovers == 0
    assert leader.lines("went back") == []
    publish("clock", verdict)

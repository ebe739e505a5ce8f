"""Beats that do not agree: about their configuration, their version, or the time."""

from __future__ import annotations

import itertools
import subprocess
import tarfile
from collections import Counter
from io import BytesIO
from pathlib import Path

import pytest

from tests.faults.driver import On, Own, Publish, Stage, load
from tests.support.processes import ROOT, Process


def takes_over(stage: Stage, follower: Process, lease: float) -> None:
    """Kill the leader a moment after this beat stands by, and wait until it leads and sends."""
    follower.says("standing by")
    stage.pause(0.2, 1)
    stage.struck(lease + 1.5)
    stage.kill(stage.leader())
    follower.says("beat: leading")
    stage.flows()


def test_two_configurations(own_server: Own, on: On, publish: Publish, lease: float) -> None:
    """The leader's counts. What both have goes on as it was."""
    stage = on(own_server())
    more = {f"x{name}": entry for name, entry in load(50).items()}
    kinds = [{"beat_schedule": load()}, {"beat_schedule": {**load(), **more}}]
    stage.beat(conf=kinds[0])
    stage.begin()
    turn = 0
    while stage.left > 0 or turn < 2:
        turn += 1
        follower = stage.beat(conf=kinds[turn % 2])
        follower.says("standing by")
        stage.struck(lease + 1.5)
        stage.kill(stage.leader())
        follower.says("beat: leading")
        stage.flows()
        own = len(stage.collector.records)
        stage.pause(2.2)
        extra = {each.entry for each in stage.collector.records[own:] if each.sender == follower.pid} & set(more)
        assert extra == (set(more) if turn % 2 else set())
    verdict = stage.verdict()
    assert (verdict.lost, verdict.doubled) == (0, 0)
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
    own_server: Own, on: On, publish: Publish, lease: float, former: Path
) -> None:
    stage = on(own_server())
    older = {"PYTHONPATH": f"{former}:{ROOT}", "PYTHONSAFEPATH": "1"}
    stage.beat(**older).says(f"redbeat_lite of {former}")
    stage.begin()
    turn = 0
    while stage.left > 0 or turn < 2:
        turn += 1
        follower = stage.beat(**({} if turn % 2 else older))
        follower.says(f"redbeat_lite of {ROOT if turn % 2 else former}")
        takes_over(stage, follower, lease)
    verdict = stage.verdict()
    assert (verdict.lost, verdict.doubled) == (0, 0)
    assert verdict.handovers == verdict.faults
    publish("two versions", verdict)


@pytest.mark.soak
def test_beats_whose_clocks_are_two_hours_apart(
    own_server: Own, on: On, publish: Publish, lease: float, tmp_path: Path
) -> None:
    """One that goes wrong leads, one that goes right follows it, and again; ahead and behind."""
    stage = on(own_server(), conf={"beat_schedule": load(misfire="coalesce")})
    stage.beat()
    stage.begin()
    clocks = itertools.count()
    while stage.left > 2 * (lease + 3) or next(clocks) < 1:
        for shift in (stage.chance.choice(["7200", "-7200"]), "0"):
            clock = tmp_path / f"clock {next(clocks)}"
            clock.write_text(shift)
            takes_over(stage, stage.beat(PROJ_CLOCK=str(clock)), lease)
    verdict = stage.verdict(period=None, shifted=True)
    assert verdict.doubled == 0
    assert verdict.handovers == verdict.faults
    assert verdict.wait < 1 + lease + 0.5 + 2 + verdict.withheld  # an interval, the lease, and what was planned anew
    publish("clocks", verdict)


def test_a_clock_that_is_set_by_two_hours(own_server: Own, on: On, publish: Publish, tmp_path: Path) -> None:
    """Ahead: one catch-up by policy. Back: no entry waits for longer than its own interval."""
    clock = tmp_path / "clock"
    stage = on(own_server(), conf={"beat_schedule": load(misfire="coalesce")})
    stage.beat(PROJ_CLOCK=str(clock))
    stage.beat(PROJ_CLOCK=str(clock))
    leader = stage.begin()
    for shift in ("7200", "0"):
        stage.pause(1.5, 2.5)
        stage.struck(2)
        clock.write_text(shift)
    verdict = stage.verdict(period=None, shifted=True)
    assert verdict.doubled == 0
    assert len(leader.lines("beat: leading")) == 1, "a lease does not care about wall clocks"
    assert verdict.handovers == 0
    assert len(leader.lines("WARNING.*the clock went back")) == 1
    most = max(Counter(record.entry for record in stage.collector.records).values())
    print(f"at most {most} messages of one entry")
    # The message that was to come, half a second until a waiting beat looks at its clock, and an interval from then on.
    assert verdict.wait < 2.8 + verdict.withheld
    assert most <= stage.seconds + 2 + 1, "no burst: two hours are one catch-up, and so is the way back"
    publish("clock", verdict)

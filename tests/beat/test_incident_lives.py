"""What an entry, or a beat, that is there again takes over from before: nothing."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from redbeat_lite import Expect, InvalidEntry, every
from redbeat_lite._base.clock import elapsed
from redbeat_lite._base.times import from_ms
from redbeat_lite.entries.run import EXPECT_HEADER, Attempt, Fate
from redbeat_lite.runs.incident_fold import Facts
from redbeat_lite.runs.run_store import RunKeys, RunStore
from redbeat_lite.store.redis_values import server_ms
from tests.beat.incidents import Stage
from tests.support.messages import of_entry
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("clock")


@pytest.mark.parametrize("failures", [1, 3])
def test_an_entry_that_is_removed_and_added_at_once_begins_anew(stage: Stage, failures: int) -> None:
    expect = Expect(failures=failures)
    stage.schedules.add("e", "add", every(60), expect=expect)
    for _ in range(2):
        stage.turn(60)
        stage.worker.tells("e", "failed")
        stage.turn()
    stage.schedules.remove("e")
    stage.schedules.add("e", "add", every(60), expect=expect)
    stage.turn()
    assert stage.schedules.incidents() == []
    stage.turn(60)
    stage.worker.tells("e", "failed")
    stage.turn()
    assert [each.count for each in stage.schedules.incidents()] == [1] * (failures == 1)


def test_of_an_entry_that_is_removed_no_failures_are_kept(stage: Stage) -> None:
    failures = RunKeys("redbeat-lite").failures
    for name in ("goes", "stays"):
        stage.schedules.add(name, "add", every(60), expect=Expect(failures=2))
    stage.turn(60)
    for name in ("goes", "stays"):
        stage.worker.tells(name, "failed")
    stage.turn()
    assert stage.client.hlen(failures) == 2
    stage.schedules.remove("goes")
    stage.turn(60)
    assert stage.client.hkeys(failures) == [b"stays"]


def test_who_leads_again_does_not_go_by_who_recorded_then(stage: Stage) -> None:
    stage.schedules.add("e", "add", every(60), expect=Expect(start_within=30))
    stage.worker.is_gone()
    stage.look()
    stage.turn(60)
    assert not stage.deadlines()
    stage.beat.leader.resign()
    stage.look()
    stage.clock.forward(60)
    stage.beat.leader.acquire()
    stage.beat.run_due()
    assert stage.deadlines()


@pytest.mark.parametrize("stage", [{"redbeat_lite_expect": {"start_within": 30}}], indirect=True)
def test_nothing_is_expected_of_an_entry_that_goes_with_its_last_run(stage: Stage) -> None:
    stage.schedules.add("stays", "add", every(60))
    stage.schedules.add("goes", "add", every(60), max_runs=2, remove_when_done=True)
    stage.turn(60, 20)
    assert [each.rpartition("|")[2] for each in stage.deadlines()] == ["stays"]
    assert [EXPECT_HEADER in of_entry(stage.client, name)[0].headers for name in ("stays", "goes")] == [True, False]
    assert stage.schedules.update("goes", expect=False).expect is False
    with pytest.raises(InvalidEntry, match="beside remove_when_done"):
        stage.schedules.update("goes", expect=Expect(failures=2))


def test_a_beat_whose_clock_is_a_minute_behind_changes_no_outcome_and_no_order(stage: Stage) -> None:
    """The server dates what workers tell by its own clock."""
    stage.clock.set(from_ms(server_ms(stage.client)) - timedelta(seconds=60))
    stage.schedules.add("e", "add", every(1), expect={"succeed_every": 30, "failures": 2}, history=9)
    store, outcomes = RunStore(stage.client, "redbeat-lite"), ("succeeded", "failed", "failed", "succeeded", "failed")
    stage.turn()
    for outcome in outcomes:
        stage.turn(1)
        nominal, id_ = stage.worker.nominal_of("e"), stage.schedules["e"].last_task_id
        assert id_ is not None
        run = Attempt("e", nominal, id_, 0, 9, expected=True)
        assert store.record([Fate(run, outcome, elapsed() - 0.1, 0.1, "w", "")]) == (0, "")  # type: ignore[arg-type]
    stage.turn()
    assert [run.outcome for run in stage.schedules.runs("e")] == [*reversed(outcomes)]
    assert [run.outcome for run in stage.schedules.runs()] == [*reversed(outcomes)]
    assert stage.schedules["e"].failures_in_a_row == 1
    stage.listener.hears("failed e", "-failed e")


@pytest.mark.parametrize("leads_again", [False, True])
def test_a_leader_that_slept_does_not_announce_an_incident_that_is_over_by_then(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, leads_again: bool
) -> None:
    sleeper = stage.beat
    watch = sleeper._parts.incidents
    read = watch._incidents.read_facts

    def sleep_after_reading(*args: Any) -> Facts:
        facts = read(*args)
        if facts.unannounced:
            stage.hand_over()
            stage.look()
            stage.listener.hears("quarantined bad")
            stage.client.hdel("{redbeat-lite}:quarantine", "bad")
            stage.look()
            stage.listener.hears("quarantined bad", "-quarantined bad")
            if leads_again:
                stage.beat.leader.resign()
                sleeper.leader.acquire()
        return facts

    monkeypatch.setattr(watch._incidents, "read_facts", sleep_after_reading)
    stage.client.hset("{redbeat-lite}:quarantine", "bad", "{}")
    watch.check()
    assert sleeper.leader.holds_lease is leads_again
    delivery = sleeper._parts.state.announcer.delivery()
    eventually(lambda: delivery.is_complete, what="what was announced is heard")
    assert stage.listener.lines() == ["quarantined bad", "-quarantined bad"]

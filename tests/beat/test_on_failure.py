"""``on_failure=Pause(after=...)``: an entry whose runs fail is paused, and an incident says so until it is resumed."""

from __future__ import annotations

import json
from typing import Any

import pytest
import redis

from redbeat_lite import InvalidEntry, Pause, Schedules, every, manual
from redbeat_lite.beat.incidents import LASTING, IncidentWatch
from redbeat_lite.entries.run import EXPECT_HEADER, Outcome
from redbeat_lite.runs.incident_fold import Facts
from redbeat_lite.runs.run_store import RunKeys
from tests.beat.incidents import Stage
from tests.support.messages import of_entry

pytestmark = pytest.mark.usefixtures("clock")


def runs(stage: Stage, *outcomes: Outcome, look: bool = True, **more: Any) -> None:
    """Let the entry ``e`` run once for each of these, and come to it."""
    for outcome in outcomes:
        stage.clock.forward(60)
        stage.beat.run_due()
        stage.worker.tells("e", outcome, **more)
        if look:
            stage.look()


def is_paused(stage: Stage) -> bool:
    return stage.schedules["e"].paused_note is not None


def kinds(stage: Stage) -> list[str]:
    return [each.kind for each in stage.schedules.incidents()]


@pytest.fixture
def entry(stage: Stage) -> Stage:
    stage.schedules.add("e", "add", every(60), on_failure=Pause(after=3))
    return stage


def test_failures_in_a_row_pause_an_entry_until_it_is_resumed(entry: Stage) -> None:
    stage = entry
    runs(stage, "failed", "lost")
    assert not is_paused(stage)
    runs(stage, "rejected", error="why")
    paused = stage.schedules["e"]
    assert (paused.paused_note, paused.next_run_at) == ("paused after 3 failures in a row", None)
    change = stage.schedules.changes("e")[0]
    assert (change.action, change.actor, change.way, change.note) == ("paused", "beat", "beat", paused.paused_note)
    [incident] = stage.schedules.incidents()
    assert (incident.kind, incident.entry, incident.count) == ("paused", "e", 3)
    assert incident.text == "paused: been rejected 3 times in a row: why"
    stage.fail_over()
    stage.turn(3600)
    stage.listener.hears("paused e")
    stage.schedules.resume("e")
    stage.turn()
    stage.listener.hears("paused e", "-paused e")
    runs(stage, "failed", "failed")
    assert not is_paused(stage)
    runs(stage, "failed")
    assert is_paused(stage)


def test_an_entry_that_is_paused_after_failures_waits_for_its_resumption(entry: Stage) -> None:
    stage = entry
    runs(stage, "failed", "failed", "failed")
    stage.schedules.pause("e", "try again later", seconds=600)
    assert stage.schedules["e"].paused_note == "paused after 3 failures in a row"
    stage.schedules.resume("e")
    stage.schedules.pause("e", "try again later", seconds=600)
    stage.turn(599, 0)
    assert stage.schedules["e"].paused_note == "try again later"
    stage.turn(1, 0, 60, 0)
    assert (stage.schedules["e"].status, kinds(stage)) == ("waiting", [])


#: Outcomes of runs one after the other -> whether three failures in a row are among them.
IS_TOO_OFTEN: dict[tuple[Outcome, ...], bool] = {
    ("failed", "failed", "succeeded", "failed", "failed"): False,
    ("failed", "failed", "revoked", "expired", "skipped"): False,
    ("failed", "expired", "failed", "revoked", "failed"): True,
    ("expired", "expired", "expired"): False,
    ("failed", "lost", "failed", "succeeded"): True,
    ("rejected", "rejected", "rejected"): True,
}


@pytest.mark.parametrize(("expect", "at_once"), [(None, True), ({"start_within": 30}, False)])
def test_what_is_no_failure_does_not_count_and_a_success_sets_back(stage: Stage, expect: Any, at_once: bool) -> None:
    for outcomes in IS_TOO_OFTEN:
        stage.schedules.add(" ".join(outcomes), "add", every(60), on_failure="pause:3", expect=expect)
    for number in range(5):
        stage.clock.forward(60)
        stage.beat.run_due()
        for outcomes in IS_TOO_OFTEN:
            if number < len(outcomes):
                begin = 0.01 if outcomes[number] in ("failed", "succeeded") else None
                stage.worker.tells(" ".join(outcomes), outcomes[number], begin=begin)
        if not at_once:
            stage.look()
    stage.turn()
    expected = {" ".join(outcomes) for outcomes, is_too_often in IS_TOO_OFTEN.items() if is_too_often}
    assert {name for name, entry in stage.schedules.items() if entry.paused_note is not None} == expected
    assert {each.entry for each in stage.schedules.incidents() if each.kind == "paused"} == expected
    assert expect is not None or set(kinds(stage)) == {"paused"}


def test_a_leader_that_dies_before_it_has_paused_leaves_it_to_the_next_one(
    entry: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = entry
    with monkeypatch.context() as patched:
        patched.setattr(IncidentWatch, "_pause_failing", _dies)
        with pytest.raises(SystemError):
            runs(stage, "failed", "failed", "failed")
    assert not is_paused(stage)
    assert kinds(stage) == ["paused"]
    stage.hand_over()
    stage.look()
    assert is_paused(stage)


@pytest.mark.parametrize("is_catching_up", [True, False])
def test_who_has_resumed_it_is_not_overruled_by_a_leader_that_died_after_it_had_paused(
    entry: Stage, monkeypatch: pytest.MonkeyPatch, is_catching_up: bool
) -> None:
    stage, whole = entry, IncidentWatch._pause_failing

    def dies_after(*args: Any) -> None:
        whole(*args)
        if _has_failed_too_often(args[1]):
            raise SystemError

    with monkeypatch.context() as patched:
        patched.setattr(IncidentWatch, "_pause_failing", dies_after)
        with pytest.raises(SystemError):
            runs(stage, "failed", "failed", "failed")
    assert is_paused(stage)
    stage.schedules.resume("e", catch_up=is_catching_up)
    stage.hand_over()
    stage.turn(1)
    stage.turn(1)
    assert not is_paused(stage)
    assert kinds(stage) == []


def test_what_failed_before_it_was_resumed_does_not_count_again(entry: Stage) -> None:
    stage = entry
    runs(stage, "failed", "failed")
    stage.schedules.pause("e")
    stage.schedules.resume("e")
    stage.schedules.update("e", description="edited since")
    runs(stage, "failed", "failed")
    assert not is_paused(stage)
    runs(stage, "lost")
    assert is_paused(stage)
    stage.schedules.resume("e")
    for _ in range(3):
        stage.worker.tells("e", "failed")  # a copy of the run that was lost
        stage.turn()
    assert not is_paused(stage)


def test_nothing_counts_while_it_is_paused_by_hand_or_was_due_before_it_was_resumed(stage: Stage) -> None:
    stage.schedules.add("e", "add", every(60), on_failure=Pause(after=1))
    stage.turn(60)
    before = stage.worker.nominal_of("e")
    stage.turn(60)
    stage.schedules.pause("e", note="by hand")
    stage.worker.tells("e", "failed")
    stage.turn()
    assert kinds(stage) == []
    stage.schedules.resume("e")
    stage.schedules.update("e", on_failure=Pause(after=2))
    runs(stage, "failed")
    line = {"name": "e", "nominal": before, "id": "x", "outcome": "f", "attempt": 0}
    stage.worker.writes({**line, **dict.fromkeys(("begin", "duration", "worker", "error"), "")})
    stage.turn()
    assert not is_paused(stage)
    assert kinds(stage) == []
    runs(stage, "failed")
    assert is_paused(stage)


def test_a_failure_after_the_end_of_a_timed_pause_pauses_the_entry(entry: Stage) -> None:
    stage = entry
    runs(stage, "failed", "failed")
    stage.turn(60)
    stage.schedules.pause("e", "a deployment", seconds=30)
    stage.clock.forward(31)
    stage.worker.tells("e", "failed")
    stage.turn(0, 0)
    assert kinds(stage) == ["paused"]
    assert stage.schedules["e"].paused_note == "paused after 3 failures in a row"
    assert stage.schedules["e"].paused_until is None
    sent = len(of_entry(stage.client, "e"))
    stage.turn(60, 60)
    assert len(of_entry(stage.client, "e")) == sent


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_run_that_a_resumption_makes_up_for_counts_and_what_failed_before_does_not(
    stage: Stage, by_hand: bool
) -> None:
    stage.schedules.add("e", "add", every(60), misfire="all", on_failure=Pause(after=1))
    stage.turn(60)
    if by_hand:
        stage.clock.forward(10)
        stage.schedules.run_now("e")
    stage.worker.tells("e", "failed")
    stage.turn()
    assert is_paused(stage)
    stage.clock.forward(150)
    stage.schedules.resume("e", catch_up=True)
    stage.turn(0, 0)
    assert not is_paused(stage)
    stage.worker.tells("e", "failed", begin=30)
    stage.turn()
    assert is_paused(stage)


@pytest.mark.parametrize("stage", [{"redbeat_lite_history": 0}], indirect=True)
def test_one_run_is_recorded_whatever_the_settings_say(entry: Stage) -> None:
    entry.turn(60, 60)
    assert len(entry.schedules["e"].state.sent) == 1


def test_another_entry_of_the_name_is_not_paused_for_the_one_before(
    entry: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = entry
    with monkeypatch.context() as patched:
        patched.setattr(IncidentWatch, "_pause_failing", _dies)
        with pytest.raises(SystemError):
            runs(stage, "failed", "failed", "failed")
    stage.schedules.remove("e")
    stage.schedules.add("e", "add", every(60), on_failure=Pause(after=3))
    stage.hand_over()
    stage.turn()
    assert not is_paused(stage)
    assert kinds(stage) == []


def test_it_counts_what_is_expected_by_the_same_failures(stage: Stage, client: redis.Redis) -> None:
    stage.schedules.add("e", "add", every(60), on_failure=Pause(after=3), expect={"failures": 2})
    runs(stage, "failed", "expired")
    assert kinds(stage) == ["failed"]
    runs(stage, "failed")
    generation = stage.schedules["e"].generation
    counted: Any = client.hget(RunKeys("redbeat-lite").failures, "e")
    times, _, of, strikes = json.loads(counted)
    assert (times, of, strikes) == (3, generation, 2)
    runs(stage, "failed")
    assert kinds(stage) == ["paused"]  # which says more than that they failed


def test_where_nobody_records_that_is_told(entry: Stage, client: redis.Redis) -> None:
    stage = entry
    stage.schedules.add("free", "add", every(60))
    stage.turn(60, 60, 60)
    assert [EXPECT_HEADER in of_entry(client, name)[-1].headers for name in ("free", "e")] == [False, True]
    stage.worker.is_gone()
    for _ in range(LASTING + 1):
        stage.turn(60)
    assert kinds(stage) == ["nobody_records"]


def test_where_there_is_no_room_for_an_incident_the_entry_is_paused_nevertheless(
    entry: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redbeat_lite.runs.incident_fold._MOST", 0)
    runs(entry, "failed", "failed", "failed")
    entry.clock.forward(3)
    entry.look()
    assert is_paused(entry)
    assert kinds(entry) == ["paused"]


def test_manual_entries_have_no_policy(schedules: Schedules) -> None:
    with pytest.raises(InvalidEntry, match=r"on_failure: expected no on_failure beside manual\(\)"):
        schedules.add("m", "add", manual(), on_failure=Pause(after=3))


def _has_failed_too_often(facts: Facts) -> bool:
    return any(incident.kind == "paused" for incident in facts.incidents)


def _dies(_self: IncidentWatch, facts: Facts, *_: Any) -> None:
    if _has_failed_too_often(facts):
        raise SystemError

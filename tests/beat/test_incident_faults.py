"""Incidents where there is more than usual, or something that should not be there."""

from __future__ import annotations

import threading

import pytest

from redbeat_lite import Expect, every
from redbeat_lite.events import Hooks, IncidentOpened
from redbeat_lite.runs import incident_fold, incident_store
from redbeat_lite.runs.run_store import RunKeys
from tests.beat.incidents import DEADLINES, Stage
from tests.support.stopwatch import Stopwatch
from tests.support.waiting import eventually

START = Expect(start_within=30)


def test_rows_that_are_none_harm_no_other_entry(stage: Stage) -> None:
    for name in ("foreign", "other"):
        stage.schedules.add(name, "add", every(60), expect=START)
    stage.turn(60)
    stage.client.set(RunKeys("redbeat-lite").rows("foreign"), "x", ex=60)
    stage.turn(40)
    assert sorted(each.entry or "" for each in stage.schedules.incidents()) == ["foreign", "other"]


def test_those_set_aside_that_are_known_stay(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incident_fold, "_MOST", 30)

    def set_aside(*numbers: int) -> None:
        stage.client.hset("{redbeat-lite}:quarantine", mapping={f"bad{n}": "{}" for n in numbers})

    def open_() -> set[str | None]:
        stage.look()
        return {each.entry for each in stage.schedules.incidents()}

    set_aside(*range(20))
    known = open_()
    assert len(known) == 20
    set_aside(*range(20, 2000))
    assert known < open_()
    assert len(open_()) == 30
    assert stage.schedules.incidents(closed=True) == []
    stage.client.hdel("{redbeat-lite}:quarantine", *map(str, known))
    eventually(lambda: len(found := open_()) == 30 and not found & known, what="others in their place")


def test_a_backlog_is_read_at_once_and_counts_as_one_look(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incident_store, "PAGE", 1)
    watch = stage.beat._parts.incidents
    stage.schedules.add("e", "add", every(60))
    stage.clock.forward(200)
    last = [stage.worker.writes({"name": "x"}) for _ in range(20)][-1]
    with Stopwatch() as stopwatch:
        watch.ticker.start()
        watch.ticker.soon()
        eventually(lambda: stage.client.hget("{redbeat-lite}:meta", "feed") == last, what="the end")
    stopwatch.at_most(10)
    assert not stage.schedules.incidents()


def test_a_hook_that_hangs_keeps_no_other_from_hearing_of_more_than_a_page(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()

    class Hanging(Hooks):
        def incident_opened(self, event: IncidentOpened) -> None:
            goes_on.wait(60)

    monkeypatch.setattr(incident_store, "PAGE", 3)
    stage.beat._parts.state.announcer.add(Hanging())
    names = [f"e{number}" for number in range(8)]
    for name in names:
        stage.schedules.add(name, "add", every(60), expect=START)
    stage.turn(60, 40, 0, 0, 0)
    eventually(lambda: len(stage.listener.heard) == 8, what="all incidents", within=10)
    goes_on.set()
    assert {event.entry for event in stage.listener.heard} == {*names}


def test_a_success_behind_many_other_ends_is_found_before_its_time_is_judged(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incident_store, "PAGE", 5)
    stage.schedules.add("e", "add", every(60), expect={"succeed_every": 150})
    stage.turn(60)
    stage.clock.forward(100)
    for _ in range(7):
        stage.worker.writes({"name": "x"})
    stage.worker.tells("e", "succeeded")
    stage.turn(53, 0, 90)
    assert stage.schedules.incidents(closed=True) == stage.schedules.incidents() == []
    stage.turn(10)
    assert [each.kind for each in stage.schedules.incidents()] == ["no_success"]


def test_a_deadline_that_cannot_be_read_is_removed(stage: Stage) -> None:
    stage.client.zadd(DEADLINES, {"x": 0, "start|soon|e": 0})
    stage.look()
    assert not stage.deadlines()


@pytest.mark.parametrize("text", ['["failed","e",1700000000000,"as it was stored before",1,null,null,null,""]', "\xff"])
def test_an_incident_that_cannot_be_read_keeps_no_other_from_opening(stage: Stage, text: str) -> None:
    stage.schedules.add("e", "add", every(60), expect={"failures": 1})
    stage.client.hset(RunKeys("redbeat-lite").incidents, mapping={"failed:e": text, "other:x": text})
    stage.turn(60)
    stage.worker.tells("e", "failed")
    stage.turn()
    stage.listener.hears("failed e")
    assert [each.kind for each in stage.schedules.incidents()] == ["failed"]

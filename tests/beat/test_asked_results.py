"""Entries that trust the result backend: where nobody records, it is asked what became of runs."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from threading import Event
from typing import Any

import pytest
from celery.backends.base import Backend, SyncBackendMixin

from redbeat_lite import Expect, InvalidEntry, Schedules, every
from redbeat_lite.beat import asked_results as module
from redbeat_lite.beat.incidents import LASTING
from redbeat_lite.runs import incident_store
from tests.beat.incident_stage import Stage
from tests.support.frozen import Clock
from tests.support.in_process import MakeApp, MakeBeat
from tests.support.server import Server
from tests.support.waiting import eventually

#: Of a task that is asked for by itself: what it came to.
TOLD: dict[str, dict[str, Any]] = {}
ASKED: list[str] = []


class Told(SyncBackendMixin, Backend):  # type: ignore[misc]  # Celery ships no types
    """Knows what a test has told it; may be away, and may hang."""

    away = False
    goes_on = Event()

    def _get_task_meta_for(self, task_id: str) -> dict[str, Any]:
        ASKED.append(task_id)
        self.goes_on.wait(30)
        if Told.away:
            raise ConnectionError("as asked")
        return TOLD.get(task_id, {"status": "PENDING", "result": None})


@pytest.fixture
def stage(make_app: MakeApp, make_beat: MakeBeat, client: Any, clock: Clock) -> Iterator[Stage]:
    """A beat whose app has a result backend, and no worker that reports."""
    TOLD.clear(), ASKED.clear()
    Told.away = False
    Told.goes_on.set()
    stage = Stage(make_app(result_backend=f"{__name__}:Told"), make_beat, client, clock)
    stage.worker.is_gone()
    stage.beat.leader.resign()
    stage.beat = make_beat(stage.app)
    yield stage
    Told.goes_on.set()


def ends(stage: Stage, name: str, status: str, result: Any = None, ago: float = 0) -> None:
    """What the backend knows of the last run that was sent of an entry."""
    task_id = stage.schedules[name].last_task_id
    assert task_id is not None
    done = stage.clock.forward(-ago).isoformat()
    stage.clock.forward(ago)
    TOLD[task_id] = {"status": status, "result": result, "date_done": done}


def asks(**fields: Any) -> Expect:
    return Expect(trust="backend", **fields)


def kinds(stage: Stage) -> list[str]:
    return sorted(each.kind for each in stage.schedules.incidents())


def test_without_workers_that_record_the_results_decide(stage: Stage) -> None:
    stage.schedules.add("e", "add", every(600), expect=asks(start_within=30, finish_within=60))
    stage.turn(600, 33)
    assert kinds(stage) == ["missed"]
    stage.turn(567)
    ends(stage, "e", "STARTED")
    stage.turn(33)
    assert kinds(stage) == []
    stage.turn(30)
    assert kinds(stage) == ["too_long"]
    stage.turn(537)
    ends(stage, "e", "FAILURE", OSError("disk"))
    stage.turn(33)
    [failed] = stage.schedules.incidents()
    assert (failed.kind, failed.text) == ("failed", "failed: OSError: disk")
    stage.turn(30, 537)
    ends(stage, "e", "SUCCESS")
    stage.turn(33, *[0] * LASTING)
    assert (kinds(stage), stage.deadlines()) == ([], {})
    assert not [each for each in stage.schedules.incidents(closed=True) if each.kind == "nobody_records"]


def test_failures_in_a_row_are_those_of_runs_however_often_one_is_asked_for(stage: Stage) -> None:
    stage.schedules.add("e", "add", every(60), expect=asks(start_within=20, finish_within=40, failures=3))
    for number in range(3):
        assert kinds(stage) == []
        stage.turn(60)
        ends(stage, "e", "FAILURE", OSError(f"error {number}"))
        stage.turn(23, 20)
        stage.turn(-43)
    [failed] = stage.schedules.incidents()
    assert failed.text == "failed 3 times in a row: OSError: error 2"


def test_results_are_fetched_from_redis(make_app: MakeApp, make_beat: MakeBeat, client: Any, clock: Clock) -> None:
    url = make_app().conf.broker_url
    stage = Stage(make_app(result_backend=url, result_expires=3600), make_beat, client, clock)
    stage.schedules.add("e", "add", every(600), expect=asks(finish_within=60))
    stage.turn(600)
    stage.app.backend.store_result(stage.schedules["e"].last_task_id, OSError("disk"), "FAILURE")
    stage.turn(63)
    assert kinds(stage) == ["failed"]


def test_what_a_worker_has_recorded_needs_no_result(stage: Stage) -> None:
    stage.schedules.add("e", "add", every(600), expect=asks(start_within=30))
    stage.turn(600)
    stage.worker.tells("e", "running")
    stage.turn(33)
    assert (kinds(stage), ASKED) == ([], [])


def test_workers_have_to_record_for_the_others_alone(stage: Stage) -> None:
    stage.schedules.add("asks", "add", every(60), expect=asks(start_within=30))
    stage.schedules.add("records", "add", every(60), expect=Expect(start_within=30))
    stage.turn(60, 33, *[0] * LASTING)
    stage.listener.hears("missed asks", "nobody_records")


def test_a_queue_that_no_reporting_worker_takes_from_may_have_others(stage: Stage) -> None:
    stage.schedules.add("e", "add", every(60), expect=asks(start_within=30))
    stage.worker.reports("other")
    stage.turn(60, 33)
    assert kinds(stage) == ["missed"]


def test_a_success_is_looked_for_among_the_last_runs(stage: Stage) -> None:
    stage.schedules.add("e", "add", every(60), expect=asks(succeed_every=150))
    stage.turn(60)
    ends(stage, "e", "SUCCESS")
    for _ in range(2):
        stage.turn(60)
        ends(stage, "e", "FAILURE", OSError())
    stage.turn(33)
    assert kinds(stage) == ["no_success"]
    stage.turn(27)
    ends(stage, "e", "SUCCESS")
    stage.turn(60)
    assert kinds(stage) == []
    assert stage.deadlines() == {"success||e": stage.clock.now.timestamp() - 60 + 150}


def test_a_backend_that_is_away_decides_nothing(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.schedules.add("e", "add", every(6000), expect=asks(start_within=30, succeed_every=6030))
    stage.turn(6000)
    Told.away = True
    stage.turn(33, 2, 2)
    assert (kinds(stage), len(stage.deadlines())) == ([], 2)
    ends(stage, "e", "STARTED")
    Told.away = False
    stage.turn(2)
    assert (kinds(stage), len(stage.deadlines())) == ([], 1)
    [said] = [each.getMessage() for each in caplog.records if "result backend" in each.getMessage()]
    assert said == "beat: the result backend cannot tell what became of runs: ConnectionError: as asked"


def test_what_it_could_not_tell_of_for_ten_minutes_is_passed_over(stage: Stage) -> None:
    stage.schedules.add("e", "add", every(6000), expect=asks(start_within=30))
    stage.turn(6000)
    Told.away = True
    stage.turn(33)
    assert stage.deadlines()
    stage.turn(600)
    Told.away = False
    stage.turn()
    assert (kinds(stage), stage.deadlines()) == ([], {})


def test_a_backend_that_hangs_delays_a_look_once(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE", 0.05)
    stage.schedules.add("e", "add", every(600), expect=asks(start_within=30))
    stage.schedules.add("f", "add", every(600), expect=asks(start_within=30))
    stage.turn(600)
    Told.goes_on.clear()
    stage.turn(33)
    eventually(lambda: ASKED, what="a question")
    stage.turn(2)
    assert (kinds(stage), len(ASKED)) == ([], 1)
    assert [each.name for each in threading.enumerate()].count("redbeat-lite-results") == 1
    Told.goes_on.set()
    eventually(lambda: stage.look() or kinds(stage) == ["missed", "missed"], what="an answer")


def test_undecided_ones_are_in_nobodys_way(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incident_store, "PAGE", 2)
    for name in ("a", "b", "c", "d", "e"):
        stage.schedules.add(name, "add", every(600), expect=asks(start_within=20))
    stage.schedules.add("records", "add", every(600), expect=Expect(start_within=30))
    stage.worker.reports()
    stage.look()
    stage.turn(600)
    Told.away = True
    stage.turn(33)
    assert [each.entry for each in stage.schedules.incidents()] == ["records"]


def test_of_many_results_some_are_asked_for_with_each_look(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST", 2)
    monkeypatch.setattr(incident_store, "PAGE", 3)
    for name in ("a", "b", "c", "d", "e"):
        stage.schedules.add(name, "add", every(600), expect=asks(start_within=20))
    stage.turn(600, 23)
    found = [len(ASKED)]
    for _ in range(2):
        stage.look()
        found.append(len(ASKED))
    assert (found, len(kinds(stage))) == ([2, 4, 5], 5)


def test_ids_that_were_given_otherwise_are_not_asked_for(stage: Stage) -> None:
    stage.schedules.add("e", "add", every(600), expect=asks(start_within=30))
    stage.turn(600)
    stage.schedules.remove("e")
    stage.schedules.add("e", "add", every(600), expect=asks(start_within=30))
    stage.turn(33)
    assert (kinds(stage), stage.deadlines(), ASKED) == ([], {}, [])


@pytest.mark.parametrize(
    ("conf", "fields", "why"),
    [
        ({"result_backend": None}, {}, "the app has no result backend that tells of what another process has sent"),
        ({"result_backend": "rpc://"}, {}, "the app has no result backend"),
        ({}, {"options": {"ignore_result": True}}, r"results of the task are not kept \(ignore_result\)"),
        ({}, {"task": "mute"}, "results of the task are not kept"),
        ({"result_expires": 30}, {}, r"results are kept for 30 s \(result_expires\), not for longer than 30 s"),
    ],
)
def test_a_backend_that_will_not_tell_is_not_to_be_trusted(
    make_app: MakeApp, make_beat: MakeBeat, server: Server, conf: dict[str, Any], fields: dict[str, Any], why: str
) -> None:
    app = make_app(**{"result_backend": server.url, **conf})
    app.task(_mute, name="mute", ignore_result=True, shared=False)
    app.finalize()
    entry = {"task": "add", "schedule": every(60), "expect": asks(start_within=30), **fields}
    schedules = Schedules(app)
    with pytest.raises(InvalidEntry, match=f"entry 'e': expect.trust: expected 'workers', as {why}"):
        schedules.add("e", **entry)
    app.conf.beat_schedule = {"e": entry}
    make_beat(app).run_due()
    assert re.match(f"expect.trust: expected 'workers', as {why}", schedules.refused()["e"])


@pytest.mark.parametrize("mute", ["task", "app"])
def test_of_what_leaves_no_result_workers_tell_or_nobody(stage: Stage, mute: str) -> None:
    """The app has said for all entries that its result backend is to be trusted."""
    stage.beat._incidents.deadlines._default = asks(start_within=30)
    if mute == "task":
        stage.app.task(_mute, name="mute", ignore_result=True, shared=False)
    else:
        stage.app.conf.task_ignore_result = True
    stage.app.finalize()
    stage.schedules.add("e", "mute", every(600))
    stage.turn(600, 33, *[0] * LASTING)
    assert (kinds(stage), ASKED) == ([], [])
    stage.worker.reports()
    stage.turn(567, 33)
    assert kinds(stage) == ["missed"]


def _mute() -> None: ...

"""What a step tells of its progress, and how a run is told as JSON."""

from __future__ import annotations

import itertools
import json
import threading
import time
from typing import Any

import pytest
import redis

from redbeat_lite.pipeline import pipeline_task, progress_line
from redbeat_lite.pipeline.definition import Ref
from redbeat_lite.pipeline.pipeline_store import store_of
from redbeat_lite.pipeline.pipeline_task import Progress
from tests.harness.workers import Worker
from tests.pipeline.lab import Lab, record
from tests.support.waiting import eventually


def test_the_last_word_of_each_half_second_is_written() -> None:
    told: list[tuple[float, float, str]] = []
    step = Progress(lambda percent, note: told.append((time.monotonic(), percent, note)))
    begun = time.monotonic()
    for n in range(101):
        step.report(n, f"{n} of 100")
        time.sleep(0.015)  # as a body that works
    eventually(lambda: told[-1][1:] == (100, "100 of 100"), what="the last word")
    assert len(told) <= 2 + (told[-1][0] - begun) / 0.5
    assert [percent for _, percent, _ in told] == sorted(percent for _, percent, _ in told)
    assert all(after - before >= 0.49 for (before, *_), (after, *_) in itertools.pairwise(told))


def test_a_body_waits_for_nothing_and_hears_of_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    let_go, gave_up = threading.Event(), threading.Event()

    def hang(**_: Any) -> None:
        let_go.wait(20)
        gave_up.set()
        raise redis.ConnectionError("away")

    step = Progress(hang)
    step.report(1, "")
    step.report(200, "\x1b[31m" + "x" * 300)
    assert not gave_up.is_set(), "it was not waited for"
    let_go.set()
    assert gave_up.wait(20)
    step.close()


def test_a_body_goes_on_where_there_can_be_no_more_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    told: list[float] = []
    step = Progress(lambda percent, note: told.append(percent))
    monkeypatch.setattr(threading.Thread, "start", none_left)
    step.report(1, "")
    step.report(2, "")
    step.close()
    assert told == [2]


def test_the_last_word_of_a_step_is_written_before_it_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_task, "_PROGRESS_PERIOD", 60)
    told: list[tuple[float, str]] = []
    step = Progress(lambda percent, note: told.append((percent, note)))
    step.report(1, "first")
    step.report(99, "last but one")
    step.report(float("nan"), "\x1b[31m" + "x" * 300)
    step.close()
    step.close()
    assert told == [(0, ("\\x1b[31m" + "x" * 300)[:200])]


def test_a_step_tells_how_far_it_is(lab: Lab, crew: Worker) -> None:
    run = lab.start(("a", lab.sig(how="until", progress=[30, "3 of 10"]), 2), ("b", lab.sig(progress=[90, "bye"]), 1))
    eventually(lambda: run.status().step("a").percent, what="its progress")
    status = run.status()
    assert (status.step("a").percent, status.step("a").note, status.percent) == (30, "3 of 10", 15)
    assert "running: a 30 %" in progress_line(status)
    token = record(store_of(lab.app), run.id)["token"]
    store_of(lab.app).change(Ref(run.id, 0, token="another copy's"), percent=99, note="x")
    store_of(lab.app).change(Ref(run.id, 0, 1, 0, token), percent=99, note="x")
    assert run.status().step("a").percent == 30
    lab.go(run)
    assert run.wait(20).percent == 100
    store_of(lab.app).change(Ref(run.id, 0, 0, 0, token), percent=99, note="late")
    assert run.status().step("a").note == "3 of 10"


def test_a_run_is_told_as_json(lab: Lab, crew: Worker) -> None:
    run = lab.start(("a", lab.sig(), 2), ("b", lab.sig(how="fail", progress=[90, "bye"]), 1))
    status = run.wait(20)
    assert (status.step("b").percent, status.step("b").note) == (90, "bye"), "what it told as its last word"
    told = json.loads(json.dumps(status.as_json()))
    assert set(told) == {
        "id", "state", "stage", "stages", "steps", "error_step", "error", "created_at", "ended_at", "percent", "ended",
        "progress", "deadline", "entry", "done", "total", "why",
    }  # fmt: skip
    assert set(told["steps"][0]) == {
        "name", "task", "stage", "state", "task_id", "started_at", "ended_at", "error", "attempt", "round", "worker",
        "percent", "note",
    }  # fmt: skip
    assert (told["state"], told["percent"], told["ended"]) == ("FAILED", 95, True)
    assert told["steps"][1]["error"] == "ValueError: as asked"
    assert told["why"] == "b: ValueError: as asked"
    assert status.ended_at is not None
    assert told["ended_at"] == status.ended_at.isoformat()
    assert told["progress"] == progress_line(status)


def test_outside_of_a_step_nothing_is_told(lab: Lab) -> None:
    lab.app.tasks["proj.step"].progress(30, "nobody hears")

"""Runs of one entry that may not overlap: one at a time, in their order, whoever dies."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery

from redbeat_lite import InvalidEntry, Pipeline, PipelineRun, Schedules, every
from redbeat_lite.once.lock_store import LockStore
from redbeat_lite.pipeline import pipeline_run, sweep, sweeper
from redbeat_lite.pipeline.definition import Ref
from redbeat_lite.pipeline.pipeline_keys import turn, turns_key
from redbeat_lite.pipeline.pipeline_run import begin
from redbeat_lite.pipeline.pipeline_store import store_of
from redbeat_lite.pipeline.sweeper import conclude
from tests.harness.workers import Worker
from tests.pipeline.lab import Lab, record
from tests.pipeline.steps import make_app
from tests.support.server import Server
from tests.support.waiting import eventually


@pytest.fixture
def app(server: Server) -> Iterator[Celery]:
    app = make_app(server.url)
    yield app
    app.close()


def start(app: Celery, run_id: str, overlap: str, entry: str = "nightly", deadline: int | None = None) -> PipelineRun:
    """As the task does that an entry sends."""
    pipeline = Pipeline(app, [("step", 2), ("add", 1)], overlap=overlap, deadline=deadline)
    return begin(app, pipeline.definition, run_id, entry)


def fail(app: Celery, run_id: str) -> None:
    conclude(store_of(app), Ref(run_id, 0), "FAILED", "x")


def seen(app: Celery, *runs: str) -> list[str]:
    return [str(PipelineRun(app, each).status().state) for each in runs]


def sent(app: Celery) -> list[str]:
    """The runs of which a step was published, in the order of that."""
    texts = reversed(store_of(app).client.lrange("celery", 0, -1))
    return [json.loads(text)["headers"]["redbeat_pipeline"]["run"] for text in texts]


def swept(app: Celery) -> None:
    """As if the period of every run had gone by."""
    client = store_of(app).client
    for each in client.zrange("{redbeat-lite}:pipelines", 0, -1):
        client.zadd("{redbeat-lite}:pipelines", {each: 0})
    sweep(app)


def in_line(app: Celery, entry: str = "nightly") -> list[str]:
    turns = store_of(app).client.zrange(turns_key("redbeat-lite", entry), 0, -1)
    return [each.decode().partition(":")[2] for each in turns]


def test_runs_that_wait_have_their_turn_one_after_the_other(app: Celery) -> None:
    for name in ("a", "b", "c", "b"):
        start(app, name, "wait")
    start(app, "other", "wait", entry="other")
    assert (seen(app, "a", "b", "c"), sent(app)) == (["RUNNING", "WAITING", "WAITING"], ["a", "other"])
    assert not PipelineRun(app, "b").status().ended
    fail(app, "a")
    assert (seen(app, "a", "b", "c"), sent(app)) == (["FAILED", "RUNNING", "WAITING"], ["a", "other", "b"])
    assert PipelineRun(app, "c").cancel()
    start(app, "d", "wait")
    assert PipelineRun(app, "b").cancel()
    assert (seen(app, "b", "c", "d"), sent(app)) == (["ABORTED", "ABORTED", "RUNNING"], ["a", "other", "b", "d"])
    fail(app, "d")
    assert in_line(app) == []


def test_a_run_that_is_skipped_says_why(app: Celery) -> None:
    for name in ("a", "b", "b"):
        start(app, name, "skip")
    assert (seen(app, "a", "b"), sent(app)) == (["RUNNING", "ABORTED"], ["a"])
    assert PipelineRun(app, "b").status().error == "left out: run a of its entry has not ended"
    fail(app, "a")
    start(app, "c", "skip")
    assert (seen(app, "b", "c"), in_line(app)) == (["ABORTED", "RUNNING"], ["c"])


def test_runs_that_may_overlap_do(app: Celery) -> None:
    start(app, "a", "allow")
    start(app, "b", "allow")
    start(app, "c", "skip", entry="")
    start(app, "d", "skip", entry="")
    assert seen(app, "a", "b", "c", "d") == ["RUNNING"] * 4


def test_only_so_many_wait(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeper, "MAX_WAITING", 1)
    for name in ("a", "b", "c"):
        start(app, name, "wait")
    assert seen(app, "a", "b", "c") == ["RUNNING", "WAITING", "ABORTED"]
    assert PipelineRun(app, "c").status().error == "left out: run a of its entry has not ended, and 1 wait"


@pytest.mark.parametrize("overlap", ["skip", "wait"])
def test_who_ended_and_died_before_it_passed_its_turn_on_holds_up_nobody(app: Celery, overlap: str) -> None:
    start(app, "a", overlap)
    if overlap == "wait":
        start(app, "b", overlap)
    assert store_of(app).complete(Ref("a", 0), "FAILED", "x")[0] == "next"
    if overlap == "wait":
        swept(app)
    else:
        start(app, "b", overlap)
    assert (seen(app, "a", "b"), in_line(app)) == (["FAILED", "RUNNING"], ["b"])


def test_who_died_before_it_stood_in_line_has_its_turn_by_the_sweeper(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(pipeline_run, "go_on", lambda *args: None)
        start(app, "a", "wait")
    assert (seen(app, "a"), in_line(app)) == (["WAITING"], [])
    swept(app)
    assert (seen(app, "a"), sent(app)) == (["RUNNING"], ["a"])


def test_a_line_that_is_lost_is_made_anew(app: Celery) -> None:
    start(app, "a", "wait")
    start(app, "b", "wait")
    store_of(app).client.delete(turns_key("redbeat-lite", "nightly"))
    fail(app, "a")
    assert seen(app, "b") == ["WAITING"]
    swept(app)
    assert seen(app, "b") == ["RUNNING"]


def test_a_run_whose_end_a_fail_over_has_undone_holds_up_its_line_for_no_longer_than_others(app: Celery) -> None:
    """Found by seed 99100507: the run was RUNNING again, and no sweeper looked after it any more."""
    start(app, "a", "wait", deadline=60)
    start(app, "b", "wait")
    store = store_of(app)
    store.client.hincrby(store.keys("a").run, "since", -100_000)
    store.client.zrem(store.open, turn("a", 0))  # Its process removed it when the run had ended.
    swept(app)
    swept(app)
    assert seen(app, *"ab") == ["FAILED", "RUNNING"]


def test_runs_that_may_overlap_stand_in_no_line(app: Celery) -> None:
    start(app, "a", "allow")
    swept(app)
    assert in_line(app) == []


@pytest.mark.parametrize("overlap", ["never", "", None, True])
def test_a_policy_is_one_of_three(app: Celery, overlap: Any) -> None:
    with pytest.raises(InvalidEntry, match='overlap: expected one of "allow", "skip", "wait"'):
        Pipeline(app, [("step", 1)], overlap=overlap)


def test_the_runs_of_an_entry_wait_for_each_other(lab: Lab, crew: Worker) -> None:
    pipeline = Pipeline(lab.app, [("a", lab.sig(how="until"), 1)], overlap="wait")
    schedules = Schedules(lab.app)
    schedules.add("one-at-a-time", pipeline, every(timedelta(days=1)))
    runs = [PipelineRun(lab.app, schedules.run_now("one-at-a-time")) for _ in range(2)]
    line = turns_key("redbeat-lite", "one-at-a-time")
    eventually(lambda: lab.client.zcard(line) == 2, what="both in line")
    runs.sort(key=lambda each: lab.client.zscore(line, turn(each.id, 0)))
    lab.started(runs[0], "a")
    assert (runs[1].status().state, lab.names(runs[1])) == ("WAITING", [])
    lab.go(runs[0])
    lab.started(runs[1], "a")
    lab.go(runs[1])
    assert runs[1].wait(20).state == "SUCCEEDED"
    schedules.clear()


def test_a_run_is_checked_once_however_many_wait_for_it(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abcd":
        start(app, name, "wait")
    store = store_of(app)
    record(store, "a", state="RUNNING", token="t")
    store.client.hincrby(store.keys("a").run, "since", -20_000)
    records = LockStore.records
    asked: list[str] = []

    def ask(self: LockStore, task_ids: Any) -> Any:
        asked.extend(task_ids)
        return records(self, task_ids)

    monkeypatch.setattr(LockStore, "records", ask)
    swept(app)
    assert asked == [Ref("a", 0).task_id]

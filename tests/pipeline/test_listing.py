"""Which runs there are, how far they are, and that it costs little to know there are none."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat_lite import InvalidEntry, Pipeline, PipelineNotFound, PipelineRun
from redbeat_lite._base.errors import CorruptEntry
from redbeat_lite._base.json_values import loads_as
from redbeat_lite.pipeline import State, definition, pipeline_run, pipeline_store, progress_line, sweep
from redbeat_lite.pipeline.definition import Ref
from redbeat_lite.pipeline.pipeline_keys import index_key
from redbeat_lite.pipeline.pipeline_run import create
from redbeat_lite.pipeline.pipeline_store import store_of
from redbeat_lite.store.scripts import Scripts
from tests.pipeline.lab import record
from tests.pipeline.steps import make_app
from tests.support.cases import together
from tests.support.server import Server
from tests.support.stopwatch import Stopwatch
from tests.support.waiting import eventually


@pytest.fixture
def app(server: Server) -> Iterator[Celery]:
    app = make_app(server.url)
    yield app
    app.close()


def start(app: Celery, run_id: str, ttl: float = 60) -> PipelineRun:
    next_millisecond(app)
    return Pipeline(app, [("step", 2), ("add", 1)], ttl=ttl).start(run_id)


def cancel(app: Celery, run_id: str) -> None:
    next_millisecond(app)
    assert PipelineRun(app, run_id).cancel()


def next_millisecond(app: Celery) -> None:
    """The order of what happens within one is not kept."""
    begun = time.time()
    eventually(lambda: time.time() > begun + 0.002)


def fail(app: Celery, run_id: str) -> None:
    """As a process that dies right after its script."""
    assert store_of(app).complete(Ref(run_id, 0), "FAILED", "x")[0] == "next"


def listed(app: Celery, **options: object) -> list[str]:
    return [status.id for status in PipelineRun.list(app, **options)]  # type: ignore[arg-type]


def test_runs_are_listed_with_how_far_they_are(app: Celery) -> None:
    assert listed(app) == []
    for name in ("a", "b", "c", "d"):
        start(app, name)
    assert listed(app) == ["d", "c", "b", "a"], "the latest in front"
    cancel(app, "d")
    cancel(app, "b")
    assert listed(app) == ["c", "a", "b", "d"], "then those that have ended, the latest in front"
    assert listed(app, states=[State.RUNNING, State.WAITING]) == ["c", "a"]
    assert listed(app, limit=3) == ["c", "a", "b"]
    assert listed(app, limit=1) == ["c"]
    found = PipelineRun.list(app)
    assert [each.state for each in found] == [State.RUNNING, State.RUNNING, State.ABORTED, State.ABORTED]
    assert found[0] == PipelineRun(app, "c").status()
    assert "0/2 steps" in progress_line(found[0])


def test_runs_are_told_in_brief_as_they_are_listed(app: Celery) -> None:
    for name in ("a", "b", "c", "d", "e"):
        start(app, name)
    fail(app, "b")
    store_of(app).move_to_ended("b", 0)
    cancel(app, "d")
    fail(app, "c")  # and is still among those that have not ended
    ref = Ref("e", 0, token="token")
    store_of(app).begin(ref, again=False, worker="w", renew_ms=0)
    store_of(app).complete(ref, "SUCCEEDED", "{}")
    told, steps = PipelineRun.brief(app), [replace(each, steps=(), error_step=None) for each in PipelineRun.list(app)]
    assert sorted(told, key=lambda run: run.id) == sorted(steps, key=lambda run: run.id)
    assert [run.id for run in told] == ["e", "a", "c", "d", "b"]
    assert [(run.done, run.total) for run in told[:2]] == [(1, 2), (0, 2)]
    assert [run.id for run in PipelineRun.brief(app, [State.FAILED], limit=1)] == ["c"]


@pytest.mark.parametrize("whole", ["text", {"state": "RUNNING"}, {"definition": "{", "state": "RUNNING", "stage": "0"}])
def test_a_record_that_is_none_hides_no_other_run(app: Celery, whole: str | dict[str, str]) -> None:
    start(app, "a")
    run, store = start(app, "b"), store_of(app)
    store.client.delete(store.keys("b").run)
    if isinstance(whole, str):
        store.client.set(store.keys("b").run, whole)
    else:
        store.client.hset(store.keys("b").run, mapping=whole)
    assert listed(app) == ["a"]
    for look in (run.status, run.params):
        with pytest.raises(CorruptEntry):
            look()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("state", "\x1b[31mRUNNING"),
        ("stage", "\x1b[31m0"),
        ("created", "inf"),
        ("created", "1e300"),
        ("error_step", "7"),
    ],
)
def test_a_field_that_is_none_hides_no_other_run(
    app: Celery, caplog: pytest.LogCaptureFixture, field: str, value: str
) -> None:
    start(app, "a")
    start(app, "b")
    store_of(app).client.hset(store_of(app).keys("b").run, field, value)
    assert listed(app) == ["a"]
    assert "Pipeline 'b' cannot be listed: " in caplog.text
    assert "\x1b" not in caplog.text


def test_a_run_is_listed_once_at_every_moment(app: Celery) -> None:
    start(app, "a")
    start(app, "b")
    fail(app, "a")
    assert listed(app) == ["b", "a"]
    assert listed(app, states=[State.RUNNING, State.WAITING]) == ["b"]
    store_of(app).move_to_ended("a", 0)
    assert listed(app) == ["b", "a"]
    start(app, "a")  # as a start that is delivered twice: the sweeper is to look at it again
    assert listed(app) == ["b", "a"]


def test_a_run_whose_end_nobody_noted_is_noted_by_the_sweeper(app: Celery) -> None:
    start(app, "a")
    fail(app, "a")
    store = store_of(app)
    store.client.zadd("{redbeat-lite}:pipelines", {"0:a": 0})
    assert sweep(app) == 1
    assert store.client.zrange("{redbeat-lite}:pipelines", 0, -1) == []
    assert listed(app) == ["a"]


def test_what_cannot_be_read_hides_nothing_else(app: Celery, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("a", "b", "gone", "c"):
        start(app, name)
    store = store_of(app)
    store.client.hset(store.keys("b").run, "definition", "{")
    store.client.delete(store.keys("gone").run)
    assert listed(app) == ["c", "a"]
    assert "Pipeline 'b' cannot be listed" in caplog.text


def test_only_the_latest_ended_runs_are_known(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_store, "MAX_ENDED", 3)
    for name in "abcde":
        start(app, name)
        cancel(app, name)
    assert listed(app) == ["e", "d", "c"]
    assert store_of(app).client.zcard("{redbeat-lite}:ended-runs") == 3


@together("limit", [0, -1, True, 1.5, "7", None])
def test_a_limit_is_a_number_of_runs(app: Celery, limit: object) -> None:
    with pytest.raises(InvalidEntry, match="limit: expected a whole number from 1"):
        PipelineRun.list(app, limit=limit)  # type: ignore[arg-type] # on purpose


def test_a_start_that_pauses_between_index_and_record_is_not_forgotten(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Scripts.run

    def pause(self: Scripts, name: str, *args: Any, **values: Any) -> Any:
        if name == "pipeline/start":
            with redis.Redis.from_url(app.conf.broker_url) as client:
                client.zadd(index_key("redbeat-lite"), {"0:slow": 0})  # as if its period had gone by
            assert sweep(app) == 1
            assert listed(app) == []
        return run(self, name, *args, **values)

    with monkeypatch.context() as patch:
        patch.setattr(Scripts, "run", pause)
        start(app, "slow")
    assert listed(app) == ["slow"]


def test_a_start_that_arrives_when_the_sweeper_has_looked_creates_no_run(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would publish the steps of a run that the sweeper has forgotten."""
    with monkeypatch.context() as patch:
        patch.setattr(pipeline_run, "_CREATION", -1.0)
        with pytest.raises(TimeoutError, match="too late"):
            start(app, "late")
    with pytest.raises(PipelineNotFound):
        PipelineRun(app, "late").status()
    start(app, "late")
    assert listed(app) == ["late"]


@pytest.mark.soak
@pytest.mark.alone
def test_a_look_at_a_thousand_steps_takes_ten_milliseconds(app: Celery, server: Server) -> None:
    store, wide = store_of(app), Pipeline(app, [(f"s{n}", "step", 1) for n in range(1000)]).definition
    create(store, "wide", wide)
    store.check("wide", turn="0")
    ref = Ref("wide", 0, token="a" * 32)
    store.begin(ref, again=True, worker="celery@worker1.example.org", renew_ms=2000)
    store.complete(ref, "SUCCEEDED", "{}")
    ended = record(store, "wide")
    store.client.hset(store.keys("wide").steps, mapping=dict.fromkeys(range(1000), json.dumps(ended)))
    run = PipelineRun(app, "wide")
    assert {step.state for step in run.status().steps} == {State.SUCCEEDED}
    with Stopwatch(server) as watch:
        for _ in range(10):
            run.status()
    watch.at_most(10 * 0.010)


def test_who_follows_a_run_reads_its_definition_once(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    run, read = start(app, "long", ttl=61), []  # no other run has this definition

    def count(kind: type, text: str) -> Any:
        read.append(text)
        return loads_as(kind, text)

    monkeypatch.setattr(definition, "loads_as", count)
    seen = [run.status() for _ in range(3)]
    assert [status.step("add").state for status in seen] == ["WAITING"] * 3
    assert len(read) == 1

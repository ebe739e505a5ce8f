"""A run that has a deadline, and one of which only some steps may run at once."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat_lite import InvalidEntry, Pipeline, PipelineRun
from redbeat_lite.pipeline import progress_line, sweep
from redbeat_lite.pipeline.definition import Ref
from redbeat_lite.pipeline.pipeline_run import begin, create
from redbeat_lite.pipeline.pipeline_store import store_of
from redbeat_lite.pipeline.sweeper import conclude
from redbeat_lite.store.scripts import Scripts
from tests.harness.workers import Worker
from tests.pipeline.lab import Lab, states
from tests.pipeline.steps import make_app
from tests.support.server import Server


@pytest.fixture
def app(server: Server) -> Iterator[Celery]:
    app = make_app(server.url)
    yield app
    app.close()


def begun(app: Celery, run: str, step: int, stage: int = 0) -> Ref:
    ref = Ref(run, step, 0, 0, "a")
    assert store_of(app).begin(ref, again=True, worker="w", renew_ms=2000)[0] == "run"
    return ref


def succeed(app: Celery, run: str, step: int, stage: int = 0) -> None:
    conclude(store_of(app), begun(app, run, step, stage), "SUCCEEDED", "{}")


def later(app: Celery, run: str, seconds: float) -> None:
    """As if so much time had gone by."""
    store = store_of(app)
    store.client.hincrby(store.keys(run).run, "since", -round(1000 * seconds))
    store.client.zadd("{redbeat-lite}:pipelines", {f"0:{run}": 0})
    sweep(app)


def published(app: Celery) -> int:
    return int(store_of(app).client.llen("celery"))


@pytest.mark.parametrize("revoke_siblings", [True, False])
def test_a_run_whose_deadline_comes_fails(app: Celery, revoke_siblings: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    revoked: list[Any] = []
    monkeypatch.setattr(app.control, "revoke", lambda ids, terminate, **more: revoked.append((ids, terminate)))
    steps = [("step", 2), ("add", app.tasks["proj.add"].s("key"), 2), ("late", 1)]
    pipeline = Pipeline(app, steps, deadline=2_000_000, revoke_siblings=revoke_siblings)
    run = pipeline.start("a")
    status = run.status()
    assert status.deadline - status.created_at - timedelta(seconds=2_000_000) < timedelta(seconds=1)
    assert status.why is None
    ref = begun(app, "a", 0)
    later(app, "a", 1_999_999)
    assert run.status().state == "RUNNING"
    later(app, "a", 2)
    status = run.status()
    assert (status.state, status.error, status.error_step) == (
        "FAILED", "has not ended within its deadline of 2000000 s", None,
    )  # fmt: skip
    assert status.why == status.error
    assert progress_line(status).endswith("2000000 s")
    assert revoked == ([([ref.task_id], True)] if revoke_siblings else [])
    conclude(store_of(app), ref, "SUCCEEDED", "{}")
    assert run.status().state == "FAILED"
    assert not store_of(app).client.exists("{redbeat-lite}:pipelines"), "nothing is left for the sweeper"


def test_a_deadline_counts_from_the_turn_of_a_run(app: Celery) -> None:
    definition = Pipeline(app, [("step", 1)], deadline=60, overlap="wait").definition
    for name in ("a", "b"):
        begin(app, definition, name, "entry")
    later(app, "b", 100)
    status = PipelineRun(app, "b").status()
    assert (status.state, status.deadline, status.entry) == ("WAITING", None, "entry")
    PipelineRun(app, "a").cancel()
    later(app, "b", 59)
    assert PipelineRun(app, "b").status().state == "RUNNING"


def test_a_run_is_cancelled_even_if_the_record_of_changes_cannot_be_written(
    app: Celery, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    revoked: list[Any] = []
    monkeypatch.setattr(app.control, "revoke", lambda ids, terminate, **more: revoked.append((ids, terminate)))

    run = Scripts.run

    def cut_off(scripts: Scripts, name: str, *given: Any, **values: Any) -> Any:
        if name == "schedule/transact":
            raise redis.ConnectionError("cut off")
        return run(scripts, name, *given, **values)

    definition = Pipeline(app, [("step", 1)], overlap="wait").definition
    for name in ("a", "b"):
        begin(app, definition, name, "entry")
    ref = begun(app, "a", 0)
    with monkeypatch.context() as patch:
        patch.setattr(Scripts, "run", cut_off)
        assert PipelineRun(app, "a").cancel(terminate=True)
    assert "'a': what was done is not in the record of changes: cut off" in caplog.text
    assert revoked == [([ref.task_id], True)]
    assert PipelineRun(app, "b").status().state == "RUNNING", "it was its turn"


def test_only_so_many_steps_are_published_at_once(app: Celery) -> None:
    run = Pipeline(app, [*((f"s{n}", "step", 2) for n in range(5)), ("last", "step", 1)], at_once=2).start("a")
    assert published(app) == 2
    for step, out in enumerate([3, 4, 5, 5, 6]):
        succeed(app, "a", step)
        assert published(app) == out
        sweep_again(app)
        assert published(app) == out, "nor by the sweeper"
    succeed(app, "a", 5, 1)
    assert run.status().state == "SUCCEEDED"


def test_an_end_publishes_no_step_that_another_process_is_about_to_publish(app: Celery) -> None:
    store = store_of(app)
    definition = Pipeline(app, [*((f"s{n}", "step", 2) for n in range(4)), ("last", "step", 1)], at_once=3).definition
    create(store, "a", definition)
    assert len(store.check("a", turn="0").due) == 3, "the process that has asked publishes these"
    succeed(app, "a", 0)
    assert published(app) == 1, "the fourth step"
    for step in (1, 2, 3):
        succeed(app, "a", step)
    assert published(app) == 2, "the next stage"


def sweep_again(app: Celery) -> None:
    client = store_of(app).client
    client.zadd("{redbeat-lite}:pipelines", {"0:a": 0})
    sweep(app)


def test_who_dies_before_it_publishes_the_next_step_is_followed_by_the_sweeper(app: Celery) -> None:
    run = Pipeline(app, [(f"s{n}", "step", 2) for n in range(3)], at_once=1).start("a")
    assert store_of(app).complete(begun(app, "a", 0), "SUCCEEDED", "{}")[0] == "next"
    assert published(app) == 1
    sweep_again(app)
    assert published(app) == 2
    succeed(app, "a", 1)
    succeed(app, "a", 2)
    assert run.status().state == "SUCCEEDED"


def test_steps_take_turns_on_a_worker(lab: Lab, crew: Worker) -> None:
    run = lab.start(*((f"s{n}", lab.sig(seconds=0.05), 1) for n in range(4)), ("last", lab.sig(), 0), at_once=1)
    assert set(states(run.wait(20)).values()) == {"SUCCEEDED"}
    # The audit of the history sees that no two of them ran at a time.
    assert lab.names(run) == ["s0", "s1", "s2", "s3", "last"]


@pytest.mark.parametrize(
    ("field", "value"), [("at_once", 0), ("at_once", True), ("at_once", "2"), ("deadline", 0), ("deadline", "x")]
)
def test_what_is_no_limit_is_refused(app: Celery, field: str, value: Any) -> None:
    with pytest.raises(InvalidEntry, match=f"{field}: expected"):
        Pipeline(app, [("step", 1)], **{field: value})

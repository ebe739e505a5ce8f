"""A pipeline rehearsed in this process ends as its run would, without worker and server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import Ignore

from redbeat_lite import Once, Pipeline, PipelineTask
from redbeat_lite.pipeline import State
from redbeat_lite.testing import rehearse
from tests.pipeline.lab import states

#: Nobody listens there.
NOWHERE = "redis://127.0.0.1:1/0"


@pytest.fixture
def app() -> Iterator[Celery]:
    app = Celery("alone", broker=NOWHERE, backend=NOWHERE, set_as_current=False)
    app.conf.redbeat_lite_url = NOWHERE

    class Custom(PipelineTask):
        abstract = True

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return {**super().__call__(*args, **kwargs), "called": True}

    @app.task(name="give", shared=False, base=PipelineTask, bind=True)
    def give(self: Any, params: dict[str, Any], value: Any, *, how: str = "") -> Any:
        self.progress(50, "half")
        got = sorted(params)
        params.clear()  # what it got is its own
        if how == "retry" and self.request.retries < 2:
            raise self.retry(countdown=3600)
        if how == "tell":
            raise self.retry(countdown=3600, kwargs={"how": "told"})
        if how == "told":
            return {"got": got}
        if how == "never":
            raise self.retry(countdown=3600, exc=KeyError("gone"))
        if how == "ignore":
            raise Ignore("as asked")
        if how == "replace":
            raise self.replace(see.s())
        if how == "raise":
            raise ValueError("as asked")
        return value

    @app.task(name="see", shared=False, base=Custom, once=Once(key="taken"))
    def see(params: dict[str, Any]) -> Any:
        return {"seen": sorted(params)}

    yield app
    app.close()


def give(app: Celery, value: Any = None, **kwargs: Any) -> Any:
    return app.tasks["give"].s(value, **kwargs)


def test_stages_merge_as_in_a_run(app: Celery) -> None:
    steps = [("late", "see", 1), ("x", give(app, {"who": "x", "a": [1]}), 2), ("y", give(app, [True, {"who": "y"}]), 2)]
    done = rehearse(Pipeline(app, steps, {"start": 2**60}))
    assert (done.status.state, done.ran, done.exception) == (State.SUCCEEDED, ["x", "y", "late"], None)
    expected = {"start": 2**60, "who": "y", "a": [1], "seen": ["a", "start", "who"], "called": True}
    assert done.params == expected
    assert (done.status.stage, done.status.stages, done.status.percent) == (1, 2, 100)
    assert (done.status.done, done.status.total) == (3, 3)


@pytest.mark.parametrize(
    ("value", "how", "error"),
    [
        (None, "raise", "ValueError: as asked"),
        ([False, "no rows"], "", "no rows"),
        (7, "", "expected a JSON object"),
        (None, "ignore", "Ignore"),
        (None, "never", "KeyError: 'gone'"),
        (None, "replace", "RuntimeError: a step of a pipeline cannot be replaced"),
    ],
)
def test_a_failure_ends_it(app: Celery, value: Any, how: str, error: str) -> None:
    bad = app.tasks["give"].s(value, how=how)
    steps = [("ok", give(app), 3), ("bad", bad, 2), ("beside", give(app), 2), ("never", "see", 1)]
    done = rehearse(Pipeline(app, steps))
    assert states(done.status) == {"ok": "SUCCEEDED", "bad": "FAILED", "beside": "ABORTED", "never": "ABORTED"}
    assert (done.status.state, done.status.error_step, done.ran) == ("FAILED", "bad", ["ok", "bad"])
    assert error in (done.status.error or "")
    assert done.status.step("bad").error == done.status.error
    assert done.exception is not None


@pytest.mark.parametrize("propagates", [True, False])
def test_a_retry_follows_at_once(app: Celery, propagates: bool) -> None:
    app.conf.task_eager_propagates = propagates
    done = rehearse(Pipeline(app, [("a", give(app, {"x": 1}, how="retry"), 1)]))
    assert (done.status.state, done.params) == ("SUCCEEDED", {"x": 1})


def test_a_retry_gets_params_of_its_own_and_what_it_was_given_anew(app: Celery) -> None:
    done = rehearse(Pipeline(app, [("a", give(app, how="tell"), 1)], {"x": 1}))
    assert done.params == {"x": 1, "got": ["x"]}

"""Task bodies note themselves in the history, and what became of their tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import celery
import pytest
from celery import Celery
from celery.app.trace import build_tracer
from celery.exceptions import Ignore, Reject, Retry

import redbeat_lite
from tests.harness.history import PATH_VARIABLE, HistoryLog
from tests.harness.project import is_guarded, noted
from tests.support.cases import together


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HistoryLog:
    path = tmp_path / "log"
    monkeypatch.setenv(PATH_VARIABLE, str(path))
    return HistoryLog(path)


def run(error: BaseException | None) -> None:
    """Run a task as a worker does; its body raises this error."""
    app = Celery("noted", broker="memory://", backend="cache+memory://", set_as_current=False)

    @app.task(name="t", bind=True, base=celery.Task, shared=False, throws=(ValueError,))
    def body(self: Any) -> None:
        with noted(self, name="n"):
            if error is not None:
                raise error

    task = app.tasks["t"]
    request = {"id": "id", "delivery_info": {}, "is_eager": False, "hostname": "h", "retries": 0}
    trace = build_tracer("t", task, app=app)
    trace("id", (), {}, request)


@pytest.mark.parametrize(
    ("error", "done", "succeeded"),
    [
        (None, True, True),
        (ValueError("x"), True, False),
        (Retry(), False, None),
        (Ignore(), False, None),
        (Reject(requeue=True), False, None),
    ],
    ids=repr,
)
def test_a_task_is_done_when_its_result_is_final(
    log: HistoryLog, error: BaseException | None, done: bool, succeeded: bool | None
) -> None:
    run(error)
    [body] = log.bodies()
    assert (body["done"], body.get("succeeded")) == (done, succeeded)
    assert body["finished"] == (error is None)


def test_a_body_that_is_torn_down_has_ended_and_its_task_is_not_done(log: HistoryLog) -> None:
    with pytest.raises(SystemExit):
        run(SystemExit())
    [body] = log.bodies()
    assert (body["done"], body["finished"]) == (False, False)


@together(
    ("base", "fields", "guarded"),
    [
        (redbeat_lite.Task, {}, True),
        (redbeat_lite.Task, {"delivery_info": {"exchange": "everybody"}}, False),
        (celery.Task, {}, False),
        (celery.Task, {"redbeat_once": {"key": "k"}}, True),
    ],
    ids=["class of the package", "broadcast", "other class", "other class with a lock"],
)
def test_the_package_guards_its_own_classes_and_what_has_a_lock(
    base: Any, fields: dict[str, Any], guarded: bool
) -> None:
    app = Celery("noted", broker="memory://", set_as_current=False)

    @app.task(name="t", base=base, shared=False)
    def body() -> None: ...

    task = app.tasks["t"]
    task.push_request(**{"id": "id", "delivery_info": {}, **fields})
    assert is_guarded(task) == guarded
    task.pop_request()


def test_marks_are_counted_and_kept_apart_by_name(log: HistoryLog) -> None:
    marks = log.marks
    assert [marks.add("a/b"), marks.add("a/b"), marks.add("a")] == [1, 2, 1]
    assert (marks.count("a/b"), marks.count("a"), marks.count("none")) == (2, 1, 0)
    marks.add("lines", "one\n")
    marks.add("lines", "two\n")
    assert marks.read("lines").splitlines() == ["one", "two"]
    marks.clear()
    assert marks.count("a") == 0

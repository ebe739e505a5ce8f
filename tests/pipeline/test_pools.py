"""Pipelines on workers that are not like most: pools without processes of their own, and workers without install()."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.harness.workers import Worker
from tests.pipeline.lab import Lab, states, step_worker
from tests.support.server import Server
from tests.support.waiting import eventually

END = 20.0


@pytest.fixture(scope="module", params=["solo", "gevent"])
def staffed(request: pytest.FixtureRequest, pipe_server: Server, history_path: Path) -> Iterator[str]:
    """The name of a pool that has a worker, and of that worker's queue."""
    pool = request.param
    with step_worker(pipe_server.url, pool=pool, queue=pool, concurrency=4):
        yield pool


def test_runs_end_as_on_prefork(lab: Lab, staffed: str) -> None:
    queue = staffed
    good = lab.start(
        ("a", lab.sig(queue=queue, give={"a": 1}), 3),
        ("b", lab.sig("proj.auto", queue=queue, how="fail until 2", give={"b": 2}), 2),
        ("c", lab.sig(queue=queue, seconds=0.2), 2),
        ("d", lab.sig(queue=queue, how="show"), 1),
    )
    bad = lab.start(("no", lab.sig(queue=queue, how="fail"), 2), ("never", lab.sig(queue=queue), 1))
    assert good.wait(END).state == "SUCCEEDED"
    assert lab.bodies(good)[-1]["params"] == {"a": 1, "b": 2}
    status = bad.wait(END)
    assert (status.state, states(status)) == ("FAILED", {"no": "FAILED", "never": "ABORTED"})


def test_steps_of_a_stage_overlap_on_gevent_alone(lab: Lab, staffed: str) -> None:
    at_a_time = 4 if staffed == "gevent" else 1
    run = lab.start(*((f"s{n}", lab.sig(queue=staffed, how="until"), 1) for n in range(4)))
    eventually(lambda: len(lab.names(run)) == at_a_time, within=END, what=f"{at_a_time} at a time")
    lab.go(run)
    assert run.wait(END).state == "SUCCEEDED"


@pytest.mark.parametrize(("how", "error"), [("until", "Timeout"), ("cancelled", "CancelledError")])
def test_a_step_fails_at_once_by_what_is_no_exception(lab: Lab, staffed: str, how: str, error: str) -> None:
    if staffed != "gevent":
        pytest.skip("the solo pool has no time limits, and ends")
    for task in ("proj.step", "proj.late"):
        run = lab.start(("a", lab.sig(task, queue=staffed, how=how).set(time_limit=0.5), 1))
        status = run.wait(END)
        assert (status.state, status.error_step, lab.names(run)) == ("FAILED", "a", ["a"])
        assert str(status.error).startswith(error)


@pytest.mark.parametrize("pool", ["solo", pytest.param("gevent", marks=pytest.mark.soak)])
def test_a_step_whose_worker_dies_runs_again(lab: Lab, hire: Callable[..., Worker], queue: str, pool: str) -> None:
    worker = hire(lab.server.url, pool=pool, queue=queue, concurrency=4)
    lost = lab.start(("a", lab.sig("proj.late", queue=queue, how="hang once"), 2), ("b", lab.sig(queue=queue), 1))
    lab.started(lost, "a")
    worker.kill()
    hire(lab.server.url, pool=pool, queue=queue, concurrency=4)
    status = lab.swept(lost)
    assert (status.state, status.step("a").round, lab.names(lost)) == ("SUCCEEDED", 1, ["a", "a", "b"])


@pytest.mark.parametrize("pool", ["prefork", pytest.param("threads", marks=pytest.mark.soak)])
def test_a_task_class_may_do_something_around_the_body(
    lab: Lab, hire: Callable[..., Worker], queue: str, pool: str
) -> None:
    hire(lab.server.url, pool=pool, queue=queue, concurrency=4)
    for task in ("proj.runs", "proj.calls", "proj.mixed"):
        run = lab.start(
            ("a", lab.sig(task, queue=queue, give={"a": 1}), 4),
            ("b", lab.sig(task, queue=queue, how="retry", give={"b": 2}), 3),
            ("c", lab.sig(f"{task}.auto", queue=queue, how="fail until 2", give={"c": 3}), 2),
            ("d", lab.sig(task, queue=queue, how="show"), 1),
            params={"first": True},
        )
        bad = lab.start(("no", lab.sig(task, queue=queue, give=[False, "no rows"]), 1))
        assert run.wait(END).state == "SUCCEEDED"
        assert lab.bodies(run)[-1]["params"] == {"first": True, "a": 1, "b": 2, "c": 3}
        # Each step has ended when its class is through with it, and not with the body.
        call = ["enter", "body", "leave"]
        assert lab.marks.read(f"calls-{run.id}").splitlines() == [
            *[f"a {event}" for event in call],
            *[f"b {event}" for event in 2 * call],
            *[f"c {event}" for event in 3 * call],
            *[f"d {event}" for event in call],
        ]
        assert [body["finished"] for body in lab.bodies(run)] == [True, False, True, False, False, True, True]
        assert "no rows" in (bad.wait(END).error or "")


def test_a_run_needs_no_installed_locks(lab: Lab, hire: Callable[..., Worker], queue: str) -> None:
    hire(lab.server.url, queue=queue, concurrency=4, PIPE_NO_INSTALL=1)
    good = lab.start(
        *((f"s{n}", lab.sig("proj.auto", queue=queue, how="fail until 2", give={f"s{n}": n}), 2) for n in range(3)),
        ("last", lab.sig(queue=queue, how="show"), 1),
    )
    bad = lab.start(("no", lab.sig(queue=queue, how="fail"), 2), ("never", lab.sig(queue=queue), 1))
    hang = lab.sig("proj.late", queue=queue, how="hang")
    revoked, limited = lab.start(("a", hang, 1)), lab.start(("a", hang.clone().set(time_limit=1), 1))
    lab.started(revoked, "a")
    lab.app.control.revoke(revoked.status().step("a").task_id, terminate=True)
    assert revoked.wait(END).error == "was revoked"
    assert "TimeLimitExceeded" in (limited.wait(END).error or "")
    assert good.wait(END).state == "SUCCEEDED"
    assert lab.bodies(good)[-1]["params"] == {"s0": 0, "s1": 1, "s2": 2}
    assert len(lab.ended_bodies(good)) == 4
    status = bad.wait(END)
    assert (status.state, states(status)) == ("FAILED", {"no": "FAILED", "never": "ABORTED"})

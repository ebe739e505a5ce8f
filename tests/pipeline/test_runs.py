"""Runs on a real worker: order, params, and every way in which a step can end."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import pytest

from redbeat_lite import InvalidEntry, Pipeline, PipelineNotFound, PipelineRun, PipelineTask, lock, start_task_process
from redbeat_lite.pipeline import RunStatus, State, progress_line
from redbeat_lite.pipeline.pipeline_store import store_of
from tests.harness.workers import Worker
from tests.pipeline.lab import Lab, states
from tests.pipeline.steps import make_app
from tests.support.waiting import eventually, never

pytestmark = pytest.mark.usefixtures("crew")

#: Seconds within which any run of these tests ends on a slow machine.
END = 20.0


def test_stages_run_in_turn_and_their_steps_side_by_side(lab: Lab) -> None:
    run = lab.start(
        ("load", lab.sig(), 3),
        ("clean", lab.sig(how="until"), 2),
        ("index", lab.sig(how="until"), 2),
        ("report", lab.sig(), 1),
    )
    lab.started(run, "clean", "index")
    status = run.status()
    assert states(status) == {"load": "SUCCEEDED", "clean": "RUNNING", "index": "RUNNING", "report": "WAITING"}
    assert (status.state, status.stage, status.stages, status.ended) == ("RUNNING", 1, 3, False)
    assert status.step("clean").started_at is not None
    assert status.step("clean").worker
    assert status.step("load").ended_at is not None
    lab.go(run)
    done = run.wait(END)
    assert (done.state, set(states(done).values()), done.error_step) == (State.SUCCEEDED, {"SUCCEEDED"}, None)
    assert [step.task_id for step in done.steps] == [step.task_id for step in status.steps]
    assert {entry["id"] for entry in lab.bodies(run)} == {step.task_id for step in done.steps}


def test_params_merge_by_place_and_not_by_who_was_first(lab: Lab) -> None:
    run = lab.start(
        ("slow", lab.sig(give={"who": "slow", "a": 1}, seconds=0.4), 2),
        ("fast", lab.sig(give=[True, {"who": "fast", "b": 2}]), 2),
        ("show", lab.sig(how="show"), 1),
        params={"who": "start", "c": 3},
    )
    assert run.wait(END).state == "SUCCEEDED"
    assert [body["step"] for body in lab.ended_bodies(run)][:2] == ["fast", "slow"]
    expected = {"who": "fast", "a": 1, "b": 2, "c": 3}
    assert lab.bodies(run)[-1]["params"] == expected
    assert run.params() == expected


def test_params_are_kept_of_the_start_and_of_the_stage_that_is_on(lab: Lab) -> None:
    steps = [(f"s{n}", lab.sig(give={f"s{n}": n}), 9 - n) for n in range(5)]
    run = lab.start(*steps, ("show", lab.sig(how="show"), 1), params={"start": True})
    assert run.wait(END).state == "SUCCEEDED"
    assert lab.bodies(run)[-1]["params"] == run.params() == {"start": True, **{f"s{n}": n for n in range(5)}}
    kept = lab.client.hkeys(store_of(lab.app).keys(run.id).results)
    assert sorted(name for name in kept if name.startswith("stage:")) == ["stage:0", "stage:5"]


def test_values_come_through_unchanged(lab: Lab) -> None:
    hard: dict[str, Any] = {
        "big": 2**60, "bigger": -(10**30), "small": 5e-324, "third": 0.1, "one": 1.0, "list": [], "object": {},
        "nested": {"a": [[], {}, None, True]}, "text": "Grüße 💧 \u0000\u2028", "": "empty", "__type__": "mine",
        "block": "ü" * 65536,
    }  # fmt: skip
    run = lab.start(("give", lab.sig(give={"given": hard}), 2), ("show", lab.sig(how="show"), 1), params=hard)
    assert run.wait(END).state == "SUCCEEDED"
    seen = lab.bodies(run)[-1]["params"]
    assert seen == {**hard, "given": hard}
    assert repr(seen) == repr({**hard, "given": hard})
    assert repr(run.params()) == repr(seen)


@pytest.mark.parametrize(
    ("task", "how", "give", "error"),
    [
        ("proj.step", "fail", None, "ValueError: as asked"),
        ("proj.step", "", [False, "no rows"], "no rows"),
        ("proj.step", "", 7, "return value: expected a JSON object"),
        ("proj.step", "ignore", None, "ended without a result"),
        ("proj.step", "reject", None, "rejected its message"),
        ("proj.step", "replace", None, "cannot be replaced"),
        ("proj.late", "fail oddly", None, r"ValueError: caf\udce9"),
        ("proj.auto", "fail", None, "ValueError: as asked"),
        ("proj.step", "die", None, "WorkerLostError"),
        ("proj.late", "die", None, "WorkerLostError"),
    ],
)
def test_a_step_that_fails_ends_the_run(lab: Lab, task: str, how: str, give: Any, error: str) -> None:
    run = lab.start(("ok", lab.sig(), 3), ("bad", lab.sig(task, how=how, give=give), 2), ("never", lab.sig(), 1))
    status = run.wait(END)
    assert (status.state, status.error_step, status.stage) == ("FAILED", "bad", 1)
    assert error in (status.error or "")
    assert status.step("bad").error == status.error
    assert states(status) == {"ok": "SUCCEEDED", "bad": "FAILED", "never": "ABORTED"}
    assert "never" not in lab.names(run)


def test_a_worker_that_knows_no_such_task_fails_the_run(lab: Lab, crew: Worker) -> None:
    def newer(params: dict[str, Any]) -> None: ...

    app = make_app(lab.server.url)
    app.task(name="proj.newer", base=PipelineTask, shared=False)(newer)
    status = Pipeline(app, [("newer", 2), ("step", 1)]).start().wait(END)
    assert (status.state, status.error_step) == ("FAILED", "newer")
    assert status.error == "NotRegistered: a worker of its queue knows no task 'proj.newer'"
    app.close()


def test_siblings_of_a_failure_run_to_their_end_for_nothing(lab: Lab) -> None:
    bad = lab.sig(how="fail when marked")
    run = lab.start(("long", lab.sig(how="until"), 2), ("bad", bad, 2), ("never", lab.sig(), 1))
    # A sibling that had not started by then would not start any more.
    lab.started(run, "long", "bad")
    lab.fail(run)
    assert run.wait(END).state == "FAILED"
    lab.go(run)
    eventually(lambda: run.status().step("long").state == "SUCCEEDED", what="the end of the sibling")
    never(lambda: "never" in lab.names(run), during=0.5)
    assert run.status().state == "FAILED"


def test_siblings_of_a_failure_are_revoked_where_that_is_wanted(lab: Lab) -> None:
    run = lab.start(
        ("long", lab.sig(how="hang"), 2), ("bad", lab.sig(how="until", give=[False, "x"]), 2), revoke_siblings=True
    )
    lab.started(run, "long", "bad")
    lab.go(run)
    assert run.wait(END).error_step == "bad"
    eventually(lambda: run.status().step("long").state == "ABORTED", what="the sibling's death")
    assert run.status().error_step == "bad"


def test_a_retry_is_the_same_step(lab: Lab) -> None:
    run = lab.start(
        ("retry", lab.sig(how="retry"), 2), ("auto", lab.sig("proj.auto", how="fail until 2", give={"a": 1}), 2),
        ("requeue", lab.sig("proj.late", how="requeue"), 2), ("after", lab.sig(how="show"), 1),
    )  # fmt: skip
    status = run.wait(END)
    assert status.state == "SUCCEEDED"
    assert [status.step(name).attempt for name in ("retry", "auto", "requeue")] == [1, 2, 0]
    assert [lab.names(run).count(name) for name in ("retry", "auto", "requeue", "after")] == [2, 3, 2, 1]
    assert lab.bodies(run)[-1]["params"] == {"a": 1}


def test_time_limits_fail_the_step(lab: Lab) -> None:
    soft = lab.start(("slow", lab.sig(how="hang").set(soft_time_limit=0.5), 2), ("never", lab.sig(), 1))
    hard = lab.start(("slow", lab.sig(how="hang").set(time_limit=1), 2), ("never", lab.sig(), 1))
    assert "SoftTimeLimitExceeded" in (soft.wait(END).error or "")
    assert "TimeLimitExceeded" in (hard.wait(END).error or "")
    assert states(hard.status()) == {"slow": "FAILED", "never": "ABORTED"}


def test_a_step_that_expires_fails(lab: Lab) -> None:
    run = lab.start(("late", lab.sig().set(countdown=2, expires=0.5), 1))
    assert "expired" in (run.wait(END).error or "")


def test_a_revoke_fails_the_run_before_and_during_the_step(lab: Lab) -> None:
    waiting = lab.start(("later", lab.sig().set(countdown=3), 2), ("never", lab.sig(), 1))
    running = lab.start(("long", lab.sig(how="hang"), 2), ("never", lab.sig(), 1))
    lab.started(running, "long")
    lab.app.control.revoke(waiting.status().step("later").task_id)
    lab.app.control.revoke(running.status().step("long").task_id, terminate=True)
    for run in (waiting, running):
        status = run.wait(END)
        assert (status.state, status.error) == ("FAILED", "was revoked")
    assert "later" not in lab.names(waiting)


def test_cancel_stops_what_has_not_begun(lab: Lab) -> None:
    run = lab.start(
        ("long", lab.sig(how="until"), 2), ("later", lab.sig().set(countdown=1), 2), ("never", lab.sig(), 1)
    )
    lab.started(run, "long")
    assert run.cancel() is True
    assert run.cancel() is False
    assert run.wait(END).state == "ABORTED"
    lab.go(run)
    eventually(lambda: run.status().step("long").state == "SUCCEEDED", what="the end of what ran")
    later = run.status().step("later").task_id
    eventually(lambda: lab.app.AsyncResult(later).state == "REVOKED", what="the waiting message's end")
    assert lab.names(run) == ["long"]


def test_cancel_may_kill_what_runs(lab: Lab) -> None:
    run = lab.start(("long", lab.sig(how="hang"), 2), ("never", lab.sig(), 1))
    lab.started(run, "long")
    assert run.cancel(terminate=True)
    eventually(lambda: run.status().step("long").state == "ABORTED", what="its death")
    assert run.status().state == "ABORTED"
    assert run.status().error_step is None


def test_wait_tells_of_progress_and_of_its_timeout(lab: Lab) -> None:
    run = lab.start(("a", lab.sig(how="until"), 2), ("b", lab.sig(), 1))
    with pytest.raises(TimeoutError, match=r"has not ended within 0\.2 s"):
        run.wait(0.2)
    seen: list[RunStatus] = []
    threading.Timer(0.3, lab.go, [run]).start()
    last = run.wait(END, progress=seen.append)
    assert seen[-1] == last
    assert last.state == "SUCCEEDED"
    assert all(before != after for before, after in itertools.pairwise(seen))
    assert "0/2 steps" in progress_line(seen[0])
    assert "2/2 steps" in progress_line(seen[-1])


def test_a_run_of_the_same_id_is_one_run(lab: Lab) -> None:
    run = lab.start(("a", lab.sig(), 1), run_id="mine")
    again = lab.start(("a", lab.sig(), 1), run_id="mine")
    assert run.id == again.id == "mine"
    assert run.wait(END).state == "SUCCEEDED"
    lab.start(("a", lab.sig(), 1), run_id="mine")
    never(lambda: len(lab.names(run)) > 1, during=0.5, what="a second run")


def test_nobody_knows_a_run_that_never_was(lab: Lab) -> None:
    run = PipelineRun(lab.app, "nobody")
    for ask in (run.status, run.params, run.cancel, lambda: run.wait(1)):
        with pytest.raises(PipelineNotFound, match="no pipeline run 'nobody'"):
            ask()
    for bad in ("", "a{b}", "x" * 201, None, 7):
        with pytest.raises(InvalidEntry, match="run_id"):
            PipelineRun(lab.app, bad)  # type: ignore[arg-type] # on purpose


def test_a_run_whose_record_is_gone_says_so(lab: Lab) -> None:
    run = lab.start(("a", lab.sig(), 1), ttl=1)
    assert run.wait(END).state == "SUCCEEDED"
    eventually(lambda: run.status().state == "GONE", what="the end of its record")
    assert (run.status().steps, run.wait(1).state) == ((), "GONE")
    with pytest.raises(PipelineNotFound, match="is not run again"):
        lab.start(("a", lab.sig(), 1), run_id=run.id)
    with pytest.raises(PipelineNotFound):
        run.params()


def test_a_task_process_runs_with_its_own_data_and_both_styles(lab: Lab) -> None:
    tasks = {"task1": lab.app.tasks["proj.styles"], "task2": lab.app.tasks["proj.decorated"]}
    data: dict[str, Any] = {"sub_tasks": [["task2", 1], ["task1", 3]], "params": {"a": "a", "b": []}, "tenant": "x"}
    run = start_task_process(data, tasks, app=lab.app)
    assert data["task_id"] == run.id
    assert data["queue"] == [["task1"], ["task2"]]
    assert run.wait(END).state == "SUCCEEDED", run.status()
    first = lab.bodies(run)[0]
    assert (first["given"], first["obj"]) == ("task1", {**data, "status": "running"}), "the data as it was given"
    assert run.params() == {**data["params"], "styles": data["params"], "decorated": data["params"]}


def test_a_task_process_stops_at_a_step_that_says_no(lab: Lab) -> None:
    data = {"sub_task": [["refused", 2], ["styles", 1]]}
    status = start_task_process(data, app=lab.app).wait(END)
    assert (status.state, status.error_step) == ("FAILED", "refused")
    for bad in ({}, {"sub_tasks": []}, {"sub_tasks": [["styles"]]}, [["styles", 1]], {**data, "tenant": object()}):
        with pytest.raises(InvalidEntry):
            start_task_process(bad, app=lab.app)  # type: ignore[arg-type] # on purpose


def test_a_step_honours_its_once_lock(lab: Lab) -> None:
    holder = lab.start(("holder", lab.sig("proj.locked", how="until"), 1))
    lab.started(holder, "holder")
    status = lab.start(("locked", lab.sig("proj.locked"), 2), ("never", lab.sig(), 1)).wait(END)
    assert (status.state, status.error) == ("FAILED", "was not run: skipped")
    lab.go(holder)
    assert holder.wait(END).state == "SUCCEEDED"


@pytest.mark.parametrize("conflict", ["skip", "raise"])
def test_a_step_whose_lock_is_taken_when_it_is_queued_fails(lab: Lab, conflict: str) -> None:
    with lock(lab.app, "queued") as held:
        assert held
        run = lab.start(("locked", lab.sig(f"proj.queued.{conflict}"), 2), ("never", lab.sig(), 1))
        status = run.wait(END)
    assert (status.state, status.error_step) == ("FAILED", "locked")
    assert "another task has the once-lock 'queued'" in (status.error or "")


def test_a_step_that_waits_for_its_lock_when_it_is_queued_goes_on(lab: Lab) -> None:
    with lock(lab.app, "queued") as held:
        assert held
        run = lab.start(("locked", lab.sig("proj.queued.wait"), 2), ("after", lab.sig(), 1))
        never(lambda: lab.names(run), during=0.5, what="a start")
    assert run.wait(END).state == "SUCCEEDED"


@pytest.mark.parametrize("task", ["proj.locked", "proj.queued.skip", "proj.queued.raise"])
def test_stages_may_share_a_once_lock(lab: Lab, task: str) -> None:
    run = lab.start(*((f"s{n}", lab.sig(task), -n) for n in range(6)))
    status = run.wait(END)
    assert (status.state, status.error) == ("SUCCEEDED", None)
    assert lab.names(run) == [f"s{n}" for n in range(6)]


def test_a_message_delivered_twice_runs_once(lab: Lab, queue: str) -> None:
    from tests.support.messages import queued

    run = lab.start(("a", lab.sig(queue=queue, seconds=0.3), 2), ("b", lab.sig(), 1))
    with lab.server.client() as client:
        [message] = client.lrange(queue, 0, -1)
        assert queued(client, queue)[0].headers["redbeat_pipeline"]["run"] == run.id
        client.lpush("celery", *[message.replace(b'"delivery_tag": "', b'"delivery_tag": "%d' % n) for n in range(4)])
    assert run.wait(END).state == "SUCCEEDED"
    assert lab.names(run) == ["a", "b"]
    never(lambda: len(lab.names(run)) > 2, during=0.5, what="a copy")


def test_a_task_that_is_no_step_is_a_task(lab: Lab, crew: Worker) -> None:
    result = lab.app.tasks["proj.foreign"].delay()
    assert result.get(timeout=END) is None


def test_outside_of_a_pipeline_a_step_is_a_task_like_any_other(lab: Lab, crew: Worker) -> None:
    tasks = lab.app.tasks
    for task in (tasks["proj.alone"], tasks["proj.alone.runs"]):
        assert task.delay(2, by=3).get(timeout=END) == 6
        for wrong in (task.s(), task.s(2, 3), task.s(2, of=3)):
            with pytest.raises(TypeError):
                wrong.delay()
    # Where nobody checks them, the worker finds out.
    with pytest.raises(TypeError):
        tasks["proj.alone.untyped"].delay().get(timeout=END)


@pytest.mark.parametrize(("count", "hired"), [(25, 2), pytest.param(100, 4, marks=pytest.mark.soak)])
def test_many_steps_of_a_stage_overlap(lab: Lab, hire: Any, queue: str, count: int, hired: int) -> None:
    workers = [hire(lab.server.url, concurrency=2, queue=queue, ready=False) for _ in range(hired)]
    for worker in workers:
        worker.ready()
    steps = [(f"s{n}", lab.sig(queue=queue, how="until"), 2) for n in range(count)]
    run = lab.start(*steps, ("last", lab.sig(queue=queue), 1))
    # None of them ends before it is told to: every slot of every worker has one at the same time.
    eventually(lambda: len(lab.names(run)) == 2 * hired, within=END, what="a step in each of the slots")
    running = [step for step in run.status().steps if step.state == "RUNNING"]
    assert (len(running), len({step.worker for step in running})) == (2 * hired, hired)
    lab.go(run)
    assert run.wait(40).state == "SUCCEEDED"
    assert sorted(lab.names(run)) == sorted([*(name for name, *_ in steps), "last"])

"""A run that ended before its time goes on: no step that has finished runs again, and no old message counts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from types import NoneType
from typing import Any

import pytest
import redis
from celery import Celery
from celery.exceptions import Ignore, Retry

from redbeat_lite import NotResumable, Pipeline, PipelineNotFound, PipelineRun, PipelineTask
from redbeat_lite.pipeline import sweep, sweeper
from redbeat_lite.pipeline.definition import Ref
from redbeat_lite.pipeline.pipeline_run import begin
from redbeat_lite.pipeline.pipeline_store import store_of
from redbeat_lite.pipeline.sweeper import LOST, conclude
from tests.harness.workers import Worker
from tests.pipeline.lab import Lab, handle, states
from tests.pipeline.steps import make_app
from tests.support.server import Server
from tests.support.waiting import eventually

END = 20.0


@pytest.fixture
def app(server: Server) -> Iterator[Celery]:
    app = make_app(server.url)
    yield app
    app.close()


def begun(app: Celery, run: str, step: int, stage: int = 0, round: int = 0) -> Ref:
    ref = Ref(run, step, round, 0, f"token{round}")
    word, _ = store_of(app).begin(ref, again=True, worker="w", renew_ms=2000)
    assert word == "run"
    return ref


def end(app: Celery, ref: Ref, outcome: str = "SUCCEEDED", text: str = "{}") -> None:
    conclude(store_of(app), ref, outcome, text)


def alive(app: Celery, run: str, step: int) -> None:
    """Have the guard believe that the task of this step runs."""
    task_id = PipelineRun(app, run).status().steps[step].task_id
    store_of(app).client.hset(f"{{redbeat-lite}}:guard:{task_id}", mapping={"state": "running", "until": 2**52})


def published(app: Celery) -> list[tuple[str, int]]:
    """Name and round of what was published since this was last asked."""
    client = store_of(app).client
    texts = reversed(client.lrange("celery", 0, -1))
    client.delete("celery")
    headers = [json.loads(text)["headers"]["redbeat_pipeline"] for text in texts]
    return [(header["name"], header["round"]) for header in headers]


def failed(app: Celery, **options: Any) -> PipelineRun:
    """A run of which one step succeeded, one did so late, one runs, one failed, one waited; a stage is to come."""
    steps = [*((name, "step", 1) for name in ("done", "late", "runs", "bad", "waits")), ("next", "step", 0)]
    run = Pipeline(app, steps, **options).start("a")
    done, late, runs, bad = (begun(app, "a", step) for step in range(4))
    alive(app, "a", runs.step)
    end(app, done, text='{"done": 1}')
    end(app, bad, "FAILED", "ValueError: x")
    end(app, late, text='{"late": 1}')
    published(app)
    return run


def test_only_what_has_not_succeeded_runs_again(app: Celery) -> None:
    run = failed(app)
    before = run.status()
    assert [each.id for each in PipelineRun.list(app)] == ["a"]
    assert run.params() == {"done": 1, "late": 1}, "also of who ended after the failure"
    assert run.resume() is True
    assert sorted(published(app)) == [("bad", 1), ("waits", 1)]
    status = run.status()
    assert states(status) == {
        "done": "SUCCEEDED", "late": "SUCCEEDED", "runs": "RUNNING", "bad": "WAITING", "waits": "WAITING",
        "next": "WAITING",
    }  # fmt: skip
    assert (status.state, status.error, status.error_step, status.ended_at) == ("RUNNING", None, None, None)
    assert status.step("bad").task_id != before.step("bad").task_id
    assert run.resume() is False
    assert published(app) == []
    assert [each.id for each in PipelineRun.list(app)] == ["a"], "listed once"
    end(app, Ref("a", 2, token="token0"))
    for step in (3, 4):
        end(app, begun(app, "a", step, round=1))
    assert published(app) == [("next", 0)]
    end(app, begun(app, "a", 5, 1))
    assert run.status().state == "SUCCEEDED"
    with pytest.raises(NotResumable, match="has succeeded"):
        run.resume()


def test_a_copy_from_before_counts_for_nothing(app: Celery) -> None:
    run = failed(app)
    run.resume()
    old = Ref("a", 4, token="old")
    assert store_of(app).begin(old, again=True, worker="w", renew_ms=2000)[0] == "stale"
    assert store_of(app).complete(old, "FAILED", "x")[0] == "stale"
    assert run.status().state == "RUNNING"


def test_a_step_whose_worker_died_with_the_run_runs_again(app: Celery) -> None:
    run = failed(app)
    task_id = run.status().step("runs").task_id
    store_of(app).client.delete(f"{{redbeat-lite}}:guard:{task_id}")
    run.resume()
    assert sorted(published(app)) == [("bad", 1), ("runs", 1), ("waits", 1)]


def test_a_run_does_not_go_on_beside_steps_that_are_being_killed(app: Celery) -> None:
    run = failed(app, revoke_siblings=True)
    with pytest.raises(NotResumable, match="has a step that is being killed"):
        run.resume()
    assert (run.status().state, published(app)) == ("FAILED", [])
    end(app, Ref("a", 2, token="token0"), "REVOKED", "was revoked")
    assert run.resume()
    assert sorted(published(app)) == [("bad", 1), ("runs", 1), ("waits", 1)]


def test_a_limit_holds_for_a_run_that_goes_on(app: Celery) -> None:
    run = Pipeline(app, [(f"s{n}", "step", 1) for n in range(5)], at_once=3).start("a")
    refs = [begun(app, "a", step) for step in range(3)]
    alive(app, "a", 1)
    end(app, refs[0], "FAILED", "x")
    end(app, refs[2])
    published(app)
    run.resume()
    assert published(app) == [("s0", 1), ("s3", 0)], "beside s1, which runs"


def test_a_run_of_which_all_steps_of_its_stage_succeeded_late_goes_on_with_the_next(app: Celery) -> None:
    run = Pipeline(app, [("a", "step", 1), ("b", "step", 0)]).start("a")
    ref = begun(app, "a", 0)
    assert run.cancel()
    end(app, ref)
    published(app)
    assert run.resume()
    assert published(app) == [("b", 0)]


def test_a_run_of_an_entry_waits_for_its_turn(app: Celery) -> None:
    definition = Pipeline(app, [("s", "step", 1), ("t", "step", 1), ("u", "step", 0)], overlap="wait").definition
    first = begin(app, definition, "a", "nightly")
    ref = begun(app, "a", 1)
    alive(app, "a", 1)
    end(app, begun(app, "a", 0), "FAILED", "x")
    begin(app, definition, "b", "nightly")
    published(app)
    assert first.resume()
    assert (first.status().state, published(app)) == ("WAITING", [])
    end(app, ref)  # that its other step ends meanwhile counts
    PipelineRun(app, "b").cancel()
    assert (first.status().state, published(app)) == ("RUNNING", [("s", 1)])
    end(app, begun(app, "a", 0, round=1))
    assert published(app) == [("u", 0)]


def test_a_step_that_ends_while_its_run_waits_makes_room_for_the_next_one(app: Celery) -> None:
    steps = [("s", "step", 1), ("t", "step", 1), ("u", "step", 1)]
    definition = Pipeline(app, steps, overlap="wait", at_once=1).definition
    first = begin(app, definition, "a", "nightly")
    ref = begun(app, "a", 0)
    alive(app, "a", 0)
    assert first.cancel()
    second = begin(app, definition, "b", "nightly")
    published(app)
    assert first.resume()
    end(app, ref)
    assert (first.status().state, published(app)) == ("WAITING", [])
    assert second.cancel()
    assert (first.status().state, published(app)) == ("RUNNING", [("t", 0)])
    end(app, begun(app, "a", 1))
    assert published(app) == [("u", 0)]
    end(app, begun(app, "a", 2))
    assert first.status().state == "SUCCEEDED"


def test_a_run_that_was_skipped_may_be_run_after_all(app: Celery) -> None:
    definition = Pipeline(app, [("s", "step", 1)], overlap="skip").definition
    begin(app, definition, "a", "nightly")
    late = begin(app, definition, "b", "nightly")
    with pytest.raises(NotResumable, match="cannot go on: run a of its entry has not ended"):
        late.resume()
    assert late.status().state == "ABORTED"
    PipelineRun(app, "a").cancel()
    assert late.resume()
    assert late.status().state == "RUNNING"


def test_who_dies_while_resuming_leaves_it_to_the_sweeper(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    run = failed(app)
    with monkeypatch.context() as patch:
        patch.setattr(sweeper, "dispatch", lambda *args: (_ for _ in ()).throw(redis.ConnectionError("died")))
        assert run.resume()
    assert published(app) == []
    store_of(app).client.zadd("{redbeat-lite}:pipelines", {"1:a": 0})
    sweep(app)
    assert sorted(published(app)) == [("bad", 1), ("waits", 1)]


def test_nobody_resumes_a_run_whose_steps_are_lost(app: Celery) -> None:
    run = failed(app)
    store = store_of(app)
    store.client.delete(store.keys("a").steps)
    with pytest.raises(NotResumable, match="the server has lost the steps of pipeline run 'a'"):
        run.resume()
    assert run.status().state == "FAILED"


def test_nobody_resumes_a_run_that_is_gone(app: Celery) -> None:
    run = PipelineRun(app, "nobody")
    with pytest.raises(PipelineNotFound):
        run.resume()
    run = failed(app, ttl=1)
    eventually(lambda: run.status().state == "GONE")
    with pytest.raises(PipelineNotFound):
        run.resume()


def handle_next(lab: Lab) -> tuple[int, Any]:
    """Run the oldest message of the queue. Return its round, and what the task returned or raised."""
    message = json.loads(str(lab.client.rpop("celery")))
    return message["headers"]["redbeat_pipeline"]["round"], handle(lab, message)


@pytest.mark.parametrize("task", ["proj.locked", "proj.queued.skip", "proj.queued.raise", "proj.queued.wait"])
def test_a_step_takes_over_the_lock_that_is_kept_for_its_earlier_retry(
    server: Server, app: Celery, make_lab: Callable[..., Lab], task: str
) -> None:
    lab = make_lab(server, app)
    run = lab.start(("a", lab.sig(task, how="retry", seconds=60), 1))
    assert isinstance(handle_next(lab)[1], Retry)
    assert run.cancel()
    assert run.resume()
    lab.client.lmove("celery", "celery", "RIGHT", "LEFT")  # the first retry is not due yet
    rounds = [handle_next(lab) for _ in range(3)]
    assert [round for round, _ in rounds] == [1, 0, 1]
    assert [type(result) for _, result in rounds] == [Retry, Ignore, NoneType]
    assert (run.status().state, lab.names(run)) == ("SUCCEEDED", ["a"] * 3)


@pytest.mark.parametrize("conflict", ["skip", "raise", "wait"])
def test_a_step_takes_over_the_lock_of_its_earlier_message(
    server: Server, app: Celery, make_lab: Callable[..., Lab], conflict: str
) -> None:
    lab = make_lab(server, app)
    run = lab.start(("a", lab.sig(), 1), ("b", lab.sig(f"proj.queued.{conflict}"), 1))
    end(app, begun(app, run.id, 0), "FAILED", "ValueError: x")
    assert run.resume()
    rounds = [handle_next(lab) for _ in range(4)]
    assert [round for round, _ in rounds] == [0, 0, 1, 1]
    assert [type(result) for _, result in rounds] == [Ignore, Ignore, NoneType, NoneType]
    assert (run.status().state, lab.names(run)) == ("SUCCEEDED", ["a", "b"])


@pytest.mark.parametrize(
    "fails",
    [
        {"how": "fail once"},
        {"how": "die once"},
        {"how": "hang once", "options": {"soft_time_limit": 0.3}},
        pytest.param({"how": "hang once", "options": {"time_limit": 1}}, marks=pytest.mark.soak),
        {"how": "ignore once"},
        {"how": "reject once"},
        {"how": "refuse once"},
    ],
    ids=str,
)
def test_after_each_kind_of_failure_nothing_that_finished_runs_again(
    lab: Lab, crew: Worker, fails: dict[str, Any]
) -> None:
    bad = lab.sig(how=fails["how"], give={"bad": 2}).set(**fails.get("options", {}))
    run = lab.start(
        ("ok", lab.sig(give={"ok": 1}), 3), ("bad", bad, 2), ("beside", lab.sig(), 2), ("show", lab.sig(how="show"), 1)
    )
    assert run.wait(END).state == "FAILED"
    eventually(lambda: run.status().step("beside").ended_at or not lab.names(run).count("beside"), what="its sibling")
    assert run.resume()
    assert run.wait(END).state == "SUCCEEDED", run.status()
    names = lab.names(run)
    assert [names.count(name) for name in ("ok", "bad", "beside", "show")] == [1, 2, 1, 1]
    assert lab.bodies(run)[-1]["params"] == run.params() == {"ok": 1, "bad": 2}


@pytest.fixture
def later(lab: Lab, crew: Worker, queue: str) -> Iterator[Callable[[], None]]:
    """Has the crew take from the queue of its own, too, from now on."""
    app = lab.app
    yield lambda: app.control.add_consumer(queue, reply=True, limit=1, timeout=END)
    app.control.cancel_consumer(queue, reply=True, limit=1, timeout=END)


def succeeded(run: PipelineRun) -> bool:
    """Whether it has; if it ended otherwise, it is resumed once more."""
    status = run.status()
    if status.ended and status.state != "SUCCEEDED":
        run.resume()
    return status.state == "SUCCEEDED"


@pytest.mark.parametrize(
    ("how", "why"), [("revoked", "was revoked"), ("expired", "expired before it began"), ("cancelled", None)]
)
def test_a_step_that_never_began_runs_after_all(
    lab: Lab, queue: str, later: Callable[[], None], how: str, why: str | None
) -> None:
    step = lab.sig(queue=queue).set(**({"expires": 1} if how == "expired" else {}))
    run = lab.start(("ok", lab.sig(), 2), ("a", step, 1))
    text = eventually(lambda: lab.client.lindex(queue, 0), what="its message")
    if how == "cancelled":
        assert run.cancel()
    elif how == "revoked":
        lab.app.control.revoke(run.status().step("a").task_id, reply=True, limit=1, timeout=END)
    else:
        expires = datetime.fromisoformat(json.loads(text)["headers"]["expires"])
        eventually(lambda: datetime.now(UTC) > expires, what="its end")
    later()
    assert run.wait(END).error == why
    # It may expire again where its worker is slow.
    eventually(lambda: succeeded(run), within=END, what="its success")
    assert lab.names(run) == ["ok", "a"]


def test_a_step_whose_worker_is_gone_runs_after_all(
    lab: Lab, hire: Callable[..., Worker], queue: str, later: Callable[[], None], impatient: None
) -> None:
    worker = hire(lab.server.url, queue=queue)
    run = lab.start(("ok", lab.sig(), 2), ("a", lab.sig(how="hang once", queue=queue), 1))
    lab.started(run, "a")
    worker.kill()
    assert lab.swept(run).error == LOST
    later()
    assert run.resume()
    assert run.wait(END).state == "SUCCEEDED"
    assert lab.names(run) == ["ok", "a", "a"]


def test_a_run_that_met_its_deadline_goes_on_with_what_ended_late(lab: Lab, crew: Worker) -> None:
    run = lab.start(("ok", lab.sig(), 2), ("a", lab.sig(how="until"), 1), ("b", lab.sig(), 0), deadline=1)
    lab.started(run, "a")
    assert lab.swept(run).error == "has not ended within its deadline of 1 s"
    lab.go(run)
    eventually(lambda: run.status().step("a").state == "SUCCEEDED", within=END, what="its end")
    assert run.resume()
    assert run.wait(END).state == "SUCCEEDED"
    assert lab.names(run) == ["ok", "a", "b"]


def test_a_step_that_no_worker_knows_fails_again_and_nothing_else_runs(lab: Lab, crew: Worker) -> None:
    @lab.app.task(name="proj.unknown", base=PipelineTask, shared=False)
    def unknown(params: dict[str, Any]) -> None: ...

    run = lab.start(("ok", lab.sig(), 2), ("a", lab.sig("proj.unknown"), 1))
    del lab.app.tasks["proj.unknown"]
    for _ in range(2):
        assert "knows no task 'proj.unknown'" in str(run.wait(END).error)
        assert run.resume()
    run.wait(END)
    assert lab.names(run) == ["ok"]

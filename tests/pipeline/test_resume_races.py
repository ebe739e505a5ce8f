"""Who resumes a run while somebody else still deals with its end, resumes it too, cancels it, or runs another one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Event, Thread, current_thread
from typing import Any

import pytest
from celery import Celery

from redbeat_lite import NotResumable, Pipeline, PipelineRun
from redbeat_lite.pipeline import pipeline_run, sweep, sweeper
from redbeat_lite.pipeline.definition import Ref
from redbeat_lite.pipeline.pipeline_keys import turns_key
from redbeat_lite.pipeline.pipeline_run import begin
from redbeat_lite.pipeline.pipeline_store import PipelineStore, store_of
from redbeat_lite.pipeline.sweeper import conclude, reconcile
from tests.pipeline.lab import states
from tests.pipeline.steps import make_app
from tests.support.server import Server

OPEN = "{redbeat-lite}:pipelines"


@pytest.fixture
def app(server: Server) -> Iterator[Celery]:
    app = make_app(server.url)
    yield app
    app.close()


def start(app: Celery, name: str, overlap: str = "wait", steps: int = 2) -> PipelineRun:
    definition = Pipeline(app, [(f"s{n}", "step", 1) for n in range(steps)], overlap=overlap).definition
    return begin(app, definition, name, "nightly")


def begun(app: Celery, run: PipelineRun, step: int, round: int = 0) -> Ref:
    ref = Ref(run.id, step, round, 0, f"token{step}{round}")
    task_id = run.status().steps[step].task_id
    assert store_of(app).begin(ref, again=False, worker="w", renew_ms=2000)[0] == "run"
    store_of(app).client.hset(f"{{redbeat-lite}}:guard:{task_id}", mapping={"state": "running", "until": 2**52})
    return ref


def fail(app: Celery, ref: Ref) -> None:
    conclude(store_of(app), ref, "FAILED", "ValueError: x")


def seen(app: Celery, *runs: PipelineRun) -> list[str]:
    return [str(run.status().state) for run in runs]


def meanwhile(patch: pytest.MonkeyPatch, owner: Any, name: str, act: Callable[[], object], *, before: bool) -> None:
    """Have something done before or after the next call of this, by somebody else."""
    call = getattr(owner, name)

    def called(*args: Any, **kwargs: Any) -> Any:
        patch.setattr(owner, name, call)
        if before:
            act()
        answer = call(*args, **kwargs)
        if not before:
            act()
        return answer

    patch.setattr(owner, name, called)


@pytest.mark.parametrize(
    ("owner", "name", "before"),
    [
        (sweeper, "_finish", True),
        (sweeper, "_fate_of", True),
        (PipelineStore, "move_to_ended", True),
        (PipelineStore, "move_to_ended", False),
    ],
    ids=["before all", "before it is told", "before its index", "after that"],
)
def test_who_deals_late_with_an_end_takes_nothing_from_a_run_that_goes_on(
    app: Celery, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, before: bool
) -> None:
    run, later, told = start(app, "a"), start(app, "b"), []
    ref = begun(app, run, 0)
    store_of(app).client.hset(store_of(app).keys("a").run, "attempt", '["nightly", 1, "a", 0, 5, false]')
    monkeypatch.setattr(
        store_of(app).runs, "record", lambda fates: told.append([(f.outcome, f.attempt.number) for f in fates])
    )

    def resume() -> None:
        later.cancel()
        assert run.resume()
        start(app, "c")

    meanwhile(monkeypatch, owner, name, resume, before=before)
    fail(app, ref)
    client = store_of(app).client
    assert seen(app, run, PipelineRun(app, "c")) == ["RUNNING", "WAITING"], "one at a time"
    assert client.zrange(turns_key("redbeat-lite", "nightly"), 0, -1) == [b"1:a", b"0:c"]
    assert client.zscore(OPEN, "1:a"), "the sweeper looks after it"
    assert told
    assert {tuple(each) for each in told} == {(("failed", 1_000_000),)}, "its failure is told, once or the same again"


def test_a_step_that_began_since_somebody_looked_does_not_run_twice(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start(app, "a", "allow")

    def begin_and_fail() -> None:
        begun(app, run, 1)
        fail(app, begun(app, run, 0))

    status = PipelineRun.status
    meanwhile(monkeypatch, PipelineRun, "status", begin_and_fail, before=False)
    assert not run.resume(), "it had not ended when somebody looked"
    assert run.resume()
    assert [(step.state, step.round) for step in status(run).steps] == [("WAITING", 1), ("RUNNING", 0)]


def test_who_resumes_what_another_one_has_resumed_changes_nothing(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    run = start(app, "a", "allow")
    fail(app, begun(app, run, 0))

    def resume_and_fail() -> None:
        assert run.resume()
        begun(app, run, 1, round=1)
        fail(app, begun(app, run, 0, round=1))

    meanwhile(monkeypatch, pipeline_run, "reconcile", resume_and_fail, before=False)
    assert not PipelineRun(app, "a").resume()
    assert (run.status().state, states(run.status())) == ("FAILED", {"s0": "FAILED", "s1": "RUNNING"})
    assert run.resume()
    assert [(step.state, step.round) for step in run.status().steps] == [("WAITING", 2), ("RUNNING", 1)]


@pytest.mark.parametrize("overlap", ["skip", "wait"])
def test_a_run_that_is_resumed_while_another_one_begins_runs_after_it(
    app: Celery, monkeypatch: pytest.MonkeyPatch, overlap: str
) -> None:
    """Found by seed 89026873 of the simulation."""
    run = start(app, "a", overlap)
    fail(app, begun(app, run, 0))
    asked, seen_by_other = Event(), Event()
    join_line, check_turn = pipeline_run.join_line, sweeper._start

    def join_and_wait(*args: Any) -> str:
        why_not = join_line(*args)
        asked.set()
        assert seen_by_other.wait(10)
        return why_not

    def check_and_wait(store: PipelineStore, member: str) -> str:
        seen_state = check_turn(store, member)
        if current_thread() is not resumer and not seen_by_other.is_set():
            seen_by_other.set()
            resumer.join(10)
        return seen_state

    monkeypatch.setattr(pipeline_run, "join_line", join_and_wait)
    resumer = Thread(target=run.resume)
    resumer.start()
    assert asked.wait(10)
    monkeypatch.setattr(sweeper, "_start", check_and_wait)
    other = start(app, "b", overlap)
    assert seen(app, run, other) == ["WAITING", "RUNNING"]
    assert store_of(app).client.zrange(turns_key("redbeat-lite", "nightly"), 0, -1) == [b"0:b", b"1:a"]
    third = start(app, "c", overlap)
    fail(app, begun(app, other, 0))
    assert seen(app, run, third) == ["RUNNING", "ABORTED" if overlap == "skip" else "WAITING"]


def test_a_run_is_not_forgotten_whose_resumer_dies_while_another_process_still_deals_with_its_end(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start(app, "a", "allow")
    ref = begun(app, run, 0)
    call, move = PipelineStore.run, PipelineStore.move_to_ended

    def resume_and_die(store: PipelineStore, script: str, *args: Any, **values: Any) -> Any:
        answer = call(store, script, *args, **values)
        if script == "pipeline/resume":
            raise SystemExit
        return answer

    def resume_and_move(store: PipelineStore, *args: Any) -> None:
        patch.setattr(PipelineStore, "move_to_ended", move)
        with pytest.raises(SystemExit):
            run.resume()
        move(store, *args)

    with monkeypatch.context() as patch:
        patch.setattr(PipelineStore, "run", resume_and_die)
        patch.setattr(PipelineStore, "move_to_ended", resume_and_move)
        fail(app, ref)
    assert seen(app, run) == ["WAITING"]
    store_of(app).client.zadd(OPEN, {"1:a": 0}, xx=True)
    sweep(app)
    assert seen(app, run) == ["RUNNING"]


def test_a_run_is_not_forgotten_that_is_resumed_before_the_process_dies_that_deals_with_its_end(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start(app, "a", "allow")
    ref = begun(app, run, 0)
    move = PipelineStore.move_to_ended

    def resume_move_and_die(store: PipelineStore, *args: Any) -> None:
        patch.setattr(PipelineStore, "move_to_ended", move)
        assert run.resume()
        move(store, *args)
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(PipelineStore, "move_to_ended", resume_move_and_die)
        with pytest.raises(SystemExit):
            fail(app, ref)
    assert store_of(app).client.zrange(OPEN, 0, -1) == [b"1:a"]


def test_a_resume_that_is_sent_again_over_a_new_connection_lets_the_run_go_on(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start(app, "a", "allow")
    fail(app, begun(app, run, 0))
    call = PipelineStore.run

    def send_twice(store: PipelineStore, script: str, *args: Any, **values: Any) -> Any:
        if script == "pipeline/resume":
            assert call(store, script, *args, **values) == b"resumed"
        return call(store, script, *args, **values)

    monkeypatch.setattr(PipelineStore, "run", send_twice)
    assert not run.resume()
    assert seen(app, run) == ["RUNNING"]


@pytest.mark.parametrize("overlap", ["skip", "wait"])
def test_a_run_that_cannot_be_resumed_stays_as_it_is(
    app: Celery, monkeypatch: pytest.MonkeyPatch, overlap: str
) -> None:
    monkeypatch.setattr(sweeper, "MAX_WAITING", 0)
    run = start(app, "a", overlap)
    fail(app, begun(app, run, 0))
    start(app, "b", overlap)
    before = run.status()
    with pytest.raises(NotResumable, match="'a' cannot go on: run b of its entry has not ended"):
        run.resume()
    assert run.status() == before
    assert before.why == "s0: ValueError: x"
    assert store_of(app).client.zrange(OPEN, 0, -1) == [b"0:b"]


def test_a_run_does_not_go_on_beside_a_step_that_a_cancel_kills(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app.control, "revoke", lambda *args, **kwargs: None)
    run = start(app, "a", "allow")
    ref = begun(app, run, 0)
    assert run.cancel(terminate=True)
    with pytest.raises(NotResumable, match="is being killed"):
        run.resume()
    conclude(store_of(app), ref, "REVOKED", "was revoked")
    assert run.resume()
    assert run.cancel()
    assert run.resume(), "what was killed once is not killed again"


def test_a_run_that_fails_while_somebody_looks_does_not_go_on_beside_a_step_that_is_killed(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app.control, "revoke", lambda *args, **kwargs: None)
    run = Pipeline(app, [(f"s{n}", "step", 1) for n in range(2)], revoke_siblings=True).start("a")
    failing, _ = begun(app, run, 0), begun(app, run, 1)
    meanwhile(monkeypatch, PipelineStore, "read", lambda: fail(app, failing), before=False)
    with pytest.raises(NotResumable, match="is being killed"):
        run.resume()


def test_an_end_that_is_told_again_after_a_resume_passes_no_turn_on(app: Celery) -> None:
    run, later = start(app, "a"), start(app, "b")
    fail(app, begun(app, run, 0))
    assert run.resume()
    reconcile(store_of(app), "a")
    assert seen(app, run, later) == ["WAITING", "RUNNING"]
    later.cancel()
    reconcile(store_of(app), "b")
    reconcile(store_of(app), "a")
    assert (seen(app, run), store_of(app).client.zcard(turns_key("redbeat-lite", "nightly"))) == (["RUNNING"], 1)

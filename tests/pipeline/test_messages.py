"""Messages given to their steps one by one, in this process, while the server, its answers or its keys get lost."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
import redis
from celery.exceptions import Ignore, Reject, Retry, SoftTimeLimitExceeded
from kombu import Producer
from kombu.exceptions import OperationalError

from redbeat_lite import locks
from redbeat_lite.once import lock_client
from redbeat_lite.once.lock_client import LockClient
from redbeat_lite.once.lock_store import LockStore
from redbeat_lite.pipeline import State, pipeline_store, pipeline_task, sweep, sweeper
from redbeat_lite.pipeline.definition import Ref
from redbeat_lite.pipeline.pipeline_store import PipelineStore, store_of
from redbeat_lite.pipeline.sweeper import PERIOD
from redbeat_lite.store import connections
from redbeat_lite.store.redis_values import server_ms
from redbeat_lite.store.scripts import Scripts
from tests.pipeline.lab import Lab, handle, record
from tests.pipeline.steps import make_app
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("impatient")

#: Seconds within which any run of these tests ends on a slow machine.
END = 20.0


@pytest.mark.parametrize("task", ["proj.step", "proj.late"])
@pytest.mark.parametrize(("owner", "name"), [(LockStore, "begin"), (PipelineStore, "begin")])
def test_a_step_that_cannot_begin_because_the_server_is_away_waits(
    lab: Lab,
    queue: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    owner: type,
    name: str,
    task: str,
) -> None:
    def away(*args: Any, **kwargs: Any) -> None:
        raise redis.ConnectionError("away")

    run = lab.start(("a", lab.sig(task, queue=queue, give={"x": 1}), 1))
    message = json.loads(lab.client.lpop(queue))
    with monkeypatch.context() as patch:
        patch.setattr(lock_client, "PATIENCE", 0)
        patch.setattr(owner, name, away)
        found = handle(lab, message)
    assert isinstance(found, Reject)
    assert found.requeue
    assert "without the guard" not in caplog.text
    assert (run.status().state, run.status().step("a").state) == ("RUNNING", "WAITING")
    # It comes again with the server.
    handle(lab, message)
    status = run.status()
    assert (status.state, status.step("a").round, run.params()) == ("SUCCEEDED", 0, {"x": 1})


@pytest.mark.parametrize(("how", "script", "most"), [("", "complete", 2), ("retry", "change", 3)])
def test_a_step_whose_outcome_the_server_never_took_does_not_fail(
    lab: Lab, queue: str, monkeypatch: pytest.MonkeyPatch, how: str, script: str, most: int
) -> None:
    ask = Scripts.run
    lost: list[str] = []

    def lose(self: Scripts, name: str, *args: Any, **values: Any) -> Any:
        if name == f"pipeline/{script}" and values.get("outcome", "") != "FAILED" and not lost:
            lost.append(name)
            raise redis.ConnectionError("away")
        return ask(self, name, *args, **values)

    run = lab.start(("a", lab.sig("proj.late", queue=queue, how=how, give={"x": 1}), 1))
    monkeypatch.setattr(pipeline_store, "PATIENCE", 0)
    monkeypatch.setattr(pipeline_task, "PATIENCE", 0)
    monkeypatch.setattr(Scripts, "run", lose)

    def ended() -> bool:
        while text := lab.client.lpop(queue):
            handle(lab, json.loads(text))
        sweep(lab.app)
        return run.status().ended

    eventually(ended, within=END, what="the end of the run")
    assert lost
    assert (run.status().state, run.status().error, run.params()) == ("SUCCEEDED", None, {"x": 1})
    # The retry may come before the sweeper takes its worker for dead, or after that.
    assert 2 <= len(lab.bodies(run)) <= most


def test_a_step_whose_soft_time_limit_strikes_when_it_has_succeeded_has_succeeded(
    lab: Lab, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete = PipelineStore.complete
    struck: list[Ref] = []

    def strike(self: PipelineStore, ref: Ref, *args: Any) -> Any:
        if not struck:
            struck.append(ref)
            raise SoftTimeLimitExceeded
        return complete(self, ref, *args)

    run = lab.start(("a", lab.sig("proj.late", queue=queue, give={"x": 1}), 1))
    monkeypatch.setattr(PipelineStore, "complete", strike)
    handle(lab, json.loads(lab.client.lpop(queue)))
    assert struck
    assert (run.status().state, run.params(), len(lab.bodies(run))) == ("SUCCEEDED", {"x": 1}, 1)


def take_nothing(*args: Any, **options: Any) -> None:
    """In place of what publishes a message, as where the broker is away."""
    raise OperationalError("away")


def test_a_retry_that_the_broker_does_not_take_is_due_in_time_and_keeps_its_lock(
    lab: Lab, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = lab.start(("a", lab.sig("proj.locked", queue=queue, how="retry", give={"x": 1}), 1))
    message = json.loads(lab.client.lpop(queue))
    with monkeypatch.context() as patch:
        patch.setattr(lab.app.amqp, "send_task_message", take_nothing)
        assert isinstance(handle(lab, message), Retry)
    mine, held = store_of(lab.app), locks(lab.app).get("locked")
    assert record(mine, run.id)["due"] - server_ms(lab.client) <= 300, "no later than the retry is"
    assert held.state == "queued"
    assert held.expires_in > 2 * (mine.check_period + PERIOD), "or somebody else has it when the sweeper comes"

    def published() -> Any:
        sweep(lab.app)
        return lab.client.lpop(queue)

    handle(lab, json.loads(eventually(published, within=END, what="the retry")))
    assert (run.status().state, run.status().step("a").attempt, run.params()) == ("SUCCEEDED", 1, {"x": 1})


def test_a_stage_of_the_same_task_that_the_broker_does_not_take_waits_to_be_published(
    lab: Lab, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = lab.start(("a", lab.sig(queue=queue), 2), ("b", lab.sig(queue=queue), 1))
    message = json.loads(lab.client.lpop(queue))
    with monkeypatch.context() as patch:
        patch.setattr(lab.app.amqp, "send_task_message", take_nothing)
        handle(lab, message)
    assert store_of(lab.app).check(run.id).due == [Ref(run.id, 1)]
    assert run.cancel()


def test_a_step_ends_within_an_annotation_of_its_call(lab: Lab, queue: str) -> None:
    def around(call: Any) -> Any:
        return lambda *args, **kwargs: call(*args, **kwargs)

    app = make_app(lab.server.url, task_annotations={"proj.runs": {"@__call__": around}})
    annotated = Lab(lab.server, app)
    run = annotated.start(("a", annotated.sig("proj.runs", queue=queue, give={"x": 1}), 1))
    handle(annotated, json.loads(lab.client.lpop(queue)))
    assert (run.status().state, run.params()) == ("SUCCEEDED", {"x": 1})
    app.close()


def test_a_step_whose_run_is_lost_leaves_nobody_waiting_for_its_result(lab: Lab, queue: str) -> None:
    run = lab.start(("a", lab.sig(queue=queue), 1))
    message = json.loads(lab.client.lpop(queue))
    result = lab.app.AsyncResult(run.status().step("a").task_id)
    lab.client.delete(*lab.client.scan_iter(f"{{redbeat-lite:{run.id}}}:*"))
    assert isinstance(handle(lab, message), Ignore)
    assert (result.state, lab.names(run)) == ("REVOKED", [])


def test_a_step_whose_message_waited_too_long_fails(lab: Lab, queue: str) -> None:
    run = lab.start(("a", lab.sig(queue=queue), 1))
    message = json.loads(lab.client.lpop(queue))
    message["headers"]["redbeat_deadline"] = 1  # guard_life after it was sent, long ago
    handle(lab, message)
    assert (run.status().state, run.status().error) == ("FAILED", "was not run: too old")


def test_answers_that_get_lost_change_nothing(lab: Lab, queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lost: list[str] = []
    ask = Scripts.run

    def lose(self: Scripts, name: str, *args: Any, **values: Any) -> Any:
        answer = ask(self, name, *args, **values)
        if name.startswith("pipeline") and lost.count(name) < 2:
            lost.append(name)
            raise redis.ConnectionError("the answer got lost")
        return answer

    monkeypatch.setattr(Scripts, "run", lose)
    monkeypatch.setattr(connections, "_FIRST_PAUSE", 0.01)
    steps = [(f"s{n}", lab.sig(queue=queue, how="requeue", give={f"s{n}": n}), -n // 2) for n in range(4)]
    for _ in range(2):
        with pytest.raises(redis.ConnectionError):
            lab.start(*steps, run_id=queue)
    run = lab.start(*steps, run_id=queue)

    def ended() -> bool:
        while text := lab.client.lpop(queue):
            if isinstance(handle(lab, json.loads(text)), Reject):
                lab.client.rpush(queue, text)
        sweep(lab.app)
        return run.status().ended

    eventually(ended, within=END, what="the end of the run")
    assert (run.status().state, run.params()) == ("SUCCEEDED", {f"s{n}": n for n in range(4)})
    assert sorted([body["step"] for body in lab.ended_bodies(run)]) == ["s0", "s1", "s2", "s3"]
    assert {f"pipeline/{name}" for name in ("start", "begin", "change", "complete", "check")} <= set(lost)


def test_a_step_that_cannot_be_published_ends_the_run(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> None:
        raise KeyError("no such queue")

    with monkeypatch.context() as patch:
        patch.setattr(sweeper, "publish", refuse)
        run = lab.start(("a", lab.sig(), 1))
    assert (run.status().state, run.status().error_step) == (State.FAILED, "a")
    assert "cannot be published: KeyError" in (run.status().error or "")


def test_a_connection_that_is_lost_while_a_queue_is_declared_ends_no_run(
    lab: Lab, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kombu goes on with the channel that it has closed, and raises an AttributeError."""
    declare = Producer.maybe_declare
    losses = []

    def lose_channel(self: Producer, *args: Any, **options: Any) -> None:
        declare(self, *args, **options)
        losses.append(self.channel.close())

    with monkeypatch.context() as patch:
        patch.setattr(Producer, "maybe_declare", lose_channel)
        run = lab.start(("a", lab.sig(queue=queue), 1))
    assert losses
    assert run.status().state == State.RUNNING
    assert store_of(lab.app).check(run.id).due == [Ref(run.id, 0)]


def test_an_attribute_error_of_a_router_ends_the_run(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> None:
        raise AttributeError("no such field")

    with monkeypatch.context() as patch:
        patch.setattr(sweeper, "publish", refuse)
        run = lab.start(("a", lab.sig(), 1))
    assert run.status().state == State.FAILED
    assert "cannot be published: AttributeError: no such field" in (run.status().error or "")


def test_a_sweep_that_meets_an_outage_logs_one_line(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = lab.start(("a", lab.sig(), 1))

    def hang(*args: Any, **options: Any) -> None:
        raise redis.TimeoutError("Timeout reading from socket")

    def sweep_once() -> list[logging.LogRecord]:
        # The sweeper of a beat may have looked at this run just before, and put its next check off.
        lab.client.zadd("{redbeat-lite}:pipelines", {f"0:{run.id}": 0})
        sweep(lab.app)
        return [line for line in caplog.records if run.id in line.getMessage()]

    with monkeypatch.context() as patch:
        patch.setattr(PipelineStore, "check", hang)
        (line,) = eventually(sweep_once, what="the line about the run")
    assert line.getMessage().endswith("cannot be swept; looking at it again later: Timeout reading from socket")
    assert line.exc_info is None


def test_params_that_are_lost_are_not_taken_for_none(
    lab: Lab, queue: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = lab.start(("a", lab.sig(queue=queue, give={"x": 1}), 2), ("b", lab.sig(), 1))
    message = json.loads(lab.client.lpop(queue))
    complete = PipelineStore.complete

    def lose_result(self: PipelineStore, ref: Ref, *args: Any) -> str:
        word = complete(self, ref, *args)
        lab.client.hdel(self.keys(run.id).results, str(ref.step))
        return word

    monkeypatch.setattr(PipelineStore, "complete", lose_result)
    handle(lab, message)
    status = run.status()
    assert (status.state, status.error_step, status.error) == (
        "FAILED", "b", "cannot be published: some of its params are lost",
    )  # fmt: skip
    [line] = [line for line in caplog.records if run.id in line.getMessage() and "published" in line.getMessage()]
    assert not line.exc_info, "it was to be expected"


def test_a_copy_of_a_step_that_may_not_run_again_does_not_run(lab: Lab, queue: str, impatient: None) -> None:
    run = lab.start(("a", lab.sig(queue=queue), 1))
    message = json.loads(lab.client.lpop(queue))
    # The first copy began, and its worker died.
    dead = Ref(run.id, 0, token="dead")
    assert store_of(lab.app).begin(dead, again=False, worker="w", renew_ms=0)[0] == "run"
    assert isinstance(handle(lab, message), Ignore)
    assert lab.swept(run).error == sweeper.LOST
    assert lab.names(run) == []


def test_a_step_whose_lock_cannot_be_asked_for_waits_to_be_published(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> None:
        raise redis.ConnectionError("not now")

    with monkeypatch.context() as patch:
        patch.setattr(LockClient.of(lab.app).store, "take", refuse)
        run = lab.start(("a", lab.sig("proj.queued.skip", queue="nobody"), 1))
    assert run.status().state == "RUNNING"

    def published() -> int:
        sweep(lab.app)
        return lab.client.llen("nobody")

    eventually(published, within=END, what="the message")
    assert run.cancel()
    LockClient.of(lab.app).leave("queued", run.status().step("a").task_id)
    lab.client.delete("nobody")

"""Whoever dies, the run ends as the contract says, and nothing of it runs twice at a time or out of turn."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import redis
from celery import Celery
from celery.exceptions import SoftTimeLimitExceeded

from redbeat_lite import Pipeline, PipelineTask, lock, locks
from redbeat_lite.pipeline import sweep, sweeper
from redbeat_lite.pipeline.definition import Ref
from redbeat_lite.pipeline.pipeline_run import PipelineRun
from redbeat_lite.pipeline.pipeline_store import PipelineStore, store_of
from redbeat_lite.store.redis_values import server_ms
from tests.harness.workers import Worker
from tests.pipeline.lab import Lab, handle, record, states
from tests.pipeline.steps import LEASE, make_app
from tests.support.processes import Process
from tests.support.server import Server, free_port
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("impatient")

#: Seconds within which a run ends whose worker died: the guard's lease, the suspicion, the sweeper's period, slack.
END = 25.0


def test_a_killed_child_is_followed_by_another_run_if_its_task_allows(lab: Lab, crew: Worker) -> None:
    run = lab.start(("a", lab.sig("proj.requeue", how="die once", give={"x": 1}), 2), ("b", lab.sig(), 1))
    status = lab.swept(run)
    assert (status.state, run.params()) == ("SUCCEEDED", {"x": 1})
    assert lab.names(run) == ["a", "a", "b"]


@pytest.mark.soak
def test_what_kills_every_worker_is_given_up(lab: Lab, crew: Worker) -> None:
    run = lab.start(("a", lab.sig("proj.requeue", how="die"), 2), ("never", lab.sig(), 1))
    status = lab.swept(run)
    assert (status.state, status.error_step) == ("FAILED", "a")
    assert "died more than 5 times" in (status.error or "") or "is gone" in (status.error or "")
    assert 2 <= lab.names(run).count("a") <= 7


def test_a_worker_killed_as_a_whole(lab: Lab, hire: Callable[..., Worker], queue: str) -> None:
    worker = hire(lab.server.url, queue=queue)
    early, late = (
        lab.start(("a", lab.sig(task, queue=queue, how="hang once"), 2), ("b", lab.sig(queue=queue), 1))
        for task in ("proj.step", "proj.late")
    )
    lab.started(early, "a")
    lab.started(late, "a")
    worker.kill()
    hire(lab.server.url, queue=queue)
    status = lab.swept(early, within=END)
    assert (status.state, status.error_step) == ("FAILED", "a")
    assert "its worker is gone" in (status.error or "")
    assert lab.names(early) == ["a"]
    assert states(status)["b"] == "ABORTED"
    status = lab.swept(late, within=END)
    assert (status.state, status.step("a").round) == ("SUCCEEDED", 1)
    assert lab.names(late) == ["a", "a", "b"]


def test_a_step_that_runs_long_or_waits_for_its_retry_is_left_alone(lab: Lab, crew: Worker) -> None:
    late = lab.start(("a", lab.sig(how="retry", seconds=2 * LEASE), 1))
    long = lab.start(("a", lab.sig("proj.late", seconds=2 * LEASE), 1))
    status = lab.swept(long)
    assert (status.state, status.step("a").round, lab.names(long)) == ("SUCCEEDED", 0, ["a"])
    status = lab.swept(late)
    assert (status.state, status.step("a").round, lab.names(late)) == ("SUCCEEDED", 0, ["a", "a"])


def test_a_worker_that_was_only_paused_has_lost_its_step(lab: Lab, hire: Callable[..., Worker], queue: str) -> None:
    paused = hire(lab.server.url, queue=queue, concurrency=1)
    run = lab.start(("a", lab.sig("proj.late", queue=queue, how="until", give={"x": 1}), 2), ("b", lab.sig(), 1))
    lab.started(run, "a")
    with paused.frozen_as_a_whole():
        hire(lab.server.url, queue=queue, concurrency=1)

        def restarted() -> bool:
            sweep(lab.app)
            return lab.names(run).count("a") == 2

        eventually(restarted, within=END, what="the second start")
    lab.go(run)
    hire(lab.server.url)  # for b
    assert lab.swept(run).state == "SUCCEEDED"
    eventually(lambda: len(lab.ended_bodies(run)) == 3, what="the end of the first copy, which counts for nothing")
    assert lab.names(run) == ["a", "a", "b"]


def test_a_message_that_got_lost_is_sent_again(lab: Lab, hire: Callable[..., Worker], queue: str) -> None:
    run = lab.start(("a", lab.sig(queue=queue), 1))
    assert lab.client.delete(queue) == 1
    hire(lab.server.url, queue=queue)
    assert lab.swept(run).state == "SUCCEEDED"
    assert lab.names(run) == ["a"]


@pytest.mark.soak
def test_a_retry_whose_worker_dies_before_it_begins(lab: Lab, hire: Callable[..., Worker], queue: str) -> None:
    worker = hire(lab.server.url, queue=queue)
    run = lab.start(("a", lab.sig(queue=queue, how="retry"), 1))
    eventually(lambda: run.status().step("a").attempt == 1, what="the retry")
    worker.kill()
    lab.client.delete(queue)
    hire(lab.server.url, queue=queue)
    status = lab.swept(run, within=END)
    assert (status.state, status.step("a").attempt) == ("SUCCEEDED", 1)
    assert [entry["retries"] for entry in lab.bodies(run)] == [0, 1]


def test_an_outcome_that_never_came_to_be_known(lab: Lab, crew: Worker) -> None:
    run = lab.start(("a", lab.sig().set(countdown=1), 1))
    # As if the task had run, and its server had been away when it said so: the guard drops every copy.
    lab.client.hset(
        f"{{redbeat-lite}}:guard:{run.status().step('a').task_id}", mapping={"state": "done", "attempt": 0, "until": 0}
    )
    assert lab.swept(run).state == "SUCCEEDED"
    assert run.status().step("a").round == 1


def test_who_dies_between_advance_and_publish_is_replaced(
    lab: Lab, hire: Callable[..., Worker], queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*args: Any) -> None:
        raise ConnectionError("the process ends here")

    with monkeypatch.context() as patch:
        patch.setattr(sweeper, "publish", die)
        run = lab.start(("a", lab.sig(queue=queue), 2), ("b", lab.sig(queue=queue), 1))
    assert lab.client.llen(queue) == 0
    # Its children kill themselves before any message they publish: after "a" has advanced the run.
    killer = hire(lab.server.url, queue=queue, concurrency=1, PIPE_KILL_DISPATCH="2")

    def advanced() -> bool:
        sweep(lab.app)
        return run.status().stage == 1

    eventually(advanced, within=END, what="the advance")
    killer.says("SIGKILL|signal 9")
    killer.destroy()
    hire(lab.server.url, queue=queue)
    status = lab.swept(run, within=END)
    assert (status.state, lab.names(run)) == ("SUCCEEDED", ["a", "b"])


def test_a_stage_that_cannot_be_published_now_is_published_later(
    lab: Lab, crew: Worker, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(owner: Any, name: str, exc: Exception) -> list[PipelineRun]:
        def interrupt(*args: Any, **fields: Any) -> None:
            raise exc

        run = lab.start(("a", lab.sig(queue=queue), 2), ("b", lab.sig(), 1))
        message = json.loads(lab.client.lpop(queue))
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, interrupt)
            handle(lab, message)
            other = lab.start(("a", lab.sig(), 1))
        assert (run.status().stage, run.status().error) == (1, None)
        return [run, other]

    runs = [
        # The time limit of the step that has ended and publishes the next ones.
        *interrupted(sweeper, "publish", SoftTimeLimitExceeded()),
        *interrupted(PipelineStore, "change", redis.ConnectionError("away")),
        *interrupted(sweeper, "_set_params", redis.ConnectionError("away")),
    ]
    assert [lab.swept(run).state for run in runs] == ["SUCCEEDED"] * 6


def test_siblings_are_revoked_by_the_sweeper_if_need_be(lab: Lab, crew: Worker) -> None:
    run = lab.start(("long", lab.sig(how="hang"), 1), ("bad", lab.sig(how="hang"), 1), revoke_siblings=True)
    lab.started(run, "long", "bad")
    # Fails here, in a process that dies before it revokes.
    mine = store_of(lab.app)
    token = record(mine, run.id, 1)["token"]
    assert mine.complete(Ref(run.id, 1, 0, 0, token), "FAILED", "x")[0] == "next"

    def aborted() -> bool:
        sweep(lab.app)
        return run.status().step("long").state == "ABORTED"

    eventually(aborted, within=END, what="the sibling's death")
    lab.app.control.revoke(run.status().step("bad").task_id, terminate=True)


def test_a_server_that_restarts_in_the_middle_of_a_stage(
    own_server: Callable[..., Server], hire: Callable[..., Worker], make_lab: Callable[..., Lab]
) -> None:
    server = own_server(appendonly="yes", appendfsync="always")
    app = make_app(server.url)
    lab = make_lab(server, app)
    workers = [hire(server.url), hire(server.url)]
    run = lab.start(
        ("a", lab.sig("proj.late", how="until", give={"a": 1}), 3), ("b", lab.sig("proj.late", give={"b": 1}), 3),
        ("c", lab.sig("proj.late", give={"c": 1}), 2), ("d", lab.sig("proj.late"), 1),
    )  # fmt: skip
    lab.started(run, "a", "b")
    server.stop()
    server.start()
    lab.go(run)

    def ended() -> bool:
        for index, worker in enumerate(workers):
            if not worker.alive:  # Celery 5.7 gives up where a broker restarts under an unacknowledged message
                workers[index] = hire(server.url, ready=False)
        sweep(app)
        return run.status().ended

    eventually(ended, what="the end of the run")
    assert (run.status().state, run.params()) == ("SUCCEEDED", {"a": 1, "b": 1, "c": 1})
    app.close()


def test_steps_that_retry_while_the_server_is_away_go_on_and_keep_their_once_lock(
    own_server: Callable[..., Server], hire: Callable[..., Worker], make_lab: Callable[..., Lab]
) -> None:
    server = own_server(appendonly="yes", appendfsync="always")
    app = make_app(server.url)
    lab, worker = make_lab(server, app), hire(server.url)
    run = lab.start(
        ("a", lab.sig("proj.auto", how="fail when away", give={"a": 1}), 2), ("b", lab.sig(how="show"), 1)
    )  # fmt: skip
    locked = lab.start(("a", lab.sig("proj.auto", how="fail when away").set(once_key="left"), 1))
    for started in (run, locked):
        lab.started(started, "a")
    server.stop()
    # Not before Celery has given up.
    left = r"step 0 of pipeline .* is to be retried, leaving that to the sweeper"
    eventually(lambda: len(worker.lines(left)) == 2, what="both retries")
    server.start()
    eventually(lambda: (held := locks(app).get("left")) and held.state == "queued", within=END, what="the held lock")
    # As long as it is held for a retry that was published, nobody sweeps.
    late = server_ms(lab.client) + 1000 * (LEASE + 1)
    eventually(lambda: server_ms(lab.client) > late, what="the end of a lease after the retry was due")
    with lock(app, "left") as held:
        assert not held
    status = lab.swept(locked)
    assert (status.state, status.step("a").attempt, status.error) == ("SUCCEEDED", 1, None)
    status = lab.swept(run)
    assert (status.state, status.step("a").attempt, status.step("a").round) == ("SUCCEEDED", 1, 0)
    assert [(entry["step"], entry["retries"]) for entry in lab.bodies(run)] == [("a", 0), ("a", 1), ("b", 0)]
    assert [body["step"] for body in lab.ended_bodies(run)] == ["a", "b"]
    app.close()


def test_a_wait_goes_on_while_a_cluster_is_down() -> None:
    bus = {"cluster-enabled": "yes", "cluster-port": str(free_port()), "cluster-node-timeout": "500"}
    with Server(**bus) as server, server.client() as client:
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        eventually(lambda: b"state:ok" in client.execute_command("CLUSTER", "INFO"), what="the cluster")
        app = Celery("waits", broker="memory://", set_as_current=False)
        app.conf.redbeat_lite_url = server.url
        step = PipelineTask()
        step.name = "waits.step"
        app.register_task(step)
        run = Pipeline(app, [(step, 1)]).start()
        client.execute_command("CLUSTER", "DELSLOTSRANGE", 0, 16383)
        with pytest.raises(redis.ResponseError, match="slot not served"):
            client.get("x")
        with pytest.raises(TimeoutError):
            run.wait(0.5)
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        eventually(lambda: b"state:ok" in client.execute_command("CLUSTER", "INFO"), what="the cluster")
        assert run.cancel()
        assert run.wait(END).state == "ABORTED"
        app.close()


def test_the_leading_beat_sweeps_and_another_one_after_it(
    lab: Lab, crew: Worker, beat: Callable[..., Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*args: Any) -> None:
        raise redis.ConnectionError("the process ends here")

    def unpublished() -> PipelineRun:
        with monkeypatch.context() as patch:
            patch.setattr(sweeper, "publish", die)
            return lab.start(("a", lab.sig(), 1))

    env = {"PIPE_URL": lab.server.url, "PIPE_CONF": json.dumps({"redbeat_lite_lease": 1})}
    leader = beat("tests.pipeline.steps", url=lab.server.url, **env)
    leader.says("leading")
    beat("tests.pipeline.steps", url=lab.server.url, **env)
    assert unpublished().wait(END).state == "SUCCEEDED"
    leader.kill()
    assert unpublished().wait(END).state == "SUCCEEDED"

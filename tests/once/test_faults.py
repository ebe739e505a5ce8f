"""The failure matrix: what happens to locks and messages when processes, servers and clocks fail.

Most of a fault's time is waiting for a lease or a visibility timeout, so the pools of one fault go side by side, each
with workers and a queue of its own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from typing import Any
from uuid import uuid4

import pytest
from celery import chord

from redbeat_lite import Once
from redbeat_lite.once.lock_client import LockClient
from redbeat_lite.once.worker.request import is_gone
from tests.harness.project import LEASE, VISIBILITY
from tests.once.client import OnceClient
from tests.once.pools import BOTH, Crew, Stage, in_pools
from tests.once.script_calls import claim_of, headers
from tests.support.stopwatch import Stopwatch
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(120)

# -- children ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["skip", "skip_late", "skip_requeue"])
def test_a_killed_child_frees_the_key_within_a_second(proj: OnceClient, prefork: Crew, key: str, task: str) -> None:
    result = proj.task(task).delay(key, how="die once")
    proj.started(key)
    if task == "skip_requeue":
        assert result.get(timeout=60) == key
        assert [entry["id"] for entry in proj.started(key, 2)] == [result.id] * 2
        return
    with Stopwatch(*(worker for worker in prefork.workers)) as watch:
        eventually(lambda: not proj.lock(key, task))
    watch.at_most(1)
    with pytest.raises(Exception, match="exited prematurely"):
        result.get(timeout=60)
    assert proj.task(task).delay(key).get(timeout=60) == key


def test_a_task_that_was_parked_behind_a_killed_child_runs(proj: OnceClient, prefork: Crew, key: str) -> None:
    proj.tasks.wait.delay(key, how="until")
    (first,) = proj.started(key)
    waiting = proj.tasks.wait.delay(key, n=2)
    eventually(lambda: proj.waiters(key))
    os.kill(first["pid"], signal.SIGKILL)
    assert waiting.get(timeout=60) == 2


def test_a_copy_that_stands_by_runs_when_the_first_is_killed(proj: OnceClient, prefork: Crew, key: str) -> None:
    result = proj.tasks.late.delay(key, how="until")
    (first,) = proj.started(key)
    proj.copy(result.id)
    eventually(lambda: proj.client.hexists(f"{{t}}:guard:{result.id}", "standby"))
    os.kill(first["pid"], signal.SIGKILL)
    proj.started(key, 2)
    proj.go(key)
    proj.ended(key)
    eventually(lambda: proj.client.hget(f"{{t}}:guard:{result.id}", "state") == "done")


def test_a_canvas_whose_worker_dies_while_it_applies_it_is_finished_by_another(
    proj: OnceClient, prefork: Crew, key: str
) -> None:
    plain, fatal = proj.tasks.plain.si, proj.tasks.fatal.si
    inner = chord([plain(key), fatal(key), plain(key)], plain(f"{key}-inner"))
    proj.inject(proj.sent_by_an_entry(chord([plain(key), inner], plain(f"{key}-body"))))
    proj.ended(f"{key}-body")
    assert proj.tasks.add.delay(1).get(timeout=60) == [1]
    assert proj.marks.count(f"died-{key}") == 2
    assert [proj.count(each) for each in (key, f"{key}-inner", f"{key}-body")] == [4, 1, 1]


def test_a_soft_time_limit_frees_the_key(proj: OnceClient, prefork: Crew, key: str) -> None:
    result = proj.tasks.skip.apply_async((key,), {"how": "until"}, soft_time_limit=1)
    with pytest.raises(Exception, match="SoftTimeLimitExceeded"):
        result.get(timeout=60)
    eventually(lambda: not proj.lock(key, "skip"), within=20)


def test_a_hard_time_limit_frees_the_key_once_the_child_is_gone(proj: OnceClient, prefork: Crew, key: str) -> None:
    result = proj.tasks.skip.apply_async((key,), {"how": "stubborn"}, time_limit=1)
    (start,) = proj.started(key)
    # Celery reports the failure first, then asks the child to end, and kills it a tenth of a second later.
    eventually(lambda: not proj.lock(key, "skip"))
    assert is_gone(start["pid"])
    with pytest.raises(Exception, match="TimeLimitExceeded"):
        result.get(timeout=60)
    assert proj.tasks.skip.delay(key + "x").get(timeout=60)
    # It has failed, it did not die: a copy of it is not run.
    eventually(lambda: proj.client.hget(f"{{t}}:guard:{result.id}", "state") == "done")


@pytest.mark.parametrize("how", ["SIGTERM", "SIGKILL"])
def test_revoking_a_running_task_frees_the_key(proj: OnceClient, prefork: Crew, key: str, how: str) -> None:
    result = proj.tasks.skip.delay(key, how="until")
    proj.started(key)
    result.revoke(terminate=True, signal=how)
    eventually(lambda: result.state == "REVOKED")
    eventually(lambda: not proj.lock(key, "skip"), within=20)
    assert proj.tasks.skip.delay(key + "x").get(timeout=60)


def test_a_c_call_that_holds_the_interpreter_keeps_its_lock(proj: OnceClient, prefork: Crew, key: str) -> None:
    result = proj.tasks.skip.delay(key, how="gil", seconds=LEASE + 2)
    (start,) = proj.started(key)
    fences, stolen = set(), 0

    def over() -> bool:
        nonlocal stolen
        fence = proj.lock(key, "skip").get("fence")
        ended = proj.count_ended(key) == 1
        # Read in this order: a lock that is gone before the end was noted was lost.
        stolen += fence is None and not ended
        fences.add(fence)
        return ended

    eventually(over, within=LEASE + 10)
    assert fences - {None} == {str(start["fence"])}
    assert stolen == 0
    assert result.get(timeout=60) == key
    assert proj.ended(key)[0]["lost"] is False


# -- main processes ----------------------------------------------------------------------------------------------------


@in_pools(*BOTH)
def test_a_dead_worker_frees_the_key_within_the_lease_and_its_task_runs_again(stages: Any, pools: Any) -> None:
    """And so does one of another class that has a lock, where there is a slot for it, whose copy comes at once."""

    def fault(stage: Stage) -> None:
        first = stage.worker()
        result = stage.send("skip_late", how="until")
        stage.proj.started(stage.key)
        key, foreign = stage.key + "-f", None
        if stage.pool in BOTH:
            once = Once(lease=LEASE)
            claim = claim_of("e", "once.foreign_late", (key,), {}, once, "")
            options = {"queue": stage.queue, "headers": headers(claim, once)}
            foreign = stage.proj.tasks.foreign_late.apply_async((key,), {"how": "until"}, **options)
            stage.proj.started(key)
        # Only the main process; Celery's children ask the kernel to be killed with it.
        with Stopwatch() as watch:
            first.signal(signal.SIGKILL)
            if foreign is not None:
                stage.proj.copy(foreign.id)
            # Whose start does not count, however busy the machine is.
            second = stage.worker(ready=False)
            name = f"{{t}}:once:lock:once.skip_late:{stage.key}"
            eventually(lambda: not stage.proj.client.exists(name))
        watch.at_most(LEASE + 1)
        second.ready()
        stage.proj.started(stage.key, 2, VISIBILITY + LEASE + 10)
        stage.proj.go(stage.key)
        eventually(lambda: result.state == "SUCCESS")
        assert stage.ends() == 1
        if foreign is not None:
            stage.proj.started(key, 2)
            stage.proj.go(key)
            assert foreign.get(timeout=60) == key
            assert stage.proj.count_ended(key) == 1

    stages(pools, fault)


@in_pools("prefork")
def test_a_warm_shutdown_longer_than_the_visibility_timeout_delivers_nothing_again(stages: Any, pools: Any) -> None:
    def fault(stage: Stage) -> None:
        first = stage.worker()
        successor = stage.worker()
        first_or_second = {first, successor}
        result = stage.send("skip_late", seconds=VISIBILITY + 2)
        stage.proj.started(stage.key)
        holder = next(worker for worker in first_or_second if result.id in worker.output)
        holder.signal(signal.SIGTERM)
        assert holder.wait(VISIBILITY + 25) == 0
        eventually(lambda: result.state == "SUCCESS")
        assert (stage.starts(), stage.ends()) == (1, 1)
        (other,) = first_or_second - {holder}
        assert result.id not in other.output

    stages(pools, fault)


@in_pools("prefork")
def test_a_cold_shutdown_frees_the_key(stages: Any, pools: Any) -> None:
    """And where Celery itself gives the message back, the task runs again: its solo pool turns SIGQUIT into a failure
    of the task, its gevent pool crashes and loses the message, with our task class or without."""

    def fault(stage: Stage) -> None:
        first = stage.worker()
        result = stage.send("skip_late", how="hang")
        stage.proj.started(stage.key)
        first.signal(signal.SIGQUIT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            first.wait(4)
        # A thread that sleeps for an hour keeps its process; a supervisor kills it.
        with contextlib.suppress(ProcessLookupError):
            first.signal_all(signal.SIGKILL)
        if stage.pool in BOTH:
            stage.worker()
            stage.proj.started(stage.key, 2, VISIBILITY + LEASE + 10)
            assert {body["id"] for body in stage.proj.bodies(stage.key)} == {result.id}
        else:
            eventually(lambda: not stage.proj.lock(stage.key, "skip_late"), within=LEASE + 1)

    stages(pools, fault)


def test_a_holder_that_slept_past_its_lease_knows_and_harms_nobody(stages: Any) -> None:
    def fault(stage: Stage) -> None:
        proj, sleeper = stage.proj, stage.worker()
        first = stage.send("skip", how="until")
        (begun,) = proj.started(stage.key)
        # In one pool the next holder is still there when the sleeper wakes, in the other it has come and gone.
        there = stage.pool == "prefork"
        with sleeper.frozen_as_a_whole():
            stage.worker()
            eventually(lambda: not proj.lock(stage.key, "skip"), within=LEASE + 3)
            second = stage.send("skip", how="until" if there else "")
            proj.started(stage.key, 2)
            eventually(lambda: there or not proj.lock(stage.key, "skip"))
        eventually(lambda: "Lost the once-lock" in sleeper.output, within=LEASE / 3 + 1.5)
        proj.go(stage.key)
        eventually(lambda: {first.state, second.state} == {"SUCCESS"})
        ends = {body["id"]: body for body in proj.ended_bodies(stage.key)}
        assert (ends[first.id]["lost"], ends[second.id]["lost"]) == (True, False)
        assert ends[first.id]["fence"] == begun["fence"] < ends[second.id]["fence"]

    stages(BOTH, fault)


def test_a_worker_whose_main_process_hangs_gives_up_what_it_does_not_run(stages: Any) -> None:
    def fault(stage: Stage) -> None:
        stage.worker(concurrency=1, conf={"worker_prefetch_multiplier": 4})
        running = stage.send("late", how="until")
        stage.proj.started(stage.key)
        prefetched = stage.proj.tasks.late.apply_async((stage.key + "-2",), {"how": "hang main"}, queue=stage.queue)
        eventually(lambda: stage.proj.marks.count(f"hung-{prefetched.id}"))
        second = stage.worker()
        # Once for the worker to be noticed, once for its message to become visible. Kombu 5.5 looks every 10 s.
        stage.proj.started(stage.key + "-2", seconds=2 * VISIBILITY + 20)
        assert running.id not in second.output, "it runs in a child"

    stages(["prefork"], fault)


# -- time --------------------------------------------------------------------------------------------------------------


@in_pools("prefork", others=BOTH)
def test_messages_held_longer_than_the_visibility_timeout_run_once(stages: Any, pools: Any) -> None:
    """An eta beyond the timeout; and three messages prefetched behind a long one; each with an idle worker beside."""

    def fault(stage: Stage) -> None:
        first = stage.worker(concurrency=1, conf={"worker_prefetch_multiplier": 4})
        keys = [f"{stage.key}-{n}" for n in range(4)]
        tasks, options = stage.proj.tasks, {"queue": stage.queue}
        results = [tasks.late.apply_async((keys[0],), {"seconds": VISIBILITY + 2}, **options)]
        stage.proj.started(keys[0])
        results += [tasks.late.apply_async((key,), **options) for key in keys[1:3]]
        results.append(tasks.late.apply_async((keys[3],), countdown=VISIBILITY + 2, **options))
        eventually(lambda: all(result.id in first.output for result in results if stage.pool != "solo"))
        second = stage.worker()
        eventually(lambda: all(result.state == "SUCCESS" for result in results), within=VISIBILITY + 20)
        for key in keys:
            (body,) = stage.proj.bodies(key)
            assert not body["redelivered"], key
        assert "copy is" not in first.output + second.output

    stages(pools, fault)


@in_pools("prefork", others=BOTH)
def test_clocks_an_hour_apart(stages: Any, pools: Any) -> None:
    """The worker whose clock is ahead takes every message of the other one for long overdue."""

    def fault(stage: Stage) -> None:
        stage.worker()
        stage.worker(ONCE_SKEW=3600)
        proj = stage.proj
        exclusive = [stage.send("wait_late", seconds=0.3, n=n) for n in range(6)]
        alone = [
            proj.tasks.late.apply_async((f"{stage.key}-{n}",), {"seconds": 0.5}, queue=stage.queue) for n in range(8)
        ]
        eventually(lambda: all(result.state == "SUCCESS" for result in [*exclusive, *alone]))
        assert [proj.count(f"{stage.key}-{n}") for n in range(8)] == [1] * 8
        assert (stage.starts(), stage.ends()) == (6, 6)

    stages(pools, fault)


# -- what users suffer -------------------------------------------------------------------------------------------------


def emit(proj: OnceClient, queue: str, key: str, once: Once, **kwargs: Any) -> bool:
    """What the beat does with one due occurrence."""
    claim = claim_of("entry", "once.plain", (key,), kwargs, once, uuid4().hex, task=proj.tasks.plain, queue=queue)
    if not LockClient.of(proj.app).store.take(claim):
        return False
    proj.app.send_task("once.plain", (key,), kwargs, task_id=claim.task_id, headers=headers(claim, once), queue=queue)
    return True


@in_pools("prefork", others=BOTH)
def test_an_interval_shorter_than_its_task_has_one_message_queued_or_running(stages: Any, pools: Any) -> None:
    """Also while every slot is busy for longer than the lease, so that the message waits in the queue."""

    def fault(stage: Stage) -> None:
        proj, once = stage.proj, Once(key="pain", scope="queue", lease=LEASE)
        once = once.but(key=f"pain-{stage.key}")
        stage.worker(concurrency=1)
        blocker = proj.tasks.plain.apply_async((stage.key + "-b",), {"seconds": LEASE + 1.5}, queue=stage.queue)
        proj.started(stage.key + "-b")
        sent, end = 0, time.monotonic() + LEASE + 4.5
        while time.monotonic() < end:
            sent += emit(proj, stage.queue, stage.key, once, seconds=1.2)
            done = proj.count_ended(stage.key)
            assert sent - done <= 1 or proj.count_ended(stage.key) > done, proj.bodies(stage.key)
            time.sleep(0.1)  # The interval of the entry.
        assert blocker.state == "SUCCESS"
        eventually(lambda: proj.count_ended(stage.key) == sent)
        assert sent >= 2
        assert stage.starts() == sent

    stages(pools, fault)

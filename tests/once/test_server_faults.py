"""What happens to locks and messages when their server fails: flushed, restarted, away."""

from __future__ import annotations

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest
from celery import chain

from redbeat_lite import Once
from tests.harness.history import HistoryLog
from tests.harness.project import LEASE
from tests.harness.workers import Worker
from tests.once.client import OnceClient
from tests.once.pools import BOTH, Stage, in_pools
from tests.once.script_calls import claim_of, headers
from tests.support.server import DURABLE, Server
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(120)


@in_pools("prefork", others=BOTH)
def test_a_flush_under_a_holder_is_healed_by_its_next_renewal(stages: Any, proj: OnceClient, pools: Any) -> None:
    ready: list[str] = []
    flushed: list[bool] = []

    def fault(stage: Stage) -> None:
        stage.worker()
        first = stage.send("skip", how="until")
        (begun,) = proj.started(stage.key)
        ready.append(stage.pool)
        eventually(lambda: flushed)
        lock = eventually(lambda: proj.lock(stage.key, "skip"), within=LEASE)
        assert lock["fence"] == str(begun["fence"])
        proj.app.amqp.queues[stage.queue](proj.app.connection()).declare()
        second = stage.send("skip")
        eventually(lambda: second.state == "REVOKED")
        proj.go(stage.key)
        eventually(lambda: first.state == "SUCCESS")
        assert proj.ended(stage.key)[0]["lost"] is False

    def flush() -> None:
        eventually(lambda: len(ready) == len(pools))
        proj.client.flushall()
        flushed.append(True)

    with ThreadPoolExecutor(1) as threads:
        done = threads.submit(flush)
        stages(pools, fault)
        done.result()


@in_pools("prefork", others=BOTH)
def test_a_restart_of_the_server_keeps_holders_waiters_and_their_order(
    stages: Any, proj: OnceClient, pools: Any
) -> None:
    parts: list[Stage] = []
    workers: list[Worker] = []
    restarted: list[bool] = []

    def fault(stage: Stage) -> None:
        workers.append(stage.worker())
        first = stage.send("wait", how="until")
        proj.started(stage.key)
        waiting = []
        for n in (1, 2):
            waiting.append(stage.send("wait", n=n))
            eventually(lambda n=n: len(proj.waiters(stage.key)) == n)
        parts.append(stage)
        eventually(lambda: restarted)
        # A worker's main process may die of a restart; a supervisor starts another.
        stage.worker()
        assert proj.count(stage.key) == 1
        proj.go(stage.key)
        eventually(lambda: all(result.state == "SUCCESS" for result in waiting))
        starts = [body["id"] for body in proj.bodies(stage.key)]
        assert starts == [first.id, *(result.id for result in waiting)]
        assert stage.ends() == 3

    def restart() -> None:
        eventually(lambda: len(parts) == len(pools))
        proj.server.stop()
        eventually(lambda: all("onnection to broker lost" in w.output or not w.alive for w in workers))
        proj.server.start()
        restarted.append(True)

    with ThreadPoolExecutor(1) as threads:
        done = threads.submit(restart)
        stages(pools, fault)
        done.result()


@pytest.mark.parametrize("fault", ["hangs", "restarts"])
def test_a_lock_whose_server_was_away_for_longer_than_the_lease_is_lost(stages: Any, fault: str) -> None:
    def play(stage: Stage) -> None:
        worker = stage.worker(conf={"redbeat_lite_url": locks.url})
        first = stage.send("skip", how="until")
        (begun,) = stage.proj.started(stage.key)
        with HistoryLog.of_environment().fault(what="the server of the locks is away"):
            locks.freeze() if fault == "hangs" else locks.stop()
            ends = time.time() + LEASE + 0.5
            eventually(lambda: time.time() > ends, within=LEASE + 2)
            locks.thaw() if fault == "hangs" else locks.start()
        eventually(lambda: "Lost the once-lock" in worker.output, within=LEASE)
        second = stage.send("skip")
        eventually(lambda: second.state == "SUCCESS")
        stage.proj.go(stage.key)
        eventually(lambda: first.state == "SUCCESS")
        ends_of = {body["id"]: body for body in stage.proj.ended(stage.key)}
        assert (ends_of[first.id]["lost"], ends_of[second.id]["lost"]) == (True, False)
        assert begun["fence"] < ends_of[second.id]["fence"]

    with Server(**DURABLE) as locks:
        stages(["prefork"], play)


@in_pools("prefork", others=BOTH)
def test_without_the_locks_server_a_task_that_needs_none_runs_and_others_are_saved(
    stages: Any, proj: OnceClient, pools: Any
) -> None:
    def fault(stage: Stage) -> None:
        worker = stage.worker(concurrency=3, conf={"redbeat_lite_url": "redis+socket:///nowhere/s"})
        keys = [f"{stage.key}-{name}" for name in ("plain", "late", "retried")]
        calls = [proj.tasks.plain.si(keys[0]), proj.tasks.skip_late.si(keys[1]), proj.tasks.insists.si(keys[2])]
        plain, late, retried = [call.set(queue=stage.queue).apply_async() for call in calls]
        assert plain.get(timeout=60) == keys[0]
        eventually(lambda: "runs without the guard against copies of it" in worker.output)
        said = [line for line in worker.output.splitlines() if "runs without the guard" in line]
        assert [plain.id in line and "did not run" not in line for line in said] == [True]
        eventually(lambda: retried.state == "RETRY")
        eventually(lambda: f"{late.id}] received" in worker.output and "Reject" in worker.output)
        # Whichever of the two it has in its hands goes back to the queue.
        worker.signal(signal.SIGTERM)
        worker.wait(60)  # a child of billiard waits up to 30 s for its parent to read the result of its last task
        assert (proj.count(keys[1]), proj.count(keys[2])) == (0, 0)
        stage.worker()
        assert [late.get(timeout=60), retried.get(timeout=30)] == keys[1:]

    stages(pools, fault)


def test_without_the_locks_server_a_task_fails_clearly_and_never_runs(stages: Any, proj: OnceClient) -> None:
    def fault(stage: Stage) -> None:
        worker = stage.worker(concurrency=3, conf={"redbeat_lite_url": "redis+socket:///nowhere/s"})
        result = stage.send("skip")
        # The same for a task of another class, which has its lock from the beat.
        once = Once(scope="queue")
        foreign = claim_of("e", "once.foreign", (stage.key,), {}, once, uuid4().hex)
        proj.app.send_task(
            "once.foreign", (stage.key,), task_id=foreign.task_id, headers=headers(foreign, once), queue=stage.queue
        )
        # And for the next member of a chain, whose lock is wanted when the one before it has ended.
        tasks, free, tail = proj.tasks, stage.key + "-free", stage.key + "-tail"
        members = (tasks.foreign.si(free), tasks.queue_raise.si(stage.key), tasks.foreign.si(tail))
        chained = chain(*(member.set(queue=stage.queue) for member in members)).apply_async()
        for one in (result, proj.app.AsyncResult(foreign.task_id), chained.parent, chained):
            eventually(lambda one=one: one.state == "FAILURE")
            assert "LockUnavailable" in repr(one.result)
        assert (stage.starts(), proj.count(tail)) == (0, 0)
        assert chained.parent.parent.get(timeout=60) == free
        assert "raised outside body" not in worker.output

    stages(["prefork"], fault)

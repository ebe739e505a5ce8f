"""What workers do with once-locks and copies, in every pool; the workers stay alive throughout."""

from __future__ import annotations

import json
import socket
import time
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from celery import chain

from redbeat_lite import Once, OnceRejected, OnceSkipped, lock, locks
from redbeat_lite.once.claims import Hold
from redbeat_lite.once.lock_client import LockClient
from tests.harness.history import now_ms
from tests.once.client import OnceClient
from tests.once.conftest import in_crews, one_pool_will_do
from tests.once.pools import ALL, Crew
from tests.once.script_calls import claim_of, headers
from tests.support.stopwatch import Stopwatch
from tests.support.waiting import eventually

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("any_pool")]


# -- conflicts ---------------------------------------------------------------------------------------------------------


def test_a_second_task_is_skipped_and_nobody_hangs(proj: OnceClient, key: str, busy: Any) -> None:
    first = busy("skip")
    second = proj.tasks.skip.delay(key)
    with pytest.raises(OnceSkipped, match=first.id):
        second.get(timeout=60)
    assert second.state == "REVOKED"
    proj.go(key)
    assert first.get(timeout=60) == key
    assert proj.count(key) == 1


@one_pool_will_do
@pytest.mark.parametrize(("task", "state"), [("skip", "REVOKED"), ("reject", "FAILURE")])
def test_a_worker_that_dies_between_a_refusal_and_its_result_leaves_nobody_waiting(
    proj: OnceClient, key: str, busy: Any, any_pool: Crew, task: str, state: str
) -> None:
    first = busy(task)
    result, raw = proj.capture(lambda: proj.task(task).apply_async((key,), queue="nowhere"))
    dying = Hold("dying", result.id, 0, 3_000, key=f"once.{task}:{key}", life_ms=60_000)
    assert LockClient.of(proj.app).store.begin(dying).word == "taken"
    proj.inject(raw)
    with pytest.raises((OnceSkipped, OnceRejected), match=first.id):
        result.get(timeout=60)
    assert result.state == state
    # One more copy finds the result final, and leaves it, though the lock may be free by now.
    ended = result.date_done
    received = any_pool.output.count(f"[{result.id}] received")
    proj.inject(raw)
    eventually(lambda: any_pool.output.count(f"[{result.id}] received") > received)
    proj.go(key)
    first.get(timeout=60)
    assert proj.tasks.plain.delay(key + "-after").get(timeout=60)
    assert (proj.app.AsyncResult(result.id).date_done, proj.count(key)) == (ended, 1)


@one_pool_will_do
@pytest.mark.parametrize("header", [{"redbeat_began": 1.0}, {"redbeat_hold": "x"}])
def test_a_header_of_a_message_does_not_bypass_the_lock(
    proj: OnceClient, key: str, busy: Any, header: dict[str, Any]
) -> None:
    first = busy("skip")
    second = proj.tasks.skip.apply_async((key,), headers=header)
    with pytest.raises(OnceSkipped):
        second.get(timeout=60)
    proj.go(key)
    assert first.get(timeout=60) == key
    assert proj.count(key) == 1


def test_a_second_task_is_rejected_as_a_failure(proj: OnceClient, key: str, busy: Any) -> None:
    busy("reject")
    second = proj.tasks.reject.delay(key)
    with pytest.raises(OnceRejected):
        second.get(timeout=60)
    assert second.state == "FAILURE"


@one_pool_will_do
def test_other_keys_run_meanwhile(proj: OnceClient, key: str, busy: Any) -> None:
    busy("skip")
    assert proj.tasks.skip.delay(key + "-other").get(timeout=60) == key + "-other"


def test_waiters_run_in_their_order_and_hold_no_slot(proj: OnceClient, key: str, busy: Any) -> None:
    busy("wait")
    waiting = []
    for n in range(1, 9):
        waiting.append(proj.tasks.wait.delay(key, n=n))
        eventually(lambda n=n: len(proj.waiters(key)) == n)
    # Eight wait for a crew with four slots, and yet a slot is free.
    assert proj.tasks.plain.delay(key + "-plain").get(timeout=60)
    proj.go(key)
    assert [result.get(timeout=60) for result in waiting] == list(range(1, 9))
    bodies = proj.ended_bodies(key)
    assert len(bodies) == 9
    assert [body["id"] for body in bodies[1:]] == [result.id for result in waiting]
    assert all(body["fence"] for body in bodies), "the audit compares them"


@one_pool_will_do
def test_waiters_do_not_wait_for_the_queue_too(proj: OnceClient, key: str, busy: Any) -> None:
    busy("wait")
    waiting = [proj.tasks.wait.delay(key, n=n) for n in range(6)]
    eventually(lambda: len(proj.waiters(key)) == 6)
    for n in range(100):
        proj.tasks.plain.delay(f"{key}-{n}", seconds=0.4)
    proj.go(key)
    eventually(lambda: all(result.ready() for result in waiting))
    # It is 10 s of work for four slots, and each of the six would have waited for all that is in the queue.
    assert proj.client.llen("once") > 0
    assert [result.get() for result in waiting] == list(range(6))
    proj.client.delete("once")


@pytest.mark.parametrize("most", [20, pytest.param(200, marks=pytest.mark.soak)])
def test_a_burst_of_one_key_runs_whole_and_in_order(proj: OnceClient, key: str, most: int) -> None:
    waiting = [proj.tasks.wait.delay(key, n=n) for n in range(most)]
    eventually(lambda: all(result.ready() for result in waiting))
    assert [result.get() for result in waiting] == list(range(most))
    assert len({body["fence"] for body in proj.bodies(key)}) == most


@one_pool_will_do
def test_one_that_there_is_no_room_for_is_a_failure_that_says_so(proj: OnceClient, key: str, busy: Any) -> None:
    busy("crowded")
    waiting = []
    for n in range(2):
        waiting.append(proj.tasks.crowded.delay(key, n=n))
        eventually(lambda n=n: len(proj.waiters(key, "crowded")) == n + 1)
    with pytest.raises(OnceRejected, match="max_waiters=2 wait for it already"):
        proj.tasks.crowded.delay(key, n=2).get(timeout=60)
    proj.go(key)
    assert [result.get(timeout=60) for result in waiting] == [0, 1]


@one_pool_will_do
def test_a_waiter_keeps_its_links_its_chain_and_its_priority(proj: OnceClient, key: str, busy: Any) -> None:
    busy("wait")
    result = chain(
        proj.tasks.wait.si(key, n=7).set(link=proj.tasks.plain.si(key + "-link"), priority=3),
        proj.tasks.add.s("tail"),
    ).apply_async()
    eventually(lambda: proj.waiters(key))
    raw = proj.client.hget(f"{{t}}:once:parked:once.wait:{key}", f"m:{result.parent.id}")
    assert json.loads(raw)["properties"]["priority"] == 3
    proj.go(key)
    assert result.get(timeout=60) == [7, "tail"]
    proj.ended(key + "-link")


@one_pool_will_do
def test_per_call_key_and_policy_never_reach_the_arguments(proj: OnceClient, key: str, busy: Any) -> None:
    proj.tasks.plain.apply_async((key,), {"how": "until"}, once_key=key)
    proj.started(key)
    with pytest.raises(OnceSkipped):
        proj.tasks.late.apply_async((key + "-x",), once_key=key).get(timeout=60)
    with pytest.raises(OnceRejected):
        proj.tasks.add.apply_async((1,), once_key=key, on_conflict="raise").get(timeout=60)
    waiting = proj.tasks.add.apply_async((1, 2), once_key=key, on_conflict="wait")
    eventually(lambda: proj.client.zcard(f"{{t}}:once:wait:{key}"))
    proj.go(key)
    assert waiting.get(timeout=60) == [1, 2]


def test_the_lock_is_freed_by_success_failure_and_ignore(proj: OnceClient, key: str) -> None:
    for n, how in enumerate(("", "fail", "ignore"), 1):
        proj.tasks.skip.delay(key, how=how)
        proj.started(key, n)
        eventually(lambda: not proj.lock(key, "skip"), within=20)


def test_a_retry_keeps_the_lock(proj: OnceClient, key: str) -> None:
    first = proj.tasks.skip.delay(key, how="retry until")
    eventually(lambda: first.state == "RETRY")
    with pytest.raises(OnceSkipped):
        proj.tasks.skip.delay(key).get(timeout=60)
    proj.go(key)
    assert first.get(timeout=60) == key
    assert [body["retries"] for body in proj.bodies(key)] == [0, 1]


@one_pool_will_do
def test_a_retry_can_let_go_of_the_lock(proj: OnceClient, key: str) -> None:
    first = proj.tasks.loose.delay(key, how="retry until", seconds=3600)
    # Its result is stored before the lock is given back.
    eventually(lambda: first.state == "RETRY" and not proj.lock(key, "loose"))
    assert proj.tasks.loose.delay(key).get(timeout=60) == key
    first.revoke()


@one_pool_will_do
def test_automatic_retries_keep_the_lock_and_run(proj: OnceClient, key: str) -> None:
    assert proj.tasks.auto.delay(key, how="fail until 2").get(timeout=60) == key
    assert [body["retries"] for body in proj.bodies(key)] == [0, 1, 2]
    eventually(lambda: not proj.lock(key, "auto"))


def test_a_task_that_replaces_itself_runs_on_under_its_id(proj: OnceClient, key: str) -> None:
    result = proj.tasks.skip.delay(key, how="replace")
    eventually(lambda: proj.lock(key, "skip").get("state") == "queued")
    with pytest.raises(OnceSkipped):
        proj.tasks.skip.delay(key).get(timeout=60)
    proj.go(key)
    assert result.get(timeout=60) == key
    assert {body["id"] for body in proj.bodies(key)} == {result.id}
    assert proj.count(key) == 2


@one_pool_will_do
def test_a_task_that_replaces_itself_with_another_key_frees_its_own(proj: OnceClient, key: str) -> None:
    assert proj.tasks.skip.delay(key, how="move").get(timeout=60) == key + "-moved"
    eventually(lambda: not proj.lock(key, "skip"), within=20)


def test_a_rejected_message_that_is_requeued_runs_again(proj: OnceClient, key: str) -> None:
    result = proj.tasks.late.delay(key, how="requeue")
    assert result.get(timeout=60) == key
    assert proj.count(key) == 2


@in_crews("gevent", others=ALL)
def test_a_task_that_computes_without_a_pause_keeps_its_lock_in_every_pool(proj: OnceClient, key: str) -> None:
    """In the gevent pool no greenlet runs meanwhile, and in the solo pool not even the worker's main loop."""
    once = Once(key=key, lease=1)
    claim = claim_of("e", "once.plain", (key,), {}, once, "")
    proj.tasks.plain.apply_async((key,), {"how": "compute", "seconds": 1.5}, headers=headers(claim, once))
    proj.started(key)
    ended = False
    while not ended:
        lock = proj.client.exists(f"{{t}}:once:lock:{key}")
        ended = proj.count_ended(key) == 1
        assert lock or ended, "the lock was lost"
        time.sleep(0.05)  # A look now and then: the loop ends with the task.
    assert proj.ended(key)[0]["lost"] is False


# -- STARTED -----------------------------------------------------------------------------------------------------------


def test_only_what_runs_has_started(proj: OnceClient, key: str, busy: Any) -> None:
    first = busy("tracked")
    assert first.state == "STARTED"
    assert first.info.keys() == {"pid", "hostname"}
    parked = proj.tasks.tracked.delay(key, n=7)
    eventually(lambda: proj.waiters(key, "tracked"))
    assert parked.state == "PENDING"
    proj.go(key)
    assert parked.get(timeout=60) == 7


@one_pool_will_do
def test_a_late_copy_leaves_a_failure_as_it_is(proj: OnceClient, key: str, any_pool: Crew) -> None:
    result, raw = proj.capture(lambda: proj.tasks.tracked.apply_async((key, 0, "fail"), queue="nowhere"))
    for _ in range(2):
        proj.inject(raw)
        eventually(result.ready)
        eventually(lambda: proj.client.hget(f"{{t}}:guard:{result.id}", "state") == "done")
    eventually(lambda: f"[{result.id}] has ended already; this copy is dropped" in any_pool.output)
    assert proj.app.AsyncResult(result.id).state == "FAILURE"


# -- scope queue -------------------------------------------------------------------------------------------------------


@one_pool_will_do
def test_one_queued_or_running(proj: OnceClient, key: str) -> None:
    first = proj.tasks.queue_skip.apply_async((key,), {"how": "until"}, countdown=1)
    for _ in range(3):
        with pytest.raises(OnceSkipped):
            proj.tasks.queue_skip.delay(key).get(timeout=60)
    with pytest.raises(OnceSkipped):
        proj.tasks.queue_skip.apply_async((key,), link_error=proj.tasks.add.si(1)).get(timeout=60)
    proj.go(key)
    assert first.get(timeout=60) == key
    eventually(lambda: not proj.lock(key, "queue_skip"))
    assert proj.tasks.queue_skip.delay(key).get(timeout=60) == key


@one_pool_will_do
def test_a_conflict_at_publish_raises_where_it_is_asked_to(proj: OnceClient, key: str, busy: Any) -> None:
    busy("queue_raise")
    with pytest.raises(OnceRejected):
        proj.tasks.queue_raise.delay(key)


@one_pool_will_do
def test_a_publish_that_raises_frees_the_lock(proj: OnceClient, key: str) -> None:
    with pytest.raises(Exception, match="JSON serializable"):
        proj.tasks.queue_skip.delay(key, seconds=object())
    assert not proj.lock(key, "queue_skip")


@one_pool_will_do
def test_an_expired_message_frees_the_lock(proj: OnceClient, key: str) -> None:
    result = proj.tasks.queue_skip.apply_async((key,), expires=datetime.now(UTC) - timedelta(seconds=1))
    eventually(lambda: result.state == "REVOKED")
    eventually(lambda: not proj.lock(key, "queue_skip"))
    assert proj.count(key) == 0


@pytest.mark.parametrize("task", ["plain", "foreign"])
def test_the_beats_lock_is_released_by_any_class_of_task(proj: OnceClient, key: str, task: str) -> None:
    runtime = LockClient.of(proj.app)
    once = Once(scope="queue", lease=3)

    def emit(task_id: str) -> bool:
        function = proj.task(task)
        claim = claim_of("entry", function.name, (key,), {"how": "until"}, once, task_id, task=function)
        if not runtime.store.take(claim):
            return False
        proj.app.send_task(function.name, (key,), {"how": "until"}, task_id=task_id, headers=headers(claim, once))
        return True

    assert [emit(key + "-1"), emit(key + "-1-again")] == [True, False]
    proj.started(key)
    assert emit(key + "-2") is False
    proj.go(key)
    eventually(lambda: emit(key + "-3"), within=20)
    proj.ended(key, 2)


# -- revoked ---------------------------------------------------------------------------------------------------------


def test_revoking_a_queued_task_frees_the_key(proj: OnceClient, any_pool: Crew, key: str) -> None:
    task_id = uuid4().hex
    proj.have_heard(*any_pool.workers)  # a worker of greenlets takes messages before it listens to what is broadcast
    proj.app.control.revoke(task_id)
    proj.have_heard(*any_pool.workers)
    result = proj.tasks.queue_skip.apply_async((key,), task_id=task_id)
    eventually(lambda: result.state == "REVOKED")
    eventually(lambda: not proj.lock(key, "queue_skip"), within=20)
    assert proj.count(key) == 0


@in_crews("threads", "gevent")
def test_a_revoke_lets_nobody_overlap_where_a_run_is_no_process(proj: OnceClient, any_pool: Crew, key: str) -> None:
    """Celery can kill a greenlet, and then the key is free. It cannot kill a thread: that keeps its lock."""
    is_killed = any_pool.pool == "gevent"
    first = proj.tasks.skip.delay(key, how="until")
    proj.started(key)
    proj.have_heard(*any_pool.workers)  # a worker of greenlets takes messages before it listens to what is broadcast
    first.revoke(terminate=True)
    if is_killed:
        eventually(lambda: first.state == "REVOKED")
        with Stopwatch(*any_pool.workers) as watch:
            eventually(lambda: not proj.lock(key, "skip"))
        watch.at_most(1)
    else:
        proj.have_heard(*any_pool.workers)
    second = proj.tasks.skip.delay(key)
    eventually(lambda: second.state == ("SUCCESS" if is_killed else "REVOKED"))
    proj.go(key)
    eventually(lambda: not proj.lock(key, "skip"))
    [body] = [body for body in proj.bodies(key) if body["id"] == first.id]
    assert body["finished"] == (not is_killed)


def test_revoking_a_parked_task_lets_the_next_one_run(proj: OnceClient, any_pool: Crew, key: str) -> None:
    if any_pool.pool == "solo":
        pytest.skip("a solo worker that runs a task hears of no revoke")
    first = proj.tasks.wait.delay(key, how="until")
    proj.started(key)
    second = proj.tasks.wait.delay(key, n=2)
    eventually(lambda: len(proj.waiters(key)) == 1)
    third = proj.tasks.wait.delay(key, n=3)
    eventually(lambda: len(proj.waiters(key)) == 2)
    second.revoke()
    proj.have_heard(*any_pool.workers)
    proj.go(key)
    assert first.get(timeout=60) == key
    assert third.get(timeout=60) == 3
    eventually(lambda: second.state == "REVOKED")
    assert proj.count(key) == 2


# -- copies ------------------------------------------------------------------------------------------------------------


def test_a_copy_delivered_while_the_first_runs_is_dropped_at_its_end(proj: OnceClient, key: str) -> None:
    result = proj.tasks.late.apply_async((key,), {"how": "until"}, link=proj.tasks.plain.si(key + "-link"))
    proj.started(key)
    proj.copy(result.id)
    guard = f"{{t}}:guard:{result.id}"
    eventually(lambda: proj.client.hexists(guard, "standby"))
    proj.go(key)
    assert result.get(timeout=60) == key
    eventually(lambda: proj.client.hget(guard, "state") == "done")
    proj.ended(key + "-link")
    assert (proj.count(key), proj.count(key + "-link")) == (1, 1)


@one_pool_will_do
def test_a_copy_delivered_after_the_end_is_dropped(proj: OnceClient, key: str, any_pool: Crew) -> None:
    result = proj.tasks.late.apply_async((key,), {"how": "until"}, link=proj.tasks.plain.si(key + "-link"))
    proj.started(key)
    raw = next(raw for raw in proj.client.hvals("unacked") if json.loads(raw)[0]["headers"]["id"] == result.id)
    proj.go(key)
    assert result.get(timeout=60) == key
    eventually(lambda: proj.client.hget(f"{{t}}:guard:{result.id}", "state") == "done")
    proj.inject(json.dumps(json.loads(raw)[0]))
    eventually(lambda: f"{result.id}] has ended already" in any_pool.output)
    assert result.get(timeout=60) == key
    proj.ended(key + "-link")
    assert (proj.count(key), proj.count(key + "-link")) == (1, 1)


@one_pool_will_do
def test_a_late_copy_of_an_older_attempt_is_dropped(proj: OnceClient, key: str, any_pool: Crew) -> None:
    result, raw = proj.capture(lambda: proj.tasks.late.apply_async((key,), {"how": "retry until"}, queue="nowhere"))
    proj.inject(raw)
    # Its result is stored before the guard knows of its end.
    eventually(lambda: result.state == "RETRY" and proj.client.hget(f"{{t}}:guard:{result.id}", "state") == "done")
    proj.inject(raw)
    eventually(lambda: f"{result.id}] has ended already" in any_pool.output)
    proj.go(key)
    assert result.get(timeout=60) == key
    assert [body["retries"] for body in proj.bodies(key)] == [0, 1]


@one_pool_will_do
def test_an_expired_copy_does_not_revoke_the_first(proj: OnceClient, key: str, any_pool: Crew) -> None:
    result = proj.tasks.late.apply_async((key,), {"how": "until"})
    proj.started(key)
    proj.copy(result.id, expired=True)
    eventually(lambda: f"expired copy of task {result.id}" in any_pool.output)
    proj.go(key)
    assert result.get(timeout=60) == key
    assert result.state == "SUCCESS"


def test_a_task_of_another_class_that_has_a_lock_runs_once_too(proj: OnceClient, key: str, any_pool: Crew) -> None:
    once = Once(scope="queue", lease=3)
    claim = claim_of("entry", "once.foreign", (key,), {"how": "until"}, once, uuid4().hex)
    options = {"task_id": claim.task_id, "headers": headers(claim, once), "queue": "nowhere"}
    result, raw = proj.capture(lambda: proj.app.send_task("once.foreign", (key,), {"how": "until"}, **options))
    proj.inject(raw)
    proj.started(key)
    proj.inject(raw)
    eventually(lambda: proj.client.hexists(f"{{t}}:guard:{result.id}", "standby"))
    proj.inject(raw, expires="2020-01-01T00:00:00+00:00")
    eventually(lambda: f"expired copy of task {result.id}" in any_pool.output)
    proj.go(key)
    assert result.get(timeout=60) == key
    eventually(lambda: proj.client.hget(f"{{t}}:guard:{result.id}", "state") == "done")
    proj.inject(raw)
    eventually(lambda: f"{result.id}] has ended already" in any_pool.output)
    assert (proj.count(key), result.state) == (1, "SUCCESS")


@one_pool_will_do
def test_a_message_past_its_deadline_is_not_run(proj: OnceClient, key: str) -> None:
    result, raw = proj.capture(lambda: proj.tasks.late.apply_async((key,), queue="nowhere"))
    message = json.loads(raw)
    message["headers"]["redbeat_deadline"] = 1
    proj.inject(json.dumps(message))
    with pytest.raises(OnceSkipped, match="so old"):
        result.get(timeout=60)
    assert proj.count(key) == 0


# -- by hand -----------------------------------------------------------------------------------------------------------


@one_pool_will_do
def test_a_block_and_a_task_hold_each_other_back(proj: OnceClient, key: str) -> None:
    with lock(proj.app, f"once.skip:{key}", lease=3) as held:
        assert held
        assert held.fence is not None
        with pytest.raises(OnceSkipped):
            proj.tasks.skip.delay(key).get(timeout=60)
        with lock(proj.app, f"once.skip:{key}", lease=3) as second:
            assert not second
    assert proj.tasks.skip.delay(key).get(timeout=60) == key


@one_pool_will_do
def test_a_block_wakes_the_task_that_waits_for_it(proj: OnceClient, key: str) -> None:
    with lock(proj.app, f"once.wait:{key}", lease=3):
        waiting = proj.tasks.wait.delay(key, n=5)
        eventually(lambda: proj.waiters(key))
    assert waiting.get(timeout=60) == 5


@one_pool_will_do
def test_the_reaper_wakes_for_a_releaser_that_died_before_it_could(proj: OnceClient, key: str) -> None:
    store = LockClient.of(proj.app).store
    releaser = Hold("token", f"block-{key}", 0, 60_000, key=f"once.wait:{key}")
    assert store.begin(releaser).word == "run"
    waiting = proj.tasks.wait.delay(key, n=4)
    eventually(lambda: proj.waiters(key))
    assert store.end(releaser).waiters
    assert waiting.get(timeout=60) == 4


@one_pool_will_do
def test_locks_are_listed_and_cleared(proj: OnceClient, key: str, busy: Any) -> None:
    first = busy("wait")
    second = proj.tasks.wait.delay(key, n=2)
    eventually(lambda: proj.waiters(key))
    name = f"once.wait:{key}"
    info = next(info for info in locks(proj.app).list() if info.key == name)
    assert (info.state, info.task_id, info.waiters) == ("running", first.id, (second.id,))
    (body,) = [body for body in proj.bodies(key) if body["id"] == first.id]
    assert info.holder == f"{socket.gethostname()}:{body['pid']}"
    assert abs(info.since.timestamp() - body["began"] / 1000) < 5
    assert info.fence == body["fence"]
    assert locks(proj.app).get(name) == info or locks(proj.app).get(name).task_id == first.id
    proj.log.append({"kind": "clear", "key": name, "at": now_ms()})
    assert locks(proj.app).clear(name)
    assert second.get(timeout=60) == 2
    assert not locks(proj.app).clear(name + "-none")


def test_a_class_with_hooks_of_its_own_works(proj: OnceClient, key: str) -> None:
    result = proj.tasks.own.delay(key, how="fail")
    with pytest.raises(ValueError, match="as asked"):
        result.get(timeout=60)
    for hook in ("before_start", "on_accepted", "on_failure"):
        eventually(lambda hook=hook: proj.marks.count(f"{hook}-{key}") == 1, what=hook)
    eventually(lambda: not proj.lock(key, "own"))


def test_max_hold_lets_go_of_a_task_that_hangs(proj: OnceClient, key: str, any_pool: Crew) -> None:
    first = proj.tasks.bounded.delay(key, how="until")
    proj.started(key)
    # Renewed for a second and a half, then the lease of one second runs out.
    assert eventually(lambda: not proj.lock(key, "bounded"), within=20) is True
    eventually(lambda: f"Lost the once-lock 'once.bounded:{key}'" in any_pool.output, within=20)
    # It runs on, so a copy of it has to stand by all the same.
    proj.copy(first.id)
    eventually(lambda: proj.client.hexists(f"{{t}}:guard:{first.id}", "standby"), within=20)
    proj.go(key)
    assert proj.tasks.bounded.delay(key).get(timeout=60) == key
    first.get(timeout=60)
    assert {entry["id"]: entry["lost"] for entry in proj.ended(key, 2)}[first.id] is True
    assert proj.count(key) == 2

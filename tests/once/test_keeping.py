"""Renewal and the end of runs, in process: by who runs a task, and by the worker's main process for its children."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
import redis
from celery import Celery
from celery.app.task import Context
from celery.app.trace import build_tracer
from celery.backends.rpc import RPCBackend
from celery.exceptions import SoftTimeLimitExceeded, WorkerLostError

from redbeat_lite import Once, OnceRejected, Task, lock
from redbeat_lite._base.clock import elapsed
from redbeat_lite._base.errors import InvalidEntry
from redbeat_lite.once.claims import Hold
from redbeat_lite.once.lock_client import LockClient, Renewer
from redbeat_lite.once.lock_store import LockStore
from redbeat_lite.once.parked_message import DELIVERY
from redbeat_lite.once.run_lifecycle import finish
from redbeat_lite.once.worker import keeper
from redbeat_lite.once.worker.keeper import Heartbeat, watch_children
from redbeat_lite.once.worker.request import RequestMixin
from redbeat_lite.store.redis_values import server_ms
from tests.support.server import Server
from tests.support.waiting import eventually

#: Above the kernel's greatest process id.
GONE = 2**22 + 1


@pytest.fixture
def app(once_server: Server, store: LockStore) -> Celery:
    app = Celery("unit", broker=once_server.url, backend="cache+memory://", task_cls=Task, set_as_current=False)
    app.conf.redbeat_lite_key_prefix = "t"
    return app


# -- by the worker's main process --------------------------------------------------------------------------------------


@pytest.fixture
def active(monkeypatch: pytest.MonkeyPatch) -> set[Any]:
    """The requests that the worker has given to its pool."""
    requests: set[Any] = set()
    monkeypatch.setattr(keeper.state, "active_requests", requests)
    return requests


def one(x: str) -> None:
    """The function of the tasks here."""


class Request(RequestMixin):
    """As much of a worker's request as the main process looks at; it runs in this process."""

    def __init__(self, task: Any, token: str, retries: int = 0, name: str = "id") -> None:
        self.id, self.task, self.app = name, task, task.app
        self.worker_pid: int | None = None
        self.time_start: float | None = None
        self.request_dict = {"id": name, "args": ("k",), "kwargs": {}, "retries": retries, DELIVERY: {"token": token}}


def state_of(request: Request) -> str:
    """What the guard remembers of it."""
    state = LockClient.of(request.app).store.client.hget(f"{{t}}:guard:{request.id}", "state")
    return state.decode()


def run(request: Request) -> Hold:
    """Begin a run as the child would."""
    runtime = LockClient.of(request.app)
    hold = runtime.hold(request.task, request.request_dict)
    assert runtime.begin(hold).word == "run"
    return hold


def test_a_retry_on_the_same_worker_is_kept_as_the_run_before_it_was(app: Celery, active: set[Any]) -> None:
    task = app.task(shared=False, name="t", once=Once(key="{x}", lease=1))(one)
    runtime = LockClient.of(app)
    first, retry = Request(task, "first"), Request(task, "retry", retries=1)
    active.add(first)
    hold = run(first)
    watch_children(LockClient.of(app).store)
    # The retry begins between two looks, under the same task id.
    runtime.store.end(hold, hold_ms=1_000)
    active.clear()
    active.add(retry)
    run(retry)
    # Its own process cannot renew: it is kept from here for longer than the lease.
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        watch_children(LockClient.of(app).store)
        assert runtime.store.client.hget("{t}:once:lock:t:k", "token") == b"retry", "the lock of the retry ran out"
        time.sleep(0.05)  # As the worker does: a look now and then, past the lease.


def test_a_task_that_was_registered_late_holds_nothing_and_disturbs_no_other(app: Celery, active: set[Any]) -> None:
    task = app.task(shared=False, name="t", once=Once(key="{x}", lease=1))(one)
    runtime = LockClient.of(app)
    request = Request(task, "token")
    late = object()  # Celery's own request, which has no hold
    active |= {request, late}
    hold = run(request)
    request.hold.renewed = elapsed() - 1
    watch_children(runtime.store)
    assert elapsed() - request.hold.renewed < 1
    assert hold.task_id == "id"


def test_what_a_request_holds_is_worked_out_once(app: Celery, active: set[Any]) -> None:
    asked = []

    def key(x: str) -> str:
        asked.append(x)
        return x

    task = app.task(shared=False, name="t", once=Once(key=key))(one)
    active.add(Request(task, uuid4().hex))
    for _ in range(3):
        watch_children(LockClient.of(app).store)
    assert asked == ["k"]


def test_max_hold_ends_the_lock_and_not_the_claim_to_the_task_id(app: Celery, active: set[Any]) -> None:
    task = app.task(shared=False, name="t", once=Once(key="{x}", lease=1, max_hold=1))(one)
    runtime = LockClient.of(app)
    request = Request(task, uuid4().hex)
    active.add(request)
    hold = run(request)

    def over() -> bool:
        watch_children(LockClient.of(app).store)
        return not runtime.store.client.exists("{t}:once:lock:t:k")

    eventually(over)
    end = time.monotonic() + 1.2
    while time.monotonic() < end:
        watch_children(LockClient.of(app).store)
        time.sleep(0.05)  # As the worker does: a look now and then, past the lease.
    copy = Hold("copy", "id", 0, 1_000, life_ms=1_000)
    assert runtime.store.begin(copy, "m").word == "standby"
    runtime.end(hold)


@pytest.mark.parametrize(
    ("stored", "state"), [(None, "dead"), ("STARTED", "dead"), ("RETRY", "dead"), ("SUCCESS", "done")]
)
def test_a_child_that_dies_after_its_success_was_stored_has_ended(
    app: Celery, active: set[Any], stored: str | None, state: str
) -> None:
    task = app.task(shared=False, name="t")(one)
    request = Request(task, "token", name=uuid4().hex)
    run(request)
    if stored is not None:
        task.backend.store_result(request.id, None, stored)
    request.worker_pid = GONE
    active.add(request)
    watch_children(LockClient.of(app).store)
    eventually(lambda: state_of(request) != "running")
    assert state_of(request) == state


@pytest.mark.parametrize("backend", ["disabled://", "rpc://"])
def test_a_child_of_which_no_result_is_kept_may_run_again(
    app: Celery, active: set[Any], monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(RPCBackend, "get_state", lambda self, task_id: asked.append(task_id))
    app.conf.result_backend = backend
    request = Request(app.task(shared=False, name="t")(one), uuid4().hex)
    run(request)
    request.worker_pid = GONE
    active.add(request)
    watch_children(LockClient.of(app).store)
    eventually(lambda: state_of(request) == "dead")
    assert asked == [], "to ask would make a queue"


# -- at the end --------------------------------------------------------------------------------------------------------


class Away:
    """A server that does not answer the first times that something is given back; it was asked from these threads."""

    def __init__(self, patch: pytest.MonkeyPatch, times: int) -> None:
        self.asked: list[threading.Thread] = []
        end = LockStore.end

        def away(store: LockStore, *args: Any, **options: Any) -> Any:
            self.asked.append(threading.current_thread())
            if len(self.asked) <= times:
                raise redis.ConnectionError("away")
            return end(store, *args, **options)

        patch.setattr(LockStore, "end", away)


def test_the_end_of_a_run_waits_for_a_server_that_restarts(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    task, store = app.task(shared=False, name="t", once=Once(key="k"))(one), LockClient.of(app).store
    task.push_request(id="id", args=("x",), kwargs={}, called_directly=False, is_eager=False)
    task.before_start("id", ("x",), {})
    away = Away(monkeypatch, times=2)
    finish(task, "SUCCESS", None)
    task.pop_request()
    assert len(away.asked) == 3
    assert store.client.hget("{t}:guard:id", "state") == b"done"
    assert not store.client.exists("{t}:once:lock:k")


def test_a_run_that_is_torn_down_waits_for_nothing(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    task = app.task(shared=False, name="t", once=Once(key="k"))(one)
    task.push_request(id="id", args=("x",), kwargs={}, called_directly=False, is_eager=False)
    task.before_start("id", ("x",), {})
    away = Away(monkeypatch, times=2)
    finish(task, None, None)
    task.pop_request()
    assert len(away.asked) == 1


def test_the_end_of_a_block_waits_for_a_server_that_restarts(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    with lock(app, "k"):
        Away(monkeypatch, times=1)
    assert not LockClient.of(app).store.client.exists("{t}:once:lock:k")


def test_who_looks_after_children_waits_for_no_server(
    app: Celery, active: set[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    request = Request(app.task(shared=False, name="t", once=Once(key="{x}"))(one), uuid4().hex)
    run(request)
    request.worker_pid = GONE
    active.add(request)
    away = Away(monkeypatch, times=1)
    watch_children(LockClient.of(app).store)
    eventually(lambda: len(away.asked) == 2)
    assert threading.current_thread() not in away.asked
    eventually(lambda: not LockClient.of(app).store.client.exists("{t}:once:lock:t:k"))


@pytest.mark.parametrize("conflict", ["skip", "raise"])
def test_whoever_waits_for_a_refused_task_is_told_once_where_no_result_is_kept(
    app: Celery, monkeypatch: pytest.MonkeyPatch, conflict: str
) -> None:
    task = app.task(shared=False, name="t", ignore_result=True, once=Once(key="k", on_conflict=conflict))(one)
    told: list[str] = []
    monkeypatch.setattr(task.backend, "on_chord_part_return", lambda request, *_: told.append(request.id))
    trace = build_tracer(task.name, task, app=app)
    headers = {"id": "refused", "task": "t", "retries": 0, "chord": {"task": "t", "options": {}}, "group": "g"}
    with lock(app, "k"):
        for _ in range(2):
            trace("refused", ("x",), {}, {**headers, "is_eager": False, "called_directly": False})
    assert told == ["refused"]


def test_a_refused_errback_does_not_disturb_the_main_process_that_calls_it(app: Celery) -> None:
    task = app.task(shared=False, name="t", once=Once(key="k", scope="queue", on_conflict="raise"))(one)
    errback = task.si("x").set(task_id="errback")
    with lock(app, "k"):
        # As Celery does for a task whose child was killed, or ran into its hard time limit.
        request = Context(id="lost", errbacks=[errback], delivery_info={})
        app.backend.mark_as_failure("lost", WorkerLostError("gone"), request=request)
    assert isinstance(app.AsyncResult("errback").result, OnceRejected)


@pytest.mark.parametrize("key", ["{x[id]}", lambda x: x["id"]])
def test_what_follows_fails_alone_where_its_arguments_give_no_key(app: Celery, key: Any) -> None:
    first = app.task(shared=False, name="first")(one)
    after = app.task(shared=False, name="t", once=Once(key=key, scope="queue"))(one)
    with pytest.raises((InvalidEntry, KeyError), match="id"):
        after.delay({})
    fields = {"id": "first", "task": "first", "retries": 0, "chain": [after.s().set(task_id="after")]}
    build_tracer("first", first, app=app)("first", ("x",), {}, {**fields, "is_eager": False, "called_directly": False})
    assert [app.AsyncResult(name).state for name in ("first", "after")] == ["SUCCESS", "FAILURE"]


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A soft time limit strikes after the server has given the lock and before its reply is read."""
    begin = LockStore.begin

    def strike(store: LockStore, *args: Any, **options: Any) -> Any:
        begin(store, *args, **options)
        raise SoftTimeLimitExceeded

    monkeypatch.setattr(LockStore, "begin", strike)


@pytest.mark.usefixtures("interrupted")
def test_a_task_that_is_interrupted_while_it_takes_its_lock_leaves_none(app: Celery) -> None:
    task = app.task(shared=False, name="t", once=Once(key="k"))(one)
    fields = {"id": "id", "task": "t", "retries": 0, "is_eager": False, "called_directly": False}
    build_tracer("t", task, app=app)("id", ("x",), {}, fields)
    assert isinstance(app.AsyncResult("id").result, SoftTimeLimitExceeded)
    assert not LockClient.of(app).store.client.exists("{t}:once:lock:k")


@pytest.mark.usefixtures("interrupted")
def test_a_block_that_is_interrupted_while_it_takes_its_lock_leaves_none(app: Celery) -> None:
    with pytest.raises(SoftTimeLimitExceeded), lock(app, "k"):
        pass
    assert not LockClient.of(app).store.client.exists("{t}:once:lock:k")


# -- by the thread of the runs -----------------------------------------------------------------------------------------


class Records:
    """In the place of a lock store: notes what was asked of it, and does as the test says."""

    def __init__(self, answer: Callable[[Hold], tuple[bool, bool]]) -> None:
        self.answer = answer
        self.renewed: list[tuple[str, bool]] = []
        self.revived: dict[str, bool] = {}

    def connect(self) -> Any:
        return self

    def renew(self, held: Hold, *, revive: bool) -> tuple[bool, bool]:
        keeps_lock = held.keeps_lock()
        self.renewed.append((held.token, keeps_lock))
        self.revived.setdefault(held.token, revive)
        has_guard, has_lock = self.answer(held)
        return has_guard, has_lock and keeps_lock


def hold(token: str, lease: float, **policy: Any) -> Hold:
    """One whose next renewal is due."""
    then = elapsed() - lease / 2
    once = Once(lease=lease, **policy)
    return Hold(token, token, 0, round(lease * 1000), key="k", once=once, begun=then, renewed=then)


def test_a_renewal_a_lease_after_the_last_good_one_brings_nothing_back() -> None:
    records = Records(lambda held: (True, True))
    renewer, early, late = Renewer(records.connect), hold("early", 5.0), hold("late", 5.0)
    late.renewed = elapsed() - 5.0
    for mine in (early, late):
        renewer.add(mine)
    eventually(lambda: records.revived.keys() == {"early", "late"})
    for mine in (early, late):
        renewer.remove(mine)
    assert records.revived == {"early": True, "late": False}


def test_a_server_that_is_away_is_told_once_and_not_with_every_renewal(caplog: pytest.LogCaptureFixture) -> None:
    asked: list[Hold] = []

    def answer(held: Hold) -> tuple[bool, bool]:
        asked.append(held)
        if len(asked) != 4:
            raise redis.ConnectionError("away")
        return True, True

    renewer, mine = Renewer(Records(answer).connect), hold("token", 1.0)
    renewer.add(mine)
    eventually(lambda: len(asked) >= 6)
    renewer.remove(mine)
    assert [record.levelname for record in caplog.records if "Renewal of" in record.message].count("WARNING") == 2


def test_a_run_whose_lock_was_cleared_keeps_its_claim_to_the_task_id() -> None:
    records = Records(lambda held: (True, False))
    renewer, mine = Renewer(records.connect), hold("token", 1.0)
    renewer.add(mine)
    eventually(lambda: mine.lost)
    eventually(lambda: ("token", False) in records.renewed)
    renewer.remove(mine)
    assert records.renewed[0] == ("token", True)


def test_a_run_that_lost_its_claim_is_renewed_no_more() -> None:
    records = Records(lambda held: (False, False))
    renewer, mine, other = Renewer(records.connect), hold("lost", 1.0), hold("other", 1.0)
    renewer.add(mine)
    eventually(lambda: mine.lost)
    renewer.add(other)
    eventually(lambda: other.lost)
    assert [token for token, _ in records.renewed] == ["lost", "other"]


# -- by the visibility heartbeat ---------------------------------------------------------------------------------------


class Timer:
    """As much of a consumer's timer as the heartbeat uses; the main loop never calls."""

    def call_repeatedly(self, seconds: float, function: Callable[[], None]) -> Any:
        return SimpleNamespace(cancel=lambda: None)


def heartbeat(client: redis.Redis, delivered: Any, acknowledged: Any = ()) -> Heartbeat:
    channel = SimpleNamespace(
        Client=lambda connection_pool: client,
        _get_pool=lambda: None,
        visibility_timeout=4,
        unacked_index_key="unacked_index",
        _qos=SimpleNamespace(_delivered=dict.fromkeys(delivered), _dirty={*acknowledged}),
    )
    return Heartbeat(channel, Timer())


def test_messages_are_marked_by_the_servers_clock(store: LockStore, monkeypatch: pytest.MonkeyPatch) -> None:
    client = store.client
    client.zadd("unacked_index", {"mine": 1, "acked": 1, "other": 1})
    mine = heartbeat(client, ["mine", "acked", "gone"], ["acked"])
    true_time = time.time
    monkeypatch.setattr(time, "time", lambda: true_time() - 3600)
    mine.mark()
    marks = dict(client.zrange("unacked_index", 0, -1, withscores=True))
    assert abs(marks.pop("mine") - server_ms(store.client) / 1000) < 5
    # What was acknowledged meanwhile does not come back, and what another worker has is not touched.
    assert marks == {"acked": 1, "other": 1}


@pytest.mark.parametrize(
    ("runs_in", "loop", "marked"),
    [
        (GONE, "hangs", ["running"]),
        (GONE, "has ended", ["running", "waiting"]),
        (os.getpid(), "hangs", ["running", "waiting"]),
    ],
    ids=["child", "child of a worker that stops", "solo pool"],
)
def test_what_a_worker_whose_main_loop_stands_still_keeps(
    store: LockStore, active: set[Any], monkeypatch: pytest.MonkeyPatch, runs_in: int, loop: str, marked: list[str]
) -> None:
    client = store.client
    client.zadd("unacked_index", {"running": 1, "waiting": 1})
    active.add(type("Running", (), {"worker_pid": runs_in, "message": SimpleNamespace(delivery_tag="running")})())
    mine = heartbeat(client, ["running", "waiting"])
    if loop == "has ended":
        mine.end_loop()
    true_elapsed = keeper.elapsed
    monkeypatch.setattr(keeper, "elapsed", lambda: true_elapsed() + 5)
    mine.mark()
    marks = client.zrange("unacked_index", 0, -1, withscores=True)
    assert sorted(tag for tag, mark in marks if mark > 1) == marked

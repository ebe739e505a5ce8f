"""Tasks of other classes than ours, whose messages bring a lock from the beat or from a call."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any
from uuid import uuid4

import celery
import pytest
from celery import Celery, signals
from celery.app.task import Context
from celery.app.trace import build_tracer
from celery.exceptions import Ignore

from redbeat_lite import Once, OnceSkipped, lock, locks
from redbeat_lite.once.install import adopt
from redbeat_lite.once.lock_client import LockClient
from redbeat_lite.once.run_lifecycle import finish
from tests.once.client import OnceClient
from tests.once.conftest import one_pool_will_do
from tests.once.pools import Crew
from tests.once.script_calls import claim_of, headers
from tests.once.test_task import make_app, one
from tests.support.server import Server
from tests.support.waiting import eventually

pytestmark = [pytest.mark.timeout(60)]


@pytest.fixture
def app(once_server: Server) -> Celery:
    with once_server.client(decode_responses=True) as client:
        client.flushall()
    return make_app(once_server.url, once_server.url)


def test_a_class_of_another_kind_takes_its_lock_once_and_calls_its_own_hooks(app: Celery) -> None:
    called: list[str] = []

    class Base(celery.Task):
        abstract = True

        def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
            called.append("base")

    class Import(Base):
        name = "import"

        def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
            super().before_start(task_id, args, kwargs)
            called.append("own")

    class Sibling(Base):
        name = "sibling"

    task, sibling, store = app.register_task(Import()), app.register_task(Sibling()), LockClient.of(app).store
    adopt(sibling)
    assert inspect.unwrap(sibling.run) is not sibling.run
    assert inspect.isfunction(sibling.run)
    Base.before_start = Sibling.before_start  # type: ignore[method-assign] # as where a class and its base are tasks
    for _ in range(2):
        adopt(task)
    once = Once(scope="queue")
    claim = claim_of("e", "import", (), {}, once, "id")
    assert store.take(claim)
    task.push_request(id="id", args=(), kwargs={}, called_directly=False, is_eager=False, **headers(claim, once))
    try:
        store.client.config_resetstat()
        task.before_start("id", (), {})
        assert called == ["base", "own"]
        scripts = store.client.info("commandstats")["cmdstat_evalsha"]
        assert scripts["calls"] - scripts["failed_calls"] == 1  # which it may not know at first
        assert locks(app).get(claim.key).state == "running"
        finish(task, "SUCCESS", None)
    finally:
        task.pop_request()
    assert locks(app).get(claim.key) is None


def test_a_copy_of_a_task_of_another_class_stands_by_and_its_retry_runs(app: Celery) -> None:
    app.task(shared=False, name="t", base=celery.Task)(one)
    task, store = app.tasks["t"], LockClient.of(app).store
    adopt(task)
    once = Once(scope="queue")
    claim = claim_of("e", "t", (), {}, once, "id")
    assert store.take(claim)

    def begin(retries: int = 0) -> None:
        fields = {"id": "id", "args": (), "kwargs": {}, "called_directly": False, "is_eager": False, "retries": retries}
        task.request_stack.push(Context(fields, **headers(claim, once)))
        try:
            task.before_start("id", (), {})
        except Ignore:
            task.pop_request()
            raise

    def end() -> None:
        finish(task, "SUCCESS", None)
        task.pop_request()

    begin()
    fence = locks(app).get(claim.key).fence
    with pytest.raises(Ignore, match="runs already"):
        begin()
    assert locks(app).get(claim.key).fence == fence
    end()
    assert store.take(claim), "a beat may publish the message again"
    with pytest.raises(Ignore, match="has ended already"):
        begin()
    assert locks(app).list() == ()
    begin(retries=1)
    assert locks(app).get(claim.key).state == "running"
    end()
    assert locks(app).list() == ()


@pytest.mark.parametrize("autoretry", [(), (ValueError,)])
def test_what_follows_finds_the_lock_free_and_only_what_runs_has_started(app: Celery, autoretry: Any) -> None:
    @app.task(bind=True, shared=False, name="t", base=celery.Task, track_started=True, autoretry_for=autoretry)
    def task(self: Any) -> str:
        assert locks(app).get("k").state == "running"
        return str(self.AsyncResult(self.request.id).state)

    held: list[Any] = []

    def look(**_: Any) -> None:
        held.append(locks(app).get("k"))

    registered = app.tasks["t"]
    adopt(registered)
    once = Once(key="k", on_conflict="wait")
    claim = claim_of("e", "t", (), {}, once, uuid4().hex)
    request = {"id": claim.task_id, "delivery_info": {}, "callbacks": [registered.si().set(queue="nowhere")]}
    trace = build_tracer("t", registered, app=app)
    signals.before_task_publish.connect(look, weak=False)
    try:
        with lock(app, "k"):
            trace(claim.task_id, (), {}, {**request, **headers(claim, once)})
        assert app.AsyncResult(claim.task_id).state == "PENDING", "it is parked"
        assert trace(claim.task_id, (), {}, {**request, **headers(claim, once)})[0] == "STARTED"
    finally:
        signals.before_task_publish.disconnect(look)
    assert held == [None]


@one_pool_will_do
def test_only_what_runs_in_a_worker_has_started(proj: OnceClient, any_pool: Crew, key: str) -> None:
    def call(how: str = "") -> Any:
        return proj.tasks.foreign_tracked.apply_async((key,), {"how": how}, once_key=key, on_conflict="wait")

    first = call("until")
    proj.started(key)
    free = proj.tasks.foreign_tracked.delay(key + "-free", how="until")
    proj.started(key + "-free")
    assert (first.state, free.state) == ("STARTED", "STARTED")
    second = call()
    eventually(lambda: proj.client.zcard(f"{{t}}:once:wait:{key}"))
    assert second.state == "PENDING"
    proj.go(key)
    proj.go(key + "-free")
    assert [one.get(timeout=60) for one in (first, second, free)] == [key, key, key + "-free"]


@one_pool_will_do
@pytest.mark.parametrize("task", ["plain", "foreign"])
def test_a_call_by_name_with_a_key_is_locked(proj: OnceClient, any_pool: Crew, key: str, task: str) -> None:
    send = partial(proj.app.send_task, f"once.{task}", queue="once", once_key=f"named:{key}")
    first = send((key, 0, "until"))
    proj.started(key)
    skipped, waiting = send((key,)), send((key,), on_conflict="wait")
    with pytest.raises(OnceSkipped):
        skipped.get(timeout=60)
    eventually(lambda: proj.client.zcard(f"{{t}}:once:wait:named:{key}"))
    proj.go(key)
    assert [first.get(timeout=60), waiting.get(timeout=10)] == [key, key]
    assert proj.count_ended(key) == 2
    eventually(lambda: not proj.client.exists(f"{{t}}:once:lock:named:{key}"))


@one_pool_will_do
def test_a_call_by_name_with_a_wrong_key_runs_and_says_so(proj: OnceClient, any_pool: Crew, key: str) -> None:
    result = proj.app.send_task("once.plain", (key,), queue="once", once_key="")
    assert result.get(timeout=60) == key
    assert f"[{result.id}] runs without a once-lock: once.key" in any_pool.output


@one_pool_will_do
@pytest.mark.parametrize("on_conflict", ["skip", "wait"])
def test_a_task_of_another_class_is_held_back_too(proj: OnceClient, any_pool: Crew, key: str, on_conflict: str) -> None:
    """Its lock ran out in a queue that nobody looked after, and somebody else has taken it."""
    once = Once(key=key, scope="queue", on_conflict=on_conflict, lease=3)
    claim = claim_of("entry", "once.foreign", (key,), {}, once, uuid4().hex)
    with lock(proj.app, key, lease=3) as held:
        assert held
        proj.app.send_task("once.foreign", (key,), task_id=claim.task_id, headers=headers(claim, once))
        result = proj.app.AsyncResult(claim.task_id)
        if on_conflict == "skip":
            with pytest.raises(OnceSkipped):
                result.get(timeout=60)
        else:
            eventually(lambda: proj.client.zcard(f"{{t}}:once:wait:{key}"))
        assert proj.count(key) == 0
    if on_conflict == "wait":
        assert result.get(timeout=60) == key

"""The task class without a worker: definition, eager mode, direct calls, and blocks under a lock."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import celery
import pytest
import redis
from celery import Celery
from celery.app.trace import build_tracer
from celery.exceptions import Ignore

from redbeat_lite import LockLost, LockUnavailable, Once, OnceRejected, OnceSkipped, Task, install, lock, locks
from redbeat_lite._base.errors import InvalidEntry
from redbeat_lite.once.claims import DEADLINE_HEADER
from redbeat_lite.once.lock_client import LockClient
from redbeat_lite.once.lock_store import LockStore
from redbeat_lite.once.run_lifecycle import finish
from tests.support.cases import together
from tests.support.processes import run_python
from tests.support.server import DURABLE, Server
from tests.support.waiting import eventually

UNSPEAKABLE = object()


def one() -> int:
    """The function of tasks that need none."""
    return 1


def make_app(url: str = "redis+socket:///nowhere/s", backend: str = "cache+memory://", **conf: Any) -> Celery:
    app = Celery("unit", broker=url, backend=backend, task_cls=Task, set_as_current=False)
    app.conf.update(redbeat_lite_key_prefix="u", **conf)
    install(app)
    return app


@pytest.fixture
def app(once_server: Server) -> Iterator[Celery]:
    with once_server.client(decode_responses=True) as client:
        client.flushall()
    app = make_app(once_server.url)
    yield app
    LockClient.of(app).recorder.close()  # It records nothing in the next test.


def test_a_call_reaches_a_class_behind_ours_by_the_names_of_its_options(app: Celery) -> None:
    seen = {}

    class Mixin:
        def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
            seen.update(options)
            return super().apply_async(args, kwargs, **options)  # type: ignore[misc]

    class Own(Task, Mixin, celery.Task):  # type: ignore[misc]
        pass

    app.task(shared=False, name="own", base=Own)(one).apply_async((), {}, "an id", None, None, None, "shadow")
    assert (seen["task_id"], seen["shadow"]) == ("an id", "shadow")


# -- definition --------------------------------------------------------------------------------------------------------


def test_a_template_that_names_no_argument_is_an_error_at_definition() -> None:
    app = make_app()
    app.finalize()
    with pytest.raises(InvalidEntry, match=r"template of the arguments of .*\(feed_url\)"):

        @app.task(shared=False, once=Once(key="{feed}"))
        def import_feed(feed_url: str) -> None: ...


def test_a_default_that_cannot_be_part_of_a_key_is_an_error_at_definition() -> None:
    app = make_app()
    app.finalize()
    with pytest.raises(InvalidEntry, match="the default of x"):

        @app.task(shared=False, once=True)
        def task(x: Any = UNSPEAKABLE) -> None: ...


@pytest.mark.parametrize("once", [{"lease": 0.5}, {"on_conflict": "drop"}, "yes"])
def test_a_wrong_policy_is_an_error_at_definition(once: Any) -> None:
    app = make_app()
    app.finalize()
    with pytest.raises(InvalidEntry, match="once"):

        @app.task(shared=False, once=once)
        def task() -> None: ...


@pytest.mark.parametrize("life", [0, None, float("inf"), 1e300])
def test_a_wrong_life_of_the_guards_memory_is_an_error_at_definition(life: Any) -> None:
    app = make_app()
    app.finalize()
    with pytest.raises(InvalidEntry, match="guard_life: expected seconds"):
        app.task(shared=False, name="t", guard_life=life)(one)


@pytest.mark.parametrize("bind", [True, False])
def test_bound_and_free_functions_are_understood_alike(bind: bool) -> None:
    app = make_app()

    def free(x: Any) -> Any: ...

    def bound(self: Any, x: Any) -> Any: ...

    task = app.task(shared=False, name="t", bind=bind, once=Once(key="{x}"))(bound if bind else free)
    assert list(task.once_signature.parameters) == ["x"]
    assert task.once_policy == Once(key="{x}")


def test_a_task_written_as_a_class_has_its_policy_too() -> None:
    app = make_app()

    class Import(Task):
        name = "import"
        once = Once(key="{url}")

        def run(self, url: str) -> str:
            return url

    task = app.register_task(Import())
    assert task.once_policy == Once(key="{url}")
    assert list(task.once_signature.parameters) == ["url"]
    assert (task.once.key, task.once.fence, task.once.lost) == ("{url}", None, False)


def test_a_task_without_a_policy_has_none() -> None:
    app = make_app()
    task = app.task(shared=False, name="plain")(one)
    assert task.once is None


# -- bypass ------------------------------------------------------------------------------------------------------------


def test_eager_mode_apply_and_direct_calls_need_no_server_and_never_deadlock() -> None:
    app = make_app(task_always_eager=True)

    @app.task(bind=True, shared=False, once=Once(key="{n}", scope="queue", on_conflict="raise"))
    def nested(self: Any, n: int) -> list[int]:
        if n == 0:
            return [0]
        inner = [
            nested(0),
            nested.apply((0,)).result,
            nested.apply_async((0,), once_key="k", on_conflict="wait").result,
        ]
        assert self.once.fence is None
        return [n, *(number for numbers in inner for number in numbers)]

    assert nested(1) == nested.apply((1,)).get() == nested.delay(1).get() == [1, 0, 0, 0]


def test_importing_opens_no_connection_and_loads_no_worker() -> None:
    code = "import sys; from redbeat_lite import Once; print([m for m in sys.modules if m.startswith('celery')])"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"


def test_installing_opens_no_connection_and_loads_no_worker() -> None:
    code = (
        "import sys; from celery import Celery; from redbeat_lite import Task, install\n"
        "app = Celery('x', broker='redis://nowhere.invalid', task_cls=Task); install(app); install(app)\n"
        "app.finalize()\n"
        "print('celery.worker.consumer' in sys.modules, len(app.steps['consumer']))"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "False 1"


# -- STARTED -----------------------------------------------------------------------------------------------------------


def telling(name: str, base: type[Task] = Task, **fields: Any) -> type[Task]:
    """A task that returns what its result says while it runs."""

    def run(self: Any) -> str:
        return str(self.AsyncResult(self.request.id).state)

    return type(name, (base,), {"name": name, "run": run, **fields})


def told(app: Celery, task: type[Task]) -> str:
    """What a run of the task returns, in a worker of this app."""
    registered, request = app.register_task(task()), {"id": uuid4().hex, "delivery_info": {}, "hostname": "here"}
    return str(build_tracer(task.name, registered, app=app)(request["id"], (), {}, request)[0])


@pytest.mark.parametrize("asked", [True, False])
def test_an_app_says_whether_start_is_told(once_server: Server, asked: bool) -> None:
    app = make_app(once_server.url, once_server.url, task_track_started=asked)
    assert told(app, telling("told")) == ("STARTED" if asked else "PENDING")


@pytest.mark.parametrize("asked", [True, False])
def test_a_task_class_says_whether_start_is_told(once_server: Server, asked: bool) -> None:
    other = {"task_track_started": not asked, "task_annotations": {"annotated": {"track_started": asked}}}
    app = make_app(once_server.url, once_server.url, **other)
    base = telling("base", track_started=asked)
    heir, child = telling("heir", base), telling("child", base, track_started=not asked)
    yes, no = ("STARTED", "PENDING") if asked else ("PENDING", "STARTED")
    assert [told(app, task) for task in (base, heir, child, telling("annotated"))] == [yes, yes, no, yes]


# -- without a server --------------------------------------------------------------------------------------------------


def test_a_queue_lock_that_cannot_be_taken_publishes_nothing() -> None:
    app = make_app()
    task = app.task(shared=False, name="t", once=True)(one)
    with pytest.raises(LockUnavailable, match="was not published"):
        task.delay()


def test_a_lock_of_which_only_the_reply_was_lost_is_given_back(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    run = LockStore._run

    def lost(self: LockStore, script: str, *sources: Any, **values: Any) -> Any:
        reply = run(self, script, *sources, **values)
        if script != "once/take":
            return reply
        assert reply == 1
        raise redis.ConnectionError("the reply was lost")

    monkeypatch.setattr(LockStore, "_run", lost)
    once = Once(key="k", scope="queue")
    task = app.task(shared=False, name="t", once=once)(one)
    with pytest.raises(LockUnavailable, match="was not published"):
        task.delay()
    assert locks(app).get("k") is None


def test_publishing_a_run_lock_needs_no_lock_server(once_server: Server) -> None:
    app = make_app(once_server.url, redbeat_lite_url="redis+socket:///nowhere/s")
    task = app.task(shared=False, name="t", once=Once())(one)
    assert task.delay().id


def test_a_message_that_is_too_old_is_dropped_where_no_results_are_kept(once_server: Server) -> None:
    app = make_app(once_server.url, backend="disabled")
    task = app.task(shared=False, name="t")(one)
    task.push_request(id="old", args=(), kwargs={}, called_directly=False, **{DEADLINE_HEADER: 1})
    try:
        with pytest.raises(Ignore, match="too old"):
            task.before_start("old", (), {})
    finally:
        task.pop_request()


# -- publishing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [{"once_key": ""}, {"on_conflict": ""}, {"on_conflict": "drop"}])
def test_a_wrong_policy_of_a_call_is_refused(app: Celery, wrong: dict[str, str]) -> None:
    task = app.task(shared=False, name="t", once=Once(key="k"))(one)
    with pytest.raises(InvalidEntry, match="once"):
        task.apply_async(**wrong)


def test_a_conflict_at_publish_raises_and_names_the_key(app: Celery) -> None:
    task = app.task(shared=False, name="t", once=Once(key="k", scope="queue", on_conflict="raise"))(one)
    task.delay()
    with pytest.raises(OnceRejected) as caught:
        task.delay()
    assert caught.value.key == "k"


def test_a_caller_whose_results_are_sent_to_it_is_told_of_a_skip_too(app: Celery, once_server: Server) -> None:
    app = make_app(once_server.url, backend="rpc://")
    task = app.task(shared=False, name="t", once=Once(key="k", scope="queue"))(one)
    task.delay()
    with pytest.raises(OnceSkipped):
        task.delay().get(timeout=60)


def test_a_lock_taken_at_publish_lasts_until_the_eta_and_its_lease(app: Celery) -> None:
    task = app.task(shared=False, name="t", once=Once(key="k", scope="queue", lease=5))(one)
    task.apply_async(countdown=100)
    info = locks(app).get("k")
    assert info is not None
    assert 100 < (info.expires_in or 0) <= 105
    assert (info.state, info.holder) == ("queued", "queued t")


def test_every_message_carries_a_deadline(app: Celery, once_server: Server) -> None:
    sent: list[dict[str, Any]] = []
    from celery.signals import before_task_publish

    def keep(headers: dict[str, Any], **_: Any) -> None:
        sent.append(headers)

    before_task_publish.connect(keep, weak=False)
    try:
        task = app.task(shared=False, name="t", guard_life=100)(one)
        now = int(time.time() * 1000)
        app.conf.timezone = "America/New_York"
        task.delay()
        task.apply_async(countdown=50)
        # A worker reads it so, whatever the app's zone.
        task.apply_async(eta=datetime.fromtimestamp(now / 1000 + 50, UTC).replace(tzinfo=None))
    finally:
        before_task_publish.disconnect(keep)
    first, *later = (headers["redbeat_deadline"] - now for headers in sent)
    assert 100_000 <= first < 105_000
    assert [150_000 <= each < 155_000 for each in later] == [True, True]


@pytest.mark.parametrize("once", [None, Once(key="k"), Once(key="k", scope="queue")])
def test_a_run_costs_one_round_trip_to_begin_and_one_to_end(app: Celery, once: Once | None) -> None:
    task, client = app.task(shared=False, name="t", once=once)(one), LockClient.of(app).store.client

    def run_it(task_id: str) -> None:
        task.push_request(id=task_id, args=(), kwargs={}, called_directly=False, is_eager=False)
        try:
            task.before_start(task_id, (), {})
            finish(task, "SUCCESS", 1)
        finally:
            task.pop_request()

    run_it("first")  # The server learns the scripts.
    client.config_resetstat()
    run_it("second")
    calls = {name: stat["calls"] for name, stat in client.info("commandstats").items()}
    assert calls.pop("cmdstat_evalsha") == 2
    assert calls.pop("cmdstat_config|resetstat") == 1
    # What is left was called by the scripts; no command of a client's own is among it.
    assert not {"cmdstat_eval", "cmdstat_script|load", "cmdstat_ping"} & calls.keys()
    assert client.hget("{u}:guard:second", "state") == b"done"


# -- blocks ------------------------------------------------------------------------------------------------------------


def test_a_block_is_renewed_past_its_lease_and_freed_at_its_end(app: Celery) -> None:
    with lock(app, "k", lease=1) as held:
        assert held
        time.sleep(1.6)  # Past the lease is what this is about.
        held.check()
        with lock(app, "k", lease=1) as second:
            assert not second
            with pytest.raises(LockLost):
                second.check()
    assert locks(app).get("k") is None
    assert LockClient.of(app).store.client.zcard("{u}:once:index") == 0


def test_a_block_learns_that_its_lock_was_cleared(app: Celery) -> None:
    with lock(app, "k", lease=1) as held:
        assert locks(app).clear("k")
        with lock(app, "k", lease=5) as second:
            assert second.fence > held.fence
            eventually(lambda: held.lost)
    with pytest.raises(LockLost):
        held.check()


def test_a_block_whose_lock_was_given_too_late_knows_that_it_is_lost(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LockClient.of(app).store
    run = store._run

    def run_late(*args: Any, **fields: Any) -> Any:
        """Let the reply be under way for longer than the lease."""
        reply = run(*args, **fields)
        time.sleep(1.1)
        return reply

    with monkeypatch.context() as patch:
        patch.setattr(store, "_run", run_late)
        block = lock(app, "k", lease=1)
        held = block.__enter__()
    assert held.lost
    with pytest.raises(LockLost):
        held.check()
    block.__exit__(None, None, None)


def test_an_over_long_key_is_looked_at_and_cleared_as_it_was_given(app: Celery) -> None:
    key = "k" * 1000
    with lock(app, key, lease=1):
        info = locks(app).get(key)
        assert info is not None
        assert info.state == "running"
        assert locks(app).clear(key)
        assert locks(app).get(key) is None


def test_a_lock_that_was_cleared_stays_free_though_its_holder_lives(app: Celery) -> None:
    with lock(app, "k", lease=1) as held:
        assert locks(app).clear("k")
        eventually(lambda: held.lost)
        assert locks(app).get("k") is None
    with pytest.raises(LockLost):
        held.check()


def test_a_block_can_wait_for_its_turn(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, refused, begin = threading.Event(), threading.Event(), LockStore.begin

    def noted(self: LockStore, *args: Any, **options: Any) -> Any:
        verdict = begin(self, *args, **options)
        if verdict.word == "taken":
            refused.set()
        return verdict

    def first() -> None:
        with lock(app, "k"):
            entered.set()
            refused.wait(5)

    monkeypatch.setattr(LockStore, "begin", noted)
    thread = threading.Thread(target=first)
    thread.start()
    entered.wait(5)
    with lock(app, "k", timeout=5) as held:
        assert held
        assert refused.is_set()
    thread.join()


def test_a_block_that_waits_leaves_no_trace_of_its_attempts(app: Celery) -> None:
    client = LockClient.of(app).store.client
    with lock(app, "k"):
        keys = sorted(client.keys("*"))
        with lock(app, "k", timeout=0.5) as held:
            assert not held
        assert sorted(client.keys("*")) == keys


def test_a_block_is_freed_by_an_exception(app: Celery) -> None:
    with pytest.raises(RuntimeError), lock(app, "k"):
        raise RuntimeError
    with lock(app, "k") as held:
        assert held


@together("lease", [0.5, "5x", True, float("nan"), float("inf"), 1e300])
def test_a_lease_that_is_none_is_refused(lease: Any) -> None:
    with pytest.raises(InvalidEntry, match=r"once\.lease"), lock(make_app(), "k", lease=lease):
        pass


@together("timeout", [-1, "5x", None, float("nan"), float("inf")])
@together("kind", ["app", "cache"])
def test_a_timeout_that_is_none_is_refused(kind: str, timeout: Any) -> None:
    where = make_app() if kind == "app" else Cache(None)
    with pytest.raises(InvalidEntry, match=r"^timeout"), lock(where, "k", timeout=timeout):
        pass


class Cache:
    """As a Django cache; ``add`` is atomic."""

    def __init__(self, client: Any) -> None:
        self.client = client

    def add(self, key: str, value: Any, timeout: float) -> bool:
        return bool(self.client.set(key, value, px=round(timeout * 1000), nx=True))

    def get(self, key: str) -> Any:
        return self.client.get(key)

    def delete(self, key: str) -> None:
        self.client.delete(key)


def test_a_cache_with_an_atomic_add_serves_as_well(once_server: Server) -> None:
    with once_server.client(decode_responses=True) as client:
        client.flushall()
        cache = Cache(client)
        with lock(cache, "k", lease=60) as held:
            assert held
            assert held.fence is None
            with lock(cache, "k", lease=60) as second:
                assert not second
        assert client.get("k") is None


def test_a_cache_lock_that_ran_out_is_not_deleted_under_its_next_holder(once_server: Server) -> None:
    with once_server.client(decode_responses=True) as client:
        client.flushall()
        cache = Cache(client)
        with lock(cache, "k", lease=1) as held:
            eventually(lambda: cache.add("k", "another", 60))
            assert held.lost
        assert client.get("k") == "another"


def test_a_block_survives_a_server_that_is_away_and_knows_once_its_lease_has_run_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with Server(**DURABLE) as server:
        app = make_app(server.url)
        with lock(app, "short", lease=2) as short:
            server.stop()
            eventually(lambda: "Renewal of the once-lock 'short'" in caplog.text, within=2)
            assert not short.lost
            server.start()
            with lock(app, "short", lease=2) as second:
                assert not second
            with server.client(decode_responses=True) as client:
                ends = client.execute_command("PEXPIRETIME", "{u}:once:lock:short")
                eventually(lambda: client.execute_command("PEXPIRETIME", "{u}:once:lock:short") > ends, within=2)
            assert not short.lost
        with lock(app, "long", lease=1) as long:
            server.stop()
            eventually(lambda: long.lost)
            server.start()
            with lock(app, "long", lease=5) as second:
                assert second
            assert long.lost


def test_a_task_is_sent_after_django_has_committed_a_transaction() -> None:
    script = """
import django
from celery import Celery
from django.conf import settings
settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}})
django.setup()
from django.db import transaction

app = Celery("x", task_cls="redbeat_lite:Task", broker="memory://")
app.conf.task_always_eager = True

@app.task(name="t")
def t(x):
    print("task", x)

with transaction.atomic():
    t.delay_on_commit(1)
    t.apply_async_on_commit((2,), countdown=1)
    print("end of the transaction")
"""
    ended = run_python("-c", script, env={})
    assert ended.stdout.splitlines() == ["end of the transaction", "task 1", "task 2"], ended.stderr

"""What the lock sweeper keeps, in process: the locks of tasks that wait in a queue."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from celery import Celery
from celery.exceptions import Ignore, SoftTimeLimitExceeded
from kombu import Queue
from kombu.exceptions import OperationalError

from redbeat_lite import Once, Task, install
from redbeat_lite.once import lock_store, run_lifecycle
from redbeat_lite.once.claims import Hold
from redbeat_lite.once.install import _leave
from redbeat_lite.once.lock_client import LockClient
from redbeat_lite.once.lock_store import LockStore
from redbeat_lite.once.worker import lock_sweeper
from redbeat_lite.once.worker.lock_sweeper import LockSweeper
from redbeat_lite.store.redis_values import server_ms
from tests.once.script_calls import wanted
from tests.support.server import Server
from tests.support.waiting import eventually

HOUR = 3_600_000
LOCK = "{t}:once:lock:k"


def nothing() -> None:
    """The function of the tasks here."""


def app_of(server: Server, **more: Any) -> Celery:
    """An app whose locks lie where the store has them."""
    app = Celery("unit", broker=server.url, set_as_current=False, **more)
    app.conf.redbeat_lite_key_prefix = "t"
    return app


@pytest.fixture
def sweeper(once_server: Server, store: LockStore) -> LockSweeper:
    """Of a worker that has received the task "a"."""
    return LockSweeper(LockClient.of(app_of(once_server)), {"a": object()})


def queued(store: LockStore, **fields: int) -> None:
    """The lock of "a" nears its end."""
    assert store.take(wanted("k", "a", 60_000, 0, "queued t", ""))
    store.client.hset(LOCK, mapping={"task": "a", **fields})
    store.client.pexpire(LOCK, 10_000)
    let_be_due(store, "k")


def let_be_due(store: LockStore, *keys: str | bytes) -> None:
    """Half of the leases of these locks is over."""
    store.client.zadd(store.keys.index, dict.fromkeys(keys, server_ms(store.client)))


def test_a_lock_taken_long_before_its_eta_is_kept_once_that_is_past(sweeper: LockSweeper, store: LockStore) -> None:
    now = server_ms(store.client)
    queued(store, since=now - 48 * HOUR, latest=now + 23 * HOUR)
    sweeper.round()
    assert store.client.pttl(LOCK) > 50_000


def test_the_lock_of_a_retry_is_kept_while_a_queue_of_this_worker_holds_messages(
    sweeper: LockSweeper, store: LockStore
) -> None:
    hold = Hold("token", "retried", 0, 60_000, key="k", life_ms=60_000)
    assert store.begin(hold).word == "run"
    store.end(hold, hold_ms=60_000)
    store.client.rpush("celery", "any message")
    store.client.pexpire(LOCK, 10_000)
    let_be_due(store, "k")
    sweeper.round()
    assert store.client.pttl(LOCK) > 50_000


def test_the_lock_of_a_message_that_must_be_lost_is_kept_no_longer(sweeper: LockSweeper, store: LockStore) -> None:
    now = server_ms(store.client)
    queued(store, since=now - 26 * HOUR, latest=now - HOUR)
    sweeper.round()
    assert store.client.pttl(LOCK) <= 10_000


def test_locks_that_only_other_workers_keep_hold_up_no_other_lock(
    sweeper: LockSweeper, store: LockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (lock_store, lock_sweeper):
        monkeypatch.setattr(module, "DUE", 10)
    now = server_ms(store.client)
    others = [f"other{number}" for number in range(35)]
    assert all(store.take(wanted(key, key, 60_000, 0, "queued t", "of others")) for key in others)
    queued(store, since=now, latest=now + HOUR)
    store.client.zadd(store.keys.index, dict.fromkeys(others, now - 1000))
    for _ in range(4):
        sweeper.round()
    assert store.client.pttl(LOCK) > 50_000
    let_be_due(store, "k")
    for _ in range(4):
        sweeper.round()
    assert store.client.zscore(store.keys.index, "k") > server_ms(store.client), "it begins at the front again"


def test_each_round_extends_the_locks_that_end_first(
    once_server: Server, store: LockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (lock_store, lock_sweeper):
        monkeypatch.setattr(module, "DUE", 10)
    keys = [f"k{n}" for n in range(30)]
    assert all(store.take(wanted(key, key, 60_000, 0, "queued t", "")) for key in keys)
    let_be_due(store, *keys)
    sweeper = LockSweeper(LockClient.of(app_of(once_server)), dict.fromkeys(keys))
    for left in (20, 10, 0):
        sweeper.round()
        assert len(store.due()[0]) == min(left, 10)


def test_the_clock_of_the_machine_does_not_matter(
    sweeper: LockSweeper, store: LockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    queued(store)
    true_time = time.time
    monkeypatch.setattr(time, "time", lambda: true_time() + 48 * 3600)
    sweeper.round()
    assert store.client.pttl(LOCK) > 50_000


def test_thousands_that_are_queued_are_all_kept(sweeper: LockSweeper, store: LockStore) -> None:
    keys = [f"k{n}" for n in range(1100)]
    assert all(store.take(wanted(key, "a", 60_000, 0, "queued t", "")) for key in keys)
    pipe = store.client.pipeline()
    # In front of them, locks that ran out while nobody looked, and those of a queue of other workers.
    pipe.zadd("{t}:once:index", {f"gone{n}": n for n in range(1100)})
    for key in keys:
        pipe.pexpire(f"{{t}}:once:lock:{key}", 10_000)
        pipe.hset(f"{{t}}:once:lock:{key}", "task", "a" if key >= "k5" else "elsewhere")
    pipe.execute()
    let_be_due(store, *keys)
    sweeper.round()
    for key in keys:
        pipe.pttl(f"{{t}}:once:lock:{key}")
    assert min(left for key, left in zip(keys, pipe.execute(), strict=True) if key >= "k5") > 50_000


def test_an_empty_queue_stops_nothing(sweeper: LockSweeper, store: LockStore) -> None:
    assert store.take(wanted("gone", "lost", 60_000, 0, "queued t", "celery"))
    store.client.pexpire("{t}:once:lock:gone", 9_000)
    let_be_due(store, "gone")
    queued(store)
    sweeper.round()
    assert store.client.pttl(LOCK) > 50_000
    assert store.client.pttl("{t}:once:lock:gone") <= 9_000, "what is in no queue is not kept"


def test_what_is_in_no_queue_does_not_keep_its_lock_for_its_life(sweeper: LockSweeper, store: LockStore) -> None:
    names = {"lost": "celery", "elsewhere": "of-others", "unknown": "", "a": "celery"}
    assert all(store.take(wanted(name, name, 60_000, 0, "entry e", names[name], life_ms=HOUR)) for name in names)
    let_be_due(store, *names)
    sweeper.round()
    left = {name: store.client.pttl(f"{{t}}:once:lock:{name}") for name in names}
    assert left["lost"] <= 30_000
    assert min(left[name] for name in ("elsewhere", "unknown", "a")) > 50 * 60_000, "others may have it"


def test_any_number_of_lost_ones_stands_in_nobodys_way(sweeper: LockSweeper, store: LockStore) -> None:
    lost = [f"lost{n}" for n in range(1100)]
    assert all(store.take(wanted(key, "lost", 60_000, 0, "entry e", "celery")) for key in lost)
    queued(store)
    pipe = store.client.pipeline()
    for key in lost:
        pipe.pexpire(f"{{t}}:once:lock:{key}", 9_000)
    pipe.execute()
    let_be_due(store, *lost)
    sweeper.round()
    assert store.client.pttl(LOCK) > 50_000


def test_what_is_no_lock_stops_nothing(sweeper: LockSweeper, store: LockStore) -> None:
    assert store.take(wanted("odd", "a", 60_000, 0, "queued t", ""))
    store.client.hset("{t}:once:lock:odd", "lease", "long")
    store.client.pexpire("{t}:once:lock:odd", 9_000)
    store.client.set("{t}:once:lock:string", "somebody's")
    queued(store)
    let_be_due(store, "odd", "string", b"\xff")
    sweeper.round()
    assert store.client.pttl(LOCK) > 50_000


def test_a_broker_that_is_away_costs_no_lock(
    sweeper: LockSweeper, store: LockStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def size(self: LockSweeper, queue: str) -> int:
        asked.append(queue)
        raise OperationalError("connection refused")

    monkeypatch.setattr(LockSweeper, "_size", size)
    app = sweeper._client.app
    app.conf.task_queues = [Queue("one"), Queue("two")]
    app.amqp.queues.select(["one", "two"])
    for queue in ("one", "two"):
        assert store.take(wanted(queue, "queued", 60_000, 0, "queued t", queue))
        store.client.pexpire(f"{{t}}:once:lock:{queue}", 9_000)
    let_be_due(store, "one", "two")
    queued(store)
    sweeper.round()
    assert store.client.pttl(LOCK) > 50_000, "received by this worker"
    for queue in ("one", "two"):
        assert store.client.pttl(f"{{t}}:once:lock:{queue}") > 50_000, "may still be in its queue"
    assert len(asked) == 1, "each attempt takes seconds"
    let_be_due(store, "two")
    sweeper.round()
    assert caplog.text.count("Cannot look at the queues") == 1, "told once, not every second"


def test_a_retry_that_is_revoked_gives_its_lock_back(once_server: Server, store: LockStore) -> None:
    app = app_of(once_server)
    task = app.task(name="t", base=Task, once=Once(key="k"), shared=False)(nothing)
    queued(store)  # as the run before it leaves it
    _leave(task, SimpleNamespace(id="a", args=(), kwargs={}), terminated=False, expired=False)
    assert not store.client.exists(LOCK)


def test_a_revoked_task_has_no_copy_that_stands_by(once_server: Server, store: LockStore) -> None:
    app = app_of(once_server)
    task = app.task(name="t", base=Task, shared=False)(nothing)
    first = Hold("token", "a", 0, 60_000, life_ms=60_000)
    store.begin(first)
    store.begin(Hold("other", "a", 0, 60_000), "copy")
    assert store.end(first, "dead").standby
    _leave(task, SimpleNamespace(id="a", args=(), kwargs={}), terminated=False, expired=False)
    assert store.wake_standby("a") is None
    assert store.begin(Hold("third", "a", 0, 60_000)).word == "drop"


def test_a_lock_knows_the_queue_that_its_task_chooses(once_server: Server, store: LockStore) -> None:
    app = app_of(once_server)
    once = Once(key="k", scope="queue")
    task = app.task(name="t", base=Task, once=once, queue="big", shared=False)(nothing)
    task.delay()
    assert store.client.hget(LOCK, "queue") == "big"
    task.apply_async(queue="other", once_key="k2")
    assert store.client.hget("{t}:once:lock:k2", "queue") == "other"


def test_a_soft_limit_that_strikes_while_the_lock_is_given_back_keeps_nothing(
    once_server: Server, store: LockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = app_of(once_server, backend="cache+memory://")
    task = app.task(name="t", base=Task, once=Once(key="k"), shared=False)(nothing)
    task.push_request(id="a", args=(), kwargs={}, called_directly=False, is_eager=False)
    task.before_start("a", (), {})
    assert store.client.exists(LOCK)
    end, struck = LockStore.end, []

    def strike(self: LockStore, *args: Any, **options: Any) -> Any:
        if not struck:
            struck.append(True)
            raise SoftTimeLimitExceeded(1)
        return end(self, *args, **options)

    monkeypatch.setattr(LockStore, "end", strike)
    run_lifecycle.finish(task, "SUCCESS", None)
    assert not store.client.exists(LOCK)
    assert store.client.hget(store.keys.guard("a"), "state") == "done"


@pytest.fixture
def parked(once_server: Server, store: LockStore) -> Celery:
    """An app in which "gone" waits for "k", with the rest of a chain behind it, and has expired; after it, "next"."""
    app = app_of(once_server, backend="cache+memory://")
    install(app)
    task = app.task(name="t", base=Task, once=Once(key="k", on_conflict="wait"), shared=False)(nothing)
    soon = datetime.now(UTC) + timedelta(seconds=0.1)
    one = {"task": "t", "args": (), "kwargs": {}, "called_directly": False, "is_eager": False,
           "properties": {"reply_to": "caller", "correlation_id": "this"}}  # fmt: skip
    first = {"id": "gone", "expires": soon.isoformat(), "chain": [dict(task.si().set(task_id="tail"))]}
    held = Hold("token", "a", 0, 60_000, key="k")
    assert store.begin(held).word == "run"
    for fields in (first, {"id": "next"}):
        task.push_request(**one, **fields, delivery_info={"routing_key": f"queue-of-{fields['id']}"})
        with pytest.raises(Ignore, match="waits"):
            task.before_start(fields["id"], (), {})
        task.pop_request()
    eventually(lambda: server_ms(store.client) > soon.timestamp() * 1000 + 1)
    store.end(held)
    return app


def test_waiters_that_have_expired_are_sent_and_lose_their_places(parked: Celery, store: LockStore) -> None:
    LockClient.of(parked).wake(["k"])
    # A worker ends the first one when it takes it.
    assert [store.client.llen(f"queue-of-{name}") for name in ("gone", "next")] == [1, 1]
    assert store.client.zrange("{t}:once:wait:k", 0, -1) == ["next"]


def test_whoever_dies_while_it_sends_a_waiter_that_has_expired_is_repeated(
    parked: Celery, store: LockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(LockStore, "leave", Mock(side_effect=ConnectionError))
        LockClient.of(parked).wake(["k"])
    assert store.client.llen("queue-of-next") == 0
    store.client.hset("{t}:once:parked:k", "resend", 0)
    LockClient.of(parked).wake(["k"])
    assert [store.client.llen(f"queue-of-{name}") for name in ("gone", "next")] == [2, 1]


def test_hundreds_that_expired_are_sent_in_one_go(parked: Celery, store: LockStore) -> None:
    text = store.client.hget("{t}:once:parked:k", "m:gone")
    for n in range(200):
        one = Hold("token", f"w{n}", 0, 60_000, key="k", expires_ms=1, life_ms=60_000, on_conflict="wait")
        message = text.replace('"gone"', f'"w{n}"')
        assert store.begin(one, message).word == "parked"
    assert store.leave("k", "next")
    LockClient.of(parked).wake(["k"])
    assert not store.client.exists("{t}:once:wait:k", "{t}:once:parked:k")
    assert store.client.llen("queue-of-gone") == 201

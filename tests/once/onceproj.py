"""The Celery app of the worker tests: workers import it as ``onceproj``, the tests build the same one."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import time
from typing import Any

import celery
import kombu.transport.redis
import redis
from celery import Celery, signals
from celery.exceptions import Ignore, Reject
from kombu import Queue
from kombu.common import Broadcast
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from redbeat_lite import LockUnavailable, Once, Task, install

LEASE = 3.0
VISIBILITY = 4.0

SKEW = float(os.environ.get("ONCE_SKEW", "0"))


def _skew_clock() -> None:
    """This process lives in another time: everything that asks for the wall clock is off by ``ONCE_SKEW`` seconds."""
    true_time = time.time
    time.time = lambda: true_time() + SKEW
    kombu.transport.redis.time = time.time


def _hurry_kombu() -> None:
    """Have a kombu before 5.7, which has no ``unacked_restore_interval``, give back messages of dead workers every 10 s
    instead of every 100 s."""
    start, num, _ = kombu.transport.redis.QoS.restore_visible.__defaults__
    kombu.transport.redis.QoS.restore_visible.__defaults__ = (start, num, 1)


def make_app(url: str, **conf: Any) -> Celery:
    app = Celery("onceproj", broker=url, backend=url, task_cls="redbeat_lite:Task")
    app.conf.update(
        redbeat_lite_key_prefix="t",
        redbeat_lite_once_lease=LEASE,
        broker_transport_options={
            "visibility_timeout": float(os.environ.get("ONCE_VISIBILITY", VISIBILITY)),
            "unacked_restore_interval": 1,
            "unacked_restore_throttle": 1,
            # Kombu's lock on giving messages back, for five minutes by default: a worker that is killed at that moment
            # would keep the others from it for longer than any test waits.
            "unacked_mutex_expire": 2,
        },
        worker_prefetch_multiplier=int(os.environ.get("ONCE_PREFETCH", "1")),
        broker_connection_retry_on_startup=True,
        worker_hijack_root_logger=True,
        task_default_queue="once",
        task_queues=[Queue("once"), Broadcast("everybody")],
        task_create_missing_queues=True,
        result_expires=600,
    )
    app.conf.update(conf)
    install(app)
    return app


app = make_app(
    os.environ.get("ONCE_URL", "redis://localhost:1"),
    **json.loads(os.environ.get("ONCE_CONF", "{}")),
)
if SKEW:
    _skew_clock()
if kombu.VERSION[:2] < (5, 7):
    _hurry_kombu()

_clients: dict[int, redis.Redis] = {}


def client() -> redis.Redis:
    """A client of this process."""
    if os.getpid() not in _clients:
        path = app.conf.broker_url.split("://")[1]
        # The tests' own notes outlast a restart of the server. A redis-py before 6 makes one attempt otherwise, and
        # does not take it for a failed connection if nobody listens.
        retry = Retry(ConstantBackoff(0.2), 100, (redis.ConnectionError, OSError))
        _clients[os.getpid()] = redis.Redis(
            unix_socket_path=path, decode_responses=True, retry=retry, retry_on_error=[redis.ConnectionError]
        )
    return _clients[os.getpid()]


def note(key: str, event: str, task: Any, **more: Any) -> None:
    """Write one event to the log of ``key``, with the server's time."""
    seconds, micros = client().time()
    once = getattr(task, "once", None)
    entry = {
        "event": event,
        "id": task.request.id,
        "retries": task.request.retries,
        "pid": os.getpid(),
        "at": seconds + micros / 1e6,
        "fence": once.fence if once else None,
        "lost": once.lost if once else None,
        "redelivered": bool(task.request.delivery_info.get("redelivered")),
        **more,
    }
    client().rpush(f"log:{key}", json.dumps(entry))


@signals.task_received.connect
def hang(request: Any = None, **_: Any) -> None:
    """Have the main process of the first worker that receives such a message hang, as a deadlock would."""
    if request.kwargs.get("how") == "hang main" and client().incr(f"hung:{request.id}") == 1:
        time.sleep(3600)


def body(task: Any, key: str, seconds: float, how: str) -> str:
    """What every task here does: note the start, do as ``how`` says, note the end."""
    note(key, "start", task)
    if how == "fail":
        raise ValueError("as asked")
    if how == "hang":
        time.sleep(3600)
    if how == "hang once" and client().incr(f"hung:{key}:{task.request.id}") == 1:
        time.sleep(3600)
    if how == "die" and not client().incr(f"died:{key}:{task.request.id}") > 1:
        os.kill(os.getpid(), 9)
    if how == "retry" and task.request.retries == 0:
        raise task.retry(countdown=seconds or 0.5, max_retries=3)
    if how == "reject" and client().incr(f"rejected:{key}:{task.request.id}") == 1:
        raise Reject("as asked", requeue=True)
    if how == "ignore":
        raise Ignore("as asked")
    if how == "replace":
        raise task.replace(app.tasks[task.name].si(key, how="until").set(countdown=0.5))
    if how == "move":
        raise task.replace(app.tasks[task.name].si(key + "-moved", seconds=seconds))
    if how == "gil":
        # PyDLL keeps the interpreter's lock: no other thread of this process runs meanwhile.
        ctypes.PyDLL(None).usleep(int(seconds * 1e6))
    elif how == "compute":
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pass
    elif how == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(3600)
    elif how in ("until", "until kept", "retry"):
        while not client().exists(f"go:{key}") or (how == "until kept" and task.once.lost):
            time.sleep(0.02)
    else:
        time.sleep(seconds)
    note(key, "end", task)
    return key


@app.task(shared=False, bind=True)
def plain(self: Any, key: str, seconds: float = 0, how: str = "") -> str:
    return body(self, key, seconds, how)


@app.task(shared=False, bind=True, acks_late=True)
def late(self: Any, key: str, seconds: float = 0, how: str = "") -> str:
    return body(self, key, seconds, how)


@app.task(shared=False, bind=True, acks_late=True, acks_on_failure_or_timeout=False)
def kept(self: Any, key: str, seconds: float = 0, how: str = "") -> str:
    return body(self, key, seconds, how)


@app.task(shared=False, bind=True, once=Once(key="{key}", lease=LEASE))
def skip(self: Any, key: str, seconds: float = 0, how: str = "") -> str:
    return body(self, key, seconds, how)


@app.task(shared=False, bind=True, acks_late=True, once=Once(key="{key}", lease=LEASE))
def skip_late(self: Any, key: str, seconds: float = 0, how: str = "") -> str:
    return body(self, key, seconds, how)


@app.task(shared=False, bind=True, acks_late=True, reject_on_worker_lost=True, once=Once(key="{key}", lease=LEASE))
def skip_requeue(self: Any, key: str, seconds: float = 0, how: str = "") -> str:
    return body(self, key, seconds, how)


@app.task(shared=False, bind=True, once=Once(key="{key}", on_conflict="wait", lease=LEASE))
def wait(self: Any, key: str, seconds: float = 0, how: str = "", n: int = 0) -> int:
    body(self, key, seconds, how)
    return n


@app.task(shared=False, bind=True, track_started=True, once=Once(key="{key}", on_conflict="wait", lease=LEASE))
def tracked(self: Any, key: str, seconds: float = 0, how: str = "", n: int = 0) -> int:
    body(self, key, seconds, how)
    return n


@app.task(shared=False, bind=True, once=Once(key="{key}", on_conflict="wait", lease=LEASE, max_waiters=2))
def crowded(self: Any, key: str, seconds: float = 0, how: str = "", n: int = 0) -> int:
    body(self, key, seconds, how)
    return n


@app.task(shared=False, bind=True, acks_late=True, once=Once(key="{key}", on_conflict="wait", lease=LEASE))
def wait_late(self: Any, key: str, seconds: float = 0, how: str = "", n: int = 0) -> int:
    body(self, key, seconds, how)
    return n


@app.task(
    shared=False,
    bind=True,
    acks_late=True,
    reject_on_worker_lost=True,
    once=Once(key="{key}", on_conflict="wait", lease=LEASE),
)
def wait_requeue(self: Any, key: str, seconds: float = 0, how: str = "", n: int = 0) -> int:
    body(self, key, seconds, how)
    return n


@app.task(shared=False, bind=True, once=Once(key="{key}", on_conflict="raise", lease=LEASE))
def reject(self: Any, key: str, seconds: float = 0, how: str = "") -> str:
    return body(self, key, seconds, how)


@app.task(shared=False, bind=True, once=Once(key="{key}", scope="queue", lease=LEASE))
def queue_skip(self: Any, key: str, seconds: float = 0, how: str = "") -> str:
    return body(self, key, seconds, how)


@app.task(shared=False, bind=True, once=Once(key="{key}", scope="queue", on_conflict="raise", lease=LEASE))
def queue_raise(self: Any, key: str, seconds: float = 0, how: str = "") -> str:
    return body(self, key, seconds, how)


@app.task(
    shared=False,
    bind=True,
    autoretry_for=(ValueError,),
    retry_backoff=False,
    max_retries=2,
    default_retry_delay=0.3,
    once=Once(key="{key}", lease=LEASE),
)
def auto(self: Any, key: str) -> str:
    note(key, "start", self)
    if self.request.retries < 2:
        raise ValueError("as asked")
    return key


@app.task(
    shared=False,
    bind=True,
    autoretry_for=(LockUnavailable,),
    max_retries=None,
    default_retry_delay=1,
    once=Once(key="{key}", lease=LEASE),
)
def insists(self: Any, key: str) -> str:
    return body(self, key, 0, "")


@app.task(shared=False, bind=True, once=Once(key="{key}", lease=LEASE, hold_on_retry=False))
def loose(self: Any, key: str, seconds: float = 0, how: str = "") -> str:
    return body(self, key, seconds, how)


@app.task(shared=False, bind=True, acks_late=True, once=Once(key="{key}", lease=1, max_hold=1.5))
def bounded(self: Any, key: str, seconds: float = 0, how: str = "") -> str:
    return body(self, key, seconds, how)


@app.task(shared=False)
def add(*numbers: Any) -> list[Any]:
    return list(numbers)


@app.task(shared=False)
def collect(results: list[Any], key: str) -> list[Any]:
    return [*results, key]


@app.task(shared=False)
def calls(key: str) -> str:
    """The name of the error that a call meets."""
    try:
        queue_raise.delay(key)
    except Exception as exc:
        return type(exc).__name__
    return ""


@app.task(shared=False, bind=True, base=celery.Task)
def foreign(self: Any, key: str, seconds: float = 0, how: str = "") -> str:
    """Of a class that knows nothing of locks."""
    return body(self, key, seconds, how)


@app.task(shared=False, bind=True, base=celery.Task, acks_late=True)
def foreign_late(self: Any, key: str, seconds: float = 0, how: str = "") -> str:
    return body(self, key, seconds, how)


@app.task(shared=False, bind=True, base=celery.Task, track_started=True)
def foreign_tracked(self: Any, key: str, seconds: float = 0, how: str = "") -> str:
    return body(self, key, seconds, how)


class Own(Task):
    """A task class with hooks of its own."""

    abstract = True

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        super().before_start(task_id, args, kwargs)
        client().rpush(f"hooks:{args[0]}", "before_start")

    def on_failure(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        client().rpush(f"hooks:{args[0]}", "on_failure")


class OwnRequest:
    """Made a request class below: importing Celery's at module level would load the worker into every client."""


def _own_request() -> type:
    from celery.worker.request import Request

    class Mine(Request):
        def on_accepted(self, pid: int, time_accepted: float) -> None:
            client().rpush(f"hooks:{self.args[0]}", "on_accepted")
            super().on_accepted(pid, time_accepted)

    return Mine


@app.task(shared=False, bind=True, base=Own, Request=_own_request(), once=Once(key="{key}", lease=LEASE))
def own(self: Any, key: str, seconds: float = 0, how: str = "") -> str:
    return body(self, key, seconds, how)


class Fatal(Task):
    """Whoever publishes it first is killed."""

    abstract = True

    def apply_async(self, args: Any = None, *more: Any, **options: Any) -> Any:
        if client().incr(f"died:{args[0]}") == 1:
            os.kill(os.getpid(), 9)
        return super().apply_async(args, *more, **options)


@app.task(shared=False, bind=True, base=Fatal)
def fatal(self: Any, key: str) -> str:
    return body(self, key, 0, "")


class Base(Task):
    """Has a body that others go on from."""

    abstract = True

    def run(self, key: str) -> str:
        return body(self, key, 0, "")


@app.register_task
class Derived(Base):
    name = "onceproj.derived"
    once = Once(key="{key}", lease=LEASE)

    def run(self, key: str) -> str:
        super().run(key)
        return body(self, key, 0, "until")


derived = app.tasks["onceproj.derived"]

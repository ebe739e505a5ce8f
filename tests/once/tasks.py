"""The Celery project of the once-locks: a task of each policy. Workers and tests import it.

The app is made for the server that ``ONCE_URL`` names when this module is imported.
"""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any

import celery
import kombu.transport.redis
from celery import Celery, signals
from kombu import Queue
from kombu.common import Broadcast

from redbeat_lite import LockUnavailable, Once, Task, install
from tests.harness.history import HistoryLog, Marks
from tests.harness.project import (
    LATE,
    LEASE,
    REQUEUED,
    SETTINGS,
    TRANSPORT,
    VISIBILITY,
    Part,
    act,
    noted,
)

#: Seconds for which the task ``bounded`` may keep its lock.
MAX_HOLD = 1.5

#: The same in ms, by the names of tasks.
_HOLDS = {"once.bounded": round(1000 * MAX_HOLD)}


def make_app(url: str, visibility: float = VISIBILITY, **conf: Any) -> Celery:
    """Make the app, without its tasks, for one server; kombu's timeout is in seconds."""
    app = Celery("once", broker=url, backend=url, task_cls="redbeat_lite:Task")
    app.conf.update(SETTINGS)
    app.conf.update(
        redbeat_lite_key_prefix="t",
        redbeat_lite_once_lease=LEASE,
        broker_transport_options={**TRANSPORT, "visibility_timeout": visibility},
        worker_hijack_root_logger=True,
        task_default_queue="once",
        task_queues=[Queue("once"), Broadcast("everybody")],
    )
    app.conf.update(conf)
    install(app)
    return app


def shift_clock(seconds: float) -> None:
    """Shift the wall clock of this process."""
    true_time = time.time
    time.time = lambda: true_time() + seconds
    kombu.transport.redis.time = time.time


def hurry_kombu() -> None:
    """Have kombu restore the messages of dead workers every 10 s instead of every 100 s.

    Before version 5.7 it has no setting for that.
    """
    restore = kombu.transport.redis.QoS.restore_visible
    start, number, _ = restore.__defaults__
    restore.__defaults__ = (start, number, 1)


app = make_app(
    os.environ.get("ONCE_URL", "redis://localhost:1"),
    **json.loads(os.environ.get("ONCE_CONF", "{}")),
)
if "ONCE_SKEW" in os.environ:
    shift_clock(float(os.environ["ONCE_SKEW"]))
if kombu.VERSION[:2] < (5, 7):
    hurry_kombu()


def marks() -> Marks:
    """Return the marks of the present test."""
    return HistoryLog.of_environment().marks


@signals.task_received.connect(weak=False)  # type: ignore[untyped-decorator]
def hang(request: Any = None, **_: Any) -> None:
    """Hang, as in a deadlock, in the main process of the first worker that receives the message."""
    if request.kwargs.get("how") == "hang main" and marks().add(f"hung-{request.id}") == 1:
        time.sleep(3600)


def play(task: Any, key: str, seconds: float, how: str) -> None:
    """Run a body that does what ``how`` says. Its name in the history is the key."""
    with noted(task, name=key, holds=_HOLDS.get(task.name)) as body:
        times = marks().add(f"ran-{key}-{task.request.id}")
        act(Part(task, body, marks(), key, times), how, seconds)


def run(self: Any, key: str, seconds: float = 0, how: str = "", n: int | None = None) -> Any:
    """Play, and return the number of the task if it has one."""
    play(self, key, seconds, how)
    return key if n is None else n


def once(on_conflict: Any = "skip", **policy: Any) -> Once:
    return Once(**{"key": "{key}", "on_conflict": on_conflict, "lease": LEASE, **policy})


#: Options of tasks whose class knows nothing of locks.
_FOREIGN = {"base": celery.Task}

_TASKS: dict[str, dict[str, Any]] = {
    "plain": {},
    "late": LATE,
    "kept": {**LATE, "acks_on_failure_or_timeout": False},
    "skip": {"once": once()},
    "skip_late": {**LATE, "once": once()},
    "skip_requeue": {**REQUEUED, "once": once()},
    "reject": {"once": once("raise")},
    "queue_skip": {"once": once(scope="queue")},
    "queue_raise": {"once": once("raise", scope="queue")},
    "loose": {"once": once(hold_on_retry=False)},
    "bounded": {**LATE, "once": once(lease=1, max_hold=MAX_HOLD)},
    "insists": {
        "once": once(),
        "autoretry_for": (LockUnavailable,),
        "max_retries": None,
        "default_retry_delay": 1,
    },
    "auto": {
        "once": once(),
        "autoretry_for": (ValueError,),
        "retry_backoff": False,
        "max_retries": 2,
        "default_retry_delay": 0.3,
    },
    "foreign": _FOREIGN,
    "foreign_late": {**_FOREIGN, **LATE},
    "foreign_tracked": {**_FOREIGN, "track_started": True},
    "wait": {"once": once("wait")},
    "tracked": {"once": once("wait"), "track_started": True},
    "crowded": {"once": once("wait", max_waiters=2)},
    "wait_late": {**LATE, "once": once("wait")},
    "wait_requeue": {**REQUEUED, "once": once("wait")},
}

for _name, _options in _TASKS.items():
    app.task(name=f"once.{_name}", shared=False, bind=True, **_options)(run)


@app.task(shared=False, name="once.add")
def add(*numbers: Any) -> list[Any]:
    return list(numbers)


@app.task(shared=False, name="once.collect")
def collect(results: list[Any], key: str) -> list[Any]:
    return [*results, key]


@app.task(shared=False, name="once.calls")
def calls(key: str) -> str:
    """Return the name of the error that a call meets."""
    try:
        app.tasks["once.queue_raise"].delay(key)
    except Exception as exc:
        return type(exc).__name__
    return ""


class Own(Task):
    """A task class with hooks of its own."""

    abstract = True

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        super().before_start(task_id, args, kwargs)
        marks().add(f"before_start-{args[0]}")

    def on_failure(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        marks().add(f"on_failure-{args[0]}")


def own_request() -> type:
    """Return a request class of a project's own.

    Celery's is imported here, because an import above would load the worker into every client.
    """
    from celery.worker.request import Request

    class OwnRequest(Request):
        def on_accepted(self, pid: int, time_accepted: float) -> None:
            marks().add(f"on_accepted-{self.args[0]}")
            super().on_accepted(pid, time_accepted)

    return OwnRequest


_OWN: dict[str, Any] = {"base": Own, "Request": own_request(), "once": once()}
app.task(name="once.own", shared=False, bind=True, **_OWN)(run)


class Fatal(Task):
    """A task that kills the first process that publishes it."""

    abstract = True

    def apply_async(self, args: Any = None, *more: Any, **options: Any) -> Any:
        if marks().add(f"died-{args[0]}") == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().apply_async(args, *more, **options)


app.task(name="once.fatal", shared=False, bind=True, base=Fatal)(run)


class Base(Task):
    """A class whose body is called by that of a subclass."""

    abstract = True

    def run(self, key: str) -> str:
        play(self, key, 0, "")
        return key


@app.register_task
class Derived(Base):
    name = "once.derived"
    once = once()

    def run(self, key: str) -> str:
        super().run(key)
        play(self, key, 0, "until")
        return key

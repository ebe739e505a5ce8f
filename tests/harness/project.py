"""Task bodies for the tests' projects. They note themselves in the history, and act as asked."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from celery import signals
from celery.exceptions import Ignore, Reject

from redbeat_lite import Task
from tests.harness.history import Body, HistoryLog, Marks, now_ms

#: Seconds that a once-lock of the tests lives unless it is renewed.
LEASE = 3.0

#: Seconds after which kombu gives an unacknowledged message of theirs to somebody else.
VISIBILITY = 4.0

#: Options of kombu's transports. A worker takes a lock of kombu's while it restores messages. If
#: the worker is killed, that lock stays for five minutes by default, which is longer than any test
#: waits.
TRANSPORT = {
    "unacked_restore_interval": 1,
    "unacked_restore_throttle": 1,
    "unacked_mutex_expire": 2,
}

#: Settings of the apps whose tasks note themselves.
SETTINGS = {
    "worker_prefetch_multiplier": 1,
    "broker_connection_retry_on_startup": True,
    "task_create_missing_queues": True,
    "result_expires": 600,
}

#: Options of tasks whose messages are redelivered if their worker dies.
LATE = {"acks_late": True}

#: Options of tasks whose messages are also requeued at once if only the child dies that runs them.
REQUEUED = {"acks_late": True, "reject_on_worker_lost": True}

#: Seconds between two signs of life of a body that sleeps.
_PULSE = 0.05

#: Seconds between two looks for a mark.
_LOOK = 0.02

#: Seconds for which a body hangs. Something else ends it before.
_FOREVER = 3600.0

#: Where a request keeps the body that runs for it.
_BODY = "harness_body"

#: States in which Celery stores the result of a task. Then the task may not run again.
_FINAL = ("SUCCESS", "FAILURE")


# -- notes -----------------------------------------------------------------------------------------


@contextmanager
def noted(task: Any, **fields: Any) -> Iterator[Body]:
    """Note a run of a task body around the block that is the body."""
    request = task.request
    body = HistoryLog.of_environment().body(
        request.id,
        lock_key(task),
        fence=getattr(current(task), "fence", None),
        retries=request.retries,
        redelivered=bool(request.delivery_info.get("redelivered")),
        copies=not is_guarded(task),
        **fields,
    )
    setattr(request, _BODY, body)
    finished = False
    try:
        yield body
        finished = True
    finally:
        # The task is not done: it may run again until its worker has stored the result.
        body.ends(done=False, finished=finished, lost=getattr(current(task), "lost", None))


@signals.task_postrun.connect(weak=False)  # type: ignore[untyped-decorator]
def note_result(task: Any = None, state: str | None = None, **_: Any) -> None:
    """Note that a task is done.

    The package's own receiver of this signal was connected first, so it has run by then.
    """
    body = task.request.__dict__.pop(_BODY, None)
    if body is not None and state in _FINAL:
        record = {**body.record, "done": True, "succeeded": state == "SUCCESS"}
        HistoryLog.of_environment().append(record)


def current(task: Any) -> Any:
    """Return ``task.once``; None if the task's class does not come from the package."""
    return getattr(task, "once", None)


def lock_key(task: Any) -> str | None:
    """Return the key of the once-lock under which a body runs."""
    header = getattr(task.request, "redbeat_once", None)
    if header:
        return str(header["key"])
    once = current(task)
    return None if once is None else str(once.key)


def is_guarded(task: Any) -> bool:
    """Return whether the package promises that only one body runs for the task's id."""
    if lock_key(task) is not None:
        return True
    is_broadcast = task.request.delivery_info.get("exchange") == "everybody"
    return isinstance(task, Task) and not is_broadcast


# -- what bodies do --------------------------------------------------------------------------------


@dataclass
class Part:
    """The part that a body plays in a test: it looks for signals that have its name.

    ``times`` counts how often it has begun, this time included.
    """

    task: Any
    body: Body
    marks: Marks
    name: str
    times: int

    def sleep(self, seconds: float) -> None:
        """Sleep, with signs of life."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, _PULSE))
            if now_ms() >= self.body.record["ended"] + 1000 * _PULSE:
                self.body.lives()

    def wait_for(self, mark: str) -> None:
        """Wait until the test has set a mark, such as ``go``."""
        while not self.marks.count(f"{mark}-{self.name}"):
            self.sleep(_LOOK)


def act(part: Part, how: str, seconds: float) -> None:
    """Act as a test asks.

    Parameters:
        how: what to do; nothing if empty. If it ends in ``once``, only the first body does it.
        seconds: how long that takes, or the countdown of a retry.
    """
    if how.endswith(" once"):
        how = how.removesuffix(" once") if part.times == 1 else ""
    if how == "fail when marked":
        part.wait_for("fail")
    fail(part, how)
    end_early(part, how, seconds)
    if how == "hang":
        seconds = _FOREVER
    if how in ("until", "retry until"):
        part.wait_for("go")
    elif how == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        part.sleep(_FOREVER)
    elif how == "gil":
        # PyDLL keeps the interpreter's lock, so no other thread of this process runs meanwhile.
        ctypes.PyDLL(None).usleep(int(seconds * 1e6))
    elif how == "compute":
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pass
    elif how != "retry":
        part.sleep(seconds)


def fail(part: Part, how: str) -> None:
    """Raise an error if the body has to fail this time."""
    if how.startswith("fail until ") and part.times > int(how.removeprefix("fail until ")):
        return
    if how in ("fail", "fail when marked") or how.startswith("fail until "):
        raise ValueError("as asked")
    if how == "fail oddly":
        raise ValueError("caf\udce9")


def end_early(part: Part, how: str, seconds: float) -> None:
    """Raise an exception of Celery's, or end the process, if ``how`` says so."""
    task = part.task
    if how == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "cancelled":
        raise asyncio.CancelledError
    if how == "ignore":
        raise Ignore("as asked")
    if how == "reject":
        raise Reject("as asked", requeue=False)
    if how == "requeue" and part.times == 1:
        raise Reject("as asked", requeue=True)
    if how in ("retry", "retry until") and task.request.retries == 0:
        raise task.retry(countdown=seconds or 0.3, max_retries=3)
    if how == "replace":
        raise task.replace(task.si(part.name, how="until").set(countdown=0.5))
    if how == "move":
        raise task.replace(task.si(f"{part.name}-moved", seconds=seconds))

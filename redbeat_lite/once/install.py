"""``install(app)`` for workers, locks for tasks of other classes, and the task behind a canvas."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from functools import partial, wraps
from itertools import count
from typing import Any
from uuid import NAMESPACE_OID, uuid5

from celery import Celery, canvas, shared_task, signals
from kombu.utils.uuid import uuid

from .._base.public import public
from .._base.text import describe
from ..entries.canvas import CANVAS
from ..entries.run import Outcome
from .claims import is_guarded
from .lock_client import LockClient, record_outcome
from .run_lifecycle import begin, releasing
from .task import PUBLISHES

#: Step of a worker's consumer that prepares the tasks, by its import path.
_STEP = "redbeat_lite.once.worker.keeper:OnceStep"

#: Attribute that marks a task whose hook and body :func:`adopt` has wrapped.
_ADOPTED = "redbeat_adopted"


@public
def install(app: Celery) -> None:
    """Prepare an app for its workers.

    Call it once where the app is made; a second call does nothing. In a beat or a web process it
    costs nothing. No connection is opened before a worker starts.

    A worker of this app then releases the locks of tasks that crash, expire or are revoked. It
    publishes waiting tasks, and extends the locks of queued tasks. It keeps a Redis broker from
    redelivering messages that the worker still has. If an entry says ``once``, it acquires the lock
    for a task of any class, and drops copies of the message. It records the outcomes of the runs of
    entries, and applies the canvases of entries.

    Parameters:
        app: the Celery app.
    """
    if _STEP not in app.steps["consumer"]:
        app.steps["consumer"].add(_STEP)
    signals.task_revoked.connect(_leave, weak=False, dispatch_uid="redbeat_lite.once.leave")
    for signal in (signals.task_rejected, signals.task_unknown):
        signal.connect(_record_rejected, weak=False, dispatch_uid="redbeat_lite.once.rejected")


def _leave(sender: Any, request: Any, terminated: bool, expired: bool, **_: Any) -> None:
    """Release the lock, or the place among the waiters, of a message that will not run.

    Celery calls this for a message that was revoked or has expired. ``sender`` is its task.
    """
    if terminated:
        # The task has begun, and was killed. Its run releases the lock itself, or the main process
        # does so when the child is gone.
        return
    fields = request.__dict__
    outcome: Outcome = "expired" if expired else "revoked"
    record_outcome(sender.app, fields, (outcome, ""))
    # A message that is not guarded has no lock, no place among the waiters, and no parked copies.
    if is_guarded(sender, fields):
        LockClient.of(sender.app).give_up(sender, fields)


def _record_rejected(sender: Any, message: Any, exc: Any, name: str = "", **_: Any) -> None:
    """Record a message that the worker cannot decode, or whose task it does not know.

    The signal ``task_rejected`` passes the error ``exc``, and ``task_unknown`` the ``name`` of the
    task. ``sender`` is the worker's consumer.
    """
    fields = {**(message.headers or {}), "hostname": sender.hostname}
    why = "" if exc is None else describe(exc)
    if name:
        why = f"its worker knows no task {name!r}"
    record_outcome(sender.app, fields, ("rejected", why))


# -- tasks of other classes ------------------------------------------------------------------------


def adopt(task: Any) -> None:
    """Let a task of another class than ours acquire the lock that its message names.

    The beat, or a call with ``once_key``, has put the key of the lock into the message's headers. A
    second call of this function does nothing.
    """
    if hasattr(task, _ADOPTED):
        return
    setattr(task, _ADOPTED, True)
    # Celery must not store STARTED. begin() stores it, after the task has its lock.
    task.track_started = False
    # The wrapped body releases the lock early if another task follows, as the next one of a chain.
    task.run = releasing(task)
    original = type(task).before_start

    # Use the hook ``before_start``, and no signal: Celery ignores an exception of a signal's
    # receiver, and would run the body without the lock.
    @wraps(original)
    def before_start(self: Any, *args: Any, **kwargs: Any) -> None:
        # ``original`` may be inherited from a class whose hook is wrapped as well. Then begin() is
        # called twice, and the second call does nothing.
        begin(self)
        original(self, *args, **kwargs)

    type(task).before_start = before_start


# -- the task that applies a canvas ----------------------------------------------------------------

#: Function that makes the ids of the tasks and groups of a canvas, in this context. Celery has no
#: parameter for all of these ids, so this module replaces the function ``uuid`` of Celery's module.
_make_id: ContextVar[Callable[[], str]] = ContextVar("redbeat_lite_canvas_ids", default=uuid)
canvas.uuid = lambda: _make_id.get()()


@shared_task(name=CANVAS, **PUBLISHES)  # type: ignore[untyped-decorator]
def apply_canvas(self: Any, signature: dict[str, Any]) -> None:
    """Apply a canvas with ids made from this task's id, so that a copy publishes the same tasks."""
    ids = (str(uuid5(NAMESPACE_OID, f"{self.request.id}/{number}")) for number in count())
    token = _make_id.set(partial(next, ids))
    try:
        self.app.signature(signature).apply_async()
    finally:
        _make_id.reset(token)

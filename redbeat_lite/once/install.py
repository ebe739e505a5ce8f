"""``install(app)``: the worker's side, and the tasks of other classes and of canvases."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from functools import partial, wraps
from itertools import count
from typing import Any
from uuid import NAMESPACE_OID, uuid5

from celery import Celery, canvas, shared_task, signals
from celery.utils.log import get_logger
from kombu.utils.uuid import uuid

from .._base.public import public
from .._base.text import describe, text_of
from ..runs.run import Outcome, attempt_of
from .canvas import CANVAS
from .claims import is_guarded, policy_of
from .lock_client import LockClient, record_outcome
from .run_lifecycle import begin, run_and_release
from .task import PUBLISHES

logger = get_logger(f"celery.{__name__}")

_STEP = "redbeat_lite.once.worker.keeper:OnceStep"

#: Attribute of a hook or a body that this module has wrapped.
_ADOPTED = "redbeat_adopted"


@public
def install(app: Celery) -> None:
    """Prepare an app for its workers.

    Call it once where the app is made; a second call does nothing. In a beat or a web process it
    costs nothing.

    A worker of this app then releases the locks of tasks that crash, expire or are revoked, wakes
    tasks that wait, and keeps the locks of queued tasks. The worker keeps a Redis broker from
    redelivering messages that the worker still has. It locks and guards tasks of other classes
    whose entry says ``once``. It records the outcomes of the runs of entries, and applies the
    canvases of entries.
    No connection is opened before the worker starts.

    Parameters:
        app: the Celery app.
    """
    if _STEP not in app.steps["consumer"]:
        app.steps["consumer"].add(_STEP)
    signals.task_revoked.connect(_leave, weak=False, dispatch_uid="redbeat_lite.once.leave")
    for signal in (signals.task_rejected, signals.task_unknown):
        signal.connect(_record_rejected, weak=False, dispatch_uid="redbeat_lite.once.rejected")


def _leave(
    sender: Any = None,
    request: Any = None,
    terminated: bool = False,
    expired: bool = False,
    **_: Any,
) -> None:
    """Release the lock or place of a message that was revoked or has expired."""
    if terminated:
        return  # The run releases its lock itself, or the main process does when its child is gone.
    fields = request.__dict__
    task_id = str(request.id)
    outcome: Outcome = "expired" if expired else "revoked"
    record_outcome(sender.app, fields, outcome)
    if is_guarded(sender, fields):
        LockClient.of(sender.app).discard(task_id, attempt_of(fields))
    try:
        policy = policy_of(sender, fields)
    except Exception as exc:  # noqa: BLE001 - a callable key may raise anything
        # The lease frees the lock.
        logger.warning("Cannot tell the once-lock of task %s: %s", request.id, text_of(exc))
        return
    # The lock is released under every policy, because a retry that waits holds its lock too.
    if policy is not None:
        LockClient.of(sender.app).leave(policy[1], task_id)


def _record_rejected(
    sender: Any = None,
    message: Any = None,
    exc: Any = None,
    name: str = "",
    **_: Any,
) -> None:
    """Record a message that the worker cannot decode, or whose task it does not know."""
    fields = {**(message.headers or {}), "hostname": sender.hostname}
    why = "" if exc is None else describe(exc)
    if name:
        why = f"its worker knows no task {name!r}"
    record_outcome(sender.app, fields, "rejected", why)


# -- tasks of other classes ------------------------------------------------------------------------


def adopt(task: Any) -> None:
    """Let a task of another class acquire the lock that its message brings, and store STARTED late.

    The beat or ``once_key`` has put the lock into the message. A second call does nothing.
    """
    task.track_started = False
    if not hasattr(task.run, _ADOPTED):
        # The body is wrapped in the task and not in its class, because Celery may have put its own
        # retry around the body, in the task as well.
        task.run = _releasing(task, task.run)
    original = type(task).before_start
    if hasattr(original, _ADOPTED):
        return

    # The hook is ``before_start``. Celery swallows what a signal's receiver raises, and would run
    # the body without the lock.
    @wraps(original)
    def before_start(self: Any, *args: Any, **kwargs: Any) -> None:
        # If the class calls a base class that was adopted as well, the second call does nothing.
        begin(self)
        original(self, *args, **kwargs)

    setattr(before_start, _ADOPTED, True)
    type(task).before_start = before_start


def _releasing(task: Any, body: Any) -> Any:
    # A function, because tools that inspect tasks expect one.
    @wraps(body)
    def run_body(*args: Any, **kwargs: Any) -> Any:
        return run_and_release(task, body, *args, **kwargs)

    setattr(run_body, _ADOPTED, True)
    return run_body


# -- the task that applies a canvas ----------------------------------------------------------------

#: Names the members and groups of a canvas while Celery applies it in this context. The group of a
#: chord within another canvas takes no id from outside.
_name: ContextVar[Callable[[], str]] = ContextVar("redbeat_lite_canvas_ids", default=uuid)
canvas.uuid = lambda: _name.get()()


@shared_task(name=CANVAS, **PUBLISHES)  # type: ignore[untyped-decorator]
def apply_canvas(self: Any, signature: dict[str, Any]) -> None:
    """Apply a canvas under ids made from this task's, so that a copy publishes the same ones."""
    ids = (str(uuid5(NAMESPACE_OID, f"{self.request.id}/{number}")) for number in count())
    token = _name.set(partial(next, ids))
    try:
        self.app.signature(signature).apply_async()
    finally:
        _name.reset(token)

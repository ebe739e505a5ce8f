"""``install(app)``: the worker's side, hooked into Celery's signals and its consumer."""

from __future__ import annotations

from typing import Any

from celery import Celery, signals
from celery.utils.log import get_logger

from ..errors import describe, text_of
from ..public import public
from ..runs.run import attempt_of
from . import canvas_task, fates  # noqa: F401 - a task is registered, and the release of locks connected to ends of runs
from .hold import is_guarded, policy_of
from .runtime import Runtime

logger = get_logger(f"celery.{__name__}")

_STEP = "redbeat_lite.once.worker.step:OnceStep"


@public
def install(app: Celery) -> None:
    """Prepare an app for its workers. Call it once where the app is made; again does nothing, in a beat or a web
    process it costs nothing.

    A worker of this app then gives back the locks of tasks that crash, expire or are revoked, wakes tasks that wait,
    keeps the locks of queued tasks, keeps a Redis broker from delivering again what it still has, and holds back and
    guards tasks of other classes whose entry says ``once``. It records what becomes of the runs of entries, and applies
    the canvases of entries. No connection is opened before the worker starts.

    Parameters:
        app: the Celery app.
    """
    if _STEP not in app.steps["consumer"]:
        app.steps["consumer"].add(_STEP)
    signals.task_revoked.connect(_leave, weak=False, dispatch_uid="redbeat_lite.once.leave")
    for refused in (signals.task_rejected, signals.task_unknown):
        refused.connect(_rejected, weak=False, dispatch_uid="redbeat_lite.once.rejected")


def _leave(sender: Any = None, request: Any = None, terminated: bool = False, expired: bool = False, **_: Any) -> None:
    """A message was discarded, revoked or expired: in the main process, where nothing else will end it."""
    if terminated:
        return  # The run gives back by itself, or the departure of its child does.
    fields, task_id = request.__dict__, str(request.id)
    fates.tell(sender.app, fields, "expired" if expired else "revoked")
    if is_guarded(sender, fields):
        Runtime.of(sender.app).discard(task_id, attempt_of(fields))
    try:
        found = policy_of(sender, fields)
    except Exception as exc:  # noqa: BLE001 - a callable key may raise anything; the lease frees the lock
        logger.warning("Cannot tell the once-lock of task %s: %s", request.id, text_of(exc))
        return
    if found is not None:  # whatever the policy: a retry that waits holds its lock too
        Runtime.of(sender.app).leave(found[1], task_id)


def _rejected(sender: Any = None, message: Any = None, exc: Any = None, name: str = "", **_: Any) -> None:
    """The worker cannot make a task of a message, or knows none of that name."""
    fields = {**(message.headers or {}), "hostname": sender.hostname}
    why = f"its worker knows no task {name!r}" if name else "" if exc is None else describe(exc)
    fates.tell(sender.app, fields, "rejected", why)

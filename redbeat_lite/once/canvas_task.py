"""The built-in task that applies a canvas, in a worker, under the same ids whenever its message is delivered."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from itertools import count
from typing import Any
from uuid import NAMESPACE_OID, uuid5

from celery import canvas, shared_task
from kombu.exceptions import OperationalError
from kombu.utils.uuid import uuid

from .canvas import CANVAS
from .store import DOWN
from .task import Task

#: What says that a message was not taken, by a broker that is away for now.
NOT_TAKEN: tuple[type[Exception], ...] = (*DOWN, OperationalError)

#: Options of a task that does nothing but publish others, and may do so again.
_RETRIES = {"autoretry_for": NOT_TAKEN, "retry_backoff": 1, "retry_backoff_max": 60, "max_retries": None}
PUBLISHES: dict[str, Any] = {"base": Task, "bind": True, "ignore_result": True, **_RETRIES}
PUBLISHES |= {"acks_late": True, "reject_on_worker_lost": True}

#: What names the members and groups of a canvas here and now. Celery does so while it applies it; the group of a chord
#: within another canvas takes no id from outside.
_name: ContextVar[Callable[[], str]] = ContextVar("redbeat_lite_canvas_ids", default=uuid)
canvas.uuid = lambda: _name.get()()


@shared_task(name=CANVAS, **PUBLISHES)  # type: ignore[untyped-decorator]
def apply_canvas(self: Any, signature: dict[str, Any]) -> None:
    """Apply a canvas whose ids follow from this task's, one after the other: a copy of it publishes the same ones."""
    ids = (str(uuid5(NAMESPACE_OID, f"{self.request.id}/{number}")) for number in count())
    token = _name.set(partial(next, ids))
    try:
        self.app.signature(signature).apply_async()
    finally:
        _name.reset(token)

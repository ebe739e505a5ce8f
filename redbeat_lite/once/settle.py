"""The end of a task that does not run: its result, the rest of its chain, its chord, so that nobody waits for ever."""

from __future__ import annotations

from typing import Any

from celery import states
from celery.app.task import Context
from celery.backends.base import DisabledBackend
from celery.backends.rpc import RPCBackend
from celery.exceptions import Ignore
from celery.utils.log import get_logger

from ..errors import text_of
from .errors import OnceSkipped

logger = get_logger(f"celery.{__name__}")


class Skipped(Ignore):  # type: ignore[misc] # Celery has no types
    """Raised in place of a run that was skipped, once its result says so; the main process tells monitors of it."""


def is_final(task: Any, task_id: str) -> bool:
    """Whether the result of a task says that it has ended; false where no result is kept."""
    return _state(task, task_id) in states.READY_STATES


def has_succeeded(task: Any, task_id: str) -> bool:
    """Whether the result of a task says that it has succeeded; false where no result is kept, or it cannot be read."""
    try:
        return bool(_state(task, task_id) == states.SUCCESS)
    except Exception as exc:  # noqa: BLE001 - a backend may raise anything
        logger.warning("Cannot tell whether task %s has succeeded: %s", task_id, text_of(exc))
        return False


def _state(task: Any, task_id: str) -> str | None:
    backend = task.backend
    # The results of rpc:// are in a queue of whoever called; asking for one would make a queue of our own.
    return None if isinstance(backend, (DisabledBackend, RPCBackend)) else backend.get_state(task_id)


def keeps_result(task: Any, request: Context) -> bool:
    """Whether the result of a run is to be stored: what the call said, or else the task."""
    # The request's class has the attribute too, which says nothing.
    ignored = vars(request).get("ignore_result")
    return not (task.ignore_result if ignored is None else ignored)


def settle(task: Any, request: Context, why: Exception) -> None:
    """End a task that does not run, so that nobody waits for it: its result, the rest of its chain, its chord. One that
    is skipped is REVOKED; any other cannot be published, which is a failure of its own."""
    skipped = isinstance(why, OnceSkipped)
    if skipped:
        logger.info("Skipped %s", why)
    else:
        logger.warning("Task %s[%s] is not published: %s: %s", request.task, request.id, type(why).__name__, why)
    stored, state = keeps_result(task, request), states.REVOKED if skipped else states.FAILURE
    task.backend.mark_as_failure(
        request.id, why, request=request, store_result=stored, call_errbacks=not skipped, state=state
    )

"""The outcome of a run for the record of runs, and the result of a task that does not run."""

from __future__ import annotations

import sys
from typing import Any

from billiard.process import current_process
from celery import states
from celery.app.task import Context
from celery.backends.base import DisabledBackend
from celery.backends.rpc import RPCBackend
from celery.exceptions import Ignore, Retry
from celery.utils.log import get_logger

from .._base.text import describe, text_of
from ..entries.run import Outcome, Reported
from .errors import OnceSkipped

logger = get_logger(f"celery.{__name__}")

#: The outcome of a run and its error, which may be empty.
Result = tuple[Reported, str]

#: State of a task in Celery -> outcome of its run.
_OUTCOMES: dict[str, Outcome] = {
    states.SUCCESS: "succeeded",
    states.FAILURE: "failed",
    states.RETRY: "retrying",
    states.REJECTED: "rejected",
}


class Skipped(Ignore):  # type: ignore[misc] # Celery has no types
    """Exception that ends a run before its body begins.

    The result REVOKED of the task is stored before the exception is raised. The worker's main
    process sends the event ``task-revoked`` when it gets the exception.
    """


# -- the outcome of a run --------------------------------------------------------------------------


def outcome_of(state: str | None, retval: Any) -> Result | None:
    """Return the outcome of a run whose body has ended.

    ``None`` if another process records the outcome, or if the message goes back to its queue.

    Parameters:
        state: ``state`` of the signal ``task_postrun``; ``None`` if the run was torn down, by an
            exit of the process or a kill of its greenlet.
        retval: ``retval`` of the same signal: the result, or the exception of the body.
    """
    if state is None:
        # A child does not know why it has to end. The main process knows, and records the outcome.
        if current_process().name != "MainProcess":
            return None
        # With a pool of threads or greenlets, the run is in the main process itself.
        return "lost", ""
    if is_requeued(state, retval):
        return None
    if isinstance(retval, Skipped):
        return "left out", ""
    # After an Ignore the outcome is unknown.
    outcome = _OUTCOMES.get(state, "unknown")
    error = retval
    # For a retry, show the error that made the task retry.
    if isinstance(retval, Retry) and isinstance(retval.exc, BaseException):
        error = retval.exc
    if state == states.SUCCESS or not isinstance(error, BaseException):
        return outcome, ""
    # An Ignore is no error, so its class is not shown.
    if state == states.IGNORED:
        return outcome, text_of(error)
    return outcome, describe(error)


def is_requeued(state: str | None, retval: Any) -> bool:
    """Return whether the body has returned its message to the queue."""
    return state == states.REJECTED and bool(retval.requeue)


def fatal_error(task: Any) -> BaseException | None:
    """Return the exception that ends a body, if it is no ``Exception``.

    Such are asyncio's ``CancelledError``, and the ``Timeout`` by which gevent and eventlet enforce
    the hard time limit. ``None`` if the run is torn down, or if its message goes back to its queue.
    """
    error = sys.exc_info()[1]
    name = type(error).__name__
    if isinstance(error, Exception | SystemExit | KeyboardInterrupt) or name == "GreenletExit":
        return None
    # Before 5.7, Celery has only the second option.
    acks = getattr(task, "acks_on_timeout", task.acks_on_failure_or_timeout)
    if name == "Timeout" and task.acks_late and not acks:
        return None
    return error


# -- the result of a task that does not run --------------------------------------------------------


def is_final(task: Any, task_id: str) -> bool:
    """Return whether the stored result of a task says that it has ended."""
    return _state(task, task_id) in states.READY_STATES


def has_succeeded(task: Any, task_id: str) -> bool:
    """Return whether the stored result of a task says that it has succeeded.

    ``False`` if no result is stored, or if the result cannot be read.
    """
    try:
        return bool(_state(task, task_id) == states.SUCCESS)
    except Exception as exc:  # noqa: BLE001 - a backend may raise anything
        logger.warning("Cannot tell whether task %s has succeeded: %s", task_id, text_of(exc))
        return False


def keeps_result(task: Any, request: Context) -> bool:
    """Return whether the result of a run is stored. The option of the call overrides the task's."""
    # Read only the attributes of the request itself. For a call without the option, getattr() would
    # return an attribute of the request's class, and not the option of the task.
    ignored = vars(request).get("ignore_result")
    if ignored is None:
        ignored = task.ignore_result
    return not ignored


def end_unrun(task: Any, request: Context, why: Exception) -> None:
    """Store the result of a task that does not run, so that no caller or chord waits for it.

    A skipped task gets the state REVOKED. A task that could not be published gets FAILURE.
    """
    skipped = isinstance(why, OnceSkipped)
    state = states.REVOKED if skipped else states.FAILURE
    if skipped:
        logger.info("Skipped %s", why)
    else:
        name = f"{request.task}[{request.id}]"
        logger.warning("Task %s is not published: %s", name, describe(why))
    task.backend.mark_as_failure(
        request.id,
        why,
        request=request,
        store_result=keeps_result(task, request),
        # A skipped task is no failure.
        call_errbacks=not skipped,
        state=state,
    )


def _state(task: Any, task_id: str) -> str | None:
    """Return the stored state of a task; ``None`` if its backend cannot be read."""
    # With rpc:// a result goes to a queue of the caller. A read from this process would declare
    # another queue.
    if isinstance(task.backend, (DisabledBackend, RPCBackend)):
        return None
    state: str | None = task.backend.get_state(task_id)
    return state

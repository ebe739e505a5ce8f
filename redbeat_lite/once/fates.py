"""What becomes of runs, in the words of the record of runs, and how the record is told."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from billiard.process import current_process
from celery import states
from celery.exceptions import Reject, Retry

from ..errors import ConfigurationError, describe, text_of
from ..runs.run import Attempt, Fate, Outcome
from .runtime import Runtime
from .settle import Skipped

#: An outcome, and what is to be said of it.
Told = tuple[Outcome, str]

_OUTCOMES: dict[str, Outcome] = {
    states.FAILURE: "failed",
    states.RETRY: "retrying",
    states.REJECTED: "rejected",
    # The body has said that nobody is to be told, or goes on as another task under its id: its result tells, if any.
    states.IGNORED: "unknown",
}


def told_of(state: str | None, retval: Any) -> Told | None:
    """What a run came to whose body has ended, or been torn; ``None`` where another process will tell, or nobody is to:
    its message goes back to its queue.

    Parameters:
        state: as ``task_postrun`` has it; ``None`` when the run was torn down.
    """
    if state is None:
        # A child does not know why it has to go.
        return ("lost", "") if current_process().name == "MainProcess" else None
    if is_requeued(state, retval):
        return None
    if isinstance(retval, Skipped):
        return "left out", ""
    if state == states.SUCCESS:
        return "succeeded", ""
    why = retval.exc if isinstance(retval, Retry) and isinstance(retval.exc, BaseException) else retval
    outcome = _OUTCOMES.get(state, "unknown")
    if not isinstance(why, BaseException):
        return outcome, ""
    error = text_of(why) if state == states.IGNORED else describe(why)
    return outcome, error


def is_requeued(state: str | None, retval: Any) -> bool:
    """Whether the body has sent its message back to the queue it came from."""
    return state == states.REJECTED and isinstance(retval, Reject) and bool(retval.requeue)


def fate(
    run: Attempt | None,
    told: Told | None,
    fields: Mapping[str, Any],
    began: float | None,
    retry_ms: int | None = None,
) -> Fate | None:
    """The same, of one attempt; ``None`` where none is to be recorded, or nothing told of it.

    Parameters:
        began: monotonic time at which it began; ``None`` where that is not known, or its body was not reached.
        retry_ms: milliseconds until its retry is due; ``None`` where it is not retried.
    """
    if run is None or told is None:
        return None
    outcome, error = told
    if outcome == "left out":
        began = None
    seconds = None if began is None or outcome == "running" else time.monotonic() - began
    return Fate(run, outcome, began, seconds, str(fields.get("hostname") or ""), error, retry_ms)


def tell(
    app: Any,
    fields: Mapping[str, Any],
    outcome: Outcome,
    error: str = "",
    began: float | None = None,
    retry_ms: int | None = None,
) -> None:
    """Have recorded what became of a message, if that is to be. Waits for nothing, and never raises."""
    if "scheduled_at" not in fields:
        return  # Most messages are none of an entry.
    try:
        runtime = Runtime.of(app)
    except ConfigurationError:
        return  # The worker has said so.
    told = fate(runtime.attempt(fields), (outcome, error), fields, began, retry_ms)
    if told is not None:
        runtime.recorder.tell(told)

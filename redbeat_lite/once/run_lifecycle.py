"""Begin and end of a run, in the process that runs the task."""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial, wraps
from typing import Any

from celery import states
from celery.exceptions import Ignore, Reject, Retry, SoftTimeLimitExceeded
from celery.utils.log import get_logger

from .._base.clock import wall_ms
from .._base.text import text_of
from .._base.times import delay_ms
from ..runs.run import EXPECT_HEADER, INTERVAL_EXPIRES_HEADER, RUN_HEADERS
from .claims import is_guarded, policy_of
from .errors import LockUnavailable, OnceRejected, OnceSkipped
from .lock_client import Hold, LockClient, record_outcome
from .lock_store import Verdict
from .outcomes import Skipped, end_unrun, fate_of, is_final, is_requeued, keeps_result, outcome_of
from .parked_message import encode

logger = get_logger(f"celery.{__name__}")

#: Attribute of a request: what its run holds.
HOLD = "redbeat_hold"

#: Attribute of a request: when its run began, monotonic, if the run holds nothing.
_BEGAN = "redbeat_began"

#: Attribute of a request: the exception that the body raises before it does anything.
_INSTEAD = "redbeat_instead"

#: Attribute of a request whose run was refused its lock, so that its body does not run.
_REFUSED = "redbeat_refused"

#: Attribute of a request: the signature with which its run has replaced itself.
_SUCCESSOR = "redbeat_successor"

#: All these attributes. Celery makes each header of a message an attribute of its request, so a
#: message with one of these headers could bypass its lock.
INTERNAL_NAMES = (HOLD, _BEGAN, _INSTEAD, _REFUSED, _SUCCESSOR)


# -- begin -----------------------------------------------------------------------------------------


def begin(task: Any) -> None:
    """Acquire what the run that starts now needs.

    Does nothing if the run has begun already, is called directly, or is eager.

    Raises:
        Ignore: this copy must not run: it is dropped, parked, or skipped.
        OnceRejected: the lock is taken and the policy says ``"raise"``.
        Reject: the server does not answer, and the message goes back to its queue.
        LockUnavailable: the server does not answer, and the message cannot go back.
    """
    request = task.request
    if request.is_eager or request.called_directly or request.__dict__.keys() & {HOLD, _BEGAN}:
        return
    if not is_guarded(task, request.__dict__):
        _begin_alone(task)
        return
    client = LockClient.of(task.app)
    hold = client.hold(task, request.__dict__)
    # Set first, because a soft time limit may strike after the server gave the lock and before the
    # reply is read.
    setattr(request, HOLD, hold)
    try:
        verdict = client.begin(hold)
        if verdict.word == "encode":
            verdict = client.begin(hold, encode(request))
    except LockUnavailable as exc:
        delattr(request, HOLD)
        _begin_without_server(task, request, hold, exc)
        return
    if verdict.word != "run":
        delattr(request, HOLD)
        _refuse(task, request, hold, verdict)
    client.renewer.add(hold)
    _note_start(task)


def _begin_alone(task: Any) -> None:
    """Begin a run that needs neither a lock nor the guard."""
    began = time.monotonic()
    setattr(task.request, _BEGAN, began)
    # Only an expected run is recorded before it ends.
    if task.request.get(EXPECT_HEADER):
        record_outcome(task.app, task.request.__dict__, "running", began=began)
    _note_start(task)


def _note_start(task: Any) -> None:
    clear_interval_expires(task.request)
    store_started(task, task.request)


def clear_interval_expires(request: Any) -> None:
    """Clear an ``expires`` that the beat derived from the interval, now that the run has begun.

    Celery's ``retry`` copies ``expires`` to the message of the retry, and a worker would discard
    that message.
    """
    if request.get(INTERVAL_EXPIRES_HEADER):
        request.expires = None
        # The retry may get an expires of the user's own, which stays.
        (request.headers or {}).pop(INTERVAL_EXPIRES_HEADER, None)


def store_started(task: Any, request: Any) -> None:
    """Store STARTED for a run, if its class or the app asks for that.

    Celery would store it before :func:`begin`, so also for a task that is then parked, and for a
    copy of a task that has ended. So ``track_started`` is false on the task itself, and the class
    keeps the setting of the user.
    """
    is_tracked = type(task).track_started
    if is_tracked is None:
        is_tracked = task.app.conf.task_track_started
    if is_tracked and keeps_result(task, request):
        meta = {"pid": os.getpid(), "hostname": request.hostname}
        task.backend.store_result(request.id, meta, states.STARTED, request=request)


def _begin_without_server(task: Any, request: Any, hold: Hold, why: LockUnavailable) -> None:
    """Decide about a run while the server does not answer.

    A first delivery without a lock runs, because the guard only looks after copies. Any other
    message goes back to its queue, or is retried by Celery, or fails.
    """
    is_redelivered = bool((request.delivery_info or {}).get("redelivered"))
    if hold.once is None and not is_redelivered and not task.needs_guard():
        name = f"{task.name}[{request.id}]"
        # Log the cause, because the text of ``why`` wrongly says that the task did not run.
        cause = text_of(why.__cause__ or why)
        logger.warning("Task %s runs without the guard against copies of it: %s", name, cause)
        _begin_alone(task)
        return
    if task.acks_late:
        raise Reject(str(why), requeue=True) from why
    retried = tuple(getattr(task, "autoretry_for", ()))
    if getattr(task, "guarded", False) and isinstance(why, retried):
        # Celery retries for errors of the body alone. Nothing of the body has run by then.
        setattr(request, _INSTEAD, why)
        return
    raise why


def _refuse(task: Any, request: Any, hold: Hold, verdict: Verdict) -> None:
    """Raise the exception by which this copy does not run."""
    name = f"{task.name}[{request.id}]"
    key = hold.held.key
    if verdict.word == "drop":
        logger.info("Task %s has ended already; this copy is dropped", name)
        raise Ignore("a copy of a task that has ended already")
    if verdict.word == "standby":
        logger.info("Task %s runs already; this copy is kept in case that run dies", name)
        raise Ignore("a copy of a task that runs already")
    if verdict.word == "parked":
        logger.info("Task %s waits for the once-lock %r, %s before it", name, key, verdict.text)
        raise Ignore("waits for its once-lock")
    if verdict.word == "old":
        _drop_old(task, request, name)
    if verdict.word == "refused" and is_final(task, request.id):
        raise Skipped("skipped")
    message = f"{name}: {verdict.text} has the once-lock {key!r}"
    _skip_or_reject(task, request, hold, message, verdict.text)


def _drop_old(task: Any, request: Any, name: str) -> None:
    age = "its message is older than the guard remembers which tasks have run"
    logger.warning("Task %s is not run: %s (Task.guard_life)", name, age)
    # If the first copy has run, its result stays.
    if not is_final(task, request.id):
        end_unrun(task, request, OnceSkipped(f"{name}: {age}"))
    record_outcome(task.app, request.__dict__, "expired", age)
    raise Skipped("too old")


def _skip_or_reject(task: Any, request: Any, hold: Hold, message: str, holder: str) -> None:
    """End a run that did not get its lock, as its policy for conflicts says."""
    # The run ends as others do, so that only one copy reports the end to callers and chains.
    setattr(request, HOLD, hold)
    setattr(request, _REFUSED, True)
    on_conflict = "skip" if hold.once is None else hold.once.on_conflict
    if hold.once is not None and on_conflict == "wait":
        # There is no room to park it. This loses work, not a duplicate, so it is an error.
        message += f", and max_waiters={hold.once.max_waiters} wait for it already"
    if on_conflict != "skip":
        raise OnceRejected(message, hold.held.key, holder)
    end_unrun(task, request, OnceSkipped(message, hold.held.key, holder))
    raise Skipped("skipped")


# -- end -------------------------------------------------------------------------------------------


def finish(task: Any, state: str | None, retval: Any) -> None:
    """Release what the run held and record its outcome, after its result is stored.

    Parameters:
        state: of the signal ``task_postrun``; ``None`` if the run was torn down by an exit or a
            kill of its greenlet.
        retval: of the same signal.
    """
    fields = task.request.__dict__
    hold: Hold | None = fields.pop(HOLD, None)
    began: float | None = fields.pop(_BEGAN, None)
    successor = fields.pop(_SUCCESSOR, None)
    was_refused = fields.pop(_REFUSED, False)
    result = outcome_of(state, retval)
    if state is None and task.acks_late:
        result = None  # The message is not acknowledged, so it comes again.
    retry_ms = until_retry_ms(retval) if state == states.RETRY else None
    if hold is None:
        if began is not None and result is not None:
            record_outcome(task.app, fields, *result, began, retry_ms)
        return
    is_torn_down = state is None
    body_began = None if was_refused else hold.begun
    end = partial(
        LockClient.of(task.app).end,
        hold,
        again=is_torn_down or is_requeued(state, retval),
        hold_ms=_kept_for_ms(task, hold, state, retval, successor),
        # The process of a run that is torn down waits for nothing but this.
        patient=not is_torn_down,
        fate=fate_of(hold.run, result, fields, body_began, retry_ms),
    )
    _despite_soft_limit(end)


def _kept_for_ms(task: Any, hold: Hold, state: str | None, retval: Any, successor: Any) -> int:
    """Return for how many ms the lock is kept for a retry or a successor under this task's id."""
    kept_ms = 0
    if state == states.RETRY and hold.once is not None and hold.once.hold_on_retry:
        successor = getattr(retval, "sig", None)
        kept_ms = hold.held.lease_ms + until_retry_ms(retval) + hold.late_ms
    elif successor is not None:
        kept_ms = hold.held.lease_ms
    if kept_ms and not _has_same_key(task, hold, successor):
        return 0
    return kept_ms


def _despite_soft_limit(release: Callable[[], None]) -> None:
    """Release a lock, again if the soft time limit interrupts the release. It strikes once."""
    try:
        release()
    except SoftTimeLimitExceeded:
        release()


def _has_same_key(task: Any, hold: Hold, signature: Any) -> bool:
    """Return whether the next message of this task id wants the same lock, and so releases it."""
    if signature is None:
        return True
    headers = signature.options.get("headers") or {}
    fields = {**headers, "args": signature.args, "kwargs": signature.kwargs}
    try:
        policy = policy_of(task, fields)
    except Exception:  # noqa: BLE001 - a callable key may raise anything; the next run will show it
        return False
    return policy is not None and policy[1] == hold.held.key


def until_retry_ms(retry: Any) -> int:
    """Return how many ms pass until the message of a retry may run."""
    when = retry.when if isinstance(retry, Retry) else None
    option = "eta" if isinstance(when, datetime) else "countdown"
    return max(0, delay_ms({option: when}, wall_ms()))


def leave_end_to_others(request: Any) -> None:
    """Do not record the end of this body, because other code records the end of its run."""
    hold = request.__dict__.get(HOLD)
    if hold is not None:
        hold.run = None


# -- body ------------------------------------------------------------------------------------------


def releasing(function: Any) -> Callable[..., Any]:
    """Return the body of a task that releases the lock before Celery publishes what comes next."""
    is_static = isinstance(function, staticmethod)
    body = function.__func__ if is_static else function

    @wraps(body)
    def run_body(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        instead = self.request.__dict__.pop(_INSTEAD, None)
        if instead is not None:
            raise instead
        bound = function.__get__(self, type(self)) if hasattr(function, "__get__") else function
        return run_and_release(self, bound, *args, **kwargs)

    if is_static:
        # The signature of a method begins with the task. Tools look for the arguments behind it.
        first = inspect.Parameter("task_itself", inspect.Parameter.POSITIONAL_ONLY)
        signature = inspect.signature(body)
        parameters = [first, *signature.parameters.values()]
        shown = signature.replace(parameters=parameters)
        run_body.__signature__ = shown  # type: ignore[attr-defined]
    return run_body


def run_and_release(task: Any, body: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Run a body, and release its lock at once if a chain, a link or a chord continues after it.

    The next task may want the same lock, and Celery publishes it before it stores the result. So
    another process could receive it and find the lock taken by its own predecessor.
    """
    hold = _take_body(task.request)
    result = body(*args, **kwargs)
    if hold is not None:
        _despite_soft_limit(partial(LockClient.of(task.app).release, hold))
    return result


def _take_body(request: Any) -> Hold | None:
    """Return the hold of a run that another task follows; ``None`` for any other.

    ``None`` also for the body of a base class that this body calls, because that is not the end.
    """
    fields = request.__dict__
    hold: Hold | None = fields.get(HOLD)
    if hold is None or hold.held.key is None or hold.in_body:
        return None
    if not any(fields.get(name) for name in ("chain", "callbacks", "chord")):
        return None
    hold.in_body = True
    return hold


def note_replacement(task: Any, signature: Any) -> None:
    """Prepare the signature with which a task replaces itself.

    The new task continues under the id of the old one, and is part of the same run. It keeps the
    lock if it has the same key.
    """
    if getattr(signature, "task", None) == task.name:
        setattr(task.request, _SUCCESSOR, signature)
    fields = task.request.__dict__
    headers = {name: fields[name] for name in RUN_HEADERS if fields.get(name) is not None}
    if headers:
        _give_headers(signature, task.request.id, headers)


def _give_headers(signature: Any, task_id: str, headers: Mapping[str, Any]) -> None:
    """Give headers to the part with this id: the last member of a chain, or the body of a chord."""
    body = getattr(signature, "body", None)
    parts = getattr(signature, "tasks", ()) if body is None else (body,)
    for part in parts:
        _give_headers(part, task_id, headers)
    # The headers of a chain itself would go to its first member.
    if not parts and signature.options.get("task_id") == task_id:
        own = signature.options.get("headers") or {}
        signature.options["headers"] = {**own, **headers}

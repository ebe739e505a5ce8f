"""Begin and end of a run, in the process that runs the task."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial, wraps
from typing import Any, NoReturn

from celery import signals, states
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded
from celery.utils.log import get_logger

from .._base.clock import wall_ms
from .._base.text import text_of
from .._base.times import delay_ms
from ..entries.run import EXPECT_HEADER, INTERVAL_EXPIRES_HEADER, RUN_HEADERS
from .claims import Hold, is_guarded, policy_of
from .errors import LockUnavailable, OnceRejected, OnceSkipped
from .lock_client import LockClient, record_outcome
from .lock_store import Verdict
from .outcomes import (
    Skipped,
    end_unrun,
    fatal_error,
    is_final,
    is_requeued,
    keeps_result,
    outcome_of,
)
from .parked_message import encode

logger = get_logger(f"celery.{__name__}")

#: Attribute of a request: the :class:`Hold` of its run.
HOLD = "redbeat_hold"

#: Attribute of a request: monotonic time at which its body began; ``None`` before that.
_BEGAN = "redbeat_began"

#: Attribute of a request: the exception that is raised in place of the body.
_INSTEAD = "redbeat_instead"

#: Attribute of a request: the signature with which its task has replaced itself.
_SUCCESSOR = "redbeat_successor"

#: Names of all attributes that this module adds to a request. Celery also makes each header of a
#: message an attribute of its request. So a worker removes headers with these names, because a
#: message with such a header could bypass its lock.
INTERNAL_NAMES = (HOLD, _BEGAN, _INSTEAD, _SUCCESSOR)


# -- begin -----------------------------------------------------------------------------------------


def begin(task: Any) -> None:
    """Acquire the lock of a run, and record that its task id runs, before its body begins.

    Does nothing if the task is called directly or eagerly, or if the run has begun already.

    Raises:
        Ignore: this copy of the message must not run. It is dropped, parked, or skipped.
        OnceRejected: another task has the lock, and the policy says ``"raise"``.
        Reject: the server does not answer, and the message goes back to its queue.
        LockUnavailable: the server does not answer, and the message cannot go back.
    """
    request = task.request
    if request.is_eager or request.called_directly or request.__dict__.keys() & {HOLD, _BEGAN}:
        return
    if not is_guarded(task, request.__dict__):
        _note_start(task)
        return
    # If this function fails, its error ends the run, and finish() records it.
    setattr(request, _BEGAN, None)
    client = LockClient.of(task.app)
    hold = client.hold(task, request.__dict__)
    # Set the hold before the request to the server. A soft time limit can strike after the server
    # has acquired the lock and before its reply is read. Then finish() can still release the lock.
    setattr(request, HOLD, hold)
    try:
        verdict = client.begin(hold)
        if verdict.word == "encode":
            # The message has to be parked, so call again with its text.
            verdict = client.begin(hold, encode(request))
    except LockUnavailable as exc:
        delattr(request, HOLD)
        _begin_without_server(task, request, hold, exc)
        return
    # Remove both attributes of a refused message, so that finish() records no outcome, because that
    # of another copy counts. _refuse() sets the hold again if finish() has to end this run.
    if verdict.word != "run":
        delattr(request, HOLD)
        delattr(request, _BEGAN)
        _refuse(task, request, hold, verdict)  # This always raises.
    # From here on, a thread renews the lock and the guard's record until finish() ends the run.
    client.renewer.add(hold)
    _note_start(task)


def _note_start(task: Any) -> None:
    """Note the start of a run in its request and in the record of runs; store the state STARTED.

    STARTED is stored if the class of the task or the app says ``track_started``. Celery itself
    would store STARTED before :func:`begin`, even for a task that is then parked, and for a copy of
    a task that has ended. To prevent this, ``track_started`` is false on the task object. The class
    still has the setting of the user, or of the app.
    """
    request = task.request
    fields = request.__dict__
    began = time.monotonic()
    setattr(request, _BEGAN, began)
    clear_interval_expires(request)
    # The start of a run is recorded if its message is guarded, or if its entry has an ``expect``.
    # Other runs are recorded only when they end.
    if HOLD in fields or fields.get(EXPECT_HEADER):
        record_outcome(task.app, fields, ("running", ""), began)
    if type(task).track_started and keeps_result(task, request):
        meta = {"pid": os.getpid(), "hostname": request.hostname}
        task.backend.store_result(request.id, meta, states.STARTED, request=request)


def clear_interval_expires(request: Any) -> None:
    """Clear the ``expires`` of a run that has begun, if the beat derived it from the interval.

    Celery's ``retry`` would copy ``expires`` to the message of the retry, and a worker would
    discard that message after this time.
    """
    if request.get(INTERVAL_EXPIRES_HEADER):
        request.expires = None
        # Remove the header, too, so that an ``expires`` that the user gives to the retry stays.
        (request.headers or {}).pop(INTERVAL_EXPIRES_HEADER, None)


def _begin_without_server(task: Any, request: Any, hold: Hold, why: LockUnavailable) -> None:
    """Begin a run, or refuse it, while the server does not answer.

    A first delivery that needs no lock runs, because the guard only protects from later copies. Any
    other message goes back to its queue, or is retried by Celery, or its task fails.
    """
    is_redelivered = (request.delivery_info or {}).get("redelivered")
    if hold.key is None and not is_redelivered and not task.needs_guard():
        name = f"{task.name}[{request.id}]"
        # Log the cause, because the text of ``why`` wrongly says that the task did not run.
        cause = text_of(why.__cause__ or why)
        logger.warning("Task %s runs without the guard against copies of it: %s", name, cause)
        _note_start(task)
        return
    if task.acks_late:
        time.sleep(1.0)  # The broker delivers the message again at once.
        raise Reject(str(why), requeue=True) from why
    retried_errors = tuple(getattr(task, "autoretry_for", ()))
    if getattr(task, "guarded", False) and isinstance(why, retried_errors):
        # Celery's ``autoretry_for`` works only for an error of the body. So let the task begin, and
        # let run_body() raise this error in place of the body.
        setattr(request, _INSTEAD, why)
        return
    raise why


def _refuse(task: Any, request: Any, hold: Hold, verdict: Verdict) -> NoReturn:
    """Raise the exception that keeps this copy of the task from running, as the verdict says."""
    name = f"{task.name}[{request.id}]"
    key = hold.key
    # Word of the verdict -> words for the log about a message that is not needed now. Store no
    # result for these, because the task runs, has run, or will run.
    copies = {
        "drop": "has ended already; this copy is dropped",
        "standby": "runs already; this copy is kept in case that run dies",
        "parked": f"waits for the once-lock {key!r}, {verdict.text} before it",
    }
    if verdict.word == "drop" and key is not None:
        # If a beat or a caller has published this message again, it has acquired the lock again.
        LockClient.of(task.app).leave(key, hold.task_id, hold.attempt)
    why = copies.get(verdict.word)
    if why:
        logger.info("Task %s %s", name, why)
        raise Ignore(why)
    if verdict.word == "old":
        _drop_old(task, request, name)  # This always raises.
    # The word is "taken": the policy is not "wait", or too many tasks wait already.
    message = f"{name}: {verdict.text} has the once-lock {key!r}"
    _skip_or_reject(task, request, hold, message, verdict.text)


def _drop_old(task: Any, request: Any, name: str) -> NoReturn:
    """End a task whose message is too old, because the guard may have forgotten its first copy.

    Parameters:
        name: name and id of the task, for the log.

    Raises:
        Skipped: always.
    """
    age = "its message has expired, or is so old that the guard may have forgotten it"
    logger.warning("Task %s is not run: %s (Task.guard_life)", name, age)
    # If the first copy has run, keep the result of that copy.
    if not is_final(task, request.id):
        end_unrun(task, request, OnceSkipped(f"{name}: {age}"))
    LockClient.of(task.app).give_up(task, request.__dict__)
    record_outcome(task.app, request.__dict__, ("expired", age))
    raise Skipped("too old")


def _skip_or_reject(task: Any, request: Any, hold: Hold, message: str, holder: str) -> NoReturn:
    """End a run that did not get its lock, as ``on_conflict`` of its policy says.

    Parameters:
        message: text of the error.
        holder: id of the task that has the lock.

    Raises:
        Skipped: the policy says "skip". The result of the task is stored already.
        OnceRejected: the policy says "raise", or too many tasks wait.
    """
    # Set the hold again, so that finish() writes into the guard's record that this task has ended.
    # Then workers drop other copies of the message, and none of them stores a second result.
    setattr(request, HOLD, hold)
    if hold.on_conflict == "wait":
        # Too many tasks wait. A task that should wait is no duplicate, so its loss is an error, and
        # OnceRejected is raised below.
        message += f", and max_waiters={hold.max_waiters} wait for it already"
    if hold.on_conflict != "skip":
        raise OnceRejected(message, hold.key, holder)
    end_unrun(task, request, OnceSkipped(message, hold.key, holder))
    raise Skipped("skipped")


# -- end -------------------------------------------------------------------------------------------


def finish(sender: Any, state: str | None = None, retval: Any = None, **_: Any) -> None:
    """Release the lock of a run and record its outcome, after its result is stored.

    Parameters:
        sender: the task.
        state: ``state`` of the signal ``task_postrun``; ``None`` if the run was torn down, by an
            exit of the process or a kill of its greenlet, or if its body raised what is no
            ``Exception``.
        retval: ``retval`` of the same signal.
    """
    fields = sender.request.__dict__
    if not fields.keys() & {HOLD, _BEGAN}:
        # begin() has not started this run, for example because its message is a copy or is parked.
        return
    hold: Hold | None = fields.pop(HOLD, None)
    began: float | None = fields.pop(_BEGAN, None)
    successor = fields.pop(_SUCCESSOR, None)
    error = fatal_error(sender)
    if state is None and error is not None:
        state = states.FAILURE
        retval = error
    result = outcome_of(state, retval)
    if successor is not None and state == states.IGNORED:
        # The task has replaced itself. Its run goes on with the next task, and ends with it.
        result = None
    is_torn_down = state is None
    if is_torn_down and sender.acks_late:
        # The message is not acknowledged, so the broker delivers it again. Record no outcome now,
        # because the recorded run goes on with the next delivery.
        result = None
    retry_ms = until_retry_ms(retval) if state == states.RETRY else None

    def end() -> None:
        """Record the outcome, and release the lock. A second call does no harm."""
        record_outcome(sender.app, fields, result, began, retry_ms)
        if hold is not None:
            LockClient.of(sender.app).end(
                hold,
                again=is_torn_down or is_requeued(state, retval),
                hold_ms=_kept_for_ms(sender, hold, state, retval, successor),
                # A process that is being torn down should end soon.
                patient=not is_torn_down,
            )

    despite_soft_limit(end)


# Celery sends this signal after the result is stored and before the message is acknowledged, and
# also after a retry, an Ignore and a SIGTERM.
signals.task_postrun.connect(finish, weak=False, dispatch_uid="redbeat_lite.once")


def _kept_for_ms(task: Any, hold: Hold, state: str | None, retval: Any, successor: Any) -> int:
    """Return for how many ms the lock stays held for the next task under this task id.

    The next task is a retry, or a successor: the task with which this one replaced itself. If there
    is no next task, or if it does not need this lock, the lock is released, and the result is 0.

    Parameters:
        state, retval: as for :func:`finish`.
        successor: signature of the successor; ``None``: there is none.
    """
    if state == states.RETRY and hold.once.hold_on_retry:
        next_task = getattr(retval, "sig", None)
        # The lease of the retry counts from when it is due. If a sweeper publishes the retry, it
        # may be late by ``late_ms``.
        kept_ms = hold.lease_ms + until_retry_ms(retval) + hold.late_ms
    elif getattr(successor, "task", None) == task.name:
        # By default, a key begins with the name of its task. So for a task of another name, the
        # lock is released.
        next_task = successor
        kept_ms = hold.lease_ms
    else:
        return 0
    return kept_ms if _has_same_key(task, hold, next_task) else 0


def despite_soft_limit(call: Callable[[], None]) -> None:
    """Call a function. If the soft time limit interrupts the call, call the function again.

    The limit interrupts a task only once, so the second call runs to its end.
    """
    try:
        call()
    except SoftTimeLimitExceeded:
        call()


def _has_same_key(task: Any, hold: Hold, signature: Any) -> bool:
    """Return whether the next task under this task id has the same key.

    If it has another key, it could not release the lock that is kept for it.

    Parameters:
        signature: signature of the next task; ``None`` for a retry without a signature, which has
            the same key.
    """
    if signature is None:
        return True
    headers = signature.options.get("headers") or {}
    fields = {**headers, "args": signature.args, "kwargs": signature.kwargs}
    try:
        # Only the key matters, because a task can release its lock under any policy.
        _, key = policy_of(task, fields)
    except Exception:  # noqa: BLE001 - a callable key may raise anything; the next run will show it
        return False
    return key == hold.key


def until_retry_ms(retry: Any) -> int:
    """Return how many ms pass until the message of a retry may run."""
    option = "eta" if isinstance(retry.when, str | datetime) else "countdown"
    return max(0, delay_ms({option: retry.when}, wall_ms()))


# -- body ------------------------------------------------------------------------------------------


def releasing(task: Any) -> Callable[..., Any]:
    """Return the body of a task, wrapped so that it releases the lock if another task follows.

    The next task of a chain, a link or a chord may need the same lock. Celery publishes the next
    task before this run ends. So without the wrapper, a worker could receive the next task while
    this run still has the lock.
    """
    # Take the body of the task object and not of its class. For ``autoretry_for``, Celery wraps the
    # body of the object.
    body = task.run

    # Use a function and no partial(), because tools that inspect tasks expect a function.
    @wraps(body)
    def run_body(*args: Any, **kwargs: Any) -> Any:
        """Run the task's own function; if the task must not run, raise the reason instead."""
        fields = task.request.__dict__
        instead = fields.pop(_INSTEAD, None)
        if instead is not None:
            raise instead
        result = body(*args, **kwargs)
        # Celery publishes the tasks that follow as soon as this function returns, and calls
        # finish() later. So release the lock now.
        hold: Hold | None = fields.get(HOLD)
        if hold is not None and any(fields.get(name) for name in ("chain", "callbacks", "chord")):
            despite_soft_limit(partial(LockClient.of(task.app).release, hold))
        return result

    return run_body


def note_replacement(task: Any, signature: Any) -> None:
    """Prepare the signature with which a task replaces itself.

    The new task has the id of the old one, and belongs to the same run. If the new task has the
    same name and the same key, finish() keeps the lock for it.
    """
    setattr(task.request, _SUCCESSOR, signature)
    # These headers make the new task a part of the same recorded run.
    fields = task.request.__dict__
    headers = {name: fields[name] for name in RUN_HEADERS if fields.get(name) is not None}
    if headers:
        _give_headers(signature, task.request.id, headers)


def _give_headers(signature: Any, task_id: str, headers: Mapping[str, Any]) -> None:
    """Add headers to the part of a canvas that has this task id.

    This part is the last member of a chain, or the body of a chord.
    """
    body = getattr(signature, "body", None)
    parts = getattr(signature, "tasks", ()) if body is None else (body,)
    for part in parts:
        _give_headers(part, task_id, headers)
    # Do not change the headers of a chain itself, because Celery passes them to its first member.
    # Only a part without parts of its own gets the headers.
    if not parts and signature.options.get("task_id") == task_id:
        signature.options["headers"] = {**(signature.options.get("headers") or {}), **headers}

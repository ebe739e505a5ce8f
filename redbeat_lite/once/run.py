"""The beginning and the end of a run, in the process that runs the task."""

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

from ..clock import wall_ms
from ..errors import text_of
from ..instants import delay_ms
from ..runs.run import EXPECT_HEADER, INTERVAL_EXPIRES_HEADER, RUN_HEADERS
from . import fates
from .answers import Verdict
from .errors import LockUnavailable, OnceRejected, OnceSkipped
from .hold import Hold, is_guarded, policy_of
from .parked_message import encode
from .runtime import Runtime
from .settle import Skipped, is_final, keeps_result, settle

logger = get_logger(f"celery.{__name__}")

#: Where a run keeps its hold, on its request.
ATTRIBUTE = "redbeat_hold"

#: Where a run that holds nothing keeps when it began, monotonic.
_BEGAN = "redbeat_began"

#: Where a run keeps what its body is to raise before anything else.
_INSTEAD = "redbeat_instead"

#: Attribute of a request whose run was refused its lock, so that its body does not run.
_REFUSED = "redbeat_refused"

#: Where a run keeps the signature it has replaced itself with.
SUCCESSOR = "redbeat_successor"

#: All these attributes. Celery makes each header of a message an attribute of its request, so a
#: message with one of these headers could bypass its lock.
INTERNAL_NAMES = (ATTRIBUTE, _BEGAN, _INSTEAD, _REFUSED, SUCCESSOR)


def begin(task: Any) -> None:
    """Take what the run that starts now needs: nothing, if it has begun, is called directly or runs eagerly.

    Raises:
        Ignore: this copy is not to run: dropped, parked, or skipped and marked so.
        OnceRejected: the lock is taken and the policy says ``"raise"``.
        Reject: the server does not answer; the message goes back to its queue, where that is possible.
        LockUnavailable: the server does not answer, and it is not.
    """
    request = task.request
    if request.is_eager or request.called_directly or request.__dict__.keys() & {ATTRIBUTE, _BEGAN}:
        return
    if not is_guarded(task, request.__dict__):
        _begin_alone(task)
        return
    runtime = Runtime.of(task.app)
    hold = runtime.hold(task, request.__dict__)
    # Set first, because a soft time limit may strike after the server gave the lock and before the
    # reply is read.
    setattr(request, ATTRIBUTE, hold)
    try:
        verdict = runtime.begin(hold)
        if verdict.word == "encode":
            verdict = runtime.begin(hold, encode(request))
    except LockUnavailable as exc:
        delattr(request, ATTRIBUTE)
        _without_server(task, request, hold, exc)
        return
    if verdict.word != "run":
        delattr(request, ATTRIBUTE)
        _refuse(task, request, hold, verdict)
    runtime.renewer.add(hold)
    clear_interval_expires(request)
    tell_start(task, request)


def _begin_alone(task: Any) -> None:
    """Begin a run that takes nothing: neither a lock nor the guard."""
    began = time.monotonic()
    setattr(task.request, _BEGAN, began)
    if task.request.get(EXPECT_HEADER):  # others need no line before they end
        fates.tell(task.app, task.request.__dict__, "running", began=began)
    clear_interval_expires(task.request)
    tell_start(task, task.request)


def clear_interval_expires(request: Any) -> None:
    """Clear an ``expires`` that the beat derived from the interval, now that the run has begun.

    Celery's ``retry`` copies ``expires`` to the message of the retry, and a worker would discard that message.
    """
    if request.get(INTERVAL_EXPIRES_HEADER):
        request.expires = None
        # The retry may get an expires of the user's own, which stays.
        (request.headers or {}).pop(INTERVAL_EXPIRES_HEADER, None)


def tell_start(task: Any, request: Any) -> None:
    """Store STARTED for a run that may run, where the task is to tell.

    Celery would do so before, for a task that is parked then, and for a copy of one that has ended. So a task says no
    to it, and its class says what was asked for; where it does not, the app does.
    """
    asked_for = type(task).track_started
    tells = task.app.conf.task_track_started if asked_for is None else asked_for
    if tells and keeps_result(task, request):
        meta = {"pid": os.getpid(), "hostname": request.hostname}
        task.backend.store_result(request.id, meta, states.STARTED, request=request)


def _without_server(task: Any, request: Any, hold: Hold, why: LockUnavailable) -> None:
    """What becomes of a run about which nobody can be asked.

    Without a lock it runs, for the guard looks after copies, and the first delivery is none. With one, or if it needs
    the guard, it is saved if it can be: by the queue it came from, or by a retry of Celery's own.
    """
    redelivered = bool((request.delivery_info or {}).get("redelivered"))
    if hold.once is None and not redelivered and not task.needs_guard():
        # Not in the error's own words, by which it did not run.
        away = text_of(why.__cause__ or why)
        logger.warning("Task %s[%s] runs without the guard against copies of it: %s", task.name, request.id, away)
        _begin_alone(task)
        return
    if task.acks_late:
        raise Reject(str(why), requeue=True) from why
    if getattr(task, "guarded", False) and isinstance(why, tuple(getattr(task, "autoretry_for", ()))):
        # Celery looks after what the body raises; nothing of it has run by then.
        setattr(request, _INSTEAD, why)
        return
    raise why


def _refuse(task: Any, request: Any, hold: Hold, verdict: Verdict) -> None:
    name, task_id, key = task.name, request.id, hold.held.key
    if verdict.word == "drop":
        logger.info("Task %s[%s] has ended already; this copy is dropped", name, task_id)
        raise Ignore("a copy of a task that has ended already")
    if verdict.word == "standby":
        logger.info("Task %s[%s] runs already; this copy is kept in case that run dies", name, task_id)
        raise Ignore("a copy of a task that runs already")
    if verdict.word == "parked":
        logger.info("Task %s[%s] waits for the once-lock %r, %s before it", name, task_id, key, verdict.text)
        raise Ignore("waits for its once-lock")
    if verdict.word == "old":
        _too_old(task, request)
    if verdict.word == "refused" and is_final(task, task_id):
        raise Skipped("skipped")
    # It ends as what ran does: what waited for it must not be told by every copy, even where no result says so.
    setattr(request, ATTRIBUTE, hold)
    setattr(request, _REFUSED, True)
    message = f"{name}[{task_id}]: {verdict.text} has the once-lock {key!r}"
    if hold.once is not None and hold.once.on_conflict == "wait":
        # It would have been parked, had there been room. Work is lost here, not a duplicate.
        message += f", and max_waiters={hold.once.max_waiters} wait for it already"
    if hold.once is not None and hold.once.on_conflict != "skip":
        raise OnceRejected(message, key, verdict.text)
    settle(task, request, OnceSkipped(message, key, verdict.text))
    raise Skipped("skipped")


def _too_old(task: Any, request: Any) -> None:
    age = "its message is older than the guard remembers which tasks have run"
    logger.warning("Task %s[%s] is not run: %s (Task.guard_life)", task.name, request.id, age)
    # If the first copy has run, its result stays.
    if not is_final(task, request.id):
        settle(task, request, OnceSkipped(f"{task.name}[{request.id}]: {age}"))
    fates.tell(task.app, request.__dict__, "expired", age)
    raise Skipped("too old")


def finish(task: Any, state: str | None, retval: Any) -> None:
    """Give back what the run held, or note that it was refused, and have recorded what it came to, after its result is
    stored.

    Parameters:
        state: as ``task_postrun`` has it; ``None`` when the run was torn down by an exit or a kill of its greenlet.
    """
    hold, began = (task.request.__dict__.pop(name, None) for name in (ATTRIBUTE, _BEGAN))
    told = fates.told_of(state, retval) if began is not None or (hold is not None and hold.run is not None) else None
    if state is None and task.acks_late:
        told = None  # Its message is not acknowledged, so it comes again.
    retry_ms = until_retry_ms(retval) if state == states.RETRY else None
    if hold is None:
        if began is not None and told is not None:
            fates.tell(task.app, task.request.__dict__, *told, began, retry_ms)
        return
    torn = state is None
    successor = task.request.__dict__.pop(SUCCESSOR, None)
    hold_ms = 0
    if state == states.RETRY and hold.once is not None and hold.once.hold_on_retry:
        successor = getattr(retval, "sig", None)
        hold_ms = hold.held.lease_ms + (retry_ms or 0) + hold.late_ms
    elif successor is not None:
        hold_ms = hold.held.lease_ms
    if hold_ms and not _same_key(task, hold, successor):
        hold_ms = 0
    # A run that is torn down is in a hurry: its process waits for nothing but this to end.
    was_refused = task.request.__dict__.pop(_REFUSED, False)
    body_began = None if was_refused else hold.begun
    fate = fates.fate(hold.run, told, task.request.__dict__, body_began, retry_ms)
    again = torn or fates.is_requeued(state, retval)
    end = partial(Runtime.of(task.app).end, hold, again=again, hold_ms=hold_ms, patient=not torn, fate=fate)
    try:
        end()
    except SoftTimeLimitExceeded:
        # It strikes once, and the body it is meant for has ended.
        end()


def tell_no_end(request: Any) -> None:
    """The end of this run's body is none of the run that is recorded: somebody else tells of that."""
    if (hold := request.__dict__.get(ATTRIBUTE)) is not None:
        hold.run = None


def letting_go(function: Any) -> Callable[..., Any]:
    """The body of a task, after which its lock is free for what Celery publishes next: before the result is stored."""
    alone = isinstance(function, staticmethod)
    body = function.__func__ if alone else function

    @wraps(body)
    def run_body(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if (instead := self.request.__dict__.pop(_INSTEAD, None)) is not None:
            raise instead
        own = function.__get__(self, type(self)) if hasattr(function, "__get__") else function
        return let_go_after(self, own, *args, **kwargs)

    if alone:
        # Whoever asks for the arguments of a call finds them behind the task, which a method is bound to.
        first = inspect.Parameter("task_itself", inspect.Parameter.POSITIONAL_ONLY)
        signature = inspect.signature(body)
        run_body.__signature__ = signature.replace(parameters=[first, *signature.parameters.values()])  # type: ignore[attr-defined]
    return run_body


def let_go_after(task: Any, body: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """What the body of a run returns, after which its lock is free if something follows."""
    hold = _followed(task.request)
    result = body(*args, **kwargs)
    if hold is not None:
        release = partial(Runtime.of(task.app).release, hold)
        try:
            release()
        except SoftTimeLimitExceeded:
            release()  # As at the end of a run: it strikes once, and the body has ended.
    return result


def _followed(request: Any) -> Hold | None:
    """What a run holds whose body begins, if the rest of a chain, a link or the body of a chord may come after it.

    They may want the same lock, and Celery publishes them before it stores the result: another process could take one
    up meanwhile and find the lock taken by its own predecessor. ``None`` in the body of a base class that this one
    calls, too: it is not the end.
    """
    fields = request.__dict__
    hold: Hold | None = fields.get(ATTRIBUTE)
    if hold is None or hold.held.key is None or not any(fields.get(name) for name in ("chain", "callbacks", "chord")):
        return None
    first, hold.in_body = not hold.in_body, True
    return hold if first else None


def note_replacement(task: Any, signature: Any) -> None:
    """A task replaces itself: what goes on gets the id, the lock where it has the same key, and stays the same run."""
    if getattr(signature, "task", None) == task.name:
        setattr(task.request, SUCCESSOR, signature)
    fields = task.request.__dict__
    told = {header: fields[header] for header in RUN_HEADERS if fields.get(header) is not None}
    if told:
        _give_headers(signature, task.request.id, told)


def _give_headers(signature: Any, task_id: str, headers: Mapping[str, Any]) -> None:
    """Have what goes on under this id bring these headers: of a chain its last member, of a chord its body."""
    body = getattr(signature, "body", None)
    parts = getattr(signature, "tasks", ()) if body is None else (body,)
    for part in parts:
        _give_headers(part, task_id, headers)
    # Those of a chain would go to its first member.
    if not parts and signature.options.get("task_id") == task_id:
        signature.options["headers"] = {**(signature.options.get("headers") or {}), **headers}


def _same_key(task: Any, hold: Hold, signature: Any) -> bool:
    """Whether the message that goes on with this task's id wants the same lock; else nobody would release it."""
    if signature is None:
        return True
    fields = {**(signature.options.get("headers") or {}), "args": signature.args, "kwargs": signature.kwargs}
    try:
        found = policy_of(task, fields)
    except Exception:  # noqa: BLE001 - a callable key may raise anything; the next run will show it
        return False
    return found is not None and found[1] == hold.held.key


def until_retry_ms(retry: Any) -> int:
    """Until the message of a retry may run."""
    when = retry.when if isinstance(retry, Retry) else None
    return max(0, delay_ms({"eta" if isinstance(when, datetime) else "countdown": when}, wall_ms()))

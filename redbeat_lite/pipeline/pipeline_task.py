"""``PipelineTask``, the class of every step, and the task that starts a run for an entry."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial, wraps
from typing import Any, NoReturn, Self

from celery import shared_task, signals
from celery.exceptions import Ignore, Reject, Retry
from celery.utils.log import get_logger

from .._base.clock import elapsed
from .._base.errors import CorruptEntry
from .._base.forks import no_forks
from .._base.public import public
from .._base.text import describe, storable, text_of
from ..once import run_lifecycle
from ..once.errors import LockUnavailable, OnceSkipped
from ..once.lock_client import PER_LEASE, LockClient
from ..once.lock_store import DOWN
from ..once.outcomes import end_unrun, is_final
from ..once.parked_message import DELIVERY
from ..once.task import NOT_TAKEN, PUBLISHES, Task
from ..runs.run import attempt_of
from ..store.connections import FAULTS
from . import step_params
from .definition import Definition
from .pipeline_keys import START
from .pipeline_run import PipelineNotFound, begin
from .pipeline_store import MAX_DEATHS, Ref, store_of
from .publish import HEADER, LOST, conclude
from .sweeper import LATE_MS

logger = get_logger(f"celery.{__name__}")

#: Reasons for which the guard drops a message for good. With other reasons the message comes back,
#: or is a mere copy.
_NEVER = ("skipped", "too old")

#: Errors because the server does not answer, so that a step cannot begin.
_AWAY: tuple[type[Exception], ...] = (*DOWN, LockUnavailable)

#: Attribute of the request with the params of its step.
_PARAMS = "redbeat_pipeline_params"

#: Attribute of the request with the :class:`Progress` of its step.
_PROGRESS = "redbeat_pipeline_progress"

#: Attribute of the request of a rehearsed step.
REHEARSED = "redbeat_pipeline_rehearsed"

#: Seconds between two writes of a step's progress.
_PROGRESS_PERIOD = 0.5

#: Most characters of its note.
_MAX_NOTE = 200


class Progress:
    """Progress of one run of a step.

    A thread writes the latest value, so that no body waits for Redis.
    """

    def __init__(self, write: Callable[[float, str], object]) -> None:
        self._write_value = write
        self._latest = (0.0, "")
        self._written_at = float("-inf")
        #: Held while a write is scheduled. The scheduled write takes the latest value.
        self._scheduled = threading.Lock()
        self._timer: threading.Timer | None = None

    def tell(self, percent: float, note: str) -> None:
        """Have this value written, unless a newer one comes before the next write."""
        # In this order of arguments, NaN becomes 0.
        percent = min(max(0.0, float(percent)), 100.0)
        self._latest = (percent, storable(str(note))[:_MAX_NOTE])
        if not self._scheduled.acquire(blocking=False):
            return
        delay = max(self._written_at + _PROGRESS_PERIOD - elapsed(), 0)
        timer = threading.Timer(delay, self._write)
        timer.daemon = True
        # If no thread can be started, close() writes the latest value.
        with suppress(RuntimeError):
            timer.start()
            self._timer = timer

    def close(self) -> None:
        """Write the latest value now. After the end of its step the server takes none."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()
        if self._scheduled.locked():
            self._write()

    def _write(self) -> None:
        """Write the latest value."""
        self._written_at = elapsed()
        # Release before reading the latest value, so that a later value schedules its own write.
        self._scheduled.release()
        try:
            with no_forks():
                self._write_value(*self._latest)
        except FAULTS as exc:
            logger.debug("The progress of a step was not written: %s", text_of(exc))


def ref_of(fields: Mapping[str, Any]) -> Ref | None:
    """Return the step of a message by its headers; ``None`` if it is no step."""
    header = fields.get(HEADER)
    if not header:
        return None
    hold = fields.get(run_lifecycle.HOLD)
    token = (fields.get(DELIVERY) or {}).get("token") or ""
    if hold is not None:
        token = hold.held.token
    return Ref(
        str(header["run"]),
        int(header["step"]),
        int(header["stage"]),
        int(header["round"]),
        attempt_of(fields),
        token,
    )


def _ending_step(call: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``__call__``: pass the params to a step, and record its outcome after the call.

    The outcome is recorded after the whole call, and not at the end of the body. So transactions
    that an own ``__call__`` commits are committed before the next stage begins, and an exception
    that it handles fails no step.
    """

    @wraps(call)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        fields = self.request.__dict__
        # The outermost call takes the params. Calls within it, by ``super()``, are plain calls.
        params = fields.pop(_PARAMS, None)
        ref = ref_of(fields)
        if ref is None or params is None:
            return call(self, *args, **kwargs)
        header = fields[HEADER]
        try:
            try:
                arguments = step_params.arguments(self.run, header, params, args)
                returned = call(self, *arguments, **kwargs)
            finally:
                fields[_PROGRESS].close()
            result = step_params.outcome(returned, process=header["process"] is not None)
        except (Retry, Reject, Ignore) as exc:
            _end_early(self, ref, exc)
            raise
        # Release the lock before the next stage is published, because its steps may need it.
        hold = fields.get(run_lifecycle.HOLD)
        if hold is not None:
            LockClient.of(self.app).release(hold)
        # Any other exception goes through Celery, whose signals report it below, in
        # whichever process.
        conclude(self.app, store_of(self.app), ref, "SUCCEEDED", result)
        return returned

    # An annotation ``"@__call__"`` of Celery's would use this to call the inner function, and the
    # step would not end.
    del __call__.__wrapped__
    return __call__


@public
class PipelineTask(Task):
    """A task that can be a step of a pipeline, and otherwise is a :class:`redbeat_lite.Task`.

    As a step it gets the params as its first argument, and after them the arguments of its
    signature. It returns ``None``, a dict of params for the stages to come, or ``(True, dict or
    None)``. An exception or ``(False, reason)`` ends the pipeline.

    A step whose worker dies is run again if the task has ``acks_late`` (or
    ``retry_on_worker_lost``), else the pipeline fails. A subclass with a ``before_start`` of its
    own calls ``super().before_start(task_id, args, kwargs)`` first. A subclass with a ``__call__``
    of its own calls ``self.run`` or ``super().__call__`` in it, with its own arguments; the step
    ends with it.
    """

    abstract = True

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Make a task without Celery's check of arguments; :meth:`apply_async` checks them.

        Celery would check the arguments of a step's message, which carries the run's id in place of
        the params.
        """
        task = super().__new__(cls, *args, **kwargs)
        task.typing = False
        return task

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        """Begin the step, if it may run."""
        ref = ref_of(self.request.__dict__)
        try:
            super().before_start(task_id, args, kwargs)
            # Read it again, because now there may be a hold with its token.
            begun = ref_of(self.request.__dict__)
            if begun is not None and not (self.request.is_eager or self.request.called_directly):
                self._begin_step(begun)
        except Ignore as exc:
            reason = str(exc)
            if ref is not None and reason in _NEVER:
                conclude(self.app, store_of(self.app), ref, "FAILED", f"was not run: {reason}")
            raise
        except _AWAY as exc:
            if ref is None:
                raise
            # No step has failed, so the run must not end. The message goes back to its queue. If
            # the message is acknowledged already, or the queue is unreachable, too, the sweeper
            # publishes it again.
            text = "%s[%s] waits for the server, as step %d of pipeline %s: %s"
            logger.warning(text, self.name, task_id, ref.step, ref.run, exc)
            raise Reject(describe(exc), requeue=True) from exc

    def progress(self, percent: float, note: str = "") -> None:
        """Report the progress of this step, for :meth:`PipelineRun.status`.

        It waits for nothing; the last value of each half second is written. Outside a step it does
        nothing.

        Parameters:
            percent: 0 to 100; other values are cut.
            note: current activity, cut at 200 characters.
        """
        progress = self.request.__dict__.get(_PROGRESS)
        if progress is not None:
            progress.tell(percent, note)

    def needs_guard(self) -> bool:
        """Return whether a message needs a guard: a step does, to tell its copies apart."""
        return ref_of(self.request.__dict__) is not None

    def _begin_step(self, ref: Ref) -> None:
        """Begin a step on the server, and give the request its params."""
        store = store_of(self.app)
        request = self.request
        hold = request.__dict__.get(run_lifecycle.HOLD)
        if hold is None:
            why = "the server cannot be used, and a step does not run without its guard"
            raise LockUnavailable(why, "")
        word, text = store.begin(
            ref,
            request.id,
            again=bool(self.acks_late or getattr(self, "retry_on_worker_lost", False)),
            worker=str(request.hostname or socket.gethostname()),
            renew_ms=round(hold.held.lease_ms / PER_LEASE),
        )
        if word != "run":
            self._refuse_step(ref, word, text.decode())
        try:
            setattr(request, _PARAMS, step_params.decode(text))
        except CorruptEntry as exc:
            conclude(self.app, store, ref, "FAILED", f"its params cannot be read: {exc}")
            raise
        setattr(request, _PROGRESS, Progress(partial(store.progress, ref)))

    def _refuse_step(self, ref: Ref, word: str, text: str) -> NoReturn:
        """Do what follows from a word of ``pipeline/begin.lua`` by which a step may not run.

        Raises:
            Ignore: always.
        """
        store = store_of(self.app)
        request = self.request
        step = f"{self.name}[{request.id}], step {ref.step} of pipeline {ref.run}"
        if word == "over":
            end_unrun(self, request, OnceSkipped(f"{step}: the pipeline has ended ({text})"))
        elif word == "gone":
            # The result of an earlier copy of the step stays.
            if not is_final(self, request.id):
                end_unrun(self, request, OnceSkipped(f"{step}: there is no record of the pipeline"))
        elif word == "dead":
            conclude(
                self.app, store, ref, "FAILED", f"its worker died more than {MAX_DEATHS} times"
            )
        elif word == "lost":
            conclude(self.app, store, replace(ref, token=text), "FAILED", LOST)
        else:
            logger.info("%s is dropped: %s", step, word)
        raise Ignore(word)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # Wrap a ``__call__`` of the class or of a mixin. A PipelineTask's is wrapped already.
        bases = [base for base in cls.__mro__[1:] if issubclass(base, PipelineTask)]
        if all(cls.__call__ is not base.__call__ for base in bases):
            wrapped = _ending_step(cls.__call__)
            cls.__call__ = wrapped  # type: ignore[method-assign] # as Celery does with ``run``

    @_ending_step
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the body. For a step, pass the params and record the outcome."""
        return super().__call__(*args, **kwargs)

    def apply_async(self, args: Any = None, kwargs: Any = None, *more: Any, **options: Any) -> Any:
        """Publish the task, as the base class does.

        If the broker does not take the retry of a step, the sweeper publishes it: Celery gives up
        after a second, and the restart of a broker takes longer.

        Raises:
            TypeError: the arguments of a call that is no step do not fit the body.
        """
        is_step = HEADER in (options.get("headers") or {})
        if type(self).typing and not is_step and hasattr(self, "__header__"):
            self.__header__(*(args or ()), **(kwargs or {}))
        try:
            return super().apply_async(args, kwargs, *more, **options)
        except NOT_TAKEN as exc:
            ref = ref_of(self.request.__dict__)
            hold = self.request.__dict__.get(run_lifecycle.HOLD)
            # Only the retry of this step has its own task id. The next stage may have the same
            # task, and so may calls of the body.
            is_retry = options.get("task_id") == self.request.id
            if ref is None or hold is None or not is_retry:
                raise
            hold.late_ms = LATE_MS
            step = f"{self.name}[{self.request.id}], step {ref.step} of pipeline {ref.run}"
            why = describe(exc)
            logger.warning("%s is to be retried, leaving that to the sweeper: %s", step, why)
            return self.AsyncResult(self.request.id)

    def replace(self, sig: Any) -> Any:
        """Replace the task, as the base class does.

        Raises:
            RuntimeError: it runs as a step, whose outcome a replacement could not record.
        """
        fields = self.request.__dict__
        if ref_of(fields) is not None or REHEARSED in fields:
            raise RuntimeError("a step of a pipeline cannot be replaced by another task")
        return super().replace(sig)


def _end_early(task: Any, ref: Ref, why: Retry | Reject | Ignore) -> None:
    """Record a step whose body ended with one of Celery's own exceptions, which fail no task."""
    store = store_of(task.app)
    if isinstance(why, Retry):
        hold = task.request.__dict__[run_lifecycle.HOLD]
        delay_ms = run_lifecycle.until_retry_ms(why)
        store.wait(ref, ref.attempt + 1, delay_ms, sent=not hold.late_ms)
    elif isinstance(why, Ignore):
        conclude(task.app, store, ref, "FAILED", f"ended without a result: {describe(why)}")
    elif why.requeue:
        store.wait(ref, ref.attempt, 0, sent=True)
    else:
        conclude(task.app, store, ref, "FAILED", f"rejected its message: {describe(why)}")


def report(app: Any, fields: Mapping[str, Any], outcome: str, text: str) -> None:
    """Record that a step failed or was revoked.

    Never raises, because the sweeper finds what is missing.
    """
    ref = ref_of(fields)
    if ref is None:
        return
    try:
        conclude(app, store_of(app), ref, outcome, text)
    except Exception as exc:  # noqa: BLE001 - nothing may escape in the worker's main process
        why = text_of(exc)
        text = "Pipeline %s: cannot record that step %d ended: %s"
        logger.warning(text, ref.run, ref.step, why)


def _report_failure(sender: Any = None, exception: Any = None, **_: Any) -> None:
    # The child sends it for an exception; the worker's main process for a child that died, or that
    # exceeded its hard time limit. For that limit Celery sends it twice, first without a request.
    report(sender.app, sender.request.__dict__, "FAILED", describe(exception))


def _report_revoke(
    sender: Any = None, request: Any = None, expired: bool = False, **_: Any
) -> None:
    text = "expired before it began" if expired else "was revoked"
    report(sender.app, request.__dict__, "REVOKED", text)


def _report_unknown(sender: Any = None, message: Any = None, name: str = "", **_: Any) -> None:
    # The worker has dropped the message, and has stored the same error as the task's result.
    text = f"NotRegistered: a worker of its queue knows no task {name!r}"
    report(sender.app, message.headers, "FAILED", text)


for _signal, _handler in (
    (signals.task_failure, _report_failure),
    (signals.task_revoked, _report_revoke),
    (signals.task_unknown, _report_unknown),
):
    _signal.connect(_handler, weak=False, dispatch_uid=f"redbeat_lite.pipeline{_handler.__name__}")


@shared_task(name=START, **PUBLISHES)  # type: ignore[untyped-decorator]
def start_pipeline(self: Any, definition: str) -> str:
    """Start a run under the id of this task, so that two copies of an occurrence start one run."""
    run_id = str(self.request.id)
    fields = self.request.__dict__
    attempt = LockClient.of(self.app).attempt(fields)
    entry = str(fields.get("periodic_task_name") or "")
    try:
        begin(
            self.app,
            Definition.decode(definition),
            run_id,
            entry,
            json.dumps(attempt) if attempt else "",
        )
    except PipelineNotFound:
        logger.info("Pipeline %s has run long ago; this copy of its start is dropped", run_id)
    run_lifecycle.leave_end_to_others(self.request)  # the process that ends the run records the end
    return run_id

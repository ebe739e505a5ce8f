"""``PipelineTask``, the class of every step, and the task that starts a run for an entry."""

from __future__ import annotations

import json
import socket
from collections import deque
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial, wraps
from typing import Any

from celery import shared_task, signals
from celery.exceptions import Ignore, Reject, Retry
from celery.utils.log import get_logger

from .._base.public import public
from .._base.text import describe, storable, text_of
from .._base.threads import Ticker
from ..entries.run import Attempt, attempt_of
from ..once import run_lifecycle
from ..once.claims import Fields
from ..once.errors import LockUnavailable, OnceSkipped
from ..once.lock_client import LockClient
from ..once.outcomes import end_unrun, fatal_error, is_final
from ..once.parked_message import token_of
from ..once.task import NOT_TAKEN, PUBLISHES, Task
from ..store.connections import FAULTS, retry_for
from .definition import Definition, Ref, arguments_of, decode_params, result_of
from .pipeline_keys import START
from .pipeline_run import PipelineNotFound, begin
from .pipeline_store import PATIENCE, store_of
from .publish import HEADER
from .sweeper import LATE_MS, conclude

logger = get_logger(f"celery.{__name__}")

#: Reasons for which the guard drops a message for good. If the guard refuses a message for another
#: reason, the message comes back later, or is a copy of another message.
_NEVER = ("skipped", "too old")

#: Errors that say that the server does not answer. A step cannot begin without the server.
_AWAY: tuple[type[Exception], ...] = (*FAULTS, LockUnavailable)

#: Attribute of the request with the :class:`Ref` of its step, and the params for that step.
_STEP = "redbeat_pipeline_step"

#: Attribute of the request with the :class:`Progress` of its step.
_PROGRESS = "redbeat_pipeline_progress"

#: Attribute that marks the request of a rehearsed step.
REHEARSED = "redbeat_pipeline_rehearsed"

#: Seconds between two writes of a step's progress.
_PROGRESS_PERIOD = 0.5

#: Maximum number of seconds that the end of a step waits for a write of its progress.
_END = 10.0

#: Maximum number of characters of the note of a step's progress.
_MAX_NOTE = 200


class Progress:
    """Progress of one run of a step.

    A thread writes the latest value, so that the code of the step does not wait for Redis.
    """

    def __init__(self, write: Callable[..., object]) -> None:
        self._write_fields = write
        #: The latest percent and note; empty once they are written.
        self._latest: deque[dict[str, Any]] = deque(maxlen=1)
        self._ticker = Ticker("redbeat-lite-progress", lambda: _PROGRESS_PERIOD, self._write)

    def report(self, percent: float, note: str) -> None:
        """Have the thread write this value. A newer value before that write replaces it."""
        # In this order of the arguments, max() returns 0.0 for NaN.
        percent = min(max(0.0, float(percent)), 100.0)
        self._latest.append({"percent": percent, "note": storable(str(note))[:_MAX_NOTE]})
        # If no thread can be started, close() writes the latest value.
        with suppress(RuntimeError):
            self._ticker.start()

    def close(self) -> None:
        """Write the latest value now, because the server accepts none after the step's end."""
        self._ticker.stop()
        self._ticker.join(_END)
        self._write()

    def _write(self) -> None:
        """Write the latest value, unless it has been written."""
        if self._latest:
            # If the server does not answer, the value is lost. The next one replaces it anyway.
            with suppress(*FAULTS):
                self._write_fields(**self._latest.popleft())


def ref_of(fields: Fields) -> Ref | None:
    """Return the step that a message starts, by its headers; ``None`` if it starts none."""
    header = fields.get(HEADER)
    # A task that is called without a message is no step, even if it has such headers.
    if not header or fields.get("is_eager") or fields.get("called_directly"):
        return None
    # When a task begins, its request gets a hold (its lock and its record in the guard), which has
    # the token of the delivery. Before that, only the message may have the token.
    hold = fields.get(run_lifecycle.HOLD)
    token = token_of(fields) if hold is None else hold.token
    return Ref(header["run"], header["step"], header["round"], attempt_of(fields), token or "")


def _ending_step(call: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``__call__``: pass the params to a step, and record its outcome after the call.

    A user's class may have a ``__call__`` that commits transactions or handles exceptions. So the
    outcome is recorded after the whole call, and not at the end of the body: the transactions are
    committed before the next stage begins, and a handled exception fails no step.
    """

    @wraps(call)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        fields = self.request.__dict__
        # The outermost call takes the step. So an inner call, by ``super()``, sees no step, and
        # only calls its function.
        begun = fields.pop(_STEP, None)
        if begun is None:
            return call(self, *args, **kwargs)
        ref, params = begun
        header = fields[HEADER]
        try:
            # Closing writes the last progress. After the step's end, it could not be written.
            with closing(fields[_PROGRESS]):
                arguments = arguments_of(self.run, header, params, args)
                returned = call(self, *arguments, **kwargs)
            # Only a step of a task process has data in its header. Such a step may return its
            # params in further forms.
            result = result_of(returned, process=header["process"] is not None)
        except (Retry, Reject, Ignore) as exc:
            # The step will run again, or has ended without a result.
            _end_early(self, ref, exc)
            raise
        except BaseException:
            # If the error is no Exception, Celery may send no signal of it. So record it here.
            error = fatal_error(self)
            if error is not None:
                report(self.app, fields, "FAILED", describe(error))
            raise
        # Release the lock before the next stage is published, because its steps may need it.
        hold = fields.get(run_lifecycle.HOLD)
        if hold is not None:
            LockClient.of(self.app).release(hold)
        # Here, the step has succeeded. Any other exception goes to Celery, and the handlers of
        # Celery's signals at the end of this file record it.
        report(self.app, fields, "SUCCEEDED", result)
        return returned

    # Celery's annotation ``"@__call__"`` would use this attribute to call the inner function, and
    # the step would not end.
    del __call__.__wrapped__
    return __call__


@public
class PipelineTask(Task):
    """A task that can be a step of a pipeline, and otherwise is a :class:`redbeat_lite.Task`.

    As a step it gets the params as its first argument, and after them the arguments of its
    signature. It returns ``None``, a dict of params for the stages to come, or ``(True, dict or
    None)``. An exception or ``(False, reason)`` ends the pipeline.

    If the worker of a step dies, the step runs again if the task has ``acks_late`` (or
    ``retry_on_worker_lost``); otherwise the pipeline fails. A subclass with its own
    ``before_start`` calls ``super().before_start(task_id, args, kwargs)`` first. A subclass with
    its own ``__call__`` passes the arguments on to ``self.run`` or ``super().__call__``, and the
    step ends when this ``__call__`` returns.
    """

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        """Acquire the lock and the guard's record of the message, and then begin the step.

        Without a step in its headers, the message is one of an ordinary task.

        Raises:
            Ignore: this copy must not run, or the step may not run any more.
            Reject: the server does not answer, so the message of the step goes back to its queue.
        """
        ref = ref_of(self.request.__dict__)
        if ref is None:
            super().before_start(task_id, args, kwargs)
            return
        try:
            super().before_start(task_id, args, kwargs)
            self._begin_step(ref)
        except Ignore as exc:
            reason = str(exc)
            if reason in _NEVER:
                # No other message of the step will come, so end the step.
                conclude(store_of(self.app), ref, "FAILED", f"was not run: {reason}")
            raise
        except _AWAY as exc:
            # The step has not failed, so the run must not end. Return the message to its queue. If
            # it is acknowledged already, or the queue cannot be reached either, the sweeper
            # publishes it again.
            logger.warning("%s waits for the server: %s", self._title(ref), exc)
            raise Reject(describe(exc), requeue=True) from exc

    def progress(self, percent: float, note: str = "") -> None:
        """Report the progress of this step, for :meth:`PipelineRun.status`.

        The call does not wait for Redis: a thread writes the last value of each half second.
        Outside a step the call does nothing.

        Parameters:
            percent: 0 to 100; other values are cut.
            note: current activity, cut at 200 characters.
        """
        progress = self.request.__dict__.get(_PROGRESS)
        if progress is not None:
            progress.report(percent, note)

    def needs_guard(self) -> bool:
        """Return whether this message starts a step. Without the guard, a copy could run again."""
        return ref_of(self.request.__dict__) is not None

    def _begin_step(self, ref: Ref) -> None:
        """Begin a step on the server, and give the request its params.

        Raises:
            Ignore: the step may not run, so Celery runs no body and stores no result.
            LockUnavailable: this task began without the guard, because the server did not answer.
            CorruptEntry: the params cannot be read, so the step fails.
        """
        store = store_of(self.app)
        request = self.request
        hold = request.__dict__.get(run_lifecycle.HOLD)
        if hold is None:
            raise LockUnavailable(
                "the server cannot be used, and a step does not run without its guard", ""
            )
        ref = ref._replace(token=hold.token)
        answer, text = store.begin(
            ref,
            # Celery also repeats a task with one of these options after its worker has died.
            again=bool(self.acks_late or getattr(self, "retry_on_worker_lost", False)),
            worker=str(request.hostname or socket.gethostname()),
            renew_ms=round(1000 * hold.period),
        )
        if answer == "over" and not is_final(self, request.id):
            # The run has ended, so this step gets a result that says so. If an earlier copy of the
            # step has stored a final result, keep that result.
            why = f"{self._title(ref)}: the pipeline has ended ({text.decode()})"
            end_unrun(self, request, OnceSkipped(why))
        if answer != "run":
            # The word "stale" means that the step has ended, was started again under another id, or
            # may not run again after its worker died. In the last case, the sweeper fails it.
            logger.info("%s is dropped: %s", self._title(ref), answer)
            raise Ignore(answer)
        setattr(request, _STEP, (ref, decode_params(text)))
        setattr(request, _PROGRESS, Progress(partial(store.change, ref)))

    def _title(self, ref: Ref) -> str:
        """Return the name of this task and of its step, for a log line."""
        return f"{self.name}[{self.request.id}], step {ref.step} of pipeline {ref.run}"

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # Wrap a ``__call__`` of this class or of a mixin. A ``__call__`` that is inherited from a
        # PipelineTask is wrapped already.
        bases = [base for base in cls.__mro__[1:] if issubclass(base, PipelineTask)]
        if all(cls.__call__ is not base.__call__ for base in bases):
            wrapped = _ending_step(cls.__call__)
            cls.__call__ = wrapped  # type: ignore[method-assign] # as Celery does with ``run``

    @_ending_step
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the body. For a step, pass the params and record the outcome."""
        return super().__call__(*args, **kwargs)

    def apply_async(self, *args: Any, **options: Any) -> Any:
        """Publish the task, as the base class does.

        If the broker does not accept the retry of a step, the sweeper publishes it later, because
        Celery gives up after a second, and a broker takes longer to restart.
        """
        try:
            return super().apply_async(*args, **options)
        except NOT_TAKEN as exc:
            ref = ref_of(self.request.__dict__)
            hold = self.request.__dict__.get(run_lifecycle.HOLD)
            # Only a retry has the task id of this step. Other calls of this task come from the body
            # or publish the next stage.
            is_retry = options.get("task_id") == self.request.id
            if ref is None or hold is None or not is_retry:
                raise
            # A lock that is kept for the retry must last until the sweeper has published the retry.
            hold.late_ms = LATE_MS
            failure = "%s is to be retried, leaving that to the sweeper: %s"
            logger.warning(failure, self._title(ref), describe(exc))
            return self.AsyncResult(self.request.id)

    def replace(self, sig: Any) -> Any:
        """Replace the task, as the base class does.

        Raises:
            RuntimeError: the task runs as a step, and a replacement could not record its outcome.
        """
        fields = self.request.__dict__
        if ref_of(fields) is not None or REHEARSED in fields:
            raise RuntimeError("a step of a pipeline cannot be replaced by another task")
        return super().replace(sig)


def _end_early(task: Any, ref: Ref, why: Retry | Reject | Ignore) -> None:
    """Record that the body of a step ended with an exception which, for Celery, is no failure.

    After a retry, or if the message goes back to its queue, the step waits for another attempt.
    Otherwise it has failed, because nothing would give it a result.
    """
    store = store_of(task.app)
    if isinstance(why, Ignore):
        conclude(store, ref, "FAILED", f"ended without a result: {describe(why)}")
        return
    if isinstance(why, Reject) and not why.requeue:
        conclude(store, ref, "FAILED", f"rejected its message: {describe(why)}")
        return
    # ``sent`` says whether the broker has the message of the next attempt. If it has, the sweeper
    # waits for ``resend_ms`` longer, because it must publish the step only if that message is lost.
    sent = True
    due_ms = store.resend_ms
    attempt = ref.attempt  # After a Reject, the broker delivers the same attempt again.
    if isinstance(why, Retry):
        attempt += 1
        # apply_async() sets ``late_ms`` if the broker did not accept the retry.
        sent = not task.request.__dict__[run_lifecycle.HOLD].late_ms
        due_ms = run_lifecycle.until_retry_ms(why) + store.resend_ms * sent
    fields = {"state": "WAITING", "attempt": attempt, "tries": int(sent)}
    # If another copy of the step has taken over, the server changes nothing. If the server does not
    # answer, the retry begins all the same, or the sweeper ends the step.
    with suppress(*FAULTS):
        retry_for(lambda: store.change(ref, due_ms, **fields), PATIENCE)


def report(app: Any, fields: Fields, outcome: str, text: str) -> None:
    """Record the end of a step. Do nothing for a task that is no step.

    Never raises. If the record cannot be written, the sweeper ends the step or runs it again.

    Parameters:
        fields: the headers of the message or the attributes of the request.
        outcome, text: as for :func:`conclude`.
    """
    ref = ref_of(fields)
    if ref is None:
        return
    try:
        # The soft time limit strikes once, perhaps here.
        run_lifecycle.despite_soft_limit(partial(conclude, store_of(app), ref, outcome, text))
    except Exception as exc:  # noqa: BLE001 - nothing may escape in the worker's main process
        logger.warning(
            "Pipeline %s: cannot record that step %d ended: %s", ref.run, ref.step, text_of(exc)
        )


@signals.task_failure.connect(weak=False)  # type: ignore[untyped-decorator]
def _report_failure(sender: Any, exception: Any, **_: Any) -> None:
    # A child process sends this signal for an exception. The worker's main process sends it if a
    # child died or exceeded its hard time limit. For that limit Celery sends the signal twice. The
    # first time there is no request, so report() records nothing.
    report(sender.app, sender.request.__dict__, "FAILED", describe(exception))


@signals.task_revoked.connect(weak=False)  # type: ignore[untyped-decorator]
def _report_revoke(sender: Any, request: Any, expired: bool, **_: Any) -> None:
    text = "expired before it began" if expired else "was revoked"
    report(sender.app, request.__dict__, "REVOKED", text)


@signals.task_unknown.connect(weak=False)  # type: ignore[untyped-decorator]
def _report_unknown(sender: Any, message: Any, name: str, **_: Any) -> None:
    # The worker has dropped the message, and has stored the same error as the task's result.
    text = f"NotRegistered: a worker of its queue knows no task {name!r}"
    report(sender.app, message.headers, "FAILED", text)


@shared_task(name=START, **PUBLISHES)  # type: ignore[untyped-decorator]
def start_pipeline(self: Any, definition: str) -> str:
    """Start a run under the id of this task, so that two copies of an occurrence start one run."""
    run_id = str(self.request.id)
    fields = self.request.__dict__
    # The attempt identifies this task in the record of runs. It is ``None`` if runs of the entry
    # are not recorded.
    attempt = Attempt.of(fields, LockClient.of(self.app).settings.history)
    attempt_json = json.dumps(attempt) if attempt else ""
    entry = str(fields.get("periodic_task_name") or "")
    try:
        begin(self.app, Definition.decode(definition), run_id, entry, attempt_json)
    except PipelineNotFound:
        logger.info("Pipeline %s has run long ago; this copy of its start is dropped", run_id)
    # The occurrence of the entry ends with the run of the pipeline, and not with this task. Without
    # this header, the end of this task is not recorded.
    fields.pop("scheduled_at", None)
    return run_id

"""``PipelineTask``: the class of every task that is a step."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial, wraps
from typing import Any, Self

from celery import signals
from celery.exceptions import Ignore, Reject, Retry
from celery.utils.log import get_logger

from ..errors import CorruptEntry, describe, text_of
from ..once import run as once_run
from ..once.canvas_task import NOT_TAKEN
from ..once.errors import LockUnavailable, OnceSkipped
from ..once.parked_message import DELIVERY
from ..once.renewal import PER_LEASE
from ..once.runtime import Runtime
from ..once.settle import is_final, settle
from ..once.store import DOWN
from ..once.task import Task
from ..public import public
from ..runs.attempt import attempt_of
from . import params, start  # noqa: F401 - a worker that knows steps can start runs
from .progress import Progress
from .publish import HEADER, LOST, conclude
from .store import MAX_DEATHS, Ref, store_of
from .sweeper import LATE_MS

logger = get_logger(f"celery.{__name__}")

#: Reasons for which the guard puts a message aside for good. The others bring it back, or belong to a mere copy.
_NEVER = ("skipped", "too old")

#: What says that the server did not answer, so that a step could not begin.
_AWAY: tuple[type[Exception], ...] = (*DOWN, LockUnavailable)

#: Where a step keeps what it got, on its request.
_PARAMS = "redbeat_pipeline_params"

#: And what notes its progress.
_PROGRESS = "redbeat_pipeline_progress"

#: What says on a request that its step is rehearsed.
REHEARSED = "redbeat_pipeline_rehearsed"


def ref_of(fields: Mapping[str, Any]) -> Ref | None:
    """Which step a message is; ``None`` for none."""
    header = fields.get(HEADER)
    if not header:
        return None
    token = (fields.get(DELIVERY) or {}).get("token") or ""
    hold = fields.get(once_run.ATTRIBUTE)
    if hold is not None:
        token = hold.held.token
    return Ref(
        str(header["run"]), int(header["step"]), int(header["stage"]), int(header["round"]), attempt_of(fields), token
    )


def _ending_step(call: Callable[..., Any]) -> Callable[..., Any]:
    """A ``__call__`` that gives a step its params, and after which the step has ended and its outcome is recorded.

    Around all that it does, and not at the end of the body: what it commits there is committed when the next stage
    begins, and what it makes of an exception is what becomes of the step.
    """

    @wraps(call)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        fields = self.request.__dict__
        # The outermost call takes them: those within it, by ``super()``, are calls like any other.
        given = fields.pop(_PARAMS, None)
        ref = ref_of(fields)
        if ref is None or given is None:
            return call(self, *args, **kwargs)
        header = fields[HEADER]
        try:
            try:
                returned = call(self, *params.arguments(self.run, header, given, args), **kwargs)
            finally:
                fields[_PROGRESS].close()
            text = params.outcome(returned, process=header["process"] is not None)
        except (Retry, Reject, Ignore) as exc:
            _ended_early(self, ref, exc)
            raise
        # Before the next stage is published: a step of it may want the same lock.
        hold = fields.get(once_run.ATTRIBUTE)
        if hold is not None:
            Runtime.of(self.app).release(hold)
        # An exception goes its way through Celery, which tells of it below, in whatever process it is known.
        conclude(self.app, store_of(self.app), ref, "SUCCEEDED", text)
        return returned

    # By which an annotation of Celery's, ``"@__call__"``, would find what it goes around, and the step would not end.
    del __call__.__wrapped__
    return __call__


@public
class PipelineTask(Task):
    """A task that can be a step of a pipeline, and otherwise is a :class:`redbeat_lite.Task`.

    As a step it gets the params as its first argument, and after them the arguments of its signature. It returns
    ``None``, a dict of params for the stages to come, or ``(True, dict or None)``. An exception or ``(False, reason)``
    ends the pipeline.

    A step whose worker dies is run again if the task has ``acks_late`` (or ``retry_on_worker_lost``), else the pipeline
    fails. A subclass with a ``before_start`` of its own calls ``super().before_start(task_id, args, kwargs)`` first.
    One with a ``__call__`` of its own calls ``self.run`` or ``super().__call__`` in it, with what it was given; its
    step has ended when that has.
    """

    abstract = True

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """A task whose arguments :meth:`apply_async` checks and not Celery: those of a step cannot be, as its message
        carries the run's id where the body gets the params."""
        task = super().__new__(cls, *args, **kwargs)
        task.typing = False
        return task

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        """Begin the step, if it may run."""
        ref = ref_of(self.request.__dict__)
        try:
            super().before_start(task_id, args, kwargs)
            # Once more: now there may be a hold, with its token.
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
            # A failure would end a run of which nothing failed. The message goes back to its queue; where it is
            # acknowledged already, or the queue is as far away, the sweeper publishes it again.
            logger.warning(
                "%s[%s] waits for the server, as step %d of pipeline %s: %s", self.name, task_id, ref.step, ref.run, exc
            )
            raise Reject(describe(exc), requeue=True) from exc

    def progress(self, percent: float, note: str = "") -> None:
        """Tell how far this step is, for :meth:`PipelineRun.status`. Waits for nothing; of each half second the last
        word is written. Outside of a step it does nothing.

        Parameters:
            percent: 0 to 100; what is beyond is cut.
            note: what it is doing; of more than 200 characters the first.
        """
        progress = self.request.__dict__.get(_PROGRESS)
        if progress is not None:
            progress.tell(percent, note)

    def needs_guard(self) -> bool:
        """A step does: a copy of it could not be told from the one that runs."""
        return ref_of(self.request.__dict__) is not None

    def _begin_step(self, ref: Ref) -> None:
        store, request = store_of(self.app), self.request
        again = bool(self.acks_late or getattr(self, "retry_on_worker_lost", False))
        worker = str(request.hostname or socket.gethostname())
        hold = request.__dict__.get(once_run.ATTRIBUTE)
        if hold is None:
            raise LockUnavailable("the server cannot be used, and a step does not run without its guard", "")
        renew_ms = round(hold.held.lease_ms / PER_LEASE)
        word, text = store.begin(ref, request.id, again=again, worker=worker, renew_ms=renew_ms)
        if word == "run":
            try:
                setattr(request, _PARAMS, params.decode(text))
                setattr(request, _PROGRESS, Progress(partial(store.progress, ref)))
            except CorruptEntry as exc:
                conclude(self.app, store, ref, "FAILED", f"its params cannot be read: {exc}")
                raise
            return
        what = f"{self.name}[{request.id}], step {ref.step} of pipeline {ref.run}"
        if word == "over":
            settle(self, request, OnceSkipped(f"{what}: the pipeline has ended ({text.decode()})"))
        elif word == "gone":
            # A run of which nothing is left. What an earlier copy of the step came to stays.
            if not is_final(self, request.id):
                settle(self, request, OnceSkipped(f"{what}: there is no record of the pipeline"))
        elif word == "dead":
            conclude(self.app, store, ref, "FAILED", f"its worker died more than {MAX_DEATHS} times")
        elif word == "lost":
            conclude(self.app, store, replace(ref, token=text.decode()), "FAILED", LOST)
        else:
            logger.info("%s is dropped: %s", what, word)
        raise Ignore(word)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        call = cls.__call__
        # One of its own, or of a class that it is mixed with.
        if all(call is not base.__call__ for base in cls.__mro__[1:] if issubclass(base, PipelineTask)):
            cls.__call__ = _ending_step(call)  # type: ignore[method-assign] # as Celery does with ``run``

    @_ending_step
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the body: of a step with its params, and its outcome recorded."""
        return super().__call__(*args, **kwargs)

    def apply_async(self, args: Any = None, kwargs: Any = None, *more: Any, **options: Any) -> Any:
        """As its base's. The retry of a step is left to the sweeper where the broker does not take it: Celery gives up
        after a second, and a broker that restarts takes longer.

        Raises:
            TypeError: the arguments of a call that is no step do not fit the body.
        """
        if type(self).typing and HEADER not in (options.get("headers") or {}) and hasattr(self, "__header__"):
            self.__header__(*(args or ()), **(kwargs or {}))
        try:
            return super().apply_async(args, kwargs, *more, **options)
        except NOT_TAKEN as exc:
            ref, hold = ref_of(self.request.__dict__), self.request.__dict__.get(once_run.ATTRIBUTE)
            # Under its own id a step publishes its retry alone. The next stage may be of the same task, as may what the
            # body calls.
            if ref is None or hold is None or options.get("task_id") != self.request.id:
                raise
            hold.late_ms = LATE_MS
            what = f"{self.name}[{self.request.id}], step {ref.step} of pipeline {ref.run}"
            logger.warning("%s is to be retried, leaving that to the sweeper: %s", what, describe(exc))
            return self.AsyncResult(self.request.id)

    def replace(self, sig: Any) -> Any:
        """Refused within a step by a RuntimeError: the replacement would have to answer for it."""
        fields = self.request.__dict__
        if ref_of(fields) is not None or REHEARSED in fields:
            raise RuntimeError("a step of a pipeline cannot be replaced by another task")
        return super().replace(sig)


def _ended_early(task: Any, ref: Ref, why: Retry | Reject | Ignore) -> None:
    """Record what becomes of a step whose body ended with one of Celery's own exceptions, which fail no task."""
    store = store_of(task.app)
    if isinstance(why, Retry):
        hold = task.request.__dict__[once_run.ATTRIBUTE]
        store.wait(ref, ref.attempt + 1, once_run.until_retry_ms(why), sent=not hold.late_ms)
    elif isinstance(why, Ignore):
        conclude(task.app, store, ref, "FAILED", f"ended without a result: {describe(why)}")
    elif why.requeue:
        store.wait(ref, ref.attempt, 0, sent=True)
    else:
        conclude(task.app, store, ref, "FAILED", f"rejected its message: {describe(why)}")


def report(app: Any, fields: Mapping[str, Any], outcome: str, text: str) -> None:
    """Record that a step failed or was revoked. Never raises: what is not recorded, the sweeper finds."""
    ref = ref_of(fields)
    if ref is None:
        return
    try:
        conclude(app, store_of(app), ref, outcome, text)
    except Exception as exc:  # noqa: BLE001 - in the worker's main process nothing may escape
        logger.warning("Pipeline %s: cannot record that step %d ended: %s", ref.run, ref.step, text_of(exc))


@signals.task_failure.connect(weak=False, dispatch_uid="redbeat_lite.pipeline.failure")  # type: ignore[untyped-decorator]
def _failed(sender: Any = None, exception: Any = None, **_: Any) -> None:
    # In the child for an exception, in the worker's main process for a child that died or met its hard time limit. For
    # that limit Celery sends it twice, the first time without a request.
    report(sender.app, sender.request.__dict__, "FAILED", describe(exception))


@signals.task_revoked.connect(weak=False, dispatch_uid="redbeat_lite.pipeline.revoked")  # type: ignore[untyped-decorator]
def _revoked(sender: Any = None, request: Any = None, expired: bool = False, **_: Any) -> None:
    text = "expired before it began" if expired else "was revoked"
    report(sender.app, request.__dict__, "REVOKED", text)


@signals.task_unknown.connect(weak=False, dispatch_uid="redbeat_lite.pipeline.unknown")  # type: ignore[untyped-decorator]
def _unknown(sender: Any = None, message: Any = None, name: str = "", **_: Any) -> None:
    # The worker has dropped the message, and stored the same as the task's result.
    report(sender.app, message.headers, "FAILED", f"NotRegistered: a worker of its queue knows no task {name!r}")

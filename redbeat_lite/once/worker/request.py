"""The request class of workers, and the end of a run whose child process is gone."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

from billiard.einfo import ExceptionWithTraceback
from celery.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from celery.utils.log import get_logger
from celery.worker.request import Request as CeleryRequest

from ..._base.clock import wall_ms
from ..._base.errors import InvalidEntry
from ..._base.forks import no_forks
from ..._base.ids import random_hex
from ..._base.lazy import lazy
from ..._base.text import describe, text_of
from ...entries.run import attempt_of
from ...store.connections import FAULTS
from ..claims import ONCE_HEADER, Fields, Hold, expires_ms, is_guarded, once_header
from ..lock_client import LockClient, policy_of_call, record_outcome
from ..lock_key import checked_key
from ..outcomes import Result, Skipped, has_succeeded
from ..parked_message import DELIVERY, GONE, token_of
from ..run_lifecycle import INTERNAL_NAMES, clear_interval_expires

logger = get_logger(f"celery.{__name__}")

_Base: Any = object  # The class behind the mixin; Celery has no types.

#: Exceptions of a run whose child has died or is about to be killed.
_CHILD_IS_GONE = (WorkerLostError, SystemExit, KeyboardInterrupt, TimeLimitExceeded, Terminated)

#: Seconds between two checks whether a dying child is gone.
_CHECK = 0.02

#: Seconds to wait for a dying child. After that, its lock is free when the lease ends.
_GIVE_UP = 60.0


class RequestMixin(_Base):  # type: ignore[misc] # Celery has no types
    """Mixin that :func:`redbeat_lite.install` puts in front of each task's ``Request`` class.

    The mixin does not override ``execute_using_pool`` and ``on_success``, because Celery's
    optimised code bypasses them. It passes parameters of Celery's methods on unchanged, because
    they differ between versions.
    """

    #: Whether a thread waits for the end of this run's child, and then ends the run.
    is_watched = False

    _is_requeued = False
    _is_retried = False

    def __init__(self, message: Any, *args: Any, headers: Any = None, **kwargs: Any) -> None:
        # ``request_dict`` has the headers of the message by name. Celery makes them attributes of
        # the task's request.
        super().__init__(message, *args, headers=headers, **kwargs)
        fields = self.request_dict
        # Only the worker may set the attributes with these names, so remove such headers.
        for name in INTERNAL_NAMES:
            fields.pop(name, None)
        header = _once_of_send_task(self.task, fields)
        if header is not None:
            fields[ONCE_HEADER] = header
        if is_guarded(self.task, fields):
            # Make the token of this delivery in the main process. The child gets the token with the
            # request. With the same token, the main process can renew and release the lock for its
            # child.
            names = [*(headers or message.headers or {}), ONCE_HEADER]
            fields[DELIVERY] = {
                "token": random_hex(),
                "names": [name for name in names if name not in GONE],
                "type": message.content_type,
            }

    @lazy
    def hold(self) -> Hold | None:
        """The lock and the guard's record of the run, made from the message alone.

        ``None`` if the message is not guarded, or if the key of its lock cannot be made.
        """
        if token_of(self.request_dict) is None:
            return None
        try:
            return LockClient.of(self.app).hold(self.task, self.request_dict)
        except Exception as exc:  # noqa: BLE001 - a callable key may raise anything
            logger.warning("Cannot tell the once-lock of task %s: %s", self.id, text_of(exc))
            return None

    def revoked(self) -> bool:
        """Drop an expired copy of a message that runs or has run; else call Celery's method.

        For such a copy, Celery would overwrite the result of the first one with REVOKED.
        """
        is_ended_here = self._already_revoked  # type: ignore[has-type] # Celery has no types
        if not is_ended_here and self._is_expired_copy():
            logger.info("An expired copy of task %s is dropped", self.id)
            self.acknowledge()
            # With this mark, Celery's own method returns true when it is called next.
            self._already_revoked = True
            return True
        return bool(super().revoked())

    def _is_expired_copy(self) -> bool:
        """Return whether the message has expired and another copy of it runs or has run.

        ``False`` also if the guard has no record of the message, or if the server does not answer.
        """
        is_expired = 0 < expires_ms(self.request_dict) < wall_ms()
        if not is_expired or not is_guarded(self.task, self.request_dict):
            return False
        try:
            [record] = LockClient.of(self.app).store.records([self.id]).values()
        except FAULTS as exc:
            logger.warning(
                "Cannot tell whether the expired task %s is a copy: %s", self.id, text_of(exc)
            )
            return False
        return record.is_copy(attempt_of(self.request_dict))

    def on_failure(self, exc_info: Any, *args: Any, **kwargs: Any) -> Any:
        """Call Celery's method. If the child is gone, also release its lock and record its outcome.

        A child that lives does both itself.
        """
        exc = exc_info.exception
        if isinstance(exc, ExceptionWithTraceback):
            exc = exc.exc
        if isinstance(exc, Skipped):
            # Monitors have received an event that the task started, so send an event for its end.
            self.send_event("task-revoked", terminated=False, signum=None, expired=False)
        if not isinstance(exc, _CHILD_IS_GONE):
            return super().on_failure(exc_info, *args, **kwargs)
        # From Celery 5.7 on, Celery's method may send a retry (retry_on_worker_lost). The retry
        # copies ``expires``, so clear an ``expires`` of the interval first.
        clear_interval_expires(self._context)
        # Receivers of ``task_failure`` read the request from the task. Celery 5.5 and 5.6 do not
        # set this request in the main process.
        self.task.push_request(**self.request_dict)
        try:
            return super().on_failure(exc_info, *args, **kwargs)
        finally:
            self.task.pop_request()
            watch(self, self._result_of_child(exc))

    def _result_of_child(self, exc: BaseException) -> Result | None:
        """Return the outcome of a run whose child is gone; ``None`` if the run has not ended.

        Parameters:
            exc: exception by which Celery reports the end of the child.
        """
        if self._is_requeued or not self.acknowledged:
            return None  # The message will be redelivered.
        # Celery has terminated the child, because the task was revoked. Celery also terminates
        # children when it loses its broker, but then ``_already_cancelled`` is true.
        if isinstance(exc, Terminated) and not self._already_cancelled:
            return "revoked", ""
        if self._is_retried:
            return "retrying", describe(exc)
        if isinstance(exc, TimeLimitExceeded):
            return "timed out", describe(exc)
        # The child was killed from outside, or has crashed.
        return "lost", describe(exc)

    def _retry_worker_lost(self, *args: Any, **kwargs: Any) -> bool:
        """Call Celery's method, which exists from 5.7 on, and note whether it has sent a retry."""
        self._is_retried = bool(super()._retry_worker_lost(*args, **kwargs))
        return self._is_retried

    def reject(self, requeue: bool = False) -> None:
        """Call Celery's method, and remember whether the message goes back to its queue."""
        self._is_requeued = requeue
        super().reject(requeue=requeue)

    def terminate(self, *args: Any, **kwargs: Any) -> Any:
        """Call Celery's method for a revoke, and record the outcome ``revoked``."""
        if self.time_start:  # The pool has begun to run the task.
            # With this result, watch() releases the lock when the child is gone, and lets no copy
            # of the task run. Call watch() before the kill. Otherwise watch_children() could find
            # the child dead first, and let a copy run.
            watch(self, ("revoked", ""))
        reply = super().terminate(*args, **kwargs)
        # For a child, watch() records the outcome when the child is gone. If the outcome were
        # recorded now, a late report that the body began could replace it for a moment.
        if self.time_start and not is_child(self.worker_pid):
            record_outcome(self.app, self.request_dict, ("revoked", ""), began=began(self))
        return reply

    def cancel(self, *args: Any, **kwargs: Any) -> Any:
        """Call Celery's method for a lost connection or a cold shutdown, and release the lock.

        If the message is not acknowledged, the broker redelivers it.
        """
        result: Result | None = None
        # The broker does not redeliver this message, so its run ends here.
        if self.acknowledged:
            result = ("lost", "its worker has lost its broker, or shuts down")
        watch(self, result)
        return super().cancel(*args, **kwargs)


class Request(RequestMixin, CeleryRequest):  # type: ignore[misc] # Celery has no types
    """The request class of tasks that have none of their own."""


def with_mixin(request: type) -> type:
    """Return a subclass of a request class with :class:`RequestMixin` in front.

    A class that has the mixin already is returned unchanged.
    """
    if issubclass(request, RequestMixin):
        return request
    return type(request.__name__, (RequestMixin, request), {"__module__": request.__module__})


def _once_of_send_task(task: Any, fields: Fields) -> dict[str, Any] | None:
    """Return the header of the lock for a message of ``app.send_task(name, once_key=...)``.

    ``send_task`` uses no task object, which would write the header. But a Redis broker delivers
    unknown options as properties of the message. ``None`` if there is no such option.
    """
    properties = fields.get("properties") or {}
    if "once_key" not in properties or fields.get(ONCE_HEADER):
        return None
    try:
        once = policy_of_call(task, properties.get("on_conflict"))
        return once_header(checked_key(properties["once_key"]), once)
    except InvalidEntry as exc:
        name = f"{task.name}[{fields.get('id')}]"
        logger.error("Task %s runs without a once-lock: %s", name, exc)
        return None


# -- children that die -----------------------------------------------------------------------------


def watch(request: Any, result: Result | None) -> None:
    """Release the lock of a run, and record its outcome, as soon as its child is gone.

    Celery learns of a hard time limit, a revoke or an exit before the child is dead. If the lock
    were released at that moment, the next task could overlap with the last steps of this one. So a
    thread waits for the end of the child, and this function returns at once.

    Parameters:
        result: outcome and error of the run; ``None`` if Celery has not decided yet, or if the
            message is redelivered.
    """
    if not is_child(request.worker_pid):
        return  # The run is a thread or a greenlet of this process, and ends itself.
    # While this is true, watch_children() does not touch the run.
    request.is_watched = True
    name = "redbeat-lite-departure"
    threading.Thread(target=_end_when_gone, args=(request, result), name=name, daemon=True).start()


def _end_when_gone(request: Any, result: Result | None) -> None:
    """Wait until the process of a run is gone. Then release its lock, and record its outcome.

    Parameters:
        result: outcome and error of the run; ``None``: nothing is recorded.
    """
    pid = request.worker_pid
    deadline = time.monotonic() + _GIVE_UP
    while not is_gone(pid):
        if time.monotonic() > deadline:
            logger.warning("Process %s does not end; task %s keeps its lock", pid, request.id)
            request.is_watched = False  # Then watch_children() renews the lock again.
            return
        time.sleep(_CHECK)
    # Allow a copy of the task only if this run has not done its work. A revoked task must not run
    # again. A copy of a task that exceeded its time limit would exceed the limit, too. And no copy
    # may run beside a retry, which has the same task id.
    again = result is None or result[0] == "lost"
    # Allow no forks, because a child could hang that is forked while this thread holds a lock of a
    # library.
    with no_forks():
        if again and has_succeeded(request.task, request.id):
            # The child died after it had stored its success and before it released the lock. So the
            # task has done its work, and no copy may run.
            again = False
            result = ("succeeded", "")
        record_outcome(request.app, request.request_dict, result, began(request))
        # A run without a hold has neither a lock nor a record in the guard.
        if request.hold is not None:
            LockClient.of(request.app).end(request.hold, again=again)


def began(request: Any) -> float | None:
    """Return the monotonic time at which the body of a request began; ``None`` if it has not."""
    if not request.time_start:
        return None
    # Celery has noted the wall time of the beginning, so convert that to monotonic time.
    age: float = time.time() - request.time_start
    return time.monotonic() - age


def is_gone(pid: int) -> bool:
    """Return whether a process has ended. A zombie counts as ended."""
    try:
        # Signal 0 is not sent. It only asks whether the process exists.
        os.kill(pid, 0)
    except OSError as exc:
        return isinstance(exc, ProcessLookupError)
    try:
        # The state follows the name in parentheses, which may have parentheses in it.
        status = Path(f"/proc/{pid}/stat").read_text()
        state = status.rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        # This system has no /proc, or the process has just ended, as the next call will notice.
        return False
    return state in "ZX"


def is_child(pid: Any) -> bool:
    """Return whether a run's ``worker_pid`` is the id of a child process.

    With a pool of threads or the solo pool, it is the id of this process. With gevent, it is the
    identity of a greenlet.
    """
    return isinstance(pid, int) and pid != os.getpid() and 0 < pid < 2**31

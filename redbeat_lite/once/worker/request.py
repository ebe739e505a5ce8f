"""The worker's main process: what it knows of a message, and what it does when the child that ran it is gone."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from billiard.einfo import ExceptionWithTraceback
from celery.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from celery.utils.log import get_logger
from celery.worker.request import Request as CeleryRequest

from ...errors import InvalidEntry, describe, text_of
from ...runs.run import attempt_of
from ...uuids import drawn
from .. import fates
from ..answers import Seen
from ..claims import ONCE_HEADER, once_header
from ..fates import Told
from ..hold import is_guarded
from ..lock_key import checked
from ..parked_message import DELIVERY, delivery
from ..policy import Once
from ..run import INTERNAL_NAMES, clear_interval_expires
from ..runtime import Runtime
from ..settle import Skipped, is_final
from ..store import DOWN
from .dead_children import began, watch

logger = get_logger(f"celery.{__name__}")

_Base: Any = object  # whatever class stands behind the mixin; Celery has no types

#: Exceptions of a run whose child has died or is about to be killed.
_CHILD_IS_GONE = (WorkerLostError, SystemExit, KeyboardInterrupt, TimeLimitExceeded, Terminated)


class RequestMixin(_Base):  # type: ignore[misc] # as above
    """Goes in front of a ``Request`` class. :func:`redbeat_lite.install` puts it in front of a task's own one.

    It does not override ``execute_using_pool`` and ``on_success``, because Celery's optimised code
    bypasses them. The parameters of Celery's methods differ between its versions, so they are
    passed on as they come.
    """

    _is_requeued = False
    _is_retried = False

    def __init__(self, message: Any, *args: Any, headers: Any = None, **kwargs: Any) -> None:
        super().__init__(message, *args, headers=headers, **kwargs)
        fields = self.request_dict
        for name in INTERNAL_NAMES:
            fields.pop(name, None)
        wire = {**((message.headers if headers is None else headers) or {})}
        if (once := _of_a_call_by_name(self.task, fields)) is not None:
            fields[ONCE_HEADER] = wire[ONCE_HEADER] = once
        if is_guarded(self.task, fields):
            # A token for this delivery, known to both processes: so the parent can renew and release for its child.
            fields[DELIVERY] = delivery(drawn(), wire, message.content_type, message.content_encoding)

    def revoked(self) -> bool:
        """Celery's, but a copy that expired while the first one runs, or after it, is dropped without a word: Celery
        would write REVOKED over the result of the first."""
        if self.expires and not self._already_revoked and self._is_expired_copy():  # type: ignore[has-type] # no types
            logger.info("An expired copy of task %s is dropped", self.id)
            self.acknowledge()
            self._already_revoked = True
            return True
        return bool(super().revoked())

    def _is_expired_copy(self) -> bool:
        expires = self.expires
        if not is_guarded(self.task, self.request_dict) or datetime.now(UTC if expires.tzinfo else None) <= expires:
            return False
        try:
            seen = Runtime.of(self.app).store.seen(self.id, attempt_of(self.request_dict))
        except DOWN as exc:
            logger.warning("Cannot tell whether the expired task %s is a copy: %s", self.id, text_of(exc))
            return False
        if seen is Seen.REFUSED:
            # Its first copy may have died before it could say so; Celery ends it then.
            return is_final(self.task, self.id)
        return seen is Seen.COPY

    def on_failure(self, exc_info: Any, *args: Any, **kwargs: Any) -> Any:
        """Call Celery's method. If the child is gone, release its lock and record its end, too."""
        exc = exc_info.exception
        if isinstance(exc, ExceptionWithTraceback):
            exc = exc.exc
        if isinstance(exc, Skipped):
            # Monitors have been told that it has started.
            self.send_event("task-revoked", terminated=False, signum=None, expired=False)
        if not isinstance(exc, _CHILD_IS_GONE):
            return super().on_failure(exc_info, *args, **kwargs)
        # From Celery 5.7 on a retry may follow here (retry_on_worker_lost), which copies it.
        clear_interval_expires(self._context)
        # Receivers of ``task_failure`` read the request from the task. Celery 5.5 and 5.6 do not set it here.
        self.task.push_request(**self.request_dict)
        try:
            return super().on_failure(exc_info, *args, **kwargs)
        finally:
            self.task.pop_request()
            self._end_for_child(exc)

    def _end_for_child(self, exc: BaseException) -> None:
        if self._is_requeued or not self.acknowledged:
            # The message comes again, so the run has not ended.
            watch(self, again=True)
        elif isinstance(exc, Terminated) and not self._already_cancelled:
            watch(self, again=False, told=("revoked", ""))
        elif self._is_retried:
            watch(self, again=False, told=("retrying", describe(exc)))
        elif isinstance(exc, TimeLimitExceeded):
            watch(self, again=False, told=("failed", describe(exc)))
        else:
            watch(self, again=True, told=("lost", describe(exc)))

    def _retry_worker_lost(self, *args: Any, **kwargs: Any) -> bool:
        """Celery's from 5.7 on, with a note whether it has sent a retry."""
        self._is_retried = bool(super()._retry_worker_lost(*args, **kwargs))
        return self._is_retried

    def reject(self, requeue: bool = False) -> None:
        """Call Celery's method, and remember whether the message goes back to its queue."""
        self._is_requeued = requeue
        super().reject(requeue=requeue)

    def terminate(self, *args: Any, **kwargs: Any) -> Any:
        """Celery's, for a revoke: the lock is given back once the child is gone."""
        if self.time_start:
            # First, so that whoever finds the child dead knows that no copy may run.
            watch(self, again=False)
        reply = super().terminate(*args, **kwargs)
        if self.time_start:
            fates.tell(self.app, self.request_dict, "revoked", began=began(self))
        return reply

    def cancel(self, *args: Any, **kwargs: Any) -> Any:
        """Cancel at a lost connection or a cold shutdown; an unacknowledged message comes again."""
        told: Told | None = None
        if self.acknowledged:
            told = ("lost", "its worker has lost its broker, or shuts down")
        watch(self, again=True, told=told)
        return super().cancel(*args, **kwargs)


def _of_a_call_by_name(task: Any, fields: Mapping[str, Any]) -> dict[str, Any] | None:
    """The lock of ``app.send_task(name, once_key=...)``: there no task is at hand that would write the header, but a
    Redis broker brings what it does not know among the properties of the message."""
    properties = fields.get("properties") or {}
    if "once_key" not in properties or fields.get(ONCE_HEADER):
        return None
    try:
        once = getattr(task, "once_policy", None) or Once(lease=Runtime.of(task.app).settings.once_lease)
        if properties.get("on_conflict") is not None:
            once = once.but(on_conflict=properties["on_conflict"])
        return once_header(checked(properties["once_key"]), once, queued=False)
    except InvalidEntry as exc:
        logger.error("Task %s[%s] runs without a once-lock: %s", task.name, fields.get("id"), exc)
        return None


class Request(RequestMixin, CeleryRequest):  # type: ignore[misc] # Celery has no types
    """The request class of tasks that have none of their own."""


def with_mixin(request: type) -> type:
    """``request`` with :class:`RequestMixin` in front."""
    if issubclass(request, RequestMixin):
        return request
    return type(request.__name__, (RequestMixin, request), {"__module__": request.__module__})

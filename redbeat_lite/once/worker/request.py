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
from ...runs.attempt import attempt_of
from ...uuids import drawn
from .. import fates
from ..answers import Seen
from ..claims import ONCE_HEADER, once_header
from ..hold import is_guarded
from ..lock_key import checked
from ..parked_message import DELIVERY, delivery
from ..policy import Once
from ..run import INTERNAL_NAMES
from ..runtime import Runtime
from ..settle import Skipped, is_final
from ..store import DOWN
from .dead_children import began, watch

logger = get_logger(f"celery.{__name__}")

_Base: Any = object  # whatever class stands behind the mixin; Celery has no types


class RequestMixin(_Base):  # type: ignore[misc] # as above
    """Goes in front of a ``Request`` class. :func:`redbeat_lite.install` puts it in front of a task's own one.

    Nothing of ``execute_using_pool`` or ``on_success``: Celery's own optimisation passes those by.
    """

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

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:
        """Celery's, and the lock of a child that is gone is given back, and what it came to is recorded: with a
        requeue, no signal would tell."""
        exc = exc_info.exception
        if isinstance(exc, ExceptionWithTraceback):
            exc = exc.exc
        task = self.task
        if isinstance(exc, (WorkerLostError, SystemExit, KeyboardInterrupt)):
            watch(self, again=True, told=("lost", describe(exc)))
        elif isinstance(exc, TimeLimitExceeded):
            again = task.acks_late and not task.acks_on_timeout
            watch(self, again=again, told=("lost" if again else "failed", describe(exc)))
        elif isinstance(exc, Terminated):
            cancelled = bool(self._already_cancelled)
            watch(self, again=cancelled, told=("lost" if cancelled else "revoked", ""))
        elif isinstance(exc, Skipped):
            # Monitors have been told that it has started.
            self.send_event("task-revoked", terminated=False, signum=None, expired=False)
        return super().on_failure(exc_info, send_failed_event=send_failed_event, return_ok=return_ok)

    def terminate(self, pool: Any, signal: Any = None) -> Any:
        """Celery's, for a revoke: the lock is given back once the child is gone."""
        if self.time_start:
            # First, so that whoever finds the child dead knows that no copy may run.
            watch(self, again=False)
        reply = super().terminate(pool, signal)
        if self.time_start:
            fates.tell(self.app, self.request_dict, "revoked", began=began(self))
        return reply

    def cancel(self, pool: Any, signal: Any = None, emit_retry: bool = True) -> Any:
        """Celery's, for a lost connection and a cold shutdown: the message comes again, so a copy may run."""
        watch(self, again=True, told=("lost", "its worker has lost its broker, or shuts down"))
        return super().cancel(pool, signal, emit_retry=emit_retry)


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

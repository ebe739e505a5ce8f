"""The task class: once-locks by policy, and one run for every task id.

With ``app = Celery(task_cls="redbeat_lite:Task")`` every task has the guard, and a task with
``once=`` has a once-lock, too.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, Self

import celery
from celery.app.task import Context
from celery.backends.rpc import RPCBackend
from celery.exceptions import Reject
from kombu.exceptions import OperationalError
from kombu.utils.functional import maybe_list
from kombu.utils.uuid import uuid

from .._base.clock import wall_ms
from .._base.fields import length
from .._base.public import public
from .._base.text import text_of
from .._base.times import delay_ms
from ..policies import MIN_LEASE, Conflict, Once
from ..store.connections import FAULTS, retry_for
from . import run_lifecycle
from .claims import DEADLINE_HEADER, ONCE_HEADER, Claim, once_header, queue_of
from .errors import LockUnavailable, OnceRejected, OnceSkipped
from .lock_client import GUARD_LIFE, PATIENCE, LockClient, policy_of_call
from .lock_key import check_definition, checked_key, key_of
from .locks import LockHandle
from .outcomes import end_unrun
from .parked_message import DELIVERY

#: Further parameters of Celery's ``apply_async``, in their order.
_MORE = ("producer", "link", "link_error", "shadow")


@public
class Task(celery.Task):  # type: ignore[misc] # Celery has no types
    """A Celery task that runs once for every task id, and with ``once=`` one at a time.

    A ``before_start`` of a subclass must begin with ``super().before_start(task_id, args,
    kwargs)``, because that call acquires the lock. ``on_failure``, ``on_success``, ``on_retry`` and
    ``after_return`` need no such call.

    Attributes:
        once: policy of the lock, in ``@app.task(once=...)`` or in the class: ``True``, a
            :class:`~redbeat_lite.Once` or a mapping of its fields. During a run, ``self.once`` is
            the handle of the lock, with ``self.once.fence`` and ``self.once.lost``.
        guard_life: seconds for which the guard remembers the task ids that have run, from a second
            to a year. Workers do not run an older message, because it may have run before. So the
            value must exceed the longest time that a message waits in a queue. Each remembered task
            takes about 220 bytes in Redis.
    """

    Request = "redbeat_lite.once.worker.request:Request"

    guard_life: float = GUARD_LIFE

    #: Tells the worker that :meth:`before_start` records the task id of every message in the guard,
    #: so that no copy of the message runs.
    guarded: ClassVar[bool] = True

    once_policy: ClassVar[Once | None] = None
    once_signature: ClassVar[inspect.Signature | None] = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Check ``guard_life`` and the policy of a new class. Celery makes one class per task."""
        super().__init_subclass__(**kwargs)
        if "guard_life" in cls.__dict__:
            cls.guard_life = length(MIN_LEASE).read(f"{cls.__name__}.guard_life", cls.guard_life)
        if "once" in cls.__dict__:
            # Celery turns ``@app.task(once=...)`` into a class attribute, which hides the property
            # ``once``. So move the policy to another name.
            cls.once_policy = Once.of(cls.__dict__["once"])
            del cls.once
        if cls.once_policy is not None and cls.run is not celery.Task.run:
            # Bind ``run`` to any object, to remove its parameter ``self`` from the signature. A
            # static method has no ``self`` and does not change.
            body = inspect.getattr_static(cls, "run").__get__(object())
            name = getattr(cls, "name", None) or cls.__name__
            cls.once_signature = check_definition(cls.once_policy, body, name)

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Make a task that releases its lock before the next task of a chain is published.

        The state STARTED is stored by :meth:`before_start`, and not by Celery.
        """
        task: Self = super().__new__(cls)
        task.track_started = False
        task.run = run_lifecycle.releasing(task)
        return task

    @property
    def once(self) -> LockHandle | None:
        """Handle of the run's lock; ``None`` if the run has no lock.

        Outside of a run, the handle is false, and has only the key of the task's policy. If the
        task has no policy, there is no handle: ``None``.
        """
        hold = self.request.__dict__.get(run_lifecycle.HOLD)
        if hold is not None:
            return None if hold.key is None else LockHandle(hold.key, hold)
        return None if self.once_policy is None else LockHandle(self.once_policy.key)

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        """Acquire the lock and record that the task id runs, unless the call is direct or eager."""
        run_lifecycle.begin(self)
        super().before_start(task_id, args, kwargs)

    def needs_guard(self) -> bool:
        """Return whether a run without a lock must not begin while the server does not answer.

        By default the run begins without the guard, because the guard only protects from copies.
        """
        return False

    def on_replace(self, sig: Any) -> Any:
        """Prepare the replacement to keep the lock, and then call Celery's method."""
        run_lifecycle.note_replacement(self, sig)
        return super().on_replace(sig)

    def apply_async(
        self,
        args: Any = None,
        kwargs: Any = None,
        task_id: str | None = None,
        *more: Any,
        once_key: str | None = None,
        on_conflict: Conflict | None = None,
        **options: Any,
    ) -> Any:
        """Publish the task as Celery's method does, with two more options.

        Parameters:
            more: ``producer``, ``link``, ``link_error`` and ``shadow``, if they come by position.
            once_key: key of the once-lock for this call. Calls of other tasks with the same key
                share the lock. If the task has no policy, ``Once()`` is the policy of this call.
            on_conflict: ``"skip"``, ``"wait"`` or ``"raise"`` for this call.

        Raises:
            OnceRejected: with ``scope="queue"`` and ``"raise"``, another task of the key is queued
                or running.
            LockUnavailable: with ``scope="queue"``, the server does not answer; nothing was
                published.
            InvalidEntry: the policy or the key is wrong.

        Celery also calls this method when a task has ended, to publish the next member of a chain
        or a link. Then the method raises none of these errors, because they would make the ended
        task fail. Instead the task that was not published fails with the error, and the method
        returns its result.
        """
        if more[4:]:
            raise TypeError("apply_async() takes at most 7 positional arguments")
        options.update(zip(_MORE, more, strict=False))
        if self._get_app().conf.task_always_eager:
            return super().apply_async(args, kwargs, task_id=task_id, **options)
        headers = {**(options.get("headers") or {})}
        # A retry has copied this header from its first message, but is a new delivery.
        headers.pop(DELIVERY, None)
        now = wall_ms()
        # A worker does not run a message that is older than ``guard_life``.
        headers[DEADLINE_HEADER] = now + delay_ms(options, now) + round(1000 * self.guard_life)
        options["headers"] = headers
        task_id = task_id or uuid()
        try:
            key = self._claim(once_key, on_conflict, task_id, args, kwargs, options)
        except Exception as exc:  # noqa: BLE001 - the callable of a key may raise anything
            return self._end_unpublished(exc, task_id, options)
        try:
            return super().apply_async(args, kwargs, task_id=task_id, **options)
        except BaseException:
            # The message was not published, so release the lock that was acquired for it.
            if key is not None:
                LockClient.of(self.app).leave(key, task_id)
            raise

    def delay_on_commit(self, *args: Any, **kwargs: Any) -> None:
        """Call :meth:`delay` after the database transaction is committed, as Celery does."""
        self.apply_async_on_commit(args, kwargs)

    def apply_async_on_commit(self, *args: Any, **kwargs: Any) -> None:
        """Call :meth:`apply_async` after the database transaction is committed, as Celery does."""
        from django.db import transaction

        transaction.on_commit(partial(self.apply_async, *args, **kwargs))

    def _claim(
        self,
        once_key: str | None,
        on_conflict: Conflict | None,
        task_id: str,
        args: Any,
        kwargs: Any,
        options: Any,
    ) -> str | None:
        """Write the header that names the lock of a call; acquire the lock if its scope says so.

        A lock with ``scope="queue"`` is acquired before its message is published, unless the policy
        says "wait". The header also brings a key or an ``on_conflict`` of this call to the worker.

        Parameters:
            options: options of the call; this method adds the header to their ``headers``.

        Returns:
            the key of the lock that was acquired here; ``None`` if no lock was acquired.

        Raises:
            OnceRejected, OnceSkipped: another task has the lock.
            LockUnavailable: the server does not answer.
        """
        is_for_call = once_key is not None or on_conflict is not None
        once = policy_of_call(self, on_conflict) if is_for_call else self.once_policy
        # A lock with scope="run" needs no header, because the worker knows the policy of the task.
        # A key or an ``on_conflict`` of this call reaches the worker only in the header.
        if once is None or not (is_for_call or once.scope == "queue"):
            return None
        # A retry, or a message of the beat, has the header already. Do not acquire its lock again.
        if ONCE_HEADER in options["headers"]:
            return None
        if once_key is not None:
            key = checked_key(once_key)
        else:
            key = key_of(once, self.name, args, kwargs, self.once_signature)
        options["headers"][ONCE_HEADER] = once_header(key, once)
        if not once.at_publish:
            return None  # The worker acquires the lock.
        queue = queue_of(self, self.name, args, kwargs, options)
        delay = delay_ms(options, wall_ms())
        holder = f"queued {self.name}"
        claim = Claim(key, task_id, once.lease_ms, holder, queue=queue, delay_ms=delay)
        client = LockClient.of(self.app)
        # While the server does not answer, a caller outside of tasks gets the error without delay.
        # Within a task, the caller may be Celery, which continues a chain and does not try again.
        # So retry for it.
        seconds = 0.0 if self.app.current_worker_task is None else PATIENCE
        try:
            is_acquired = retry_for(partial(client.store.take, claim), seconds)
        except FAULTS as exc:
            # The server may have acquired the lock, and only its reply may be lost.
            with suppress(*FAULTS):
                client.store.leave(key, task_id)
            why = text_of(exc)
            message = f"{self.name} was not published, its once-lock cannot be taken: {why}"
            raise LockUnavailable(message, key) from exc
        if not is_acquired:
            error = OnceRejected if once.on_conflict == "raise" else OnceSkipped
            raise error(f"{self.name}[{task_id}]: another task has the once-lock {key!r}", key)
        return key

    def _end_unpublished(self, why: Exception, task_id: str, options: Mapping[str, Any]) -> Any:
        """End a task that was not published, and return its result.

        Parameters:
            why: error that kept it from being published.
            options: options of the call.

        Raises:
            Exception: ``why``, if it is an error that the caller can handle.
        """
        is_skipped = isinstance(why, OnceSkipped)
        # A skipped task is no error. Any other error is for the caller to handle, unless Celery is
        # the caller, for example with the next task of a chain.
        if not is_skipped and not _is_continuation(self.app, task_id, options):
            raise why
        # Most options have the names of attributes of a request, such as ``chain``.
        request = Context(
            options,
            id=task_id,
            task=self.name,
            group=options.get("group_id"),
            errbacks=maybe_list(options.get("link_error")),  # type: ignore[no-untyped-call]
            delivery_info={},
            reply_to=options.get("reply_to") or self.app.thread_oid,
            correlation_id=task_id,
        )
        if isinstance(self.backend, RPCBackend):
            # The result goes to a queue of the caller. Celery declares this queue when it publishes
            # a task, and this task is not published.
            with self.app.producer_or_acquire() as producer:
                self.backend.on_task_call(producer, task_id)
        end_unrun(self, request, why)
        return self.AsyncResult(task_id)


def _is_continuation(app: Any, task_id: str, options: Mapping[str, Any]) -> bool:
    """Return whether Celery publishes this task because another task has ended.

    Celery then passes the id of the ended task as ``parent_id``. A call in a task's body passes no
    ``parent_id``. When a task replaces itself, both ids are the same.
    """
    parent_id = options.get("parent_id")
    running = app.current_worker_task
    # Without a running task, only a worker's main process passes a ``parent_id``: it publishes the
    # errbacks of a task whose child is gone.
    if running is None:
        return parent_id is not None
    return bool(parent_id == running.request.id and parent_id != task_id)


#: Errors of a broker that does not answer, so that a message was not published.
NOT_TAKEN: tuple[type[Exception], ...] = (*FAULTS, OperationalError)


class Publisher(Task):
    """A task that only publishes other tasks, and must do so in the end."""

    def retry(self, *args: Any, **options: Any) -> Any:
        """Retry the task, as Celery does.

        If the broker does not accept the retry, the message goes back to its queue. Celery would
        drop it.
        """
        try:
            return super().retry(*args, **options)
        except Reject as exc:
            time.sleep(1.0)  # The broker delivers the message again at once.
            raise Reject(exc.reason, requeue=True) from exc


#: Options of a task that only publishes other tasks, and does no harm if it publishes them twice.
PUBLISHES: dict[str, Any] = {
    "base": Publisher,
    "bind": True,
    "ignore_result": True,
    "autoretry_for": NOT_TAKEN,
    "retry_backoff": 1,
    "retry_backoff_max": 60,
    "max_retries": None,
    "acks_late": True,
    "reject_on_worker_lost": True,
}

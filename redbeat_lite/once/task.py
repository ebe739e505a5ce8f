"""The task class: once-locks by policy, and one run for every task id.

``app = Celery(task_cls="redbeat_lite:Task")`` gives every task the guard, and a once-lock to those that say ``once=``.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Self

import celery
from celery import signals
from celery.app.task import Context
from celery.backends.rpc import RPCBackend
from kombu.utils.functional import maybe_list
from kombu.utils.uuid import uuid

from ..clock import wall_ms
from ..errors import text_of
from ..instants import delay_ms
from ..public import public
from ..storage.time_limits import retry_for
from . import run
from .claims import DEADLINE_HEADER, ONCE_HEADER, once_header, queue_of
from .errors import LockUnavailable, OnceRejected, OnceSkipped
from .hold import GUARD_LIFE, Current
from .lock_key import check_definition, checked, key_of
from .parked_message import DELIVERY
from .policy import Conflict, Once, check_seconds
from .runtime import PATIENCE, Runtime
from .settle import settle
from .store import DOWN, Wanted


@public
class Task(celery.Task):  # type: ignore[misc] # Celery has no types
    """A Celery task that runs once for every task id, and one at a time where it has a ``once=`` policy.

    A subclass with a ``before_start`` of its own calls ``super().before_start(task_id, args, kwargs)`` first: that is
    where the lock is taken. ``on_failure``, ``on_success``, ``on_retry`` and ``after_return`` need no call.

    Attributes:
        once: given as ``@app.task(once=...)`` or in the class: ``True``, a :class:`~redbeat_lite.Once` or a
            mapping of its fields. Read, it tells of the run: ``self.once.fence``, ``self.once.lost``.
        guard_life: seconds the guard remembers which tasks have run. A message older than that is not run, because
            nobody could tell whether it has been; so it must exceed the longest time a message waits in a queue. Each
            remembered task takes about 220 bytes in Redis. From 1 to those of a year.
    """

    abstract = True
    Request = "redbeat_lite.once.worker.request:Request"

    guard_life: float = GUARD_LIFE

    #: Tells the worker that :meth:`before_start` claims the id of every message.
    guarded: ClassVar[bool] = True

    #: Not from the app that a class is bound to first: it is asked when a run starts, see ``run.tell_start``.
    from_config: ClassVar[Any] = tuple(each for each in celery.Task.from_config if each[0] != "track_started")

    once_policy: ClassVar[Once | None] = None
    once_signature: ClassVar[inspect.Signature | None] = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "guard_life" in cls.__dict__:
            cls.guard_life = check_seconds(f"{cls.__name__}.guard_life", cls.guard_life)
        if "once" in cls.__dict__:
            # Celery turns ``@app.task(once=...)`` into a class attribute. The policy moves aside, so that ``once`` is
            # the property below, which knows of the run as well.
            cls.once_policy = Once.of(cls.__dict__["once"])
            del cls.once
        if cls.once_policy is not None and cls.run is not celery.Task.run:
            # ``run`` is bound to the task: the first parameter of a method is not an argument of the call.
            body = inspect.getattr_static(cls, "run").__get__(object())
            cls.once_signature = check_definition(cls.once_policy, body, getattr(cls, "name", None) or cls.__name__)
        if "run" in cls.__dict__:
            cls.run = run.letting_go(cls.__dict__["run"])

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """A task that tells Celery not to store STARTED; :meth:`before_start` does, once the run may run."""
        task: Self = super().__new__(cls)
        task.track_started = False
        return task

    @property
    def once(self) -> Current | None:
        """What this task's lock is about; ``None`` where it has none."""
        hold = self.request.__dict__.get(run.ATTRIBUTE)
        policy = hold.once if hold is not None else self.once_policy
        return Current(policy, hold) if policy is not None else None

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        """Take the lock and claim the task id. A task that is called directly or runs eagerly needs neither."""
        run.begin(self)
        super().before_start(task_id, args, kwargs)

    def needs_guard(self) -> bool:
        """Whether the run that starts now waits where the guard's server does not answer. Any other one that wants no
        lock runs without the guard, as that looks after copies alone."""
        return False

    def on_replace(self, sig: Any) -> Any:
        """Celery's, with a note that the replacement may want the lock."""
        run.note_replacement(self, sig)
        return super().on_replace(sig)

    def apply_async(
        self,
        args: Any = None,
        kwargs: Any = None,
        task_id: str | None = None,
        producer: Any = None,
        link: Any = None,
        link_error: Any = None,
        shadow: str | None = None,
        once_key: str | None = None,
        on_conflict: Conflict | None = None,
        **options: Any,
    ) -> Any:
        """As Celery's, with two more options; neither reaches the task's arguments.

        Parameters:
            once_key: the key of the once-lock for this call, shared with every task that gives the same. A task
                without a policy gets ``Once()`` for it.
            on_conflict: ``"skip"``, ``"wait"`` or ``"raise"`` for this call.

        Raises:
            OnceRejected: with ``scope="queue"`` and ``"raise"``, another task of the key is queued or running.
            LockUnavailable: with ``scope="queue"``, the server does not answer; nothing was published.
            InvalidEntry: the policy or the key is wrong.

        Where Celery calls it for a task that has ended, for the next member of a chain or a link, none of them is
        raised, as they would turn that task into a failure: the call gets a result that fails with them.
        """
        rest = {"producer": producer, "link": link, "link_error": link_error, "shadow": shadow}
        if self._get_app().conf.task_always_eager:
            return super().apply_async(args, kwargs, task_id=task_id, **rest, **options)
        options["headers"] = headers = {**(options.get("headers") or {})}
        headers.pop(DELIVERY, None)
        now = wall_ms()
        headers[DEADLINE_HEADER] = now + delay_ms(options, now) + round(1000 * self.guard_life)
        task_id = task_id or uuid()
        try:
            key = self._claim(once_key, on_conflict, task_id, args, kwargs, options)
        except Exception as exc:  # noqa: BLE001 - the callable of a key may raise anything
            return self._not_published(exc, task_id, link_error, options)
        try:
            return super().apply_async(args, kwargs, task_id=task_id, **rest, **options)
        except BaseException:
            if key is not None:
                Runtime.of(self.app).leave(key, task_id)
            raise

    def delay_on_commit(self, *args: Any, **kwargs: Any) -> None:
        """Call :meth:`delay` after the database transaction is committed, as Celery does."""
        self.apply_async_on_commit(args, kwargs)

    def apply_async_on_commit(self, *args: Any, **kwargs: Any) -> None:
        """Call :meth:`apply_async` after the database transaction is committed, as Celery does."""
        from django.db import transaction

        transaction.on_commit(partial(self.apply_async, *args, **kwargs))

    def _claim(
        self, once_key: str | None, on_conflict: Conflict | None, task_id: str, args: Any, kwargs: Any, options: Any
    ) -> str | None:
        """Write into the headers what the worker cannot tell, and take the lock where that is done here: its key."""
        of_this_call = once_key is not None or on_conflict is not None
        once = self.once_policy
        if once is None and of_this_call:
            once = Once(lease=Runtime.of(self.app).settings.once_lease)
        # A message that is sent again, by a retry or by the beat, brings the header and has its lock.
        if once is None or ONCE_HEADER in options["headers"] or not (of_this_call or once.scope == "queue"):
            return None
        if on_conflict is not None:
            once = once.but(on_conflict=on_conflict)
        key = key_of(once, self.name, args, kwargs, self.once_signature) if once_key is None else checked(once_key)
        options["headers"][ONCE_HEADER] = once_header(key, once, queued=once.at_publish)
        if not once.at_publish:
            return None
        self._take(once, key, task_id, args, kwargs, options)
        return key

    def _take(self, once: Once, key: str, task_id: str, args: Any, kwargs: Any, options: Mapping[str, Any]) -> None:
        lease_ms, delay = once.lease_ms, delay_ms(options, wall_ms())
        queue = queue_of(self, self.name, args, kwargs, options)
        wanted = Wanted(key, task_id, lease_ms, delay, f"queued {self.name}", queue)
        runtime = Runtime.of(self.app)
        try:
            # A caller had better know at once; where Celery goes on with a chain there is nobody to try again. But a
            # worker's main process has other tasks to look after.
            take = partial(runtime.store.take, [wanted])
            ended = self.app.current_worker_task is not None and _follows(self.app, task_id, options)
            (taken,) = retry_for(take, PATIENCE) if ended else take()
        except DOWN as exc:
            # The lock may be taken, and only the reply be lost. Nobody would run the task and free it.
            runtime.leave(key, task_id)
            raise LockUnavailable(
                f"{self.name} was not published, its once-lock cannot be taken: {text_of(exc)}", key
            ) from exc
        if not taken:
            error = OnceRejected if once.on_conflict == "raise" else OnceSkipped
            raise error(f"{self.name}[{task_id}]: another task has the once-lock {key!r}", key)

    def _not_published(self, why: Exception, task_id: str, errbacks: Any, options: Mapping[str, Any]) -> Any:
        """The result of a call that nothing was published for.

        Raises ``why`` to a caller who can be told; not that the task is skipped.
        """
        if not isinstance(why, OnceSkipped) and not _follows(self.app, task_id, options):
            raise why
        request = Context(
            id=task_id,
            task=self.name,
            root_id=options.get("root_id"),
            chain=options.get("chain"),
            chord=options.get("chord"),
            group=options.get("group_id"),
            group_index=options.get("group_index"),
            errbacks=maybe_list(errbacks),  # type: ignore[no-untyped-call]
            delivery_info={},
            reply_to=options.get("reply_to") or self.app.thread_oid,
            correlation_id=task_id,
            ignore_result=options.get("ignore_result"),
        )
        if isinstance(self.backend, RPCBackend):
            # The result goes to a queue of the caller's, which Celery declares when it publishes.
            with self.app.producer_or_acquire() as producer:
                self.backend.on_task_call(producer, task_id)
        settle(self, request, why)
        return self.AsyncResult(task_id)


def _follows(app: Any, task_id: str, options: Mapping[str, Any]) -> bool:
    """Whether Celery publishes this for a task that has ended. It names that task as the parent then; a call in a
    task's body leaves that to be found out, and a task that replaces itself keeps its id. Where no task runs, that is
    the worker's main process with the errbacks of a task whose child is gone."""
    parent, ended = options.get("parent_id"), app.current_worker_task
    return parent is not None if ended is None else parent == ended.request.id != task_id


@signals.task_postrun.connect(weak=False, dispatch_uid="redbeat_lite.once")  # type: ignore[untyped-decorator]
def _release(sender: Any = None, state: str | None = None, retval: Any = None, **_: Any) -> None:
    # After the result is stored, before the message is acknowledged; also for a retry, an ignore and a SIGTERM.
    run.finish(sender, state, retval)

"""Client of the once-locks in one process: acquire, renew, release, and publish the next waiter."""

from __future__ import annotations

import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from celery import Celery
from celery.utils.log import get_logger

from .._base.clock import elapsed
from .._base.errors import ConfigurationError
from .._base.forks import no_forks
from .._base.ids import random_hex
from .._base.lazy import of_process
from .._base.text import text_of
from .._base.threads import Alarm, start_native
from ..entries.run import Attempt, Fate, attempt_of
from ..policies import Conflict, Once
from ..runs.recorder import Recorder
from ..settings import Settings
from ..store.connections import FAULTS, Backend, retry_for
from . import parked_message
from .claims import DEADLINE_HEADER, NO_LOCK, Fields, Hold, expires_ms, policy_of
from .errors import LockUnavailable
from .lock_store import LockStore, Verdict
from .outcomes import Result

logger = get_logger(f"celery.{__name__}")

#: Seconds for which acquiring or releasing a lock is retried while the server does not answer.
PATIENCE = 8.0

#: Seconds for which the guard remembers which tasks have run, unless their class says otherwise.
#: Three days, so that the tasks of a queue without workers over a weekend still run.
GUARD_LIFE = 3 * 86_400.0

#: Timeout of a renewal in seconds. A shorter one would fail with slow but sound servers. A longer
#: one would delay the renewal of the next lock.
_RENEWAL_TIMEOUT = 1.0

#: Longest sleep of the thread that renews locks, in seconds. The thread checks all locks at least
#: that often.
_IDLE = 30.0

#: Shortest sleep of the thread that renews locks, in seconds. It limits the thread to ten attempts
#: a second while renewals fail, so that the thread does not occupy a processor.
_RETRY = 0.1


class Renewer:
    """Thread that renews the locks and the guard's records of the runs in this process.

    The thread has its own connection. The first run starts the thread, because a thread that
    started before the worker forks would be missing in the children. A run that ends within a third
    of its lease is never renewed.

    Parameters:
        connect: function that opens a lock store with its own connection. The thread calls it.
    """

    def __init__(self, connect: Callable[[], LockStore]) -> None:
        self._connect = connect
        #: Token of a run -> its lock and its guard's record, which the thread must renew.
        self._holds: dict[str, Hold] = {}
        #: Opened at the first renewal, because most runs need none.
        self._store: LockStore | None = None
        self._alarm = Alarm()
        #: Lock that only the first call of :meth:`add` can acquire, because it is never released.
        self._start = threading.Lock()

    def add(self, hold: Hold) -> None:
        """Renew the lock and the guard's record of a run from now on, until :meth:`remove`."""
        self._holds[hold.token] = hold
        # Only the first call acquires this lock, and so starts the thread.
        if self._start.acquire(blocking=False):
            start_native(self._run, "redbeat-lite-renewal")
        elif hold.period < _IDLE:
            # The thread can be asleep for up to ``_IDLE`` seconds, and this hold is due earlier.
            self._alarm.ring()

    def remove(self, hold: Hold) -> None:
        """Stop renewing the lock and the guard's record of a run.

        A renewal in flight can reach the server after the end of the run. The server ignores it.
        """
        self._holds.pop(hold.token, None)

    def _run(self) -> None:
        """Renew each hold when a third of its lease has passed, for ever."""
        while True:
            self._alarm.wait(self._pause())
            # Copy the holds, because other threads may add and remove some meanwhile.
            for hold in list(self._holds.values()):
                if elapsed() - hold.renewed >= hold.period:
                    # A child that is forked while this thread holds a library's lock could hang.
                    with no_forks():
                        self._renew(hold)

    def _pause(self) -> float:
        """Return the seconds until the next renewal is due."""
        due = [hold.renewed + hold.period for hold in list(self._holds.values())]
        left = min(due, default=math.inf) - elapsed()
        return min(max(left, _RETRY), _IDLE)

    def _renew(self, hold: Hold) -> None:
        """Renew the lock and the guard's record of a run; note in ``hold`` if the lock is lost."""
        # Read the clock before the renewal is sent. So the new lease ends here before it ends on
        # the server.
        now = elapsed()
        # After a whole lease without a good renewal, another task may have acquired and released
        # the lock. So this renewal must not acquire the lock again, even if the lock is free.
        is_late = hold.has_run_out()
        try:
            self._store = self._store or self._connect()
            # After ``max_hold``, renew() leaves the lock out, and returns a false ``has_lock``. The
            # lock counts as lost from then on, although it expires up to a lease later.
            has_guard, has_lock = self._store.renew(hold, revive=not is_late)
        except Exception as exc:  # noqa: BLE001 - one failed renewal must not end the others
            # While the server does not answer, the thread tries ten times a second. So log only the
            # first failure as a warning.
            log = logger.debug if hold.failing else logger.warning
            log("Renewal of %s failed, trying again: %s", hold, text_of(exc))
            hold.failing = True
            if is_late:
                # A later renewal sets this to false if this run still has the lock.
                hold.lost = True
            return
        hold.failing = False
        if hold.token not in self._holds:
            return  # The run ended while the renewal was in flight.
        if has_guard:
            hold.renewed = now
        else:
            # The server has no record of this run any more, so there is nothing to renew.
            self.remove(hold)
        if has_guard and has_lock:
            hold.lost = False
        elif not hold.let_go:
            # The run has not released its lock itself, so it has lost the lock.
            hold.lost = True
            hold.let_go = True
            logger.warning("Lost %s: its lease has expired, or it was cleared", hold)


class LockClient:
    """Client of the once-locks of one app, shared by all runs in this process.

    Get the client with :meth:`of`.
    """

    def __init__(self, app: Celery) -> None:
        self.app = app
        self.settings = Settings.from_app(app)
        self._backend = Backend(self.settings)
        prefix = self.settings.key_prefix
        self.store = LockStore(self._backend.client, prefix)
        self.renewer = Renewer(
            lambda: LockStore(self._backend.open(timeout=_RENEWAL_TIMEOUT), prefix)
        )
        self.recorder = Recorder(self.settings)
        #: Name of this process as holder of a lock, for people.
        self._holder = f"{socket.gethostname()}:{os.getpid()}"

    @classmethod
    def of(cls, app: Celery) -> LockClient:
        """Return the client of an app in this process.

        Raises:
            ConfigurationError: the settings are wrong, or name no Redis.
        """
        return of_process(app, cls)

    def hold(self, task: Any, fields: dict[str, Any]) -> Hold:
        """Return the hold of a run: the lock and the guard's record that its message needs.

        Nothing is acquired yet. In a worker with ``install()``, the main process and the child make
        holds with the same token and key from the same message.

        Parameters:
            fields: attributes of the message's request.
        """
        policy, key = policy_of(task, fields)
        once = policy or NO_LOCK
        lease_ms = policy.lease_ms if policy else round(1000 * self.settings.once_lease)
        return Hold(
            # The main process of a worker with ``install()`` has put a token into the request.
            token=parked_message.token_of(fields) or random_hex(),
            task_id=str(fields["id"]),
            attempt=attempt_of(fields),
            lease_ms=lease_ms,
            key=key,
            holder=self._holder,
            deadline_ms=int(fields.get(DEADLINE_HEADER) or 0),
            expires_ms=expires_ms(fields),
            # A task of another class than ours has no ``guard_life``.
            life_ms=round(1000 * getattr(task, "guard_life", GUARD_LIFE)),
            once=once,
            on_conflict=once.on_conflict,
            max_waiters=once.max_waiters or 0,
        )

    # -- one run -----------------------------------------------------------------------------------

    def begin(self, hold: Hold, message: str = "") -> Verdict:
        """Acquire the lock of a run, and record in the guard that its task id runs.

        If the run has to wait or is refused, the returned verdict says why.

        Parameters:
            message: the encoded message, to be kept in Redis (parked) if the run has to wait. If
                the run has to wait and this is empty, the verdict is ``"encode"``.

        Raises:
            LockUnavailable: the server did not answer for about eight seconds.
        """
        try:
            return retry_for(partial(self.store.begin, hold, message), PATIENCE)
        except FAULTS as exc:
            raise LockUnavailable(
                f"the once-lock's server at {self._backend.display_url} cannot be used, so task "
                f"{hold.task_id} did not run: {text_of(exc)}",
                hold.key,
            ) from exc

    def end(
        self, hold: Hold, *, again: bool = False, hold_ms: int = 0, patient: bool = True
    ) -> None:
        """End a run: release its lock, end the guard's record, and publish the next waiter.

        Never raises. If the lock cannot be released, it is free when its lease ends.

        Parameters:
            again: whether a copy of the task may run, because this run did not do its work.
            hold_ms: ms for which the lock stays held for the task's retry; 0: it is released.
            patient: retry for about eight seconds while the server does not answer. The lock is
                not renewed meanwhile. If it expires and another task acquires it, this call leaves
                it to that task, because a lock has the token of the run that acquired it.
        """
        self.renewer.remove(hold)
        how = "dead" if again else "done"
        try:
            release = partial(self.store.end, hold, how, hold_ms=hold_ms)
            ended = retry_for(release, PATIENCE if patient else 0)
        except FAULTS as exc:
            logger.warning(
                "Task %s could not give back its lock, the lease will: %s",
                hold.task_id,
                text_of(exc),
            )
            return
        # A parked copy of this task, or another task that waits for the lock, can run now.
        if ended.standby:
            self.wake_standbys([hold.task_id])
        if ended.waiters and hold.key is not None:
            self.wake([hold.key])

    def release(self, hold: Hold) -> None:
        """Release the lock of a run whose body has ended, and publish the next waiter.

        The task has not ended, because Celery has yet to publish the tasks that follow. Never
        raises.

        A renewal in flight can reach the server after the release. A renewal restores a lock only
        if the guard's record is missing, too, as after a flush of the server. This release keeps
        the record, so the renewal does not restore the lock.
        """
        # From here on, the thread renews only the guard's record.
        hold.let_go = True
        if hold.key is None:
            return  # This run has no lock.
        try:
            # ``"lock"`` releases the lock alone. The guard's record still says that the task runs.
            if self.store.end(hold, how="lock").waiters:
                self.wake([hold.key])
        except FAULTS as exc:
            # The lock is still held. ``run_lifecycle.finish`` releases it at the end of the task.
            logger.debug("Task %s gives back its lock when it ends: %s", hold.task_id, text_of(exc))

    def leave(self, key: str, task_id: str, attempt: int = 0) -> None:
        """Release the lock, or the place among the waiters, of an attempt that will not run.

        If the lock is free afterwards, publish the first waiter. Never raises.

        Parameters:
            attempt: number of the attempt; 0: the first one.
        """
        try:
            if self.store.leave(key, task_id, attempt):
                self.wake([key])
        except FAULTS as exc:
            logger.warning(
                "Task %s could not give up the once-lock %r: %s", task_id, key, text_of(exc)
            )

    def give_up(self, task: Any, fields: Fields) -> None:
        """Release the lock, or the place among the waiters, of a message that will not run.

        Parked copies of the message are dropped as well. Never raises.
        """
        task_id = str(fields["id"])
        attempt = attempt_of(fields)
        try:
            # Whatever the policy is, the message can have a lock: that of a retry keeps the lock of
            # the attempt before it. So only the key matters.
            _, key = policy_of(task, fields)
            if key is not None:
                self.leave(key, task_id, attempt)
            # Discard last, because workers drop every other copy of a discarded message. If this
            # process died between the two steps in the other order, no copy would release the lock.
            self.store.discard(task_id, attempt)
        except Exception as exc:  # noqa: BLE001 - a callable key may raise anything
            # The lock is free when its lease ends.
            logger.warning(
                "Task %s keeps its lock or a parked copy for now: %s", task_id, text_of(exc)
            )

    # -- waiters and copies ------------------------------------------------------------------------

    def wake(self, keys: Iterable[str]) -> None:
        """Publish the first waiter of each lock that is free.

        Never raises, because the lock sweeper tries again.
        """
        for key in keys:
            _try_to_wake(f"the next task of the once-lock {key!r}", partial(self._wake_first, key))

    def wake_standbys(self, task_ids: Iterable[str]) -> None:
        """For each of these tasks whose run died, publish the parked copy of its message.

        Never raises, because the lock sweeper tries again.
        """
        for task_id in task_ids:
            _try_to_wake(f"the parked copy of task {task_id}", partial(self._wake_standby, task_id))

    def _wake_first(self, key: str) -> None:
        """Publish the first waiter that is not too old, and the waiters before it.

        A waiter that is too old must be published, too, because only a worker ends its task. But
        its queue may have no worker. So such a waiter loses its place at once, and the next waiter
        is published. If this process dies after it has published the old waiter and before it has
        removed the place, another process repeats both.
        """
        while True:
            waiter = self.store.wake(key)
            if waiter is None:
                # No task waits, or a task has the lock, or the first waiter was published a short
                # time ago and has not begun.
                return
            message, is_too_old = waiter
            headers = parked_message.publish(self.app, message, is_too_old=is_too_old)
            if not is_too_old:
                logger.debug("Task %s gets the once-lock %r", headers["id"], key)
                return
            self.store.leave(key, headers["id"], attempt_of(headers))

    def _wake_standby(self, task_id: str) -> None:
        """Publish the parked copy of a task, if its run died and the copy is not in flight."""
        message = self.store.wake_standby(task_id)
        if message is not None:
            parked_message.publish(self.app, message)
            logger.info("Task %s runs again from its parked copy", task_id)


def _try_to_wake(what: str, wake: Callable[[], None]) -> None:
    """Publish a waiting message. Log any error, because one message must not stop the others.

    Parameters:
        what: description of the message, for the log.
        wake: function that publishes the message.
    """
    try:
        wake()
    except Exception as exc:  # noqa: BLE001 - a broker may raise anything
        logger.warning("Waking %s failed, trying again: %s", what, text_of(exc))


def policy_of_call(task: Any, on_conflict: Conflict | None) -> Once:
    """Return the policy of a call with a key or an ``on_conflict`` of its own.

    It is the policy of the task. If the task has none, it is ``Once()`` with the lease of the app.
    An ``on_conflict`` of the call replaces that of the policy.
    """
    once: Once | None = getattr(task, "once_policy", None)
    if once is None:
        once = Once(lease=LockClient.of(task.app).settings.once_lease)
    return once if on_conflict is None else once.but(on_conflict=on_conflict)


def record_outcome(
    app: Celery,
    fields: Fields,
    result: Result | None,
    began: float | None = None,
    retry_ms: int | None = None,
) -> None:
    """Queue the outcome of a message for the record of runs, if its run is recorded.

    Does not wait for the server, and never raises.

    Parameters:
        fields: attributes of the message's request.
        result: outcome and error; ``None``: nothing is recorded.
        began: monotonic time at which the body began; ``None`` if it did not begin, or if the time
            is not known.
        retry_ms: milliseconds until the retry of the task is due; ``None`` if there is no retry.
    """
    if result is None or "scheduled_at" not in fields:
        return  # Most messages have no ``scheduled_at``, because they come from no entry.
    try:
        client = LockClient.of(app)
    except ConfigurationError:
        return  # The worker has logged this error already.
    attempt = Attempt.of(fields, client.settings.history)
    if attempt is None:
        return
    outcome, error = result
    seconds = None
    if began is not None and outcome != "running":
        seconds = time.monotonic() - began
    worker = str(fields.get("hostname") or "")
    client.recorder.enqueue(Fate(attempt, outcome, began, seconds, worker, error, retry_ms))

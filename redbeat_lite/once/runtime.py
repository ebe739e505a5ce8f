"""What one process does with the once-locks of an app: takes them, gives them back, publishes again who waits."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from celery import Celery, signals
from celery.app.task import Context
from celery.utils.log import get_logger

from ..clock import wall_ms
from ..errors import text_of
from ..runs.recorder import Recorder
from ..runs.run import Attempt, Fate, attempt_of
from ..settings import Settings
from ..storage.connections import Backend
from ..storage.lazy import of_process
from ..storage.time_limits import retry_for
from ..uuids import drawn
from . import parked_message
from .answers import Verdict
from .errors import LockUnavailable, OnceSkipped
from .hold import GUARD_LIFE, Hold, deadline_ms, expires_ms, has_expired, policy_of
from .renewal import Renewer
from .settle import is_final, settle
from .store import DOWN, RESEND_MS, Held, LockStore

logger = get_logger(f"celery.{__name__}")

#: Seconds for which a lock is asked for, or given back, again and again while the server does not answer.
PATIENCE = 8.0


class Runtime:
    """Everything one process shares between the runs of one app. Get it with :meth:`of`."""

    def __init__(self, app: Celery) -> None:
        self.app = app
        self.settings = Settings.from_app(app)
        self._backend = Backend(self.settings)
        self.store = LockStore(self._backend.client, self.settings.key_prefix)
        self.renewer = Renewer(lambda seconds: LockStore(self._backend.open(timeout=seconds), self.store.keys.prefix))
        self.recorder = Recorder(self.settings)
        self._holder = f"{socket.gethostname()}:{os.getpid()}"

    @classmethod
    def of(cls, app: Celery) -> Runtime:
        """That of an app in this process; raises ConfigurationError if its settings are wrong, or name no Redis."""
        return of_process(app, cls)

    def hold(self, task: Any, fields: dict[str, Any]) -> Hold:
        """What a run of this message has to hold, not yet taken: the same in every process that looks at it."""
        once, key = policy_of(task, fields) or (None, None)
        noted = fields.get(parked_message.DELIVERY) or {}
        held = Held(
            token=noted.get("token") or drawn(),
            task_id=str(fields["id"]),
            attempt=attempt_of(fields),
            lease_ms=once.lease_ms if once else round(1000 * self.settings.once_lease),
            key=key,
            holder=self._holder,
            deadline_ms=deadline_ms(fields),
            expires_ms=expires_ms(fields),
            life_ms=round(1000 * getattr(task, "guard_life", GUARD_LIFE)),
        )
        return Hold(held, once, run=self.attempt(fields))

    def attempt(self, fields: Mapping[str, Any]) -> Attempt | None:
        """Which attempt of which run a message is for, where that is to be recorded."""
        return Attempt.of(fields, self.settings.history)

    def begin(self, hold: Hold, text: str = "", *, on_conflict: str | None = None) -> Verdict:
        """Take what a run needs, with patience for a server that restarts.

        Parameters:
            text: the message, where it may have to be parked.
            on_conflict: instead of the policy's.

        Raises:
            LockUnavailable: the server did not answer for about eight seconds.
        """
        once = hold.once
        conflict = on_conflict or (once.on_conflict if once else "skip")
        waiters = once.max_waiters if once else None

        def ask() -> Verdict:
            hold.start(time.monotonic())
            fate = hold.run and Fate(hold.run, "running", hold.begun)
            verdict = self.store.begin(hold.held, on_conflict=conflict, max_waiters=waiters, message=text, fate=fate)
            # The reply may have been under way for longer than the lease.
            hold.lost = time.monotonic() - hold.locked >= hold.lease
            self.recorder.failed(verdict.unrecorded)
            return verdict

        try:
            return retry_for(ask, PATIENCE)
        except DOWN as exc:
            raise LockUnavailable(
                f"the once-lock's server at {self._backend.display_url} cannot be used, so task "
                f"{hold.held.task_id} did not run: {text_of(exc)}",
                hold.held.key,
            ) from exc

    def end(
        self, hold: Hold, *, again: bool = False, hold_ms: int = 0, patient: bool = False, fate: Fate | None = None
    ) -> None:
        """Give back what a run held and wake who waits for it. Never raises: what fails runs out with the lease.

        Parameters:
            again: a copy of the task may run.
            hold_ms: keep the lock for the task's retry for so long.
            patient: go on for about eight seconds while the server does not answer. Nothing is renewed meanwhile: what
                runs out and is taken by somebody else is not touched, as it is given back by its token.
            fate: what to record of the run.
        """
        self.renewer.remove(hold)
        ask = partial(self.store.end, hold.held, again=again, hold_ms=hold_ms, fate=fate)
        try:
            ended = retry_for(ask, PATIENCE if patient else 0)
        except DOWN as exc:
            logger.warning("Task %s could not give back its lock, the lease will: %s", hold.held.task_id, text_of(exc))
            if fate is not None:
                self.recorder.tell(fate)
            return
        self.recorder.failed(ended.unrecorded)
        if ended.standby:
            self.wake_standbys([hold.held.task_id])
        if ended.waiters and hold.held.key is not None:
            self.wake([hold.held.key])

    def release(self, hold: Hold) -> None:
        """Give back the lock alone and wake who waits for it: the body has ended, the run has not. Never raises.

        A renewal under way may land after it, and finds by the guard's record that the lock was not lost to a flush: it
        does not bring it back.
        """
        hold.let_go = True
        if hold.held.key is None:
            return
        # Under a record that is nobody's, so that the guard's stays as it is.
        alone = replace(hold.held, guard_id=f"released:{hold.held.token}")
        try:
            if self.store.end(alone).waiters:
                self.wake([hold.held.key])
        except DOWN as exc:
            logger.debug("Task %s gives back its lock when it ends: %s", hold.held.task_id, text_of(exc))

    def wake(self, keys: Iterable[str]) -> None:
        """Publish the first waiter of each lock that is free. Never raises: the lock sweeper tries again."""
        for key in keys:
            ended = []
            try:
                while (turn := self.store.wake(key, RESEND_MS)) is not None and turn.too_old:
                    ended.append(self._give_up(key, turn.message))
                if turn is not None:
                    logger.debug("Task %s gets the once-lock %r", parked_message.publish(self.app, turn.message), key)
            except Exception as exc:  # noqa: BLE001 - a broker may raise anything; one key must not stop the others
                why = text_of(exc)
                logger.warning("Waking the next task of the once-lock %r failed, trying again: %s", key, why)
            for task, request in ended:
                # What a worker sends that receives an expired message. Not before: a receiver of ours wakes the next.
                signals.task_revoked.send(task, request=request, terminated=False, signum=None, expired=True)

    def _give_up(self, key: str, text: str) -> tuple[Any, Context]:
        """End a task that has waited for too long, and then let it leave: whoever dies between the two is repeated."""
        request = parked_message.request_of(self.app, text)
        # Another app of the same prefix may know the task, and this one not.
        task = self.app.tasks.get(request.task) or self.app.Task()
        if not is_final(task, request.id):
            age = "had expired"
            if not has_expired(vars(request), wall_ms()):
                age = "was older than the guard remembers which tasks have run"
            why = f"it waited for the once-lock {key!r} until its message {age}"
            settle(task, request, OnceSkipped(f"{request.task}[{request.id}]: {why}", key))
        self.store.leave(key, request.id)
        return task, request

    def wake_standbys(self, task_ids: Iterable[str]) -> None:
        """Publish the parked copy of each task whose run died. Never raises: the lock sweeper tries again."""
        for task_id in task_ids:
            try:
                text = self.store.wake_standby(task_id, RESEND_MS)
                if text is not None:
                    parked_message.publish(self.app, text)
                    logger.info("Task %s runs again from its parked copy", task_id)
            except Exception as exc:  # noqa: BLE001 - as above
                why = text_of(exc)
                logger.warning("Waking the parked copy of task %s failed, trying again: %s", task_id, why)

    def discard(self, task_id: str, attempt: int) -> None:
        """Let no parked copy of a message run that was revoked or has expired. Never raises."""
        try:
            self.store.discard(task_id, attempt)
        except DOWN as exc:
            logger.warning("A parked copy of the discarded task %s may run yet: %s", task_id, text_of(exc))

    def leave(self, key: str, task_id: str) -> None:
        """Give up the lock or the place of a task that will not run. Never raises."""
        try:
            if self.store.leave(key, task_id):
                self.wake([key])
        except DOWN as exc:
            logger.warning("Task %s could not give up the once-lock %r: %s", task_id, key, text_of(exc))

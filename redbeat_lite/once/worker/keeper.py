"""The threads of a worker: they renew for children that run, find those that died, and report that it is there."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from celery.utils.log import get_logger
from celery.worker import state

from ...errors import text_of
from ...runs.run import LIFE_MS, sign_of
from ...runs.run_store import RunKeys
from ...storage.redis_values import server_ms
from ...threads import Ticker
from ..hold import Hold
from ..renewal import PER_LEASE
from ..runtime import Runtime
from ..store import DOWN
from ..worker_reports import REPORT
from .dead_children import awaited, hold_of_request, is_child, is_gone, token_of, watch
from .leader_watch import look_for_leader
from .lock_sweeper import PERIOD, LockSweeper
from .visibility import Heartbeat, disagreements, heartbeat_for, report, snapshot

logger = get_logger(f"celery.{__name__}")

#: Seconds between two looks at the children.
_LOOK = 0.25

#: Seconds that the end of the threads may take.
_END = 1.0

#: Seconds between two signs of life of a run; shorter runs give none.
_SIGN = 1.0


class SignsOfLife:
    """Signs of life of the runs that one worker has under way, each valid for one lease.

    They tell readers whether a run goes on or its worker was killed.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._client = runtime.store.client
        self._key = RunKeys(runtime.settings.key_prefix).alive
        self._members = set[str]()
        self._not_before = float("-inf")

    def renew(self, requests: Iterable[Any]) -> None:
        """Renew the signs of these runs once a second, and remove the signs of ended runs."""
        now = time.monotonic()
        if now < self._not_before:
            return
        self._not_before = now + _SIGN
        attempts = [self._runtime.attempt(request.request_dict) for request in requests]
        members = {sign_of(attempt.task_id, attempt.number) for attempt in attempts if attempt}
        ended = self._members - members
        try:
            if members:
                until = server_ms(self._client) + round(1000 * self._runtime.settings.once_lease)
                self._client.zadd(self._key, dict.fromkeys(members, until))
                self._client.zremrangebyscore(self._key, 0, until - LIFE_MS)
                self._client.pexpire(self._key, LIFE_MS)
            if ended:
                self._client.zrem(self._key, *ended)
            self._members = members
        except DOWN as exc:
            logger.debug("Signs of life of runs failed, trying again: %s", text_of(exc))


class Keeper:
    """The threads of one worker."""

    def __init__(self, runtime: Runtime, hostname: str) -> None:
        self._runtime = runtime
        self._hostname = hostname
        self._heartbeat: Heartbeat | None = None
        self._said: set[str] = set()
        self._reported = float("-inf")
        self._renewed: dict[str, tuple[Hold | None, float]] = {}
        self._lock_sweeper = LockSweeper(runtime, state.requests)
        self._signs_of_life = SignsOfLife(runtime)
        self._visibility = Ticker("redbeat-lite-visibility", self._visibility_pause, self._mark)
        self._threads = (
            self._visibility,
            Ticker("redbeat-lite-lock-sweeper", lambda: PERIOD, self._look_after_locks),
            Ticker("redbeat-lite-children", lambda: _LOOK, self._watch),
        )

    def connect(self, consumer: Any) -> None:
        """Use a new connection of the consumer; starts the threads at the first one."""
        old, self._heartbeat = self._heartbeat, heartbeat_for(consumer)
        if old is not None:
            old.close()
        self._reported = float("-inf")
        for thread in self._threads:
            thread.start()
        self._visibility.soon()

    def disconnect(self) -> None:
        """Note that the consumer stops. The threads go on, because tasks may."""
        if self._heartbeat is not None:
            self._heartbeat.end_loop()

    def stop(self) -> None:
        """End the threads, within a second if one is in the middle of something that hangs."""
        for thread in self._threads:
            thread.stop()
        deadline = time.monotonic() + _END
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0.0))
        if self._heartbeat is not None:
            self._heartbeat.close()

    def _visibility_pause(self) -> float:
        return self._heartbeat.period if self._heartbeat is not None else REPORT

    def _mark(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.mark()

    def _look_after_locks(self) -> None:
        try:
            self._lock_sweeper.round()
        finally:
            # Whatever stopped the round: others count this worker as gone if it does not report.
            if time.monotonic() - self._reported >= REPORT:
                self._report()

    def _report(self) -> None:
        timeout = self._heartbeat.timeout if self._heartbeat is not None else None
        # Remote control adds and cancels queues while the worker runs.
        queues = sorted(self._runtime.app.amqp.queues.consume_from)
        alive = report(self._runtime, self._hostname, queues, timeout)
        for sentence in disagreements(self._hostname, alive):
            if sentence not in self._said:
                self._said.add(sentence)
                logger.warning("%s", sentence)
        self._reported = time.monotonic()
        look_for_leader(self._runtime)

    def _watch(self) -> None:
        """Look after the children's runs: renew for those whose own thread cannot, because their task holds the
        interpreter's lock, and give back for those that died, which Celery may take five seconds to notice."""
        # By delivery: a retry may run on this worker before anybody has looked, under the same task id.
        requests = snapshot(state.active_requests)
        active = {token: request for request in requests if (token := token_of(request))}
        for token in self._renewed.keys() - active.keys():
            del self._renewed[token]
        now = time.monotonic()
        for token, request in active.items():
            if token not in self._renewed:
                self._renewed[token] = (hold_of_request(request), now)
            hold, last = self._renewed[token]
            if hold is None or token in awaited:
                continue
            if is_child(request.worker_pid) and is_gone(request.worker_pid):
                self._renewed[token] = (None, now)
                # Celery notices within seconds, and then decides whether to redeliver the message.
                watch(request, again=True)
            elif now - last >= hold.lease / PER_LEASE:
                try:
                    self._runtime.store.renew(hold.held, revive=False, lock=hold.keeps_lock(now))
                    self._renewed[token] = (hold, now)
                except DOWN as exc:
                    logger.debug("Renewal for task %s failed, trying again: %s", request.id, text_of(exc))
        self._signs_of_life.renew(requests)

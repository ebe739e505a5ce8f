"""The lock sweeper: looks after all locks once a second, in every worker.

It wakes the waiters of locks that became free although no process woke them, repeats wake-ups that
had no effect, wakes the parked copies of tasks that died, keeps the locks of tasks that wait in a
queue, and lets the locks of lost messages run out. Any number of workers may do so at once, because
each step is one script.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from celery.utils.log import get_logger

from ..._base.text import describe
from ...store.redis_values import server_ms, text, texts
from ..lock_client import LockClient

logger = get_logger(f"celery.{__name__}")

#: Seconds between two rounds.
PERIOD = 1.0

#: Locks per round trip, in the order in which they run out.
_PAGE = 500

#: Round trips in one round, so a worker extends ten thousand locks a second. A lock is extended
#: when half of its lease is left. With a lease of a minute, a worker keeps 300,000 locks.
_PAGES = 20

#: Milliseconds for which a queued lock is kept after its message may run; then it must be lost.
_OLDEST_MS = 86_400_000


class LockSweeper:
    """Sweeper of all locks, round by round, in a thread of a worker's main process.

    Parameters:
        requests: requests that this worker has received and not finished.
    """

    def __init__(self, client: LockClient, requests: Any) -> None:
        self._client = client
        self._requests = requests
        #: Whether the queues could not be asked in the last round.
        self._is_blind = False

    def round(self) -> None:
        """Look after everything that is due."""
        keys, task_ids = self._client.store.due()
        self._client.wake(keys)
        self._client.wake_standbys(task_ids)
        self._keep_queued()

    def _keep_queued(self) -> None:
        """Keep the locks of tasks that this worker has received, or whose queue it consumes.

        The locks of messages that are in no queue run out.
        """
        waiting: dict[str, bool] = {}
        passed = 0
        for _ in range(_PAGES):
            page = list(self._locks(passed))
            extended: list[tuple[str, str, bool]] = []
            near = 0
            for key, fields, left in page:
                queued = _nearly_expired(fields, left)
                near += queued is not None or left.lock < 0
                if queued is None:
                    continue
                task_id, queue, lease = queued
                there = self._is_there(task_id, queue, waiting)
                # The lease of a lost message is shortened once.
                if there or (there is False and left.lock > lease / 2):
                    extended.append((key, task_id, there))
            if extended:
                self._client.store.extend(extended)
            # The locks are in the order in which they run out. If none of this page is near its
            # end, no later lock is.
            if len(page) < _PAGE or not near:
                break
            # An extended lock has moved to the end of the index.
            passed += len(page) - len(extended)

    def _locks(self, start: int) -> Iterator[tuple[str, Any, _Left]]:
        """Yield key, fields and times of a page of locks; for a key of another type, its error."""
        client = self._client.store.client
        names = self._client.store.keys
        index = client.zrange(names.index, start, start + _PAGE - 1, withscores=True)
        if not index:
            return
        keys = texts(key for key, _ in index)
        pipe = client.pipeline(transaction=False)
        for key in keys:
            pipe.hmget(names.lock(key), "state", "task", "queue", "lease", "due")
            pipe.pttl(names.lock(key))
        replies = iter(pipe.execute(raise_on_error=False))
        now = server_ms(client)
        for key, (_, score), fields, left_ms in zip(keys, index, replies, replies, strict=True):
            yield key, fields, _Left(left_ms, score - now, now)

    def _is_there(self, task_id: str, queue: str, waiting: dict[str, bool]) -> bool | None:
        """Return whether the message of a task is still to come; ``None`` if others may have it.

        Parameters:
            waiting: for each queue that was asked in this round, whether it holds messages.
        """
        # Remote control adds and cancels queues meanwhile.
        consumed = list(self._client.app.amqp.queues.consume_from)
        if task_id in self._requests:
            return True
        if queue and queue not in consumed:
            return None
        if not waiting:
            self._ask_queues(waiting, consumed)
        # Nobody can tell which messages are in a queue. So a message that was lost while its queue
        # never drains keeps its lock for a day.
        names = [queue] if queue else consumed
        if any(waiting.get(name, True) for name in names):
            return True
        return False if queue else None

    def _ask_queues(self, waiting: dict[str, bool], consumed: list[str]) -> None:
        """Note for each consumed queue whether it holds messages."""
        try:
            for name in consumed:
                waiting[name] = self._size(name) > 0
            self._is_blind = False
        except Exception as exc:  # noqa: BLE001 - a broker may raise anything
            # A queue that cannot be asked may hold the message. The others are not asked either,
            # because each attempt takes seconds.
            waiting.update(dict.fromkeys(consumed, True))
            log = logger.debug if self._is_blind else logger.warning
            why = describe(exc)
            log("Cannot look at the queues, so the locks of their messages are kept: %s", why)
            self._is_blind = True

    def _size(self, queue: str) -> int:
        with self._client.app.connection_or_acquire() as connection:
            try:
                declared = connection.default_channel.queue_declare(queue, passive=True)
                return int(declared.message_count)
            except connection.channel_errors:
                return 0  # On Redis an empty queue does not exist.


class _Left(NamedTuple):
    """Times of a lock, in milliseconds.

    Parameters:
        lock: until the lock expires; negative if it has no expiry or is gone.
        look: until the index says that the lock expires.
        now: server time, since 1970.
    """

    lock: int
    look: float
    now: int


def _nearly_expired(fields: Any, left: _Left) -> tuple[str, str, int] | None:
    """Return task id, queue and lease of a queued lock that has less than half of its lease left.

    ``None`` for any other lock, and for a key that another program has overwritten.
    """
    try:
        state, task_id, queue, lease_text, due = fields
        lease = int(lease_text)
        is_lost = left.now - int(due) >= _OLDEST_MS
    except (TypeError, ValueError):
        return None
    if state != b"queued" or is_lost or min(left.lock, left.look) >= lease / 2:
        return None
    return text(task_id), text(queue or b""), lease

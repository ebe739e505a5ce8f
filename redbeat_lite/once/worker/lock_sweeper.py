"""The lock sweeper: does once a second, in every worker, the work that processes left undone.

It publishes the waiters of locks that are free, and publishes them again if they do not begin. It
publishes the parked copies of tasks that died. It extends the locks of tasks that wait in a queue,
and lets the locks of lost messages expire. Any number of workers may sweep at the same time,
because each step is one script.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from celery.utils.log import get_logger

from ..._base.text import describe
from ...store.redis_values import server_ms, text, texts
from ..lock_client import LockClient

logger = get_logger(f"celery.{__name__}")

#: Seconds between two rounds.
PERIOD = 1.0

#: Locks per round trip, the first to expire in front.
_PAGE = 500

#: Maximum number of pages of one round. So a worker can extend 10,000 locks a second. A lock is
#: extended when half of its lease is left, so with a lease of a minute a worker keeps 300,000
#: locks.
_PAGES = 20

#: Milliseconds after the due time of a message for which its lock is extended. After that, the
#: message counts as lost.
_OLDEST_MS = 86_400_000


class LockSweeper:
    """Sweeper of all locks, in a thread of a worker's main process.

    Parameters:
        requests: task ids of the requests that this worker has received and not finished.
    """

    def __init__(self, client: LockClient, requests: Any) -> None:
        self._client = client
        self._requests = requests
        #: Whether the last round could not read the sizes of the queues.
        self._is_blind = False

    def round(self) -> None:
        """Publish the waiters and the copies that are due, and extend the locks of queued tasks."""
        keys, task_ids = self._client.store.due()
        self._client.wake(keys)
        self._client.wake_standbys(task_ids)
        self._keep_queued()

    def _keep_queued(self) -> None:
        """Extend the locks of tasks that this worker has received, or whose queue it consumes.

        The lock of a message that is in no queue is not extended, so it expires.
        """
        #: Queue -> whether it holds messages. _is_there() fills it when it first needs it.
        waiting: dict[str, bool] = {}
        passed = 0
        for _ in range(_PAGES):
            page = list(self._locks(passed))
            extended: list[tuple[str, str, bool]] = []
            near = 0
            for key, left_ms, queued in page:
                # A key without a lock has waiters alone, and does not end the search.
                near += queued is not None or left_ms < 0
                if queued is None:
                    continue
                task_id, queue, lease = queued
                is_there = self._is_there(task_id, queue, waiting)
                # For a lost message, this call shortens the lease to its half, once.
                if is_there or (is_there is False and left_ms > lease / 2):
                    extended.append((key, task_id, is_there))
            if extended:
                self._client.store.extend(extended)
            # The first to expire come first. If no lock of this page expires soon, no later one
            # does.
            if len(page) < _PAGE or not near:
                break
            # Each extended lock has moved to the end of the index.
            passed += len(page) - len(extended)

    def _locks(self, start: int) -> Iterator[tuple[str, int, tuple[str, str, int] | None]]:
        """Yield a page of locks: key, ms until it expires, and its task as of _nearly_expired().

        The ms are negative if the lock has no expiry or is gone.
        """
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
            # The index may expire the lock earlier than the server does.
            yield key, left_ms, _nearly_expired(fields, min(left_ms, score - now), now)

    def _is_there(self, task_id: str, queue: str, waiting: dict[str, bool]) -> bool | None:
        """Return whether the message of a task may still run; ``None`` if this worker cannot know.

        Parameters:
            queue: queue of the message; empty if it is not known.
            waiting: queue -> whether it holds messages. The first call of a round fills it.
        """
        # Read the queues each time, because remote control may add and cancel queues.
        consumed = list(self._client.app.amqp.queues.consume_from)
        if task_id in self._requests:
            return True
        if queue and queue not in consumed:
            return None
        if not waiting:
            self._read_sizes(waiting, consumed)
        # A broker does not say which messages a queue holds. So if a message was lost, its lock is
        # kept while its queue holds any message, for a day at most.
        names = [queue] if queue else consumed
        if any(waiting.get(name, True) for name in names):
            return True
        return False if queue else None

    def _read_sizes(self, waiting: dict[str, bool], consumed: list[str]) -> None:
        """Note in ``waiting``, for each consumed queue, whether it holds messages."""
        try:
            for name in consumed:
                waiting[name] = self._size(name) > 0
            self._is_blind = False
        except Exception as exc:  # noqa: BLE001 - a broker may raise anything
            # A queue without an answer may hold the message. Do not ask for the other queues,
            # because each attempt takes seconds.
            waiting.update(dict.fromkeys(consumed, True))
            log = logger.debug if self._is_blind else logger.warning
            log(
                "Cannot look at the queues, so the locks of their messages are kept: %s",
                describe(exc),
            )
            self._is_blind = True

    def _size(self, queue: str) -> int:
        with self._client.app.connection_or_acquire() as connection:
            try:
                declared = connection.default_channel.queue_declare(queue, passive=True)
                return int(declared.message_count)
            except connection.channel_errors:
                return 0  # On Redis an empty queue does not exist.


def _nearly_expired(fields: Any, left_ms: float, now: int) -> tuple[str, str, int] | None:
    """Return task id, queue and lease of a queued lock that has less than half of its lease left.

    ``None`` for any other lock, and for a key that another program has overwritten.

    Parameters:
        fields: fields of the lock, or the error of the server if the key is overwritten.
        left_ms: ms until the lock expires.
        now: time of the server, in epoch ms.
    """
    try:
        state, task_id, queue, lease_text, due = fields
        lease = int(lease_text)
        is_lost = now - int(due) >= _OLDEST_MS
    except (TypeError, ValueError):
        return None
    if state != b"queued" or is_lost or left_ms >= lease / 2:
        return None
    return text(task_id), text(queue or b""), lease

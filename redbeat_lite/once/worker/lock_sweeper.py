"""The lock sweeper: does once a second, in every worker, the work that processes left undone.

It publishes the waiters of locks that are free, and publishes them again if they do not begin. It
publishes the parked copies of tasks that died. It extends the locks of tasks that wait in a queue,
and lets the locks of lost messages expire. Any number of workers may sweep at the same time,
because each step is one script.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from celery.utils.log import get_logger

from ..._base.text import describe
from ...store.redis_values import server_ms, text, texts
from ..lock_client import LockClient

logger = get_logger(f"celery.{__name__}")

#: Seconds between two rounds.
PERIOD = 1.0

#: Locks per round trip, the first to expire in front.
_PAGE = 500

#: Maximum number of pages of one round. There is a round each second, so a worker can extend
#: 10,000 locks a second. A lock is extended when half of its lease is left. So with leases of a
#: minute, a worker keeps 300,000 locks.
_PAGES = 20

#: Age of a message, in ms after its due time, at which it counts as lost. From then on, its lock is
#: not extended any more.
_OLDEST_MS = 86_400_000


class _Lock(NamedTuple):
    """One key of the index, as a round of the sweeper has read it.

    Parameters:
        left_ms: ms until the lock expires; negative if it is gone.
        task_id: id of the task, if it is queued and less than half of the lease is left; else
            empty.
        queue: queue of the message of that task; empty if it is not known.
        lease_ms: lease of the lock of that task.
    """

    key: str
    left_ms: int
    task_id: str = ""
    queue: str = ""
    lease_ms: int = 0


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
        waiting: dict[str, bool] | None = None
        start = 0
        for _ in range(_PAGES):
            page = self._locks(start)
            queued = [lock for lock in page if lock.task_id]
            if queued and waiting is None:
                # Ask the broker once per round, and only if a lock of the round depends on it.
                waiting = self._waiting_queues()
            extended: list[tuple[str, str, bool]] = []
            for lock in queued:
                # ``None`` means that this worker cannot know, so it leaves the lock alone.
                is_there = self._is_there(lock, waiting or {})
                # For a lost message, extend() shortens the lease to its half. Do so only once.
                if is_there or (is_there is False and lock.left_ms > lock.lease_ms / 2):
                    extended.append((lock.key, lock.task_id, is_there))
            if extended:
                self._client.store.extend(extended)
            # The index has the locks in the order in which they expire. If no lock of this page
            # expires soon, no lock of a later page does. A key that has waiters and no lock has a
            # negative ``left_ms``, and does not end the search either.
            expires_soon = queued or any(lock.left_ms < 0 for lock in page)
            if len(page) < _PAGE or not expires_soon:
                break
            # Each extended lock has moved to the end of the index.
            start += len(page) - len(extended)

    def _locks(self, start: int) -> list[_Lock]:
        """Return a page of the index of all locks, the first lock to expire in front.

        Parameters:
            start: rank of the first lock of the page, from 0.
        """
        client = self._client.store.client
        names = self._client.store.keys
        index = client.zrange(names.index, start, start + _PAGE - 1, withscores=True)
        keys = texts(key for key, _ in index)
        pipe = client.pipeline(transaction=False)
        for key in keys:
            pipe.hmget(names.lock(key), "state", "task", "queue", "lease", "due")
            pipe.pttl(names.lock(key))
        # Each key has two replies, one after another. zip() gets the same iterator twice, so it
        # takes the two replies of a key together.
        replies = iter(pipe.execute(raise_on_error=False))
        now = server_ms(client)
        page = []
        for key, (_, score), fields, left_ms in zip(keys, index, replies, replies, strict=True):
            lock = _Lock(key, left_ms)
            # The lock may be gone, or another program may have overwritten it.
            with suppress(TypeError, ValueError):
                state, task_id, queue, lease, due = fields
                # The index may say that the lock ends before its real end. The earlier time counts.
                is_ending = min(left_ms, score - now) < int(lease) / 2
                is_lost = now - int(due) >= _OLDEST_MS
                # If the task is not queued but runs, the run renews the lock.
                if state == b"queued" and is_ending and not is_lost:
                    lock = _Lock(
                        key, left_ms, task_id=text(task_id), queue=text(queue), lease_ms=int(lease)
                    )
            page.append(lock)
        return page

    def _is_there(self, lock: _Lock, waiting: Mapping[str, bool]) -> bool | None:
        """Return whether the message of a task may still run; ``None`` if this worker cannot know.

        Parameters:
            waiting: queue that this worker consumes -> whether it holds messages.
        """
        if lock.task_id in self._requests:
            return True  # This worker has received the message, and has not ended the task.
        if not lock.queue:
            # The queue is not known. Any queue with messages may hold the message. If all queues of
            # this worker are empty, the message may be in a queue of another worker: ``None``.
            return any(waiting.values()) or None
        # A broker does not say which messages a queue holds. So if a message was lost, its lock is
        # kept while its queue holds any message, for a day at most. Here ``None`` means that this
        # worker does not consume the queue.
        return waiting.get(lock.queue)

    def _waiting_queues(self) -> dict[str, bool]:
        """Return for each queue that this worker consumes whether it holds messages."""
        # Read the queues each time, because remote control may add and cancel queues.
        waiting = dict.fromkeys(self._client.app.amqp.queues.consume_from, True)
        try:
            for queue in waiting:
                waiting[queue] = self._size(queue) > 0
            self._is_blind = False
        except Exception as exc:  # noqa: BLE001 - a broker may raise anything
            # A queue whose size is not known may hold messages, so its value stays true. Do not ask
            # for the remaining queues, because each attempt takes seconds.
            log = logger.debug if self._is_blind else logger.warning
            why = describe(exc)
            log("Cannot look at the queues, so the locks of their messages are kept: %s", why)
            self._is_blind = True
        return waiting

    def _size(self, queue: str) -> int:
        """Return the count of messages in a queue."""
        with self._client.app.connection_or_acquire() as connection:
            try:
                # A passive declaration changes nothing, and returns the count of messages.
                declared = connection.default_channel.queue_declare(queue, passive=True)
                return int(declared.message_count)
            except connection.channel_errors:
                return 0  # On Redis an empty queue does not exist.

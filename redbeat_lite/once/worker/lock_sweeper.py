"""The lock sweeper: once a second, every worker does for locks what other processes left undone.

The sweeper publishes the waiters of locks that are free, and publishes a waiter again that does not
begin. It publishes the parked copies of tasks that died. It extends the locks of tasks that wait in
a queue, and lets the locks of lost messages expire. Any number of workers can sweep at the same
time, because each step is one script.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from celery.utils.log import get_logger

from ..._base.text import describe
from ...store.records import chunks
from ...store.redis_values import text
from ..lock_client import LockClient
from ..lock_store import DUE, EXTEND_BATCH

logger = get_logger(f"celery.{__name__}")

#: Seconds between two rounds.
PERIOD = 1.0


class _QueuedLock(NamedTuple):
    """Lock of a task whose message is queued, as a round of the sweeper has read the lock.

    Parameters:
        queue: queue of the message; empty if it is not known.
    """

    task_id: str
    queue: str


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
        #: Number of locks that the next round passes over: the first ones by their due time.
        self._passed_over = 0

    def round(self) -> None:
        """Publish the waiters and the copies that are due, and extend the locks of queued tasks."""
        keys, task_ids = self._client.store.due(self._passed_over)
        queued: dict[str, _QueuedLock] = {}
        for page in chunks(keys, EXTEND_BATCH):
            queued.update(self._read_queued(page))
        # Ask the broker once per round, and only if a lock of the round depends on it.
        extended = self._extend(queued) if queued else 0
        # Locks that only other workers can extend stay due. If this round was full, more locks may
        # be due, so the next round passes over those that stay. Otherwise it passes over none.
        stay = len(queued) - extended
        self._passed_over = self._passed_over + stay if len(keys) == DUE else 0
        self._client.wake(key for key in keys if key not in queued)
        self._client.wake_standbys(task_ids)

    def _read_queued(self, keys: Sequence[str]) -> Iterator[tuple[str, _QueuedLock]]:
        """Read these locks. Yield those of queued tasks, with their keys.

        The other locks need no extension. If the task runs, the run renews the lock. If nobody has
        the lock, a waiter can get it.
        """
        store = self._client.store
        pipe = store.client.pipeline(transaction=False)
        for key in keys:
            pipe.hmget(store.keys.lock(key), "state", "task", "queue")
        for key, fields in zip(keys, pipe.execute(raise_on_error=False), strict=True):
            # If another program has overwritten the lock, ``fields`` is an error, which cannot be
            # unpacked. If the lock is gone, its fields are ``None``.
            with suppress(TypeError):
                state, task_id, queue = fields
                if state == b"queued":
                    yield key, _QueuedLock(text(task_id), text(queue or b""))

    def _extend(self, locks: Mapping[str, _QueuedLock]) -> int:
        """Extend the locks of tasks that this worker has received, or whose queue it consumes.

        The lock of a message that is in no queue is not extended, so it expires.

        Parameters:
            locks: the locks by their keys.

        Returns:
            number of locks that were extended.
        """
        waiting = self._waiting_queues()
        tasks: list[tuple[str, str, bool]] = []
        for key, lock in locks.items():
            is_there = self._is_there(lock, waiting)
            # ``None`` means that this worker cannot know, so it does not touch the lock.
            if is_there is not None:
                tasks.append((key, lock.task_id, is_there))
        for chunk in chunks(tasks, EXTEND_BATCH):
            self._client.store.extend(chunk)
        return sum(is_there for _, _, is_there in tasks)

    def _is_there(self, lock: _QueuedLock, waiting: Mapping[str, bool]) -> bool | None:
        """Return whether the message of a task may still run; ``None`` if this worker cannot know.

        Parameters:
            waiting: queue that this worker consumes -> whether it holds messages.
        """
        if lock.task_id in self._requests:
            return True  # This worker has received the message, and has not ended the task.
        if not lock.queue:
            # The queue is not known, so any queue with messages may hold the message. If all queues
            # of this worker are empty, a queue of another worker may hold it: ``None``.
            return any(waiting.values()) or None
        # A broker does not say which messages a queue holds. So the lock of a lost message is kept
        # while its queue holds any message, until the lock's ``latest`` end.
        # get() returns ``None`` if this worker does not consume the queue.
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
            # A queue whose size is not known may hold messages, so its value stays true. Do not try
            # the remaining queues, because each attempt takes seconds.
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

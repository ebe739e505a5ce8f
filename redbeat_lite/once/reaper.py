"""The reaper: what every worker looks after, whoever left it behind.

Once a second it wakes the waiters of locks that became free without anybody telling, repeats wake-ups that had no
effect, wakes the parked copies of tasks that died, and keeps the locks of tasks that wait in a queue. Any number of
workers may do so at once; each step is one script.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from celery.utils.log import get_logger

from ..replies import server_ms
from .runtime import Runtime

logger = get_logger(__name__)

#: Seconds between two rounds.
PERIOD = 1.0

#: Locks looked at in one round, the ones that run out first.
_ROUND = 500

#: A queued lock is not kept longer than this after its message may run, in ms: it must have been lost.
_OLDEST_MS = 86_400_000


class Reaper:
    """One round after the other, in a thread of a worker's main process.

    Parameters:
        runtime: of the app.
        requests: the requests this worker has received and not finished.
    """

    def __init__(self, runtime: Runtime, requests: Any) -> None:
        self._runtime = runtime
        self._requests = requests

    def round(self) -> None:
        """Look after everything that is due."""
        store = self._runtime.store
        keys, task_ids = store.due()
        self._runtime.wake(keys)
        self._runtime.wake_standbys(task_ids)
        self._keep_queued()

    def _keep_queued(self) -> None:
        """Keep the locks of tasks this worker has received, or that are in a queue it consumes from."""
        sizes: dict[str, bool] = {}
        for key, task_id, queue in self._running_out():
            if task_id in self._requests or self._waits_in(queue, sizes):
                self._runtime.store.extend(key, task_id)

    def _running_out(self) -> Iterable[tuple[str, str, str]]:
        """(key, task id, queue) of queued locks with less than half of their lease left."""
        store = self._runtime.store
        client, names = store.client, store.keys
        keys = [key.decode() for key in client.zrange(names.index, 0, _ROUND - 1)]
        pipe = client.pipeline(transaction=False)
        for key in keys:
            pipe.hmget(names.lock(key), "state", "task", "queue", "lease", "due")
            pipe.pttl(names.lock(key))
        replies = pipe.execute() if keys else []
        now = server_ms(client) if keys else 0
        for key, lock, left in zip(keys, replies[::2], replies[1::2], strict=True):
            state, task_id, queue, lease, due = lock
            if state == b"queued" and left < int(lease) / 2 and now - int(due) < _OLDEST_MS:
                yield key, task_id.decode(), (queue or b"").decode()

    def _waits_in(self, queue: str, sizes: dict[str, bool]) -> bool:
        """Whether there is anything in the queue; asked once a round. It cannot be told which messages they are: a
        message that got lost while its queue never drains keeps its lock for a day."""
        consumed = self._runtime.app.amqp.queues.consume_from
        for name in [queue] if queue else list(consumed):
            if name not in consumed:
                continue
            if name not in sizes:
                sizes[name] = self._size(name) > 0
            if sizes[name]:
                return True
        return False

    def _size(self, queue: str) -> int:
        with self._runtime.app.connection_or_acquire() as connection:
            try:
                return int(connection.default_channel.queue_declare(queue, passive=True).message_count)
            except connection.channel_errors:
                return 0  # on Redis, a queue with nothing in it is not there

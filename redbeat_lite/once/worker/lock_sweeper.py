"""What every worker looks after once a second, whoever left it: waiters of free locks, copies of tasks that died.

Once a second it wakes the waiters of locks that became free without anybody telling, repeats wake-ups that had no
effect, wakes the parked copies of tasks that died, and keeps the locks of tasks that wait in a queue. Any number of
workers may do so at once; each step is one script.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from celery.utils.log import get_logger

from ...errors import describe
from ...storage.connections import UNREACHABLE
from ...storage.replies import server_ms, text, texts
from ..runtime import Runtime

logger = get_logger(__name__)

#: Seconds between two rounds.
PERIOD = 1.0

#: Locks read in one round trip, the ones that run out first in front, and how often in one round. Ten thousand a second
#: are kept, and with a lease of a minute, half of which is left by then, three hundred thousand.
_PAGE = 500
_PAGES = 20

#: A queued lock is not kept longer than this after its message may run, in ms: it must have been lost.
_OLDEST_MS = 86_400_000


class LockSweeper:
    """One round after the other, in a thread of a worker's main process.

    Parameters:
        runtime: of the app.
        requests: the requests this worker has received and not finished.
    """

    def __init__(self, runtime: Runtime, requests: Any) -> None:
        self._runtime = runtime
        self._requests = requests
        #: What could not be looked at in the last round.
        self._unknown: set[str] = set()

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
        unknown: set[str] = set()
        passed = 0
        for _ in range(_PAGES):
            kept: list[tuple[str, str]] = []
            near = size = 0
            for key, lock, left, now in self._locks(passed):
                size += 1
                # Whatever is wrong with one lock, somebody's writing in its place perhaps, must not reach the others.
                try:
                    found = _running_out(lock, left, now)
                    near += found is not None or left < 0
                    if found is not None and (found[0] in self._requests or self._waits_in(found[1], sizes, unknown)):
                        kept.append((key, found[0]))
                except UNREACHABLE:
                    raise  # There is nothing to be done for the others either.
                except Exception as exc:  # noqa: BLE001 - as above
                    self._say(unknown, f"the once-lock {key!r}", exc)
            if kept:
                self._runtime.store.extend(kept)
            if size < _PAGE or not near:
                break  # They are in the order of their ends.
            passed += size - len(kept)
        self._unknown = unknown

    def _locks(self, start: int) -> Iterator[tuple[str, Any, Any, int]]:
        """(key, fields, ms left, the server's time) of the locks that run out first; an error where one is no lock.

        Parameters:
            start: how many of them to pass over.
        """
        store = self._runtime.store
        client, names = store.client, store.keys
        keys = texts(client.zrange(names.index, start, start + _PAGE - 1))
        if not keys:
            return
        pipe = client.pipeline(transaction=False)
        for key in keys:
            pipe.hmget(names.lock(key), "state", "task", "queue", "lease", "due")
            pipe.pttl(names.lock(key))
        replies = pipe.execute(raise_on_error=False)
        now = server_ms(client)
        for key, lock, left in zip(keys, replies[::2], replies[1::2], strict=True):
            yield key, lock, left, now

    def _waits_in(self, queue: str, sizes: dict[str, bool], unknown: set[str]) -> bool:
        """Whether there is anything in the queue; asked once a round. It cannot be told which messages they are: a
        message that got lost while its queue never drains keeps its lock for a day."""
        consumed = self._runtime.app.amqp.queues.consume_from
        for name in [queue] if queue else list(consumed):
            if name not in consumed:
                continue
            try:
                if name not in sizes:
                    sizes[name] = self._size(name) > 0
            except Exception as exc:  # noqa: BLE001 - a broker may raise anything
                # What is in a queue that cannot be looked at stays there, and may run yet. Nor are the others, for each
                # attempt takes seconds.
                sizes.update({each: True for each in consumed if each not in sizes})
                self._say(unknown, "the queues, so the locks of their messages are kept", exc)
            if sizes[name]:
                return True
        return False

    def _size(self, queue: str) -> int:
        with self._runtime.app.connection_or_acquire() as connection:
            try:
                return int(connection.default_channel.queue_declare(queue, passive=True).message_count)
            except connection.channel_errors:
                return 0  # on Redis, a queue with nothing in it is not there

    def _say(self, unknown: set[str], what: str, exc: Exception) -> None:
        """Tell of what cannot be looked at, once for as long as that lasts."""
        log = logger.debug if what in self._unknown else logger.warning
        log("Cannot look at %s: %s", what, describe(exc))
        unknown.add(what)


def _running_out(lock: Any, left: Any, now: int) -> tuple[str, str] | None:
    """(task id, queue) of a queued lock with less than half of its lease left; ``None`` of any other.

    Raises:
        redis.exceptions.ResponseError, TypeError, ValueError: it is no lock.
    """
    if isinstance(lock, Exception):
        raise lock
    state, task_id, queue, lease, due = lock
    if state != b"queued" or left >= int(lease) / 2 or now - int(due) >= _OLDEST_MS:
        return None
    return text(task_id), text(queue or b"")

"""The second look, once a second in every worker: waiters that nobody has woken, copies of tasks that died.

Once a second it wakes the waiters of locks that became free without anybody telling, repeats wake-ups that had no
effect, wakes the parked copies of tasks that died, keeps the locks of tasks that wait in a queue, and lets those run
out whose message is lost. Any number of workers may do so at once; each step is one script.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from celery.utils.log import get_logger

from ...errors import describe
from ...storage.connections import UNREACHABLE
from ...storage.redis_values import server_ms, text, texts
from ..runtime import Runtime

logger = get_logger(f"celery.{__name__}")

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
        requests: those that this worker has received and not finished.
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
        """Keep the locks of tasks this worker has received, or that are in a queue it consumes from, and let those
        run out that are in none."""
        sizes: dict[str, bool] = {}
        unknown: set[str] = set()
        passed = 0
        for _ in range(_PAGES):
            kept: list[tuple[str, str, bool]] = []
            near = size = 0
            for key, lock, left in self._locks(passed):
                size += 1
                # Whatever is wrong with one lock, somebody's writing in its place perhaps, must not reach the others.
                try:
                    found = _to_be_looked_at(lock, left)
                    near += found is not None or left.lock < 0
                    if found is None:
                        continue
                    task_id, queue, lease = found
                    there = self._is_there(task_id, queue, sizes, unknown)
                    # One that is lost is cut short once: what stays where it is in the index is passed over.
                    if there or (there is False and left.lock > lease / 2):
                        kept.append((key, task_id, there))
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

    def _locks(self, start: int) -> Iterator[tuple[str, Any, _Left]]:
        """(key, fields, times) of the locks to be looked at first; an error where one is no lock."""
        store = self._runtime.store
        client, names = store.client, store.keys
        index = client.zrange(names.index, start, start + _PAGE - 1, withscores=True)
        if not index:
            return
        keys = texts(key for key, _ in index)
        pipe = client.pipeline(transaction=False)
        for key in keys:
            pipe.hmget(names.lock(key), "state", "task", "queue", "lease", "due")
            pipe.pttl(names.lock(key))
        replies = pipe.execute(raise_on_error=False)
        now = server_ms(client)
        for key, (_, score), lock, left in zip(keys, index, replies[::2], replies[1::2], strict=True):
            yield key, lock, _Left(left, score - now, now)

    def _is_there(self, task_id: str, queue: str, sizes: dict[str, bool], unknown: set[str]) -> bool | None:
        """Whether the message of a task is still to come; ``None`` where it may be with others."""
        if task_id in self._requests or self._waits_in(queue, sizes, unknown):
            return True
        return False if queue in self._runtime.app.amqp.queues.consume_from else None

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


class _Left(NamedTuple):
    """How many ms a lock has left, and until it is to be looked at; the server's time."""

    lock: int
    look: float
    now: int


def _to_be_looked_at(lock: Any, left: _Left) -> tuple[str, str, int] | None:
    """(task id, queue, lease) of a queued lock with less than half of a lease left to the end, or to the look; ``None``
    of any other. What is no lock raises a ResponseError, a TypeError or a ValueError."""
    if isinstance(lock, Exception):
        raise lock
    state, task_id, queue, lease, due = lock
    if state != b"queued" or min(left.lock, left.look) >= int(lease) / 2 or left.now - int(due) >= _OLDEST_MS:
        return None
    return text(task_id), text(queue or b""), int(lease)

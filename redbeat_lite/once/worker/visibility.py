"""The visibility heartbeat: a Redis broker never delivers again what a living worker still has.

Kombu gives an unacknowledged message to another worker after ``visibility_timeout``, alive or not. Every third of that
time the worker's main process marks its messages as taken just now. ``XX`` keeps what was acknowledged meanwhile from
coming back.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from celery.worker import state

from ...clock import elapsed, wall_ms
from ...storage.redis_values import server_ms
from ..runtime import Runtime
from ..worker_reports import FORGOTTEN_AFTER, WorkerReport, heard_of
from .dead_children import is_child

#: Marks within one visibility timeout.
PER_TIMEOUT = 3

#: Members of one ZADD.
_BATCH = 1000


class Heartbeat:
    """Marks the unacknowledged messages of one consumer's channel.

    Parameters:
        timer: timer of the worker's main loop. If the loop hangs for a whole visibility timeout,
            only messages of tasks that run in children are marked, and other workers get the rest.
    """

    def __init__(self, channel: Any, timer: Any) -> None:
        self._channel = channel
        # A pool of its own: the channel's belongs to the worker's event loop.
        self._client = channel.Client(connection_pool=channel._get_pool())
        self.timeout = float(channel.visibility_timeout)
        self._looped = elapsed()
        self._entry = timer.call_repeatedly(self.period, self._note_loop)

    def _note_loop(self) -> None:
        self._looped = elapsed()

    def end_loop(self) -> None:
        """Stop watching the main loop, which ends on purpose. The pool may still run tasks."""
        self._looped = float("inf")
        self._entry.cancel()

    @property
    def period(self) -> float:
        """Seconds between two marks."""
        return self.timeout / PER_TIMEOUT

    def mark(self) -> None:
        """Mark everything as taken now, by the server's clock: kombu's own marks are as wrong as the worker's."""
        tags = self._tags()
        for start in range(0, len(tags), _BATCH):
            marks = dict.fromkeys(tags[start : start + _BATCH], server_ms(self._client) / 1000)
            self._client.zadd(self._channel.unacked_index_key, marks, xx=True)

    def _tags(self) -> list[str]:
        qos = self._channel._qos
        tags = [] if qos is None else [tag for tag in snapshot(qos._delivered) if tag not in qos._dirty]
        if elapsed() - self._looped <= self.timeout:
            return tags
        running = snapshot(state.active_requests)
        if not all(is_child(request.worker_pid) for request in running):
            return tags  # A task of the solo pool blocks the main loop.
        in_children = {request.message.delivery_tag for request in running}
        return [tag for tag in tags if tag in in_children]

    def close(self) -> None:
        self._entry.cancel()
        self._client.connection_pool.disconnect()


def snapshot(members: Iterable[Any]) -> list[Any]:
    """The members of what the main thread changes meanwhile."""
    for _ in range(100):
        with suppress(RuntimeError):
            return list(members)
    return []


def heartbeat_for(consumer: Any) -> Heartbeat | None:
    """The heartbeat for a worker's consumer; ``None`` where the broker is not Redis, or does without timeouts."""
    transport = consumer.connection.transport
    channel = getattr(consumer.task_consumer, "channel", None)
    if transport.driver_type != "redis" or channel is None or not getattr(channel, "ack_emulation", False):
        return None
    return Heartbeat(channel, consumer.timer)


def report(runtime: Runtime, hostname: str, queues: list[str], timeout: float | None) -> dict[str, WorkerReport]:
    """Say that this worker lives, and read what the others said, as :func:`workers`."""
    store = runtime.store
    # A reply that took long tells little. Whoever judges leaves room for the way there and back.
    _, ahead, now = min(look_at_the_clock(store.client) for _ in range(3))
    store.client.hset(
        store.keys.workers, hostname, WorkerReport(queues, timeout, now / 1000, ahead, records=True).encode()
    )
    return workers(runtime)


def look_at_the_clock(client: Any) -> tuple[float, float, int]:
    """How many seconds that took, by how many the clock here is ahead of the server's, and the time there in ms."""
    began, before, now = elapsed(), wall_ms(), server_ms(client)
    # The server looked at its clock between the two.
    return elapsed() - began, ((before + wall_ms()) / 2 - now) / 1000, now


def workers(runtime: Runtime) -> dict[str, WorkerReport]:
    """The workers with ``install()`` that were heard of within the last minute. Those of an hour ago are forgotten."""
    store = runtime.store
    found, now = store.client.hgetall(store.keys.workers), server_ms(store.client) / 1000
    for name in found.keys() - {each.encode() for each in heard_of(found, now - FORGOTTEN_AFTER)}:
        store.client.hdel(store.keys.workers, name)
    return heard_of(found, now)


def disagreements(hostname: str, alive: dict[str, WorkerReport]) -> list[str]:
    """One sentence for every worker that shares a queue with ``hostname`` and has another visibility timeout."""
    mine = alive.get(hostname)
    if mine is None or mine.visibility_timeout is None:
        return []
    return [
        f"{other} consumes {', '.join(sorted(shared))} with visibility_timeout {said.visibility_timeout:g}s, "
        f"this worker with {mine.visibility_timeout:g}s; the shorter one decides for both"
        for other, said in sorted(alive.items())
        if (shared := set(said.queues) & set(mine.queues))
        and said.visibility_timeout is not None
        and said.visibility_timeout != mine.visibility_timeout
    ]

"""A history of calls and of a queue in one process, in which the queue's length tells what came when."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime

import redis

from tests.harness.queues import queued
from tests.support.audit import Record, check


class QueueHistory:
    """Notes calls and the messages of a queue that only grows, for the audit.

    The length of the queue is read before each call and after it. So the history says of each
    message whether it came before the call, after it, or meanwhile, although it may have come
    within the same millisecond.
    """

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        #: The bounds are generous, because a busy machine keeps entries from running.
        self._records: list[Record] = [{"kind": "setup", "late": 60_000}]
        #: Length of the queue, and an instant in ms at which it was at least so long.
        self._before: list[tuple[int, float]] = []
        #: Length of the queue, and an instant in ms at which it was at most so long.
        self._after: list[tuple[int, float]] = []

    @contextmanager
    def call(self, act: str, entry: str | None = None, **fields: object) -> Iterator[Record]:
        """Note a call around the block that makes it. One that raises was refused.

        The block may add fields to the record.
        """
        self._before.append((self.length(), now_ms()))
        record: Record = {"kind": "call", "act": act, "entry": entry, "ok": False, **fields}
        record["began"] = now_ms()
        try:
            yield record
            record["ok"] = True
        finally:
            record["returned"] = now_ms()
            self._after.append((self.length(), record["returned"]))
            self._records.append(record)

    def note_end(self, freeze: str, until: datetime) -> None:
        """Note that a freeze ends by itself at an instant."""
        at = until.timestamp() * 1000
        record = {"kind": "call", "act": "thaw", "freeze": freeze, "began": at, "returned": at}
        self._records.append(record | {"ok": True})

    def length(self) -> int:
        """Return how many messages are in the queue."""
        return int(self._client.llen("celery"))

    def note_messages(self) -> None:
        """Note the messages of the queue."""
        messages = queued(self._client)
        since = 0.0
        sent: list[Record] = []
        for index, message in enumerate(messages):
            since = max([since, *(instant for length, instant in self._after if length == index)])
            sent.append(message.record() | {"since": since})
        at = now_ms()
        for index, record in reversed([*enumerate(sent, 1)]):
            at = min([at, *(instant for length, instant in self._before if length == index)])
            record["at"] = at
        self._records += sent

    @contextmanager
    def flush(self, paused: Iterable[str]) -> Iterator[None]:
        """Note the messages of the queue, which the block empties, and that no pause outlives it."""
        self.note_messages()
        with ExitStack() as calls:
            for name in paused:
                calls.enter_context(self.call("resume", name))
            yield
            self._before.clear()
        self._after.clear()

    def check(self) -> None:
        """Note the messages of the queue, and raise AssertionError if the history breaks a law."""
        self.note_messages()
        check(self._records)


def now_ms() -> float:
    """Return the time in epoch ms, with its fraction."""
    return time.time_ns() / 1_000_000

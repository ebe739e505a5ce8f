"""Reads the queue of a scenario while it grows, and notes each message in the history."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress

import redis

from tests.harness.history import HistoryLog, now_ms
from tests.harness.queues import Sent, sent_of

#: Number of messages that are read at once.
CHUNK = 2000

#: Number of messages that stay in a queue that is trimmed.
KEPT = 5000


class Collector:
    """Reads a queue of Redis while it grows.

    Parameters:
        connect: opens a client of the broker; called again after each loss of the connection.
        trim: whether old messages are taken out of the queue and forgotten.
    """

    def __init__(
        self,
        connect: Callable[[], redis.Redis],
        log: HistoryLog,
        *,
        trim: bool = False,
    ) -> None:
        #: The messages so far, in the order of the queue. If it is trimmed, only the last ones.
        self.messages: list[Sent] = []
        #: The latest nominal time of each entry in epoch ms.
        self.latest: dict[str, int] = {}
        #: How many places of the queue have been read.
        self.places = 0
        self._connect = connect
        self._log = log
        self._trim = trim
        #: When the queue was last read to its end, in epoch ms.
        self._looked = now_ms()
        #: How many places a trim takes whose reply has not come.
        self._trimmed = 0
        #: After a loss: how many messages have to be compared with those that were read before.
        self._to_compare = 0
        #: Messages that were read before the loss, and how often.
        self._read_before: Counter[tuple[str, int, str]] = Counter()
        self._moves = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def move(self) -> None:
        """Connect again: the queue is on another server now, and the old one still answers."""
        self._moves += 1

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        self._thread.join(5)

    def _run(self) -> None:
        moves = 0
        while not self._stopped.is_set():
            with suppress(Exception), self._connect() as client:  # tests kill the server
                if moves != self._moves:
                    moves = self._moves
                    self._look_again(client.llen("celery"))
                while not self._stopped.is_set() and moves == self._moves:
                    time.sleep(0.01)
                    self._read(client)
                    self._shorten(client)

    def _read(self, client: redis.Redis) -> None:
        began = now_ms()
        if not self._trimmed and client.llen("celery") == self.places:
            self._looked = began
            return
        pipe = client.pipeline(transaction=True)
        pipe.llen("celery")
        # Places are counted from the oldest end, so they stay the same while messages come.
        pipe.lrange("celery", -(self.places + CHUNK), -(self.places + 1))
        length, raws = pipe.execute()
        if length == self.places - self._trimmed:
            self.places = length  # The last trim was made, and its reply was lost.
        self._trimmed = 0
        if length < self.places:
            # The server lost messages, or was flushed, or this is another server.
            self._look_again(length)
            return
        self._take(reversed(raws))
        self.places += len(raws)
        if self.places == length:
            self._looked = began

    def _take(self, raws: Iterable[bytes]) -> None:
        at = now_ms()
        messages = [sent_of(json.loads(raw)["headers"], at, self._looked) for raw in raws]
        new = [message for message in messages if self._is_new(message)]
        self._log.append(*(message.record(os.getpid()) for message in new))
        self.messages += new
        for message in new:
            self.latest[message.entry] = max(message.nominal, self.latest.get(message.entry, 0))

    def _look_again(self, length: int) -> None:
        """Read the queue from its beginning.

        A message that was read before is not new, unless the queue now holds more copies of it.
        """
        self.places = 0
        self._to_compare = length
        self._read_before = Counter(message.identity for message in self.messages)

    def _is_new(self, message: Sent) -> bool:
        if not self._to_compare:
            return True
        self._to_compare -= 1
        if not self._read_before[message.identity]:
            return True
        self._read_before[message.identity] -= 1
        return False

    def _shorten(self, client: redis.Redis) -> None:
        if not self._trim or self.places < 2 * KEPT:
            return
        self._trimmed = self.places - KEPT
        client.ltrim("celery", 0, -(self._trimmed + 1))
        self._trimmed = 0
        self.places = KEPT
        del self.messages[: -4 * KEPT]

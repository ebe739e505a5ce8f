"""Reads queues, and notes each message in the history."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Literal, NamedTuple

import redis
from kombu.connection import Connection

from tests.harness.history import HistoryLog, now_ms
from tests.support.audit import Record, check

#: Number of messages that are read at once.
CHUNK = 2000

#: Number of messages that stay in a queue that is trimmed.
KEPT = 5000


class Sent(NamedTuple):
    """One message of an entry. Times are in epoch milliseconds.

    Parameters:
        sender: the id of the process that sent it.
        at: the instant at which it was read.
        since: the last instant at which it was surely not in the queue.
    """

    entry: str
    nominal: int
    id: str
    sender: int
    at: int
    since: int

    @property
    def identity(self) -> tuple[str, int, str]:
        """Entry, nominal time and id; a copy has the same."""
        return (self.entry, self.nominal, self.id)

    def record(self, user: int = 0) -> Record:
        """Return its record; messages of the process ``user`` count as sent by hand."""
        by = "hand" if self.sender == user else "rule"
        return {"kind": "sent", **self._asdict(), "by": by}


def sent_of(headers: dict[str, Any], at: int, since: int) -> Sent:
    """Read a message of an entry from its headers."""
    nominal = round(datetime.fromisoformat(headers["scheduled_at"]).timestamp() * 1000)
    sender = int(headers["origin"].removeprefix("gen").split("@")[0])
    return Sent(headers["periodic_task_name"], nominal, headers["id"], sender, at, since)


def queued(client: redis.Redis, queue: str = "celery") -> list[Sent]:
    """Return the messages of entries that lie in a queue of Redis now, oldest first."""
    now = now_ms()
    headers = [json.loads(raw)["headers"] for raw in reversed(client.lrange(queue, 0, -1))]
    of_entries = [header for header in headers if header.get("periodic_task_name")]
    return [sent_of(header, now, 0) for header in of_entries]


def drained(url: str) -> list[Sent]:
    """Take the messages that lie in the queue of any broker now, oldest first."""
    messages = []
    with Connection(url) as connection:  # type: ignore[no-untyped-call]
        source: Any = connection.SimpleQueue("celery")
        for _ in range(source.qsize()):
            message = source.get(timeout=5)
            message.ack()
            messages.append(sent_of(message.headers, now_ms(), 0))
    return messages


Delivery = Literal["exactly", "at least"]


def check_queue(
    client: redis.Redis,
    entries: Collection[str] = (),
    every: int = 0,
    *,
    delivery: Delivery = "exactly",
) -> None:
    """Audit the queue ``celery`` of Redis, which only grew, as `check_messages` does."""
    check_messages(queued(client), entries, every, delivery=delivery)


def check_messages(
    messages: Sequence[Sent],
    entries: Collection[str] = (),
    every: int = 0,
    *,
    delivery: Delivery = "exactly",
    ordered: bool = True,
) -> None:
    """Audit all messages of a queue: no run may be there twice or under two ids.

    Parameters:
        messages: the oldest first.
        entries: names of entries that have one interval, began together, and may lose no run.
        every: their interval in ms.
        delivery: whether a run may be sent twice; then the order does not count.
        ordered: whether the runs of an entry have to come in order.

    Raises:
        AssertionError: names what is wrong.
    """
    # Nobody knows when these messages came, so each counts as sent in time.
    sent = [message.record() | {"at": message.nominal} for message in messages]
    setup: Record = {"kind": "setup", "late": every, "delivery": delivery}
    setup["ordered"] = ordered and delivery == "exactly"
    records = [setup, *sent]
    if entries:
        times = [message.nominal for message in messages if message.entry in entries]
        assert times, f"no message of {', '.join(entries)}"
        call: Record = {"kind": "call", "act": "add", "ok": True, "misfire": "all"}
        call |= {"began": min(times) - 1, "returned": min(times) - 1, "rule": {"every": every}}
        records += [call | {"entry": name} for name in entries]
        records.append({"kind": "end", "at": max(times) + every})
    check(records)


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
        #: The longest time in seconds for which the machine kept this thread from running.
        self.stall = 0.0
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
                    self._wait(0.01)
                    self._read(client)
                    self._shorten(client)

    def _wait(self, seconds: float) -> None:
        began = time.monotonic()
        time.sleep(seconds)
        self.stall = max(self.stall, time.monotonic() - began - seconds)

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

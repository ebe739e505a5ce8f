"""Messages that lie in queues, and their audit."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import redis
from kombu.connection import Connection

from tests.harness.history import now_ms
from tests.support.audit import Record, check


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
            message = source.get(timeout=60)
            message.ack()
            messages.append(sent_of(message.headers, now_ms(), 0))
    return messages


#: A beat that is stopped may be behind with some entries by so many milliseconds, on a busy machine.
_BEHIND_MS = 500


def check_queue(
    client: redis.Redis,
    entries: Collection[str] = (),
    every: int = 0,
    *,
    delivery: str = "exactly",
) -> None:
    """Audit the queue ``celery`` of Redis, which only grew, as `check_messages` does."""
    check_messages(queued(client), entries, every, delivery=delivery)


def check_messages(
    messages: Sequence[Sent],
    entries: Collection[str] = (),
    every: int = 0,
    *,
    delivery: str = "exactly",
    ordered: bool = True,
) -> None:
    """Audit all messages of a queue: no run may be there twice or under two ids.

    Parameters:
        messages: the oldest first.
        entries: names of entries that have one interval, began together, and may lose no run.
        every: their interval in ms.
        delivery: ``exactly``, or ``at least`` if a run may be sent twice; then the order does not
            count.
        ordered: whether the runs of an entry have to come in order.

    Raises:
        AssertionError: names what is wrong.
    """
    # Nobody knows when these messages came, so each counts as sent in time.
    sent = [message.record() | {"at": message.nominal} for message in messages]
    setup: Record = {"kind": "setup", "late": every + _BEHIND_MS, "delivery": delivery}
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

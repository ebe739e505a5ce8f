"""Reading what lies in a queue of the broker."""

from __future__ import annotations

import base64
import functools
import json
from datetime import datetime
from typing import Any, NamedTuple

import redis


class Message(NamedTuple):
    """One task message as the broker holds it."""

    id: str
    task: str
    entry: str | None
    scheduled_at: datetime | None
    args: list[Any]
    kwargs: dict[str, Any]
    headers: dict[str, Any]
    properties: dict[str, Any]

    @property
    def sender(self) -> int:
        """The id of the process that sent it."""
        return int(self.headers["origin"].removeprefix("gen").split("@")[0])

    @property
    def nominal(self) -> int:
        """The nominal time in epoch ms; of messages of entries alone."""
        assert self.scheduled_at is not None
        return round(self.scheduled_at.timestamp() * 1000)


@functools.lru_cache(maxsize=4096)  # who waits for one more message reads all the others again and again
def parse(raw: bytes) -> Message:
    message = json.loads(raw)
    headers = message["headers"]
    args, kwargs, _ = json.loads(base64.b64decode(message["body"]))
    at = headers.get("scheduled_at")
    return Message(
        headers["id"],
        headers["task"],
        headers.get("periodic_task_name"),
        datetime.fromisoformat(at) if at else None,
        args,
        kwargs,
        headers,
        message["properties"],
    )


def heard(pubsub: Any) -> bytes:
    """What is said next on the channels that somebody has subscribed to."""
    message = pubsub.get_message(timeout=5)
    assert message is not None, "nothing was published"
    data: bytes = message["data"]
    return data


def queued(client: redis.Redis, queue: str = "celery") -> list[Message]:
    """The messages of a queue, oldest first."""
    return [parse(raw) for raw in reversed(client.lrange(queue, 0, -1))]


def of_entry(client: redis.Redis, name: str, queue: str = "celery") -> list[Message]:
    """The messages of one entry, oldest first."""
    # Most tests ask again and again, of long queues: only what has the name in it, as JSON may spell it, is parsed.
    spelled = json.dumps(name)[1:-1].encode(), name.encode("utf-8", "surrogatepass")
    raws = [raw for raw in reversed(client.lrange(queue, 0, -1)) if any(each in raw for each in spelled)]
    return [message for message in map(parse, raws) if message.entry == name]


def by_entry(client: redis.Redis, queue: str = "celery") -> dict[str | None, list[Message]]:
    """The messages of each entry that has any, oldest first."""
    found: dict[str | None, list[Message]] = {}
    for message in queued(client, queue):
        found.setdefault(message.entry, []).append(message)
    return found

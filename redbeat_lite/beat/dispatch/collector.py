"""Messages as commands of Redis: collected as kombu would send them, and sent in a batch where the commit does not."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import count, islice
from typing import Any

import kombu.transport.redis
import redis
from redis.exceptions import ClusterDownError, NoPermissionError, OutOfMemoryError, ReadOnlyError, ResponseError

from ...storage.stored import Command, Mark
from ...uuids import drawn

#: What a server says that takes no message at the moment, where redis-py has no class of its own for it. It may be to a
#: command of a pipeline, such as those in which kombu declares a queue; then redis-py says first to which.
_FOR_ALL = re.compile(r"(?:^|caused error: )(?:MISCONF|NOREPLICAS|BUSY )")


def refused_for_all(error: BaseException | None) -> bool:
    """Whether Redis answers this whatever the message: its memory is full, it is a replica, its disk fails."""
    return isinstance(error, (OutOfMemoryError, ReadOnlyError, ClusterDownError)) or (
        isinstance(error, ResponseError) and _FOR_ALL.search(str(error)) is not None
    )


def puts_as_kombu(channel: type) -> bool:
    """Whether a class of channels leaves it to kombu's Redis transport how a message gets into a queue.

    One that does not may send each message by itself, whatever batch there is. Who only wraps kombu's own functions, as
    tracing libraries do, hands the batch on.
    """
    own = kombu.transport.redis
    if not issubclass(channel, own.Channel):
        return False
    owners = (next(each for each in channel.__mro__ if name in vars(each)) for name in ("_put", "_put_fanout"))
    return all(owner.__module__ == own.__name__ for owner in owners)


class Collector:
    """Stands in for kombu's PublishBatch, which sends by itself, and cannot tell what arrived of a batch that failed.

    A channel of kombu's Redis transport that is given to one publishes its batches here from then on.
    """

    def __init__(self, channel: Any) -> None:
        self.channel = channel
        # Not channel.client: with a global_keyprefix it would put that before every key.
        self._client = redis.Redis(connection_pool=channel.pool)
        self._prefix = getattr(channel, "global_keyprefix", "") or ""
        self._commands: list[Command] = []
        #: Where a message should have gone since the last :meth:`take` that came to no queue at all; else empty.
        self.astray = ""
        channel.create_publish_batch = lambda max_size: self
        own, numbers = drawn(12), count()
        #: A delivery tag of its own for each message. Kombu draws each, which takes longer.
        self.tag: Callable[[], str] = lambda: f"{own}{next(numbers):08x}"
        channel._next_delivery_tag = self.tag

    def stranger_to(self, mark: Mark) -> str:
        """Why the broker is not known for the database that bears this mark; empty if it is."""
        try:
            found = self._client.hget(mark.key, mark.field) == mark.value
        except NoPermissionError:
            return "the broker's user may not read the schedule"
        return "" if found else "the broker is another server or database"

    def send(self, messages: Sequence[Sequence[Command]]) -> list[Exception | None]:
        """Send messages in one round trip; tells of each why it was refused, if it was."""
        with self._client.pipeline(transaction=False) as pipe:
            for commands in messages:
                for command in commands:
                    pipe.execute_command(*command)  # type: ignore[no-untyped-call]  # untyped in redis-py
            replies = iter(pipe.execute(raise_on_error=False))
        return [_refusal(commands, list(islice(replies, len(commands)))) for commands in messages]

    def publish(self, message: Any, **kwargs: Any) -> Any:
        before = len(self._commands)
        result = self.channel.basic_publish(message, _publish_batch=self, **kwargs)
        if len(self._commands) == before:
            self.astray = f"exchange {kwargs.get('exchange')!r} with routing key {kwargs.get('routing_key')!r}"
        return result

    def declare_anew(self) -> None:
        """Let kombu forget what it has declared, on a server that may have forgotten it too."""
        transport = self.channel.connection
        transport.client.declared_entities.clear()
        transport.state.clear()

    def add(self, name: str, target: str, value: Any) -> None:
        # kombu's prefixing client would do this at the moment of sending.
        self._commands.append((name, f"{self._prefix}{target}", value))

    def take(self) -> list[Command]:
        commands, self._commands, self.astray = self._commands, [], ""
        return commands

    def flush(self) -> None:
        """Nothing is kept back: every message was taken right after it was published."""

    def discard(self) -> None:
        self._commands = []

    def close(self) -> None:
        """There is nothing to release."""


def _refusal(commands: Sequence[Command], replies: Sequence[Any]) -> Exception | None:
    # A message is in its queue also if that could not be told to expire: sent again, it would be there twice.
    parts = [reply for (name, *_), reply in zip(commands, replies, strict=True) if name != "pexpire"]
    return next((reply for reply in parts if isinstance(reply, Exception)), None)

"""Messages as Redis commands, which are collected from kombu and sent later."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import kombu.transport.redis
import redis
from celery.utils.log import get_logger
from kombu.exceptions import OperationalError
from redis.exceptions import (
    ClusterDownError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
)

from ..._base.text import text_of
from ...store.records import Command

logger = get_logger(f"celery.{__name__}")

#: Beginning of errors by which a server refuses every message, and for which redis-py has no class.
#: In a pipeline, as when kombu declares a queue, redis-py puts the name of the command before the
#: error.
_FOR_ALL = re.compile(r"(?:^|caused error: )(?:MISCONF|NOREPLICAS|BUSY )")


def refused_for_all(error: BaseException | None) -> bool:
    """Return whether Redis refuses every message: it is full, a replica, or its disk fails."""
    return isinstance(error, (OutOfMemoryError, ReadOnlyError, ClusterDownError)) or (
        isinstance(error, ResponseError) and _FOR_ALL.search(str(error)) is not None
    )


def takes_batches(producer: Any) -> bool:
    """Return whether :class:`RedisBatch` can collect the messages of a producer.

    It cannot for a channel class that puts messages into queues by a function of its own, because
    such a function may ignore the batch and send each message at once. Wrappers of tracing
    libraries do no harm: they call kombu's functions with the batch.
    """
    channel = type(producer.channel)
    transport = kombu.transport.redis
    # Before kombu 5.7, no transport has batches.
    collects = getattr(producer, "supports_batch_publish", False)
    if not collects or not issubclass(channel, transport.Channel):
        return False
    putters = (channel._put, channel._put_fanout)
    return all(putter.__module__ == transport.__name__ for putter in putters)


class RedisBatch:
    """Replacement for kombu's PublishBatch on one channel of kombu's Redis transport.

    It collects the commands of each message, which kombu's own class would send with others. The
    commit sends them, or :meth:`send` does.

    Parameters:
        declare: function that declares all queues again, in case the server has lost which queues
            are bound to an exchange.
    """

    def __init__(self, channel: Any, declare: Callable[[], None]) -> None:
        self.channel = channel
        self._declare = declare
        # This is not channel.client, which puts global_keyprefix before every key. add() does that.
        self.client = redis.Redis(connection_pool=channel.pool)
        self._prefix = getattr(channel, "global_keyprefix", "") or ""
        self._commands: list[Command] = []
        #: Names of entries whose messages found no queue.
        self._astray: set[str] = set()
        # In ``with producer.batch()``, kombu 5.7 or later calls this function, and hands each
        # message to the object that it returns. Its own function returns a PublishBatch, which
        # sends at most ``max_size`` commands at once. This object sends none, so it has no use for
        # that number.
        channel.create_publish_batch = lambda max_size: self

    def send(self, commands: Sequence[Command]) -> None:
        """Send a message that is not left to the commit; raise OperationalError if that fails."""
        for command in commands:
            try:
                self.client.execute_command(*command)  # type: ignore[no-untyped-call]
            except redis.RedisError as exc:
                # If only the expiry of the queue failed, ignore that: the message is in the queue.
                # If it were sent again, it would be there twice.
                if command[0] != "pexpire":
                    raise OperationalError(text_of(exc)) from exc

    def publish(self, message: Any, **destination: Any) -> None:
        """Collect the commands that put a message into its queues.

        If no queue is bound to the destination, the message goes nowhere, as in Celery. This is
        logged once for each entry.

        Parameters:
            destination: exchange and routing key, as kombu passes them.
        """
        name = message["headers"].get("periodic_task_name")
        # Return if the message has a queue. If an earlier message of this entry had none, return,
        # too, and do not declare and log again.
        if self._collect(message, destination) or name in self._astray:
            return
        # The server may have lost which queues are bound. So declare all queues, and try once more.
        self._declare()
        if self._collect(message, destination):
            return
        self._astray.add(name)
        exchange = destination.get("exchange")
        routing_key = destination.get("routing_key")
        logger.warning(
            "beat: %r goes nowhere, as in Celery: no queue is bound to exchange %r with routing "
            "key %r",
            name,
            exchange,
            routing_key,
        )

    def _collect(self, message: Any, destination: Any) -> bool:
        """Collect the commands of a message; return whether there are any."""
        before = len(self._commands)
        # kombu calls add() of this object for each command. Pass a copy of the message, because
        # kombu encodes its body in place, and publish() may try twice.
        self.channel.basic_publish({**message}, _publish_batch=self, **destination)
        return len(self._commands) > before

    def add(self, name: str, target: str, value: Any) -> None:
        # kombu calls this function for each command. kombu's own client would put the prefix before
        # the key. But the commands go through another client, so do that here.
        self._commands.append((name, f"{self._prefix}{target}", value))

    def take(self) -> list[Command]:
        """Return the collected commands, and forget them."""
        commands = self._commands
        self._commands = []
        return commands

    def discard(self) -> None:
        """Forget the commands of a message that could not be made. kombu calls this function."""
        self._commands = []

    def flush(self) -> None:
        """Do nothing, because :meth:`take` returns the commands. kombu calls this function."""

    close = flush

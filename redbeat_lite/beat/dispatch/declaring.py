"""Queues are declared before messages go to them, each once."""

from __future__ import annotations

from typing import Any

from celery import Celery
from kombu.common import Broadcast


def declare_once(producer: Any) -> None:
    """Have a producer look whether a queue is declared as kombu does, without copying it and its exchange each time."""
    full, declared = producer.maybe_declare, producer.connection.declared_entities

    def maybe_declare(entity: Any, *args: Any, **kwargs: Any) -> Any:
        is_declared = entity and entity.can_cache_declaration and hash(entity) in declared
        return False if is_declared else full(entity, *args, **kwargs)

    producer.maybe_declare = maybe_declare


def declare_broadcasts(app: Celery, channel: Any) -> None:
    """Declare the exchanges of broadcast queues.

    Celery declares a queue before it publishes to it, but for those: on Redis a process that has never declared their
    exchange takes it for a direct one, finds no queue bound, and the message is lost without a word.
    """
    for queue in app.amqp.queues.values():
        if isinstance(queue, Broadcast):
            queue.exchange(channel).declare()  # type: ignore[no-untyped-call]  # untyped in kombu

"""A task message that is taken out of the queue, kept in Redis, and published again when it may run."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from celery import Celery
from celery.app.task import Context
from kombu.serialization import dumps as serialize
from kombu.serialization import prepare_accept_content, registry
from kombu.transport.redis import Channel as RedisChannel
from kombu.utils.json import dumps, loads

from ..broker import own_connection

#: Field of a request that says how the message looked on the wire; put there by the worker's ``Request``.
DELIVERY = "redbeat_delivery"

#: The headers of Celery's message protocol 2, for a request that passed no ``Request`` of ours.
_HEADERS = (
    "lang", "task", "id", "shadow", "eta", "expires", "group", "group_index", "retries", "timelimit", "root_id",
    "parent_id", "argsrepr", "kwargsrepr", "origin", "ignore_result", "replaced_task_nesting", "stamped_headers",
    "stamps",
)  # fmt: skip

#: Headers that spoke of the one delivery: the body is encoded anew, without compression, and the flag is the broker's.
_GONE = ("compression", "redelivered")

_PROPERTIES = ("correlation_id", "reply_to", "priority", "delivery_mode")


def delivery(token: str, headers: Mapping[str, Any], content_type: str | None, encoding: str | None) -> dict[str, Any]:
    """What the worker's main process notes for its child: a token for this delivery, and the look of the message."""
    return {
        "token": token,
        "names": [name for name in headers if name not in _GONE],
        "type": content_type,
        "enc": encoding,
    }


def encode(request: Any) -> str:
    """The message of a task whose body has not touched its arguments yet: id, chain, chord, links, expiry, headers."""
    fields = request.__dict__
    noted = fields.get(DELIVERY) or {}
    embed = {name: fields.get(name) for name in ("callbacks", "errbacks", "chain", "chord")}
    serializer = registry.type_to_name.get(noted.get("type") or "application/json", "json")
    content_type, encoding, body = serialize(  # type: ignore[no-untyped-call]
        (fields["args"], fields["kwargs"], embed), serializer=serializer
    )
    binary = isinstance(body, bytes)
    properties = fields.get("properties") or {}
    info = fields.get("delivery_info") or {}
    names = noted.get("names") or [*_HEADERS, *(fields.get("headers") or {})]
    message = {
        "body": base64.b64encode(body).decode() if binary else body,
        "binary": binary,
        "type": content_type,
        "enc": encoding,
        "headers": {name: fields.get(name) for name in names if name in fields and name != DELIVERY},
        "properties": {name: properties[name] for name in _PROPERTIES if properties.get(name) is not None},
        "exchange": info.get("exchange") or "",
        "routing_key": info.get("routing_key"),
    }
    return str(dumps(message))  # type: ignore[no-untyped-call]


def publish(app: Celery, text: str) -> str:
    """Publish a message that :func:`encode` wrote, to where it came from, and return its task id.

    It has waited already: it goes to the end that workers take from, or where the broker's queues have none to put it
    at, in front of those of lower priority.

    Raises:
        Exception: whatever the broker's client raises when it does not take the message.
    """
    message = loads(text)  # type: ignore[no-untyped-call]
    properties = message["properties"]
    own = own_connection()
    given = None if own is None else app.amqp.Producer(own, auto_declare=False)
    with app.producer_or_acquire(given) as producer, _in_front(producer.channel) as in_front:
        if not in_front and (most := _most_urgent(app, message)) is not None:
            properties["priority"] = most
        producer.publish(
            _body(message),
            exchange=message["exchange"],
            routing_key=message["routing_key"],
            headers=message["headers"],
            content_type=message["type"],
            content_encoding=message["enc"],
            retry=True,
            # A caller is about to end a task or to look after other keys; the lock sweeper repeats what fails here.
            retry_policy={"max_retries": 1, "interval_start": 0.2},
            **properties,
        )
    return str(message["headers"].get("id"))


@contextmanager
def _in_front(channel: Any) -> Iterator[bool]:
    """Have what is published over a channel be the next that a worker takes, as kombu does with what it restores.

    Yields whether the broker can: it is Redis, where a queue is a list.
    """
    if not isinstance(channel, RedisChannel):
        yield False
        return
    channel._put = partial(_put_in_front, channel)  # type: ignore[method-assign] # in place of its own, for this once
    try:
        yield True
    finally:
        del channel._put


def _put_in_front(channel: Any, queue: str, message: Any, **_: Any) -> None:
    """As the channel's own ``_put``, at the other end of the list."""
    lives = (channel._expires or {}).get(queue) if hasattr(channel, "_expires") else None
    name = channel._q_for_pri(queue, channel._get_message_priority(message, reverse=False))
    with channel.conn_or_acquire() as client:
        client.rpush(name, dumps(message))  # type: ignore[no-untyped-call]
        if lives:
            client.pexpire(name, lives)


def _most_urgent(app: Celery, message: Mapping[str, Any]) -> int | None:
    """The highest priority that the queue of a message knows; ``None`` if it knows none."""
    where = message["exchange"], message["routing_key"]
    for queue in app.amqp.queues.values():
        # Celery's default exchange goes by the empty name, and reaches a queue by its own.
        if where in ((queue.exchange.name, queue.routing_key), ("", queue.name)):
            arguments = queue.queue_arguments or {}
            return queue.max_priority or arguments.get("x-max-priority")
    return None


def request_of(app: Celery, text: str) -> Context:
    """The request of a message that :func:`encode` wrote, as a worker that received it would make it.

    Raises:
        kombu.exceptions.ContentDisallowed, kombu.exceptions.DecodeError: the app does not read what it is written in.
    """
    message = loads(text)  # type: ignore[no-untyped-call]
    accept = prepare_accept_content(app.conf.accept_content)  # type: ignore[no-untyped-call]
    body = registry.loads(_body(message), message["type"], message["enc"], accept=accept)  # type: ignore[no-untyped-call]
    args, kwargs, embed = body
    info = {"exchange": message["exchange"], "routing_key": message["routing_key"]}
    # Some backends send the result to whoever is named there.
    caller = {name: message["properties"].get(name) for name in ("reply_to", "correlation_id")}
    return Context(message["headers"], args=args, kwargs=kwargs, delivery_info=info, **caller, **embed)


def _body(message: Mapping[str, Any]) -> str | bytes:
    return base64.b64decode(message["body"]) if message["binary"] else str(message["body"])

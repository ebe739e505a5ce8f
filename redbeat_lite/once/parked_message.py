"""Message of a task that waits: encoded for Redis, and published again when the task may run."""

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

from .._base.celery_app import own_connection

#: Attribute of a request: ``token``, the name of its delivery, and the form of its message on the
#: wire: ``names`` of the headers, and the content ``type``. Our ``Request`` class of a worker, in
#: the main process, writes it for the child.
DELIVERY = "redbeat_delivery"

#: Headers of Celery's message protocol 2, for a request that another ``Request`` class has made.
_HEADERS = (
    "lang", "task", "id", "shadow", "eta", "expires", "group", "group_index", "retries",
    "timelimit", "root_id", "parent_id", "argsrepr", "kwargsrepr", "origin", "ignore_result",
    "replaced_task_nesting", "stamped_headers", "stamps",
)  # fmt: skip

#: Headers that are not parked: the parked body is not compressed, and the broker sets the other one
#: for each delivery.
GONE = ("compression", "redelivered")

_PROPERTIES = ("correlation_id", "reply_to", "priority", "delivery_mode")


def token_of(fields: Mapping[str, Any]) -> str | None:
    """Return the token of a message's delivery; ``None`` if its worker has given it none."""
    token: str | None = (fields.get(DELIVERY) or {}).get("token")
    return token


def encode(request: Any) -> str:
    """Return, as a text, the message of a task that has not begun, with its chain and links."""
    fields = request.__dict__
    form = fields.get(DELIVERY) or {}
    embed = {name: fields.get(name) for name in ("callbacks", "errbacks", "chain", "chord")}
    serializer = registry.type_to_name.get(form.get("type") or "application/json", "json")
    content_type, encoding, body = serialize(  # type: ignore[no-untyped-call]
        (fields["args"], fields["kwargs"], embed), serializer=serializer
    )
    binary = isinstance(body, bytes)
    body_text = base64.b64encode(body).decode() if binary else body
    properties = fields.get("properties") or {}
    info = fields.get("delivery_info") or {}
    parked = {name: properties[name] for name in _PROPERTIES if properties.get(name) is not None}
    names = form.get("names") or [*_HEADERS, *(fields.get("headers") or {})]
    message = {
        "body": body_text,
        "binary": binary,
        "type": content_type,
        "enc": encoding,
        "headers": {name: fields[name] for name in names if name in fields and name != DELIVERY},
        "properties": parked,
        "exchange": info.get("exchange") or "",
        "routing_key": info.get("routing_key"),
    }
    return str(dumps(message))  # type: ignore[no-untyped-call]


def publish(app: Celery, text: str) -> str:
    """Publish a message, as :func:`encode` wrote it, to its old queue. Return its task id.

    The message has waited already, so workers should receive it next. It goes to the front of its
    queue; if the broker cannot do that, it gets the highest priority.

    Raises:
        Exception: the error of the broker's client, if the broker does not accept the message.
    """
    message = loads(text)  # type: ignore[no-untyped-call]
    properties = message["properties"]
    connection = own_connection()
    own_producer = None
    if connection is not None:
        own_producer = app.amqp.Producer(connection, auto_declare=False)
    with app.producer_or_acquire(own_producer) as producer, _in_front(producer.channel) as in_front:
        highest = None if in_front else _highest_priority(app, message)
        if highest is not None:
            properties["priority"] = highest
        producer.publish(
            _body(message),
            exchange=message["exchange"],
            routing_key=message["routing_key"],
            headers=message["headers"],
            content_type=message["type"],
            content_encoding=message["enc"],
            retry=True,
            # Fail soon, because the caller has other messages to publish. The lock sweeper repeats
            # a failed publish.
            retry_policy={"max_retries": 1, "interval_start": 0.2},
            **properties,
        )
    return str(message["headers"].get("id"))


@contextmanager
def _in_front(channel: Any) -> Iterator[bool]:
    """Let a channel publish to the front of queues within the block.

    Kombu does the same with messages that it restores.

    Yields:
        whether the broker can do this. Only Redis can, where a queue is a list.
    """
    if not isinstance(channel, RedisChannel):
        yield False
        return
    # This attribute hides the method of the class.
    channel._put = partial(_put_in_front, channel)  # type: ignore[method-assign] # for one publish
    try:
        yield True
    finally:
        del channel._put


def _put_in_front(channel: Any, queue: str, message: Any, **_: Any) -> None:
    """Do what kombu's ``Channel._put`` does, but at the other end of the queue's list."""
    life_ms = (getattr(channel, "_expires", None) or {}).get(queue)
    priority = channel._get_message_priority(message, reverse=False)
    name = channel._q_for_pri(queue, priority)
    with channel.conn_or_acquire() as client:
        client.rpush(name, dumps(message))  # type: ignore[no-untyped-call]
        if life_ms:
            client.pexpire(name, life_ms)


def _highest_priority(app: Celery, message: Mapping[str, Any]) -> int | None:
    """Return the highest priority of the queue of a message; ``None`` if it has no priorities."""
    address = (message["exchange"], message["routing_key"])
    for queue in app.amqp.queues.values():
        # The default exchange has an empty name, and routes by the name of the queue.
        if address in ((queue.exchange.name, queue.routing_key), ("", queue.name)):
            arguments = queue.queue_arguments or {}
            return queue.max_priority or arguments.get("x-max-priority")
    return None


def request_of(app: Celery, text: str) -> Context:
    """Return the request that a worker would make of a message that :func:`encode` wrote.

    Raises:
        kombu.exceptions.ContentDisallowed, kombu.exceptions.DecodeError: the app does not read the
            serializer of the message.
    """
    message = loads(text)  # type: ignore[no-untyped-call]
    accept = prepare_accept_content(app.conf.accept_content)  # type: ignore[no-untyped-call]
    decode = partial(registry.loads, accept=accept)
    args, kwargs, embed = decode(_body(message), message["type"], message["enc"])
    info = {"exchange": message["exchange"], "routing_key": message["routing_key"]}
    # Some backends send the result to the caller.
    caller = {name: message["properties"].get(name) for name in ("reply_to", "correlation_id")}
    headers = message["headers"]
    return Context(headers, args=args, kwargs=kwargs, delivery_info=info, **caller, **embed)


def _body(message: Mapping[str, Any]) -> str | bytes:
    return base64.b64decode(message["body"]) if message["binary"] else str(message["body"])

"""Message of a task that waits: encoded for Redis, and published again when the task may run."""

from __future__ import annotations

from functools import partial
from typing import Any

from celery import Celery
from kombu.serialization import dumps as serialize
from kombu.serialization import registry
from kombu.transport.redis import Channel as RedisChannel
from kombu.utils.json import dumps, loads

from .._base.celery_app import own_connection
from .claims import DEADLINE_HEADER, Fields

#: Attribute of a task's request, which the worker's main process writes for the child. Its value is
#: a dict: ``token`` is an id of this delivery of the message, ``names`` are the names of the
#: message's headers, and ``type`` is the content type of the message.
DELIVERY = "redbeat_delivery"

#: Headers of Celery's message protocol 2. A request of another class than ours does not say which
#: of its attributes are headers, so these names count.
_HEADERS = (
    "lang", "task", "id", "shadow", "eta", "expires", "group", "group_index", "retries",
    "timelimit", "root_id", "parent_id", "argsrepr", "kwargsrepr", "origin", "ignore_result",
    "replaced_task_nesting", "stamped_headers", "stamps",
)  # fmt: skip

#: Headers that a parked message loses. The parked body is not compressed, and the broker sets
#: ``redelivered`` itself for each delivery.
GONE = ("compression", "redelivered")

#: Properties that are parked with a message.
_PROPERTIES = ("correlation_id", "reply_to", "priority", "delivery_mode")


def token_of(fields: Fields) -> str | None:
    """Return the token of a message's delivery; ``None`` if its worker has made none."""
    token: str | None = (fields.get(DELIVERY) or {}).get("token")
    return token


def encode(request: Any) -> str:
    """Return the message of a task that has not begun as a text, with its chain and links."""
    fields = request.__dict__
    # A request of another class than ours lacks this attribute.
    delivery = fields.get(DELIVERY) or {}
    # The body in Celery's message protocol is a tuple of args, kwargs and this mapping.
    embed = {name: fields.get(name) for name in ("callbacks", "errbacks", "chain", "chord")}
    # Keep the serializer of the message; JSON if it is not known.
    serializer = registry.type_to_name.get(delivery.get("type") or "application/json", "json")
    content_type, encoding, body = serialize(  # type: ignore[no-untyped-call]
        (fields["args"], fields["kwargs"], embed), serializer=serializer
    )
    properties = fields.get("properties") or {}
    info = fields.get("delivery_info") or {}
    parked = {name: properties[name] for name in _PROPERTIES if properties.get(name) is not None}
    # Celery makes each header an attribute of the request, among other attributes. ``names`` says
    # which attributes are headers.
    names = delivery.get("names") or [*_HEADERS, *(fields.get("headers") or {})]
    message = {
        "body": body,
        "type": content_type,
        "enc": encoding,
        "headers": {name: fields[name] for name in names if name in fields and name != DELIVERY},
        "properties": parked,
        "exchange": info.get("exchange") or "",
        "routing_key": info.get("routing_key"),
    }
    return str(dumps(message))  # type: ignore[no-untyped-call]


def publish(app: Celery, text: str, *, is_too_old: bool = False) -> dict[str, Any]:
    """Publish a message, as :func:`encode` wrote it, to its old queue. Return its headers.

    The message has waited already, so workers should receive it next. With a Redis broker, the
    message goes to the front of its queue.

    Parameters:
        is_too_old: whether the worker must end the task without running it.

    Raises:
        Exception: the error of the broker's client, if the broker does not accept the message.
    """
    message = loads(text)  # type: ignore[no-untyped-call]
    headers: dict[str, Any] = message["headers"]
    if is_too_old:
        # Set a deadline in the past, so that begin() ends the task. Remove ``expires``, because
        # Celery would discard an expired message, and would not end the tasks that follow in its
        # chain.
        headers.update({"expires": None, DEADLINE_HEADER: 1})
    # Some callers publish with a connection of their own; ``None``: use the app's.
    connection = own_connection()
    own_producer = None
    if connection is not None:
        own_producer = app.amqp.Producer(connection, auto_declare=False)
    with app.producer_or_acquire(own_producer) as producer:
        channel = producer.channel
        if isinstance(channel, RedisChannel):
            # Until this publish ends, the attribute of the object hides the method of the class.
            channel._put = partial(_put_in_front, channel)  # type: ignore[method-assign]
        try:
            producer.publish(
                message["body"],
                exchange=message["exchange"],
                routing_key=message["routing_key"],
                headers=headers,
                content_type=message["type"],
                content_encoding=message["enc"],
                retry=True,
                # Fail soon, because the caller has other messages to publish. The lock sweeper
                # repeats a failed publish.
                retry_policy={"max_retries": 1, "interval_start": 0.2},
                **message["properties"],
            )
        finally:
            vars(channel).pop("_put", None)
    return headers


def _put_in_front(channel: Any, queue: str, message: Any, **_: Any) -> None:
    """Put a message into a queue as kombu's ``Channel._put`` does, but in front of all others.

    Workers pop from the right end of the list, so this pushes to the right, as kombu does with
    messages that it restores. Further keyword arguments of kombu are not needed.
    """
    # In newer versions of kombu, a queue can expire. Then each message extends the queue's life.
    life_ms = (getattr(channel, "_expires", None) or {}).get(queue)
    priority = channel._get_message_priority(message, reverse=False)
    name = channel._q_for_pri(queue, priority)
    with channel.conn_or_acquire() as client:
        client.rpush(name, dumps(message))  # type: ignore[no-untyped-call]
        if life_ms:
            client.pexpire(name, life_ms)

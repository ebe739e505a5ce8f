"""Messages for RabbitMQ where it confirms: many are out before the first confirmation is waited for."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import amqp
from amqp.exceptions import ChannelError, MessageNacked
from amqp.method_framing import frame_writer
from amqp.serialization import dumps
from amqp.spec import Basic

from ...clock import elapsed
from ...errors import text_of
from ...storage.stored import Command, Mark
from .broker import BrokerDown


def confirms(channel: Any) -> bool:
    """Whether a channel is py-amqp's, and would wait for each message until the broker has confirmed it."""
    publish = getattr(channel, "basic_publish", None)
    return getattr(publish, "__func__", None) is amqp.Channel.basic_publish_confirm


class Confirming:
    """Keeps what a new channel that :func:`confirms` is to publish, and sends it at once.

    A broker that confirms nothing for ``timeout`` seconds is given up.
    """

    tag = str  #: Its messages have no delivery tags.
    astray = ""  #: RabbitMQ has its own ways for what finds no queue

    def __init__(self, channel: Any, timeout: float) -> None:
        self._channel = channel
        self._timeout = timeout
        self._kept: list[Command] = []
        self._unsent = bytearray()
        self._frame = frame_writer(channel.connection, SimpleNamespace(write=self._unsent.extend))
        #: Messages that are not confirmed yet, by their number on this channel: the place of each in its batch.
        self._open: dict[int, int] = {}
        self._number = 0
        self._heard = 0.0  #: when it has confirmed something last
        self._places: dict[Any, int] = {}  #: of each, by its task id
        self._errors: list[Exception | None] = []
        self._why: Exception = BrokerDown()
        channel.basic_publish = self._keep
        channel.events["basic_ack"].add(lambda number, multiple: self._settle(number, multiple, None))
        channel.events["basic_nack"].add(lambda number, multiple: self._settle(number, multiple, MessageNacked()))
        channel.events["basic_return"].add(self._returned)

    def stranger_to(self, mark: Mark) -> str:
        """Why the broker is not the database of the schedule."""
        return "the broker is RabbitMQ"

    def declare_anew(self) -> None:
        """Nothing that was declared is gone while the connection lasts."""

    def _keep(self, message: Any, **how: Any) -> None:
        """Keep a message in the form that kombu's virtual transports have for one."""
        properties, body = {**message.properties, "delivery_info": how}, message.body
        if isinstance(body, str):
            body = body.encode(properties.setdefault("content_encoding", "utf-8"))
        headers, content = properties.pop("application_headers", {}), properties.get("content_type")
        kept = {"body": b64encode(body).decode(), "content-type": content, "headers": headers, "properties": properties}
        self._kept.append(("amqp", "", kept))

    def take(self) -> list[Command]:
        commands, self._kept = self._kept, []
        return commands

    def send(self, messages: Sequence[Sequence[Command]]) -> list[Exception | None]:
        """Send messages, and wait until they are confirmed; tells of each why it was not, if it was not.

        What is wrong with one message may have the broker close the channel, under those that it has not confirmed yet.
        These are sent once more, each by itself; that shows whose fault it was.
        """
        self._errors, self._places = [None] * len(messages), {}
        for place in self._send(messages, range(len(messages))):
            if isinstance(self._why, BrokerDown) or self._send(messages, (place,)):
                self._errors[place] = self._why
        return self._errors

    def _send(self, messages: Sequence[Sequence[Command]], places: Iterable[int]) -> list[int]:
        """Send the messages in these places; returns the places of those that are not known to be there."""
        left = set(places)
        self._unsent.clear()
        try:
            if not self._channel._confirm_selected:  # nor on a channel that was closed, and is open again
                self._channel.confirm_select()
                self._channel._confirm_selected, self._number = True, 0
            for place in places:
                self._write(place, messages[place])
                left.discard(place)
            self._channel.connection.transport.write(bytes(self._unsent))
            self._heard = elapsed()
            while self._open:
                # Frame by frame: one short of memory holds back what it confirms, and goes on with its heartbeats.
                self._channel.connection.blocking_read(self._timeout)
                if elapsed() - self._heard > self._timeout:
                    raise TimeoutError("it confirms nothing")  # noqa: TRY301 - as where it says nothing
        except ChannelError as exc:
            self._why = exc
        except Exception as exc:  # noqa: BLE001 - whatever it is that ends a connection
            self._why = BrokerDown(text_of(exc))
        left.update(self._open.values())
        self._open.clear()
        return sorted(left)

    def _write(self, place: int, commands: Sequence[Command]) -> None:
        for _, _, message in commands:
            properties, before = {**message["properties"]}, len(self._unsent)
            to = properties.pop("delivery_info")
            try:
                args = dumps("Bssbb", (0, to["exchange"], to["routing_key"], to["mandatory"], to["immediate"]))
                content = amqp.Message(b64decode(message["body"]), application_headers=message["headers"], **properties)
                self._frame(1, self._channel.channel_id, Basic.Publish, args, content)
            except Exception as exc:  # noqa: BLE001 - it cannot be written, whatever the reason
                del self._unsent[before:]
                self._errors[place] = exc
                return
            self._number += 1
            self._open[self._number] = self._places[properties.get("correlation_id")] = place

    def _returned(self, error: Exception, exchange: str, routing_key: str, message: Any) -> None:
        """One that must reach a queue has found none. What is raised here would be the end of the whole batch."""
        self._errors[self._places[message.properties.get("correlation_id")]] = error

    def _settle(self, number: int, multiple: bool, error: Exception | None) -> None:
        self._heard = elapsed()
        settled = [each for each in self._open if each <= number] if multiple else [number]
        for each in settled:
            place = self._open.pop(each, None)
            if place is not None and error is not None:
                self._errors[place] = error

"""A broker that speaks as much of AMQP as it takes to publish and confirm, in a thread, where no RabbitMQ is there."""

from __future__ import annotations

import select
import socket
import struct
import threading
from contextlib import suppress
from typing import Any

from amqp import Message
from amqp.serialization import dumps, loads
from amqp.spec import Basic, Channel, Confirm, Connection, Exchange, Queue

_METHOD, _HEADER, _BODY = 1, 2, 3

#: What is answered to what, and its arguments.
_ANSWERS: dict[tuple[int, int], tuple[tuple[int, int], str, tuple[Any, ...]]] = {
    Connection.StartOk: (Connection.Tune, "BlB", (0, 131_072, 0)),
    Connection.Open: (Connection.OpenOk, "s", ("",)),
    Connection.Close: (Connection.CloseOk, "", ()),
    Channel.Open: (Channel.OpenOk, "S", ("",)),
    Channel.Close: (Channel.CloseOk, "", ()),
    Confirm.Select: (Confirm.SelectOk, "", ()),
    Exchange.Declare: (Exchange.DeclareOk, "", ()),
    Queue.Declare: (Queue.DeclareOk, "sll", ("", 0, 0)),
    Queue.Bind: (Queue.BindOk, "", ()),
}


class AmqpBroker:
    """Takes every message, and confirms it once nothing more arrives: keeps where each was sent and what was declared.

    A message to the exchange ``UNKNOWN`` closes its channel, as RabbitMQ does where there is no such exchange.
    One to the queue ``FULL`` is refused, as by a queue of RabbitMQ with a greatest length.
    """

    UNKNOWN = "unknown"
    FULL = "full"

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"amqp://guest:guest@127.0.0.1:{self._socket.getsockname()[1]}//"
        #: Exchange and routing key of each message, and the message.
        self.messages: list[tuple[str, str, Message]] = []
        self.declared: list[str] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError, struct.error):
            self._speak(connection)

    def _speak(self, connection: socket.socket) -> None:
        received = bytearray()

        def read(size: int) -> bytes:
            while len(received) < size:
                more = connection.recv(65_536)
                if not more:
                    raise ConnectionResetError
                received.extend(more)
            found = bytes(received[:size])
            del received[:size]
            return found

        def has_more() -> bool:
            return bool(received or select.select([connection], [], [], 0)[0])

        def answer(channel: int, method: tuple[int, int], form: str, values: tuple[Any, ...]) -> None:
            payload = struct.pack(">HH", *method) + dumps(form, values)
            connection.sendall(struct.pack(">BHI", _METHOD, channel, len(payload)) + payload + b"\xce")

        read(8)
        answer(0, Connection.Start, "ooFSS", (0, 9, {}, "PLAIN", "en_US"))
        number, is_closing = 0, False
        while True:
            kind, channel, size = struct.unpack(">BHI", read(7))
            payload, _ = read(size), read(1)
            if kind == _METHOD:
                method = struct.unpack_from(">HH", payload)
                if method in _ANSWERS:
                    answer(channel, *_ANSWERS[method])
                if method == Channel.CloseOk:
                    is_closing = False
                elif method == Confirm.Select:
                    number = 0
                elif method == Queue.Declare:
                    self.declared.append(loads("Bs", payload, 4)[0][1])
                elif method == Basic.Publish:
                    to, message = loads("Bss", payload, 4)[0][1:], Message()
                continue
            if kind == _HEADER:
                message.inbound_header(payload)
            else:
                message.inbound_body(payload)
            if message.ready and not is_closing:
                if to[0] == self.UNKNOWN:
                    answer(channel, Channel.Close, "BsBB", (404, "NOT_FOUND - no exchange 'unknown'", *Basic.Publish))
                    is_closing = True
                    continue
                number += 1
                if to[1] == self.FULL:
                    answer(channel, Basic.Nack, "Lbb", (number, False, False))
                    continue
                self.messages.append((*to, message))
                if not has_more():
                    answer(channel, Basic.Ack, "Lb", (number, True))

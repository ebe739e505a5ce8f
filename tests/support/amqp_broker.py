"""A broker that speaks as much of AMQP as it takes to publish and confirm, in a thread, where no RabbitMQ is there."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable
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
    """Takes and confirms every message: keeps where each was sent and what was declared."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"amqp://guest:guest@127.0.0.1:{self._socket.getsockname()[1]}//"
        #: Exchange and routing key of each message, and the message.
        self.messages: list[tuple[str, str, Message]] = []
        self.declared: list[str] = []
        self.heartbeats = 0  #: before it confirms a message, one each 0.2 s
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
        with connection, connection.makefile("rb") as stream, suppress(OSError, struct.error):
            self._speak(connection, stream.read)

    def _speak(self, connection: socket.socket, read: Callable[[int], bytes]) -> None:
        def answer(channel: int, method: tuple[int, int], form: str, values: tuple[Any, ...]) -> None:
            payload = struct.pack(">HH", *method) + dumps(form, values)
            connection.sendall(struct.pack(">BHI", _METHOD, channel, len(payload)) + payload + b"\xce")

        read(8)
        answer(0, Connection.Start, "ooFSS", (0, 9, {}, "PLAIN", "en_US"))
        number = 0
        while True:
            kind, channel, size = struct.unpack(">BHI", read(7))
            payload, _ = read(size), read(1)
            if kind == _METHOD:
                method = struct.unpack_from(">HH", payload)
                if method in _ANSWERS:
                    answer(channel, *_ANSWERS[method])
                if method == Confirm.Select:
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
            if message.ready:
                number += 1
                self.messages.append((*to, message))
                for _ in range(self.heartbeats):
                    time.sleep(0.2)
                    connection.sendall(struct.pack(">BHIB", 8, 0, 0, 0xCE))
                answer(channel, Basic.Ack, "Lb", (number, False))

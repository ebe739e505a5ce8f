"""The server's protocol without its bytes: commands are lists of words, and replies are values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import NoneType
from typing import Any

from redis._parsers.base import BaseParser
from redis.connection import Encoder
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.utils import SENTINEL

from tests.simulation.values import CommandError

#: Commands that are sent together.
Request = list[list[bytes]]

_CLOSED = "Connection closed by server."

_encode = Encoder("utf-8", "strict", False).encode

#: Types of replies that need no translation.
_PLAIN = frozenset({bytes, int, NoneType})


class Packer:
    """Takes the place of the class that writes commands as bytes."""

    def pack(self, *args: Any) -> list[Request]:
        return [[_words(args)]]


def pack_commands(commands: Iterable[Sequence[Any]]) -> list[Request]:
    """Return the request that has all these commands."""
    return [[_words(args) for args in commands]]


def _words(args: Sequence[Any]) -> list[bytes]:
    words: list[bytes] = [arg if type(arg) is bytes else _word(arg) for arg in args]
    if b" " in words[0]:
        words[:1] = words[0].split()
    return words


def _word(arg: Any) -> bytes:
    kind = type(arg)
    if kind is str:
        return bytes(arg.encode())
    if kind is int:
        return b"%d" % arg
    return bytes(_encode(arg))


class Parser(BaseParser):
    """Takes the place of the class that reads replies from bytes."""

    def __init__(self, socket_read_size: int) -> None:
        del socket_read_size
        self._socket: Any = None
        self._encoder: Any = None

    def on_connect(self, connection: Any) -> None:
        self._socket = connection._sock
        self._encoder = connection.encoder

    def on_disconnect(self) -> None:
        self._socket = None

    def can_read(self, timeout: float = 0) -> bool:
        """Whether there is a reply within these seconds; raise ConnectionError if the connection is gone."""
        if self._socket is None or not self._socket.wait(timeout):
            return False
        if not self._socket.replies:
            raise RedisConnectionError(_CLOSED)
        return True

    def read_response(self, disable_decoding: bool = False, timeout: Any = SENTINEL) -> Any:
        """Return the next reply; an error that is no ConnectionError is returned, too."""
        if self._socket is None:
            raise RedisConnectionError(_CLOSED)
        self._wait_for_reply(self._socket.gettimeout() if timeout is SENTINEL else timeout)
        reply = self._read(self._socket.replies.popleft(), must_decode=not disable_decoding)
        if isinstance(reply, RedisConnectionError):
            raise reply
        return reply

    def _wait_for_reply(self, timeout: float | None) -> None:
        if not self._socket.wait(timeout):
            raise RedisTimeoutError("Timeout reading from socket")
        if not self._socket.replies:
            raise RedisConnectionError(_CLOSED)

    def _read(self, reply: Any, *, must_decode: bool) -> Any:
        if not must_decode and type(reply) in _PLAIN:
            return reply
        if isinstance(reply, list):
            return [self._read(item, must_decode=must_decode) for item in reply]
        if isinstance(reply, CommandError):
            return self.parse_error(str(reply))
        if must_decode and isinstance(reply, bytes):
            return self._encoder.decode(reply)
        return reply

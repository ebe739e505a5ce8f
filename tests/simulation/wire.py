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

from tests.simulation.commands import Status
from tests.simulation.values import CommandError

#: Commands that are sent together.
Request = list[list[bytes]]

_CLOSED = "Connection closed by server."
_TOO_LATE = "Timeout reading from socket"

_encode = Encoder("utf-8", "strict", False).encode

#: Types of replies that need no translation.
_PLAIN = frozenset({bytes, int, NoneType, Status})


class Packer:
    """Takes the place of the class that writes commands as bytes."""

    def pack(self, *args: Any) -> list[Request]:
        return [[words_of(args)]]


def pack_commands(commands: Iterable[Sequence[Any]]) -> list[Request]:
    """Return the request that has all these commands."""
    return [[words_of(args) for args in commands]]


def words_of(args: Sequence[Any]) -> list[bytes]:
    """Return a command as the server takes it."""
    words = [arg.encode() if type(arg) is str else _word_of(arg) for arg in args]
    if b" " in words[0]:
        words[:1] = words[0].split()
    return words


def _word_of(arg: Any) -> bytes:
    """Return an argument that is no text as the server takes it."""
    if type(arg) is bytes:
        return arg
    if type(arg) is int:
        return b"%d" % arg
    return bytes(_encode(arg))


class Parser(BaseParser):
    """Takes the place of the class that reads replies from bytes."""

    def __init__(self, socket_read_size: int) -> None:
        del socket_read_size
        self._socket: Any = None
        self._encoder: Any = None
        self._must_decode = False

    def on_connect(self, connection: Any) -> None:
        self._socket = connection._sock
        self._encoder = connection.encoder
        self._must_decode = connection.encoder.decode_responses

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
        must_decode = self._must_decode and not disable_decoding
        reply = self._read(self._socket.replies.popleft(), must_decode=must_decode)
        if isinstance(reply, RedisConnectionError):
            raise reply
        return reply

    def exchange(self, request: Request) -> list[Any]:
        """Send commands and return the replies to them; an error that is no ConnectionError is returned, too."""
        sock = self._socket
        if not sock.exchange(request):
            raise RedisTimeoutError(_TOO_LATE)
        if not sock.replies:
            raise RedisConnectionError(_CLOSED)
        raw_replies = [sock.replies.popleft() for _ in request]
        if self._must_decode:
            return [self._read(reply, must_decode=True) for reply in raw_replies]
        return [reply if type(reply) in _PLAIN else self._read(reply, must_decode=False) for reply in raw_replies]

    def _wait_for_reply(self, timeout: float | None) -> None:
        if not self._socket.wait(timeout):
            raise RedisTimeoutError(_TOO_LATE)
        if not self._socket.replies:
            raise RedisConnectionError(_CLOSED)

    def _read(self, reply: Any, *, must_decode: bool) -> Any:
        if not must_decode and type(reply) in _PLAIN:
            return reply
        if isinstance(reply, list):
            if not must_decode and _PLAIN.issuperset(map(type, reply)):
                return reply
            return [self._read(item, must_decode=must_decode) for item in reply]
        if isinstance(reply, CommandError):
            return self.parse_error(str(reply))
        if must_decode and isinstance(reply, bytes):
            return self._encoder.decode(reply)
        return reply

"""What each command passes on its way through redis-py, as redis-py does it, but in a few calls.

Left out are counters for OpenTelemetry, events for renewed passwords, locks that nobody can hold while
another thread waits, and texts of errors that are not raised.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import redis
import redis.client
import redis.connection
import redis.retry
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.utils import SENTINEL

from tests.simulation.wire import Request, words_of


def shorten_client(stack: ExitStack) -> None:
    """Put the short versions in the place of redis-py's own."""
    for owner, replacements in _REPLACEMENTS.items():
        for name, replacement in replacements.items():
            stack.enter_context(patch.object(owner, name, replacement))


# -- pools -----------------------------------------------------------------------------------------


def get_connection(pool: Any, *_command: str) -> Any:
    """Take a connection that is open and has no reply left; raise if there is none."""
    if pool.pid != os.getpid():
        pool._checkpid()
    available = pool._available_connections
    connection = available.pop() if available else pool.make_connection()
    pool._in_use_connections.add(connection)
    try:
        _make_usable(connection)
    except BaseException:
        release(pool, connection)
        raise
    return connection


def _make_usable(connection: Any) -> None:
    """Connect, and connect again if the connection is not as it should be."""
    if not connection._sock:
        connection.connect()
    if not _is_unusable(connection):
        return
    connection.disconnect()
    connection.connect()
    if _is_unusable(connection):
        raise RedisConnectionError("Connection not ready")


def _is_unusable(connection: Any) -> bool:
    """Whether a reply to an earlier command is there, or the server has closed the connection."""
    sock = connection._sock
    return bool(sock.replies) or sock.is_gone


def release(pool: Any, connection: Any) -> None:
    """Give a connection back."""
    if pool.pid != os.getpid():
        pool._checkpid()
    if connection not in pool._in_use_connections:
        return
    pool._in_use_connections.remove(connection)
    if connection.pid == pool.pid:
        pool._available_connections.append(connection)
    else:
        connection.disconnect()


# -- connections -----------------------------------------------------------------------------------


def can_read(connection: Any, timeout: float = 0) -> bool:
    """Whether there is a reply within these seconds."""
    if not connection._sock:
        connection.connect()
    return bool(connection._parser.can_read(timeout))


def send_packed_command(connection: Any, command: list[Request], check_health: bool = True) -> None:
    """Send commands, over a new connection if need be."""
    _prepare(connection, check_health=check_health)
    try:
        for request in command:
            connection._sock.sendall(request)
    except BaseException as exc:
        connection.disconnect()
        if isinstance(exc, OSError):
            raise _write_error(exc) from None
        raise


def _prepare(connection: Any, *, check_health: bool) -> None:
    """Connect if need be, and ping a server that has been silent for long."""
    if not connection._sock:
        connection.connect_check_health(check_health=False)
    interval = connection.health_check_interval
    if check_health and interval and connection._sock.world.elapsed > connection.next_health_check:
        connection.check_health()


def read_response(
    connection: Any,
    disable_decoding: bool = False,
    *,
    timeout: Any = SENTINEL,
    disconnect_on_error: bool = True,
    push_request: bool = False,
) -> Any:
    """Return the next reply, or raise the error that it is."""
    del push_request
    try:
        reply = connection._parser.read_response(disable_decoding=disable_decoding, timeout=timeout)
    except BaseException:
        if disconnect_on_error:
            connection.disconnect()
        raise
    _note_health(connection)
    if isinstance(reply, ResponseError):
        raise reply
    return reply


def _note_health(connection: Any) -> None:
    """Note that the server has just answered."""
    if connection.health_check_interval:
        connection.next_health_check = connection._sock.world.elapsed + connection.health_check_interval


def exchange(connection: Any, request: Request) -> list[Any]:
    """Send commands and return the replies to them, of which some may be errors."""
    _prepare(connection, check_health=True)
    try:
        replies: list[Any] = connection._parser.exchange(request)
    except BaseException as exc:
        connection.disconnect()
        if isinstance(exc, OSError):
            raise _write_error(exc) from None
        raise
    _note_health(connection)
    return replies


def _write_error(exc: OSError) -> RedisConnectionError:
    return RedisConnectionError(f"Error {exc.args[0]} while writing to socket. {exc.args[1]}.")


# -- commands --------------------------------------------------------------------------------------


def execute_command(client: Any, *args: Any, **options: Any) -> Any:
    """Send a command and return the reply to it; send it again as often as the client's retry says."""
    connection = client.connection or get_connection(client.connection_pool)
    request = [words_of(args)]

    def ask() -> Any:
        return _result(client, exchange(connection, request)[0], args[0], options)

    try:
        return _retry(connection, ask)
    finally:
        if not client.connection:
            release(client.connection_pool, connection)


def execute_pipeline(pipe: Any, connection: Any, commands: list[Any], raise_on_error: bool) -> list[Any]:
    """Send all commands of a pipeline and return the replies to them."""
    replies = exchange(connection, [words_of(args) for args, _ in commands])
    results = []
    has_failed = False
    for reply, (args, options) in zip(replies, commands, strict=True):
        try:
            results.append(_result(pipe, reply, args[0], options))
        except ResponseError as exc:
            results.append(exc)
            has_failed = True
    if has_failed and raise_on_error:
        pipe.raise_first_error(commands, results)
    return results


def _retry(connection: Any, ask: Callable[[], Any]) -> Any:
    """Ask again after errors that the connection's retry names, over a new connection."""
    retry = connection.retry
    retry._backoff.reset()
    failures = 0
    while True:
        try:
            return ask()
        except retry._supported_errors:
            failures += 1
            connection.disconnect()
            if 0 <= retry._retries < failures:
                raise
        backoff = retry._backoff.compute(failures)
        if backoff > 0:
            redis.retry.sleep(backoff)


def _result(client: Any, reply: Any, command: str, options: dict[str, Any]) -> Any:
    """Return what a command gives for a reply; raise the error that the reply is."""
    if isinstance(reply, redis.RedisError):
        raise reply
    # Commands are in upper case already.
    callback = dict.get(client.response_callbacks, command)
    if callback is None:
        return reply
    if not options:
        return callback(reply)
    return callback(reply, **{name: value for name, value in options.items() if name != "keys"})


def parse_response(client: Any, connection: Any, command_name: str, **options: Any) -> Any:
    """Read the reply to a command and return what the command gives for it."""
    return _result(client, connection.read_response(), command_name, options)


_REPLACEMENTS: dict[Any, dict[str, Callable[..., Any]]] = {
    redis.ConnectionPool: {"get_connection": get_connection, "release": release},
    redis.Connection: {
        "can_read": can_read,
        "read_response": read_response,
        "send_packed_command": send_packed_command,
    },
    redis.Redis: {"execute_command": execute_command, "parse_response": parse_response},
    redis.client.Pipeline: {"_execute_pipeline": execute_pipeline},
}

"""The timeout of a caller whose work has to end in time, and a server that hangs."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from redis.exceptions import TimeoutError as RedisTimeoutError

from redbeat_lite.settings import Settings
from redbeat_lite.store.connections import Backend

#: Each of these makes redis-py wait longer, or send a command that hangs once more.
PATIENT = {"socket_timeout": 30, "retry_on_timeout": True}


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A server that takes connections, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        yield server


def address_of(server: socket.socket) -> str:
    host, port = server.getsockname()
    return f"{host}:{port}"


def attempts_at(server: socket.socket) -> int:
    attempts = 0
    try:
        while True:
            server.accept()[0].close()
            attempts += 1
    except TimeoutError:
        return attempts


@pytest.mark.parametrize(
    ("query", "options"),
    [("", PATIENT), ("?socket_timeout=30&retry_on_timeout=yes", {})],
    ids=["in redis_options", "in the URL"],
)
def test_it_overrides_the_retries_of_the_user(silent: socket.socket, query: str, options: dict[str, object]) -> None:
    settings = Settings(url=f"redis://{address_of(silent)}/0{query}", redis_options=options)
    with pytest.raises(RedisTimeoutError):
        Backend(settings, timeout=0.2).client.ping()
    assert attempts_at(silent) == 1


def test_it_overrides_the_retries_for_sentinels(silent: socket.socket) -> None:
    options = {"master_name": "mymaster", "sentinel_kwargs": PATIENT | {"retry_on_error": [RedisTimeoutError]}}
    settings = Settings(url=f"sentinel://{address_of(silent)}/0", redis_options=options)
    [sentinel] = Backend(settings, timeout=0.2).client.connection_pool.sentinel_manager.sentinels
    with pytest.raises(RedisTimeoutError):
        sentinel.ping()
    assert attempts_at(silent) == 1

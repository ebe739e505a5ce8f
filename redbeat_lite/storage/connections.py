"""Connections to the server which holds the schedule, and what they may raise; nobody else opens any."""

from __future__ import annotations

import os
from typing import Any
from weakref import WeakSet

import redis
from redis.exceptions import AuthenticationError, NoPermissionError, RedisClusterException, RedisError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from .. import urls
from ..settings import Settings
from .clients import SOCKET_TIMEOUT, bounds, client_for
from .lazy import lazy
from .scripts import Scripts

#: Seconds between the pings that tell whether an idle subscription is still alive.
HEALTH_CHECK_INTERVAL = 15

#: What a server that is down, restarting, failing over or out of reach raises.
UNREACHABLE: tuple[type[Exception], ...] = (
    RedisConnectionError,
    RedisTimeoutError,
    RedisClusterException,  # no node of a cluster answers, or none has the slot
    OSError,
)

#: Everything that a command to the server can raise.
FAULTS: tuple[type[Exception], ...] = (RedisError, RedisClusterException, OSError)


class Backend:
    """Opens clients for one server, for the master that Sentinel names, or for a cluster.

    Nothing is opened before the first command. A forked child opens its own. ``timeout`` is that of :attr:`client`, as
    :meth:`open` has it.
    """

    def __init__(self, settings: Settings, *, timeout: float | None = None) -> None:
        self._settings = settings
        self._timeout = timeout
        _backends.add(self)

    @property
    def display_url(self) -> str:
        """The server's URL without its password."""
        return urls.shown(self._settings.url)

    @lazy
    def client(self) -> redis.Redis:
        """The client for commands: thread-safe, pooled, replies are bytes."""
        return self.open(timeout=self._timeout)

    @lazy
    def scripts(self) -> Scripts:
        """The Lua scripts, bound to :attr:`client`."""
        return Scripts(self.client)

    def open(self, *, timeout: float | None = None) -> redis.Redis:
        """A client with a connection pool of its own; the caller closes it.

        Parameters:
            timeout: seconds until a command or a connection attempt that hangs is given up, whatever ``redis_options``
                say about timeouts and retries: for what has to end in time.
        """
        options: dict[str, Any] = {
            "health_check_interval": HEALTH_CHECK_INTERVAL,
            **bounds(SOCKET_TIMEOUT),
            **self._settings.redis_options,
            "decode_responses": False,
        }
        last: dict[str, Any] = {}
        if timeout is not None:
            last = bounds(timeout)
            for name in ("retry_on_timeout", "retry_on_error"):
                options.pop(name, None)
        return client_for(self._settings.url, options, last)

    def close(self) -> None:
        """Close the shared client's connections; the next command opens them anew."""
        client = self.forget()
        if client is not None:
            client.close()

    def forget(self) -> redis.Redis | None:
        """Let the next command open a new client; returns the old one, with its connections."""
        self.__dict__.pop("scripts", None)
        client: redis.Redis | None = self.__dict__.pop("client", None)
        return client


#: All of this process.
_backends: WeakSet[Backend] = WeakSet()

#: The clients of the process that this one was forked from. They are kept because they take their locks when they go.
_inherited: list[redis.Redis] = []


def _forget_in_child() -> None:
    """Have every backend open a new client. A lock that another thread held in the old one at the fork is held here for
    ever: redis-py 5 makes that of a pool anew, 6.4 to 8.1 do not, and none of them does it for a cluster's."""
    _inherited.extend(client for backend in list(_backends) if (client := backend.forget()) is not None)


os.register_at_fork(after_in_child=_forget_in_child)


def refusal(exc: Exception, root: str) -> Exception:
    """Return a refusal of the server with advice, and any other exception unchanged.

    Parameters:
        root: the beginning of all keys, such as ``{redbeat-lite}``.
    """
    text = str(exc)
    if isinstance(exc, AuthenticationError) and ("HELLO" in text or "NOAUTH" in text or "required" in text):
        return AuthenticationError("it wants a password, and the URL has none")
    if isinstance(exc, NoPermissionError) and "key" in text:
        return NoPermissionError(f"{text}; it needs those of the patterns ~{root}:* and ~{root[:-1]}:*")
    return exc

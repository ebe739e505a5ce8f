"""The only place that opens connections to the server which holds the schedule."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from .scripts import Scripts
from .settings import Settings

#: Seconds until a command or a connection attempt that hangs is given up.
SOCKET_TIMEOUT = 5.0

#: Seconds between the pings that tell whether an idle subscription is still alive.
HEALTH_CHECK_INTERVAL = 15

#: What a server that is down, restarting, failing over or out of reach raises.
UNREACHABLE: tuple[type[Exception], ...] = (RedisConnectionError, RedisTimeoutError, OSError)

#: Everything that a command to the server can raise.
FAULTS: tuple[type[Exception], ...] = (RedisError, OSError)

__all__ = ["FAULTS", "UNREACHABLE", "Backend", "hide_password"]


def hide_password(url: str) -> str:
    """``url`` with the password replaced by ``**``, fit for a log line."""
    hidden = re.sub(r"(://[^:/@]*:)[^@]*(@)", r"\1**\2", url)
    return re.sub(r"([?&;]\w*password=)[^&;]*", r"\1**", hidden)


class Backend:
    """Opens clients for one server; nothing is opened before the first command.

    Parameters:
        settings: says which server, and with what options.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    @property
    def display_url(self) -> str:
        """The server's URL without its password."""
        return hide_password(self._settings.url)

    @cached_property
    def client(self) -> redis.Redis:
        """The client for commands: thread-safe, pooled, replies are bytes."""
        return self.open()

    @cached_property
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
            **_bounds(SOCKET_TIMEOUT),
            **self._settings.redis_options,
            "decode_responses": False,
        }
        if timeout is not None:
            options |= {**_bounds(timeout), "retry_on_timeout": False, "retry_on_error": []}
        url = _client_url(self._settings.url)
        if url.startswith("unix://"):
            options.pop("socket_connect_timeout")
        return redis.Redis.from_url(url, **options)

    def close(self) -> None:
        """Close the shared client's connections; the next command opens them anew."""
        self.__dict__.pop("scripts", None)
        client = self.__dict__.pop("client", None)
        if client is not None:
            client.close()


def _bounds(timeout: float) -> dict[str, Any]:
    return {
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        # One try over, at once: the server may have dropped a connection that lay idle. Sending a script again is
        # harmless, each of them recognises its own earlier work. Longer waits belong to the callers.
        "retry": Retry(NoBackoff(), 1, supported_errors=(RedisConnectionError,)),
    }


def _client_url(url: str) -> str:
    """Celery's spelling of a Redis URL in redis-py's."""
    scheme, rest = url.split("://", 1)
    if scheme == "redis+socket":
        parts = urlsplit(f"unix://{rest}")
        query = dict(parse_qsl(parts.query))
        database = query.pop("virtual_host", query.pop("db", "0")).lstrip("/")
        password = f"{parts.netloc}" if parts.netloc else ""
        return f"unix://{password}{unquote(parts.path)}?db={database}"
    if scheme == "rediss":
        return re.sub(r"ssl_cert_reqs=CERT_(\w+)", lambda found: f"ssl_cert_reqs={found[1].lower()}", url)
    return url

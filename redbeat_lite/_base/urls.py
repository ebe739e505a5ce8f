"""URLs of Redis servers: their schemes, their parts, and their addresses as people see them."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from redis.connection import parse_url

#: The schemes of each kind of server.
SINGLE = ("redis", "rediss", "redis+socket", "unix")
SENTINEL = ("sentinel",)
CLUSTER = ("redis-cluster", "rediss-cluster")
SCHEMES = (*SINGLE, *SENTINEL, *CLUSTER)

_SENTINEL_PORT = 26379
_REDIS_PORT = 6379


def scheme_of(url: str) -> str:
    """Return the scheme of a URL: ``"redis"`` for ``redis://…``."""
    return url.partition("://")[0]


def address_of(url: str) -> str:
    """Return the scheme, the servers and the database of a valid URL.

    The address has no user, password or option, so it is fit for a log line.
    """
    scheme, _, rest = url.partition("://")
    # In the URL of a single server, a semicolon belongs to the password.
    servers = [rest] if scheme in SINGLE else rest.split(";")
    # The password ends at the last "@", and the options begin at the first "?".
    addresses = [server.rpartition("@")[2].partition("?")[0] for server in servers]
    return f"{scheme}://{';'.join(addresses)}"


def addresses_and_options(url: str) -> tuple[list[tuple[str, int]], dict[str, Any]]:
    """Return the addresses in a URL of several servers, and its options for redis-py's client.

    The form is ``sentinel://user:password@host:port/db;host:port``, also for a cluster. The options
    are redis-py's ``username``, ``password`` and ``db``, and those of the query, from all parts.

    For the URL of a single server there are no addresses. Its host and port are options.

    Raises:
        ValueError: as :func:`connection_options`.
    """
    if scheme_of(url) in SINGLE:
        return [], connection_options(url)
    default_port = _SENTINEL_PORT if scheme_of(url) in SENTINEL else _REDIS_PORT
    addresses: list[tuple[str, int]] = []
    options: dict[str, Any] = {}
    for part in filter(None, url.split(";")):
        # Only the first part has a scheme, and connection_options() needs one for each.
        options |= connection_options("redis://" + part.split("://", 1)[-1])
        host = options.pop("host", "localhost")
        addresses.append((host, options.pop("port", default_port)))
    return addresses, options


def connection_options(url: str) -> dict[str, Any]:
    """Return the URL of one server as options of a redis-py connection.

    Raises:
        ValueError: the URL cannot be read. The error may quote a part of it, such as a password.
    """
    parts = urlsplit(url)
    if parts.fragment or "@" in parts.query:
        # An unescaped # or ? in the password ends the host part of the URL, and the rest of the
        # password would be ignored.
        raise ValueError("a # or ? that should be in percent form")
    spelled = _spelled_for_redis_py(url)
    options = dict(parse_url(spelled))  # type: ignore[no-untyped-call]  # untyped in redis-py
    database = parts.path.strip("/") or "0"
    if scheme_of(url) in ("redis", "rediss") and not database.isdecimal():
        # redis-py would ignore it and use database 0.
        raise ValueError("a database that is no number")
    return options


def _spelled_for_redis_py(url: str) -> str:
    """Return the URL of one server, written for Celery, in the form that redis-py reads."""
    scheme, rest = url.split("://", 1)
    if scheme == "redis+socket":
        parts = urlsplit(f"unix://{rest}")
        query = dict(parse_qsl(parts.query))
        # Celery reads nothing else from the query of a socket.
        database = query.get("virtual_host", query.get("db", "0")).lstrip("/")
        return f"unix://{parts.netloc}{unquote(parts.path)}?db={database}"
    # Celery writes CERT_REQUIRED where redis-py expects required.
    return re.sub(
        r"ssl_cert_reqs=CERT_(\w+)", lambda match: f"ssl_cert_reqs={match[1].lower()}", url
    )

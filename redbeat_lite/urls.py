"""The URLs that say where a schedule lies: which ones there are, what they name, and how to show them."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from redis.connection import parse_url

from .errors import SECRET

#: The ways to a server, by the scheme of the URL.
SINGLE = ("redis", "rediss", "redis+socket", "unix")
SENTINEL = ("sentinel",)
CLUSTER = ("redis-cluster", "rediss-cluster")
SCHEMES = (*SINGLE, *SENTINEL, *CLUSTER)

_PORTS = {"sentinel": 26379}


def scheme_of(url: str) -> str:
    """``"redis"`` of ``redis://…``."""
    return url.partition("://")[0]


def shown(url: str) -> str:
    """A URL that can be read, with each password replaced by ``**``: fit for a log line."""
    if scheme_of(url) in SINGLE:
        return _shown(url)
    return ";".join(map(_shown, url.split(";")))


def _shown(part: str) -> str:
    # The first "://" ends the scheme. A later one is text, such as a client's name; a further address has no scheme.
    scheme, separator, rest = part.partition("://") if re.match(r"[^:/?#@]*://", part) else ("", "", part)
    # As urlsplit() has it: the network location ends where a path, a query or a fragment begins, the user's name and
    # password end with its last "@", and the name ends with its first ":".
    end = next((at for at, char in enumerate(rest) if char in "/?#"), len(rest))
    user, at, host = rest[:end].rpartition("@")
    name, colon, _ = user.partition(":")
    # Nobody reads a fragment, nor a field of a query without a value: it may be the end of a password.
    place, sharp, _ = rest[end:].partition("#")
    where, mark, query = place.partition("?")
    hidden = re.sub(r"[^&;]+", lambda found: _without_value(found[0]), query) + ("#**" if sharp else "")
    return f"{scheme}{separator}{name}{colon}{'**' if colon else ''}{at}{host}{where}{mark}{hidden}"


def _without_value(field: str) -> str:
    name, equals, _ = field.partition("=")
    if not equals:
        return "**"
    return f"{name}=**" if re.fullmatch(SECRET, unquote(name), re.IGNORECASE) else field


def several(url: str) -> tuple[list[tuple[str, int]], dict[str, Any]]:
    """What ``sentinel://user:password@host:port/db;host:port`` names, or the same with a cluster's scheme: the
    addresses, and the options of redis-py's client that stand in any part, ``username``, ``password``, ``db``, and
    those of the query. Raises as :func:`parsed`.
    """
    nodes: list[tuple[str, int]] = []
    options: dict[str, Any] = {}
    for part in filter(None, url.split(";")):
        options |= parsed("redis://" + part.split("://", 1)[-1])
        nodes.append((options.pop("host", "localhost"), options.pop("port", _PORTS.get(scheme_of(url), 6379))))
    return nodes, options


def parsed(url: str) -> dict[str, Any]:
    """The URL of one server as options of redis-py's connection; raises a ValueError, which may quote a part of it,
    where it cannot be read."""
    parts = urlsplit(url)
    if parts.fragment or "@" in parts.query:
        raise ValueError("a # or ? that should be in percent form")  # the rest of the password would be passed over
    options = dict(parse_url(_for_redis_py(url)))  # type: ignore[no-untyped-call]  # untyped in redis-py
    if scheme_of(url) in ("redis", "rediss") and not (parts.path.strip("/") or "0").isdecimal():
        raise ValueError("a database that is no number")  # redis-py would take it for 0
    return options


def _for_redis_py(url: str) -> str:
    """Celery's spelling of the URL of one server in redis-py's."""
    scheme, rest = url.split("://", 1)
    if scheme == "redis+socket":
        parts = urlsplit(f"unix://{rest}")
        query = dict(parse_qsl(parts.query))
        database = query.pop("virtual_host", query.pop("db", "0")).lstrip("/")
        return f"unix://{parts.netloc}{unquote(parts.path)}?db={database}"
    return re.sub(r"ssl_cert_reqs=CERT_(\w+)", lambda found: f"ssl_cert_reqs={found[1].lower()}", url)

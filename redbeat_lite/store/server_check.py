"""Faults of a server that endanger a schedule."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from celery import Celery
from redis.exceptions import ResponseError

from .._base import urls
from ..settings import broker_urls, has_own_url

#: Oldest version of Redis with all commands of the scripts (``ZRANGE … BYSCORE``, ``ZMSCORE``).
OLDEST = (6, 2)


class Server(NamedTuple):
    """Properties of a server, as the server reports them.

    Parameters:
        version: empty if the server does not tell it.
        policy: its ``maxmemory-policy``.
        persistent: whether it keeps data on disk; ``None`` if the server does not let us find out.
    """

    version: str
    policy: str
    persistent: bool | None


def server_of(client: Any) -> Server | None:
    """Return the properties of the client's server; ``None`` if the server refuses ``INFO``."""
    try:
        info = client.info()
    except ResponseError:
        return None  # An ACL may forbid INFO. That is no fault.
    version = str(info.get("redis_version", ""))
    # A policy that the server does not tell counts as the right one, so it is no fault.
    policy = str(info.get("maxmemory_policy", "noeviction"))
    is_persistent = bool(info.get("aof_enabled")) or _takes_snapshots(client)
    return Server(version, policy, is_persistent)


def _takes_snapshots(client: Any) -> bool | None:
    """Return whether the server takes snapshots; ``None`` if it refuses ``CONFIG GET``."""
    try:
        return bool(client.config_get("save").get("save"))
    except ResponseError:
        # An ACL often forbids CONFIG GET, because it shows passwords, too.
        return None


class Fault(NamedTuple):
    """A fault of a server or its URL, why it matters, and what to do."""

    name: str
    severity: str
    what: str
    why: str
    todo: str


def failover_faults(app: Celery) -> Iterator[Fault]:
    """Yield a fault if Celery can switch to another broker, and the schedule cannot follow."""
    servers = broker_urls(app)
    # Several URLs with Sentinel are the sentinels of one server.
    is_one_server = len(servers) < 2 or urls.scheme_of(servers[0]) in urls.SENTINEL
    # A schedule with a URL of its own does not depend on the broker, so it need not follow.
    if is_one_server or has_own_url(app):
        return
    yield Fault(
        "failover",
        "warning",
        f"broker_url names {len(servers)} servers, and the schedule lies on the first one alone",
        "While that one is down nothing is sent, although the others take messages.",
        "Set redbeat_lite_url to the server that shall hold the schedule, or use Sentinel.",
    )


def server_faults(server: Server | None) -> Iterator[Fault]:
    """Yield the faults that the properties of a server show.

    Parameters:
        server: ``None`` if the properties are not known. Then no fault is yielded. A single
            property that is not known (an empty version, ``None``) is no fault either.
    """
    if server is None:
        return
    oldest = ".".join(map(str, OLDEST))
    version = tuple(int(part) for part in server.version.split(".")[:2] if part.isdigit())
    if server.version and version < OLDEST:
        yield Fault(
            "version",
            "error",
            f"the server is version {server.version}",
            f"The scripts use commands that came with {oldest}.",
            f"Update it to {oldest} or later; any Valkey will do.",
        )
    if server.policy != "noeviction":
        yield Fault(
            "eviction",
            "error",
            f"the server evicts keys when memory runs out (maxmemory-policy {server.policy})",
            "The schedule is among the keys it may evict. Only entries of beat_schedule come back.",
            "Set maxmemory-policy noeviction, or give the schedule a server of its own.",
        )
    if server.persistent is False:
        yield Fault(
            "persistence",
            "warning",
            "the server keeps nothing on disk",
            "After its restart only entries of beat_schedule come back, without their history.",
            "Set appendonly yes, or accept it if all your entries are in beat_schedule.",
        )

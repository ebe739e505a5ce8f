"""What about a server, and about redis-py, a person should know before trusting it with a schedule."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import kombu
from celery import Celery
from kombu.exceptions import VersionMismatch
from redis.exceptions import ResponseError

from .. import urls
from ..errors import ConfigurationError
from ..settings import broker_urls, has_own_url

#: The oldest server that has every command the scripts use (``ZRANGE … BYSCORE``, ``ZMSCORE``).
OLDEST = (6, 2)


class Server(NamedTuple):
    """What a server says of itself.

    Parameters:
        version: its version; empty if it does not say.
        policy: its ``maxmemory-policy``.
        persistent: whether it keeps anything on disk; ``None`` if we may not ask whether it takes snapshots.
    """

    version: str
    policy: str
    persistent: bool | None


def server_of(client: Any) -> Server | None:
    """What the server of this client says of itself; ``None`` if we may not ask."""
    try:
        info = client.info("everything")
    except ResponseError:
        return None  # an ACL may forbid INFO; that is no fault
    version = str(info.get("valkey_version") or info.get("redis_version") or "")
    policy = str(info.get("maxmemory_policy", "noeviction"))
    return Server(version, policy, True if info.get("aof_enabled") else _snapshots(client))


class Fault(NamedTuple):
    """Something wrong with a server or its URL: why it matters, and what to do."""

    name: str
    severity: str
    what: str
    why: str
    todo: str


def failover(app: Celery) -> Iterator[Fault]:
    """Yield a fault if messages can go to another server and the schedule cannot."""
    servers = broker_urls(app)
    if len(servers) > 1 and urls.scheme_of(servers[0]) not in urls.SENTINEL and not has_own_url(app):
        yield Fault(
            "failover",
            "warning",
            f"broker_url names {len(servers)} servers, and the schedule lies on the first one alone",
            "While that one is down nothing is sent, although the others take messages.",
            "Set redbeat_lite_url to the server that shall hold the schedule, or use Sentinel.",
        )


def faults(server: Server | None) -> Iterator[Fault]:
    """Yield what is wrong with a server, as far as it says."""
    if server is None:
        return
    oldest = ".".join(map(str, OLDEST))
    if server.version and tuple(int(part) for part in server.version.split(".")[:2] if part.isdigit()) < OLDEST:
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
            "The schedule is among the keys it may evict. Config entries come back; all else does not.",
            "Set maxmemory-policy noeviction, or give the schedule a server of its own.",
        )
    if server.persistent is False:
        yield Fault(
            "persistence",
            "warning",
            "the server keeps nothing on disk",
            "After its restart only config entries come back, without their history; runtime entries are gone.",
            "Set appendonly yes, or accept it if all your entries are in beat_schedule.",
        )


def _snapshots(client: Any) -> bool | None:
    try:
        return bool(client.config_get("save").get("save"))
    except ResponseError:
        return None  # who may ask for this may ask for the passwords, too, so few may


def check_driver(app: Celery) -> None:
    """Raise ConfigurationError if kombu refuses this redis-py. Opens no connection; brokers that are not Redis pass.

    What needs both asks at its start: no later try would help.
    """
    try:
        channel: Any = getattr(app.connection_for_write().transport, "Channel", None)
    except Exception:  # noqa: BLE001 - who opens the connection says what is wrong with its URL
        return
    # kombu looks at the version here, when it opens a channel; its other transports have no such method.
    look = getattr(channel, "_get_client", None)
    if look is None:
        return
    try:
        look(channel.__new__(channel))
    except VersionMismatch as exc:
        raise ConfigurationError(
            f"kombu {kombu.__version__} refuses the redis-py that is installed: {exc}. Install the one it wants "
            "(pip install 'celery[redis]'), or what takes this one (pip install 'celery<5.7' 'kombu<5.7')"
        ) from None

"""What about a server, and about redis-py, a person should know before trusting it with a schedule."""

from __future__ import annotations

from typing import Any, NamedTuple

import kombu
from celery import Celery
from kombu.exceptions import VersionMismatch
from redis.exceptions import ResponseError

from ..errors import ConfigurationError

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

    @property
    def too_old(self) -> bool:
        """Whether it lacks commands that are needed."""
        return bool(self.version) and _numbers(self.version) < OLDEST

    @property
    def evicts(self) -> bool:
        """Whether it removes keys when memory runs out."""
        return self.policy != "noeviction"


def server_of(client: Any) -> Server | None:
    """What the server of this client says of itself; ``None`` if we may not ask."""
    try:
        info = client.info("everything")
    except ResponseError:
        return None  # an ACL may forbid INFO; that is no fault
    version = str(info.get("valkey_version") or info.get("redis_version") or "")
    policy = str(info.get("maxmemory_policy", "noeviction"))
    return Server(version, policy, True if info.get("aof_enabled") else _snapshots(client))


def server_warnings(client: Any) -> list[str]:
    """One sentence for each thing that is wrong with the server; says nothing about what it may not look at."""
    server = server_of(client)
    if server is None:
        return []
    warnings = []
    if server.too_old:
        warnings.append(f"the server is version {server.version}; {needed()} or later is needed")
    if server.evicts:
        warnings.append(
            f"the server evicts keys when memory runs out (maxmemory-policy {server.policy}), the schedule among them; "
            "use noeviction, or a server of its own"
        )
    if server.persistent is False:
        warnings.append(
            "the server keeps nothing on disk; after its restart only config entries come back (set appendonly yes)"
        )
    return warnings


def needed() -> str:
    """The oldest version that will do."""
    return ".".join(map(str, OLDEST))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


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

"""What about a server a person should know before trusting it with a schedule."""

from __future__ import annotations

from typing import Any

from redis.exceptions import ResponseError

#: The oldest server that has every command the scripts use (``ZRANGE … BYSCORE``, ``ZMSCORE``).
OLDEST = (6, 2)


def server_warnings(client: Any) -> list[str]:
    """One sentence for each thing that is wrong with the server; says nothing about what it may not look at."""
    try:
        info = client.info("everything")
    except ResponseError:
        return []  # an ACL may forbid INFO; that is no fault
    warnings = []
    version = str(info.get("valkey_version") or info.get("redis_version") or "")
    if version and _numbers(version) < OLDEST:
        warnings.append(f"the server is version {version}; 6.2 or later is needed")
    policy = str(info.get("maxmemory_policy", "noeviction"))
    if policy != "noeviction":
        warnings.append(
            f"the server evicts keys when memory runs out (maxmemory-policy {policy}), the schedule among them; "
            "use noeviction, or a server of its own"
        )
    if not info.get("aof_enabled") and not _snapshots(client):
        warnings.append(
            "the server keeps nothing on disk; after its restart only config entries come back (set appendonly yes)"
        )
    return warnings


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


def _snapshots(client: Any) -> bool:
    try:
        return bool(client.config_get("save").get("save"))
    except ResponseError:
        return True  # not allowed to look, so nothing to say

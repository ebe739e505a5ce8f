"""The record of changes, as tests look at it."""

from __future__ import annotations

import redis

from redbeat_lite.store.keys import Keys


def forget_changes(client: redis.Redis, keys: Keys) -> None:
    """Forget all changes: their record has the time of the server, which no test can stop."""
    client.delete(keys.changes)
    for name, state in client.hgetall(keys.state).items():
        client.hset(keys.state, name, state.partition(b"\n")[0])

"""The once-lock's scripts called directly: who holds a lock, who waits, and what a publisher claims."""

from __future__ import annotations

import itertools
from typing import Any

from redbeat_lite import Once
from redbeat_lite.once.claims import Claim
from redbeat_lite.once.lock_store import Hold, LockStore

tokens = (f"token-{n}" for n in itertools.count())


def held(task_id: str = "a", key: str | None = "k", **changes: Any) -> Hold:
    values: dict[str, Any] = {"attempt": 0, "lease_ms": 60_000, "life_ms": 60_000, **changes}
    return Hold(token=next(tokens), task_id=task_id, key=key, **values)


def begin(store: LockStore, one: Hold, **options: Any) -> str:
    return store.begin(one, **options).word


def wake(store: LockStore, **options: Any) -> str | None:
    """The message that is to be published now."""
    turn = store.wake("k", **options)
    assert turn is None or not turn.too_old
    return turn and turn.message


def claim(name: str, task_id: str, **policy: Any) -> Claim:
    return Claim(name, "proj.task", (name,), {}, Once(**{"scope": "queue", "lease": 5, **policy}), task_id)

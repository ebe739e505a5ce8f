"""The once-lock's scripts called directly: who holds a lock, who waits, and what a publisher claims."""

from __future__ import annotations

import itertools
from typing import Any

from redbeat_lite import Once
from redbeat_lite.once.claims import ONCE_HEADER, Claim, Hold, call_key, once_header
from redbeat_lite.once.lock_store import LockStore
from redbeat_lite.store.redis_values import text

#: Milliseconds for which a key stays in the index if no worker looks after it.
KEPT_MS = 7 * 86_400_000

tokens = (f"token-{n}" for n in itertools.count())


def held(task_id: str = "a", key: str | None = "k", **changes: Any) -> Hold:
    values: dict[str, Any] = {"attempt": 0, "lease_ms": 60_000, "life_ms": 60_000, **changes}
    return Hold(token=next(tokens), task_id=task_id, key=key, **values)


def begin(store: LockStore, one: Hold, message: str = "", **changes: Any) -> str:
    """Ask whether a run may begin, after these changes of its hold."""
    for name, value in changes.items():
        setattr(one, name, value)
    return store.begin(one, message).word


def released(store: LockStore, one: Hold, **options: Any) -> bool:
    """End a run, and return whether this has released its lock."""
    lock = store.keys.lock(str(one.key))
    had_lock = text(store.client.hget(lock, "token")) == one.token
    store.end(one, **options)
    return had_lock and text(store.client.hget(lock, "token")) != one.token


def leave(store: LockStore, task_id: str, attempt: int = 0) -> bool:
    """Let a task leave the lock ``k``, and return whether another one may wait for it."""
    return store.leave("k", task_id, attempt)


def wake(store: LockStore, **options: Any) -> str | None:
    """The message that is to be published now."""
    turn = store.wake("k", **options)
    if turn is None:
        return None
    message, is_too_old = turn
    assert not is_too_old
    return message


def claim_of(
    name: str, task_name: str, args: Any, kwargs: Any, once: Once, task_id: str, task: Any = None, queue: str = ""
) -> Claim:
    """The claim of an entry's occurrence, as the beat makes it."""
    return Claim(call_key(once, task, task_name, args, kwargs), task_id, once.lease_ms, f"entry {name}", queue)


def headers(one: Claim, once: Once) -> dict[str, Any]:
    """The headers by which the message of an entry names its lock."""
    return {ONCE_HEADER: once_header(one.key, once)}


def claim(name: str, task_id: str, **policy: Any) -> Claim:
    once = Once(**{"scope": "queue", "lease": 5, **policy})
    return claim_of(name, "proj.task", (name,), {}, once, task_id)


def wanted(key: str, task_id: str, lease_ms: int, delay_ms: int, holder: str, queue: str, **more: int) -> Claim:
    return Claim(key, task_id, lease_ms, holder, queue, delay_ms, **more)

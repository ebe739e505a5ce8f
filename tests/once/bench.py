"""How long a lock takes: one acquire and one release, as a task pays for them."""

from __future__ import annotations

import time
from typing import Any
from uuid import uuid4

from redbeat_lite.once.claims import Hold
from redbeat_lite.once.lock_store import LockStore


def acquire_and_release(client: Any, times: int = 2_000) -> float:
    """Microseconds for taking and giving back one lock together with the guard's record; two round trips."""
    store, run = LockStore(client, "bench"), uuid4().hex
    started = time.perf_counter()
    for n in range(times):
        held = Hold(f"token-{n}", f"{run}-{n}", 0, 60_000, key=f"key-{n % 100}", life_ms=1_000)
        if store.begin(held).word != "run":
            raise AssertionError("a free lock was refused")
        store.end(held)
    return (time.perf_counter() - started) / times * 1e6

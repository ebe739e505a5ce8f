"""The once-locks of redbeat_lite."""

from __future__ import annotations

import time
from statistics import median
from uuid import uuid4

import redis

from benchmarks.subjects.common import Figures, Task, client, commands, empty
from redbeat_lite.once.store import Held, LockStore


def measure(task: Task) -> Figures:
    """What taking a lock at the start of a run and giving it back at its end costs: microseconds, commands."""
    server = client(task.url)
    empty(server)
    store = LockStore(server, "redbeat-lite")
    _take_and_give_back(store, 0)
    with commands(server) as seen:
        _take_and_give_back(store, 1)
    took = []
    for number in range(task.ticks):
        started = time.perf_counter()
        _take_and_give_back(store, number)
        took.append(time.perf_counter() - started)
    return {"lock.us": 1e6 * median(took), "lock.trips": len(seen), "ping.us": 1e6 * _ping(server, task.ticks)}


def _ping(server: redis.Redis, count: int) -> float:
    """Seconds of the cheapest round trip there is: what nobody can go below."""
    took = []
    for _ in range(count):
        started = time.perf_counter()
        server.ping()
        took.append(time.perf_counter() - started)
    return median(took)


def _take_and_give_back(store: LockStore, number: int) -> None:
    task_id = str(uuid4())
    deadline = round(time.time() * 1000) + 60_000
    held = Held(uuid4().hex, task_id, 0, 60_000, f"customer-{number % 100}", holder="bench", deadline_ms=deadline)
    if store.begin(held).word != "run":
        raise RuntimeError("the lock should have been free")
    if not store.end(held).released:
        raise RuntimeError("the lock should have been given back")

"""The once-locks of redbeat_lite."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from uuid import uuid4

import redis

from benchmarks.subjects.common import Figures, Task, client, commands, empty
from redbeat_lite._base.ids import random_hex
from redbeat_lite.once.claims import Hold
from redbeat_lite.once.lock_store import LockStore


def measure(task: Task) -> Figures:
    """What taking a lock at the start of a run and giving it back at its end costs: microseconds, commands."""
    server = client(task.url)
    empty(server)
    store = LockStore(server, "redbeat-lite")
    _take_and_give_back(store, 0, str(uuid4()))
    with commands(server) as seen:
        _take_and_give_back(store, 1, str(uuid4()))
    figures: Figures = {"lock.trips": len(seen)}
    figures |= {"lock.idle.us": _lock_us(store, task.ticks), "ping.idle.us": _ping_us(server, task.ticks)}
    with _awake():
        figures |= {"lock.us": _lock_us(store, task.ticks), "ping.us": _ping_us(server, task.ticks)}
        figures["lock.ratio"] = _against_redis_pys(store, server, task.ticks)
    return figures


@contextmanager
def _awake() -> Iterator[None]:
    """Keep every core from sleeping. The two sides of a round trip wait for each other, and on an idle machine each
    reply finds a core asleep, which takes longer to wake than the whole round trip of a machine that has work."""
    endless = "import os\nos.nice(19)\nwhile True: pass"
    spinning = [subprocess.Popen([sys.executable, "-c", endless]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def _lock_us(store: LockStore, count: int) -> float:
    took = []
    for number in range(count):
        task_id = str(uuid4())  # which a message has already
        started = time.perf_counter()
        _take_and_give_back(store, number, task_id)
        took.append(time.perf_counter() - started)
    return 1e6 * median(took)


def _against_redis_pys(store: LockStore, server: redis.Redis, count: int) -> float:
    """In turn with redis-py's own lock, which has an owner and an end, but no guard, fence, queue or record."""
    ours, theirs = [], []
    for number in range(count):
        task_id = str(uuid4())  # which a message has already
        started = time.perf_counter()
        _take_and_give_back(store, number, task_id)
        between = time.perf_counter()
        lock = server.lock(f"customer-{number % 100}", timeout=60)
        if not lock.acquire(blocking=False):
            raise RuntimeError("redis-py's lock should have been free")
        lock.release()
        ours.append(between - started)
        theirs.append(time.perf_counter() - between)
    return median(ours) / median(theirs)


def _ping_us(server: redis.Redis, count: int) -> float:
    """The cheapest round trip there is: what nobody can go below."""
    took = []
    for _ in range(count):
        started = time.perf_counter()
        server.ping()
        took.append(time.perf_counter() - started)
    return 1e6 * median(took)


def _take_and_give_back(store: LockStore, number: int, task_id: str) -> None:
    deadline = round(time.time() * 1000) + 60_000
    held = Hold(random_hex(), task_id, 0, 60_000, f"customer-{number % 100}", holder="bench", deadline_ms=deadline)
    if store.begin(held).word != "run":
        raise RuntimeError("the lock should have been free")
    store.end(held)

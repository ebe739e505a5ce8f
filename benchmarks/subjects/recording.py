"""What a worker pays for the record of runs: processor time of the process that runs the tasks, all its threads."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import Any
from uuid import uuid4

import redis
from celery import Celery

from benchmarks.beats import ROOT
from benchmarks.subjects.common import Figures, Task, client, empty, names
from redbeat_lite.entries.run import HISTORY_HEADER

#: Batches of each kind, in turn; entries that the messages are of.
_TURNS, _ENTRIES = 4, 20

#: What is compared: the worker, the task, and how many runs are kept of the entries that its messages are of.
_KINDS = {
    "plain": ("without", "bench.plain", 20),
    "plain.recorded": ("with", "bench.plain", 20),
    "locked": ("with", "bench.locked", 0),
    "locked.recorded": ("with", "bench.locked", 20),
}


def measure(task: Task) -> Figures:
    """Microseconds a task that recording takes: of a task without lock and guard, and of one with both."""
    server = client(task.url)
    empty(server)
    app = Celery("bench", broker=task.url, set_as_current=False)
    took: dict[str, list[float]] = {kind: [] for kind in _KINDS}
    with _worker(task.url, "without", install=False), _worker(task.url, "with", install=True):
        for turn in range(_TURNS + 1):
            for kind, (worker, name, history) in _KINDS.items():
                used = _batch(app, server, worker, name, history, task.ticks)
                if turn:  # the first one makes connections and fills caches
                    took[kind].append(1e6 * used / task.ticks)
    empty(server)
    us = {kind: median(each) for kind, each in took.items()}
    return {each: us[f"{each}.recorded"] - us[each] for each in ("plain", "locked")}


def _batch(app: Celery, server: redis.Redis, worker: str, name: str, history: int, count: int) -> float:
    """Seconds of the processor for so many messages of entries, which lie in the queue before they are run."""
    began, marks = datetime.now(UTC), f"marks-{uuid4().hex}"
    with app.producer_pool.acquire() as producer:

        def send(task: str, n: Any, headers: dict[str, Any]) -> None:
            app.send_task(task, args=[n], queue="staged", headers=headers, producer=producer)

        send("bench.mark", marks, {})
        for n in range(count):
            at = (began + timedelta(milliseconds=n)).isoformat()
            told = {"periodic_task_name": names(_ENTRIES)[n % _ENTRIES], "scheduled_at": at, HISTORY_HEADER: history}
            send(name, n, told)
        send("bench.mark", marks, {})
    server.rename("staged", worker)
    before, after = _mark(server, marks), _mark(server, marks)
    return after - before


def _mark(server: redis.Redis, key: str) -> float:
    for _ in range(60):
        if found := server.blpop([key], timeout=1):
            return float(found[1])
    raise RuntimeError("the worker runs nothing")


@contextmanager
def _worker(url: str, name: str, *, install: bool) -> Iterator[None]:
    """A worker with one process for its tasks, which takes from the queue of its name."""
    words = ("worker", "-n", f"{name}@bench", "-Q", name, "-c", "1", "--without-gossip", "--without-mingle")
    command = [sys.executable, "-m", "celery", "-A", "benchmarks.taskproj", *words, "--without-heartbeat"]
    env = {**os.environ, "BENCH_URL": url, "BENCH_INSTALL": str(int(install))}
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, env=env, cwd=ROOT, stdout=quiet, stderr=quiet)
    try:
        yield
    finally:
        process.terminate()
        process.wait(15)

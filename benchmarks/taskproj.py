"""The app of the worker processes of the benchmark, of one that records what becomes of runs and one that does not."""

from __future__ import annotations

import os
import time

import redis
from celery import Celery

from redbeat_lite import Task, install

app = Celery("benchmarks.taskproj", broker=os.environ["BENCH_URL"])
app.conf.update(task_ignore_result=True, worker_prefetch_multiplier=500, task_create_missing_queues=True)
if os.environ["BENCH_INSTALL"] == "1":
    install(app)


@app.task(name="bench.plain")  # type: ignore[untyped-decorator]
def plain(n: int) -> None: ...


@app.task(name="bench.locked", base=Task, once=True)  # type: ignore[untyped-decorator]
def locked(n: int) -> None: ...


@app.task(name="bench.mark")  # type: ignore[untyped-decorator]
def mark(key: str) -> None:
    """Tell what this process has used of the processor, all of its threads together, in seconds."""
    used = time.process_time()
    redis.Redis.from_url(os.environ["BENCH_URL"]).rpush(key, used)

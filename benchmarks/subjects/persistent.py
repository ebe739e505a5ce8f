"""Celery's own ``PersistentScheduler``."""

from __future__ import annotations

import tempfile
from pathlib import Path

from celery.beat import PersistentScheduler
from celery.schedules import schedule

from benchmarks.subjects.common import TASK, Figures, Task, arguments, client, empty, long_ago, make_app, names
from benchmarks.subjects.ticking import rate


def measure(task: Task) -> Figures:
    return {f"rate.interval.{count}": _rate(task, count) for count in (*task.due_steps, task.due)}


def _rate(task: Task, count: int) -> float:
    server = client(task.url)
    empty(server)
    app = make_app(task.url)
    last, hourly, entries = long_ago(), schedule(3600, app=app), {}
    for number, name in enumerate(names(count)):
        args, kwargs = arguments(number)
        entries[name] = {"task": TASK, "schedule": hourly, "args": args, "kwargs": kwargs, "last_run_at": last}
    app.conf.beat_schedule = entries
    with tempfile.TemporaryDirectory() as directory:
        scheduler = PersistentScheduler(app, schedule_filename=str(Path(directory) / "schedule"), max_interval=300)
        try:
            return rate(scheduler, server, min(task.ticks, count - 1))
        finally:
            scheduler.close()

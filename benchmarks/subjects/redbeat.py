"""celery-redbeat."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import redis
from celery import Celery
from celery.schedules import crontab, schedule
from redbeat import RedBeatScheduler, RedBeatSchedulerEntry

from benchmarks.stats import seconds
from benchmarks.subjects.common import (
    TASK,
    Figures,
    Task,
    arguments,
    check_queue,
    client,
    commands,
    empty,
    full,
    long_ago,
    make_app,
    memory,
    names,
)


def measure(task: Task) -> Figures:
    server = client(task.url)
    # Without its lock, which costs it a command per tick.
    app = make_app(task.url, redbeat_redis_url=task.url, redbeat_lock_key=None)
    figures = {}
    rules = {"interval": schedule(3600, app=app), "cron": crontab(minute="0", app=app)}
    for key, rule in rules.items():
        empty(server)
        before = memory(server)
        figures["added"] = task.due / seconds(partial(_save_all, app, rule, task.due))
        figures[f"bytes.{key}"] = (memory(server) - before) / task.due
        figures[f"rate.{key}"] = task.due / _dispatch(app, server, task.due)
    empty(server)
    before = memory(server)
    _save_all(app, rules["interval"], task.due, full)
    figures["bytes.full"] = (memory(server) - before) / task.due
    for due in task.due_steps:
        empty(server)
        _save_all(app, rules["interval"], due)
        figures[f"rate.interval.{due}"] = due / _dispatch(app, server, due)
    return figures | _commands(app, server, rules["interval"])


def _save_all(app: Celery, rule: Any, count: int, given: Callable[[int], Sequence[Any]] = arguments) -> None:
    last = long_ago()
    for number, name in enumerate(names(count)):
        args, kwargs, *options = given(number)
        entry = RedBeatSchedulerEntry(name, TASK, rule, args, kwargs, options=dict(*options), app=app)
        entry.last_run_at = last
        entry.save()


def _scheduler(app: Celery) -> RedBeatScheduler:
    scheduler = RedBeatScheduler(app, max_interval=300)
    scheduler.producer.connection.ensure_connection()
    return scheduler


def _dispatch(app: Celery, server: redis.Redis, count: int) -> float:
    took = seconds(_scheduler(app).tick)
    check_queue(server, count)
    return took


def _commands(app: Celery, server: redis.Redis, rule: Any, count: int = 100) -> Figures:
    empty(server)
    _save_all(app, rule, count)
    scheduler = _scheduler(app)
    with commands(server) as busy:
        scheduler.tick()
    check_queue(server, count)
    with commands(server) as idle:
        scheduler.tick()
    return {"commands.due": (len(busy) - len(idle)) / count, "commands.idle": len(idle)}

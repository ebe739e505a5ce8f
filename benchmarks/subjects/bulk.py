"""Many entries changed by one call: how long a single command of it holds up the server."""

from __future__ import annotations

from typing import Any

import redis

from benchmarks.subjects.common import TASK, Figures, Task, arguments, client, empty, make_app, names
from redbeat_lite import Entry, Schedules, every

#: Entries that are paused.
COUNT = 10_000


def measure(task: Task) -> Figures:
    """Milliseconds that the longest command of a pause of 10,000 entries by tag takes in the server."""
    server = client(task.url)
    empty(server)
    schedules = Schedules(make_app(task.url))
    schedules.add_many(_entry(number, name) for number, name in enumerate(names(COUNT)))
    held = _longest_ms(server, schedules)
    empty(server)
    return {"held": held}


def _entry(number: int, name: str) -> Entry:
    args, kwargs = arguments(number)
    return Entry(name, TASK, every(3600), args, kwargs, tags=["all"])


def _longest_ms(server: redis.Redis, schedules: Schedules) -> float:
    before: Any = server.config_get("slowlog-*")
    server.config_set("slowlog-max-len", 10_000)
    server.slowlog_reset()
    server.config_set("slowlog-log-slower-than", 0)
    paused = schedules.select(tag="all").pause("for a look")
    for name, value in before.items():
        server.config_set(name, value)
    commands = server.slowlog_get(10_000)
    server.slowlog_reset()
    if len(paused) != COUNT:
        raise RuntimeError(f"{COUNT} entries should have been paused, {len(paused)} were")
    return max(float(each["duration"]) for each in commands) / 1000

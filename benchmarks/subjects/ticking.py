"""Timing a scheduler that takes one entry per tick."""

from __future__ import annotations

from typing import Any

import redis

from benchmarks.stats import seconds
from benchmarks.subjects.common import check_queue


def rate(scheduler: Any, server: redis.Redis, ticks: int) -> float:
    """Entries dispatched per second, all of them due. The first tick, which sorts the schedule, is left out."""
    scheduler.tick()
    took = seconds(lambda: [scheduler.tick() for _ in range(ticks)])
    check_queue(server, ticks + 1)
    return ticks / took

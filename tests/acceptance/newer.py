"""A schedule class that an app has in its newer version: only processes that import this module know it."""

from __future__ import annotations

from datetime import timedelta

from celery.schedules import schedule

from redbeat_lite import register_schedule


class Interval(schedule):  # type: ignore[misc]  # Celery ships no types
    pass


def stored(found: Interval) -> float:
    return float(found.run_every.total_seconds())


def restored(seconds: float) -> Interval:
    return Interval(timedelta(seconds=seconds))


register_schedule(Interval, stored, restored)

"""Moving in from a real database of django-celery-beat, with its own models and its own answers."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from celery import Celery

from redbeat_lite.importers.djangobeat import DjangoBeatSource
from redbeat_lite.importers.moving import Move, MoveIn
from tests.support.frozen import Clock

PERIODS = {"days": 3, "hours": 7, "minutes": 45, "seconds": 10, "microseconds": 500_000}
CRONTABS = [
    {"minute": "0", "hour": "3"},
    {"minute": "*/15"},
    {"minute": "5,35", "hour": "*/2", "day_of_week": "mon-fri"},
    {"minute": "0", "hour": "6", "day_of_month": "1,15"},
    {"minute": "30", "hour": "22-4", "month_of_year": "1-6"},
    {"minute": "0", "hour": "9", "day_of_month": "1-7", "day_of_week": "mon"},
    {"minute": "*/20", "hour": "*", "day_of_month": "1-7", "day_of_week": "sunday,2"},
    {"minute": "10", "hour": "*/3", "day_of_month": "*/2", "month_of_year": "*/4", "day_of_week": "1-5"},
]
ZONES = ["Europe/Berlin", "UTC", "Asia/Tokyo", "America/New_York", "Asia/Kolkata"]
EVENTS = ["dawn_civil", "sunrise", "solar_noon", "sunset", "dusk_astronomical"]


@pytest.fixture
def django_app(make_app: Callable[..., Celery]) -> Celery:
    return make_app()


def plan(app: Celery, *, apply: bool = False, replace: bool = False) -> dict[str, Move]:
    mover = MoveIn(app, replace=replace)
    try:
        moves = mover.plan(DjangoBeatSource())
        if apply:
            mover.apply(moves)
        return {move.name: move for move in moves}
    finally:
        mover.close()


def own_answer(app: Celery, row: Any, now: datetime) -> datetime | None:
    """When django-celery-beat itself would run a task."""
    from django_celery_beat.schedulers import ModelEntry

    due, wait = ModelEntry(row, app=app).is_due()
    return now if due else now + timedelta(seconds=wait)


def every_kind(models: Any, now: datetime) -> list[Any]:
    """A task of every kind of schedule, each with several last runs, and none."""
    drawn = random.Random(5)
    schedules: list[dict[str, Any]] = []
    schedules += [
        {"interval": models.IntervalSchedule.objects.create(every=every, period=period)}
        for period, every in PERIODS.items()
    ]
    schedules += [
        {"crontab": models.CrontabSchedule.objects.create(**fields, timezone=zone)}
        for fields, zone in itertools.product(CRONTABS, ZONES)
    ]
    schedules += [
        {"solar": models.SolarSchedule.objects.create(event=event, latitude="52.52", longitude="13.405")}
        for event in EVENTS
    ]
    tasks = [
        models.PeriodicTask(name=f"{index}:{age}", task="shop.sync", **fields, last_run_at=_last(now, age, drawn))
        for index, fields in enumerate(schedules)
        for age in (0, 0.3, 20)
    ]
    tasks += [
        models.PeriodicTask(
            name=f"clocked:{seconds}",
            task="shop.sync",
            one_off=True,
            clocked=models.ClockedSchedule.objects.create(clocked_time=now + timedelta(seconds=seconds)),
        )
        for seconds in (-3600, 90, 86_400 * 40)
    ]
    for task in tasks:
        task.save()
    return list(models.PeriodicTask.objects.all())


def _last(now: datetime, days: float, drawn: random.Random) -> datetime | None:
    return now - timedelta(days=days * drawn.uniform(0.1, 1)) if days else None


def test_every_kind_of_schedule_runs_next_when_django_celery_beat_would_run_it(
    models: Any, django_app: Celery, clock: Clock
) -> None:
    rows = every_kind(models, clock.now)
    clock.forward(11)
    moves = plan(django_app)
    differing = []
    for row in rows:
        entry = moves[row.name].entry
        assert entry is not None, moves[row.name]
        ours = max(entry.next_run_at, clock.now)
        theirs = own_answer(django_app, row, clock.now)
        # Our instants are whole milliseconds, those of the sun whole seconds.
        if abs(ours - theirs) > timedelta(seconds=1 if row.solar else 0.001):
            differing.append((row.name, str(row.scheduler), row.last_run_at, theirs, ours))
    assert not differing
    assert len(rows) == len(moves) == 153

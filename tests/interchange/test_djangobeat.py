"""Moving in from a real database of django-celery-beat, with its own models and its own answers."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
import redis
from celery import Celery
from celery.schedules import schedule
from django.db import transaction

from redbeat_lite import Entry, Scheduler, Schedules, at, cron
from redbeat_lite.entries.foreign_fields import FOREIGN_HINTS, translate_fields
from redbeat_lite.entries.model import FIELDS
from redbeat_lite.interchange.move_in import MoveIn, Step
from redbeat_lite.interchange.sources import DjangoBeatSource
from tests.support.frozen import Clock
from tests.support.messages import of_entry
from tests.support.processes import ROOT

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


def plan(app: Celery, *, apply: bool = False, replace: bool = False) -> dict[str, Step]:
    mover = MoveIn(app, replace=replace)
    moves = mover.plan(DjangoBeatSource().read())
    if apply:
        moves = mover.apply(moves)
    return {move.name: move for move in moves}


def own_answer(app: Celery, row: Any, now: datetime) -> datetime | None:
    """When django-celery-beat itself would run a task."""
    from django_celery_beat.schedulers import ModelEntry

    due, wait = ModelEntry(row, app=app).is_due()
    return now if due else now + timedelta(seconds=wait)


def every_kind(models: Any, now: datetime) -> list[Any]:
    """A task of every kind of schedule, each with several last runs, and none."""
    with transaction.atomic():  # one write to the disk instead of hundreds
        return _every_kind(models, now)


def _every_kind(models: Any, now: datetime) -> list[Any]:
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


def add(models: Any, name: str, **fields: Any) -> Any:
    """A task, each minute unless it says otherwise."""
    if not {"interval", "crontab", "solar", "clocked"} & {*fields}:
        fields["interval"] = models.IntervalSchedule.objects.create(every=60, period="seconds")
    task = models.PeriodicTask(name=name, task="shop.sync", **fields)
    task.save()
    return task


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


def test_what_the_sun_has_brought_about_does_not_come_again(models: Any, django_app: Celery, clock: Clock) -> None:
    """Two programs find the same sunset some fractions of a second apart."""
    from django_celery_beat.schedulers import ModelEntry

    place = models.SolarSchedule.objects.create(event="sunset", latitude="52.52", longitude="13.405")
    place.refresh_from_db()
    row = add(models, "sunset", solar=place, last_run_at=clock.now)
    for _ in range(10):
        clock.forward(ModelEntry(row, app=django_app).is_due().next + 0.01)
        row = next(ModelEntry(row, app=django_app)).model
        row.save()
        entry = plan(django_app)["sunset"].entry
        assert entry is not None
        assert timedelta(hours=23) < entry.next_run_at - clock.now < timedelta(hours=25)


def test_everything_a_task_holds_is_carried_over(models: Any, django_app: Celery, clock: Clock) -> None:
    end = clock.now + timedelta(days=30)
    last = clock.now - timedelta(minutes=3)
    hour = models.CrontabSchedule.objects.create(minute="0", hour="9", timezone="Asia/Tokyo")
    add(
        models,
        "full",
        crontab=hour,
        args='[1, "two"]',
        kwargs='{"full": true}',
        queue="slow",
        exchange="e",
        routing_key="slow.now",
        priority=4,
        headers='{"tenant": "a"}',
        expires=end,
        start_time=clock.now - timedelta(days=1),
        last_run_at=last,
        total_run_count=12,
        description="Since 2019.",
    )
    add(models, "brief", expire_seconds=30, last_run_at=last)
    plan(django_app, apply=True)
    schedules = Schedules(django_app)
    entry = schedules["full"]
    assert entry == Entry(
        "full",
        "shop.sync",
        cron("0 9 * * *", tz="Asia/Tokyo"),
        [1, "two"],
        {"full": True},
        {
            "queue": "slow",
            "exchange": "e",
            "routing_key": "slow.now",
            "priority": 4,
            "expires": end,
            "headers": {"tenant": "a"},
        },
        start_at=clock.now - timedelta(days=1),
        end_at=end - timedelta(milliseconds=1),
        description="Since 2019.",
    )
    assert (entry.total_run_count, entry.last_run_at) == (12, last)
    assert schedules["brief"].options == {"expires": 30}
    assert schedules["brief"].last_run_at == last, "its counter says 0"


def test_one_offs_run_once_or_have_run(
    models: Any,
    django_app: Celery,
    clock: Clock,
    client: redis.Redis,
    make_beat: Callable[[Celery], Scheduler],
) -> None:
    def clocked(seconds: float) -> Any:
        return models.ClockedSchedule.objects.create(clocked_time=clock.now + timedelta(seconds=seconds))

    add(models, "soon", clocked=clocked(30), one_off=True)
    add(models, "missed", clocked=clocked(-30), one_off=True)
    add(models, "past", clocked=clocked(-30), one_off=True, enabled=False)
    add(models, "interval", one_off=True, last_run_at=clock.now)
    add(models, "ran", one_off=True, last_run_at=clock.now, total_run_count=1)
    moves = plan(django_app, apply=True)
    assert moves["past"].notes == ("a one-off that is disabled and past: it has run, or never will",)
    assert "has run" in moves["ran"].notes[0]
    schedules = Schedules(django_app)
    assert schedules["soon"].schedule == at(clock.now + timedelta(seconds=30))
    assert schedules["ran"].enabled is False
    inner_beat = make_beat(django_app)
    for _ in range(30):
        inner_beat.run_due()
        clock.forward(10)
    assert {name: len(of_entry(client, name)) for name in schedules} == {
        "soon": 1,
        "missed": 1,
        "interval": 1,
        "ran": 0,
    }


def test_a_task_that_waits_for_its_start_runs_then(models: Any, django_app: Celery, clock: Clock) -> None:
    start = clock.now + timedelta(hours=2)
    ready = clock.now - timedelta(hours=2)
    nine = models.CrontabSchedule.objects.create(minute="0", hour="9", timezone="UTC")
    add(models, "interval", start_time=start)
    add(models, "crontab", start_time=start, crontab=nine)
    add(models, "started", start_time=ready)
    moves = plan(django_app)
    assert {name: move.entry.next_run_at for name, move in moves.items() if move.entry is not None} == {
        "interval": start,
        "crontab": (clock.now + timedelta(days=1)).replace(hour=9, minute=0, second=0),
        "started": clock.now,
    }


def test_what_cannot_be_carried_over_is_said_with_its_reason(models: Any, django_app: Celery, clock: Clock) -> None:
    microseconds = models.IntervalSchedule.objects.create(every=5, period="microseconds")
    interval = models.IntervalSchedule.objects.create(every=1, period="days")
    hour = models.CrontabSchedule.objects.create(minute="0", hour="9", timezone="UTC")
    add(models, "fine")
    add(models, "too fast", interval=microseconds)
    add(models, "expired", expires=clock.now - timedelta(seconds=1))
    add(models, "garbled")
    add(models, "both", interval=interval)
    models.PeriodicTask.objects.filter(name="garbled").update(kwargs="{")
    models.PeriodicTask.objects.filter(name="both").update(crontab=hour)
    reasons = {name: move.notes[0] for name, move in plan(django_app).items() if move.action == "left out"}
    assert reasons == {
        "too fast": 'schedule: expected seconds, a timedelta or a text such as "1h30m", at least 0.05 s '
        "and at most 100 years, got datetime.timedelta(microseconds=5)",
        "expired": f"it has expired ({clock.now - timedelta(seconds=1):%Y-%m-%dT%H:%M:%S+00:00}); "
        "django-celery-beat would disable it",
        "garbled": reasons["garbled"],
        "both": "it has 2 schedules (interval, crontab) instead of one",
    }
    assert "cannot be read: JSONDecodeError" in reasons["garbled"]


def test_a_project_without_time_zones_means_utc_and_the_zone_of_the_app(
    models: Any, django_app: Celery, clock: Clock
) -> None:
    nine = models.CrontabSchedule.objects.create(minute="0", hour="9", timezone="Asia/Tokyo")
    soon = models.ClockedSchedule.objects.create(clocked_time=clock.now + timedelta(seconds=90))
    last = clock.now - timedelta(seconds=20)
    add(models, "interval", last_run_at=last, start_time=clock.now - timedelta(days=1))
    add(models, "crontab", crontab=nine, last_run_at=last)
    add(models, "clocked", clocked=soon, one_off=True, last_run_at=last)
    from django.test import override_settings  # takes half a second, in every process that only looks for tests

    with override_settings(USE_TZ=False, DJANGO_CELERY_BEAT_TZ_AWARE=False, TIME_ZONE="UTC"):
        moves = plan(django_app)
        rows = list(models.PeriodicTask.objects.all())
        assert all(row.last_run_at.tzinfo is None for row in rows)
        theirs = {row.name: own_answer(django_app, row, clock.now) for row in rows}
    ours = {name: move.entry.next_run_at for name, move in moves.items() if move.entry is not None}
    assert ours == theirs
    assert ours["crontab"].hour == 8, "nine in Berlin"


def test_a_task_of_beat_schedule_stays_the_configurations(models: Any, django_app: Celery, clock: Clock) -> None:
    django_app.conf.beat_schedule = {"slow": {"task": "shop.sync", "schedule": 3600}}
    add(models, "slow", last_run_at=clock.now - timedelta(minutes=50), total_run_count=5)
    entry = plan(django_app, apply=True)["slow"].entry
    assert entry is not None
    assert (entry.source, entry.schedule) == ("config:proj", schedule(3600))
    assert entry.next_run_at == clock.now + timedelta(minutes=10)


def test_its_database_is_only_read(models: Any, django_app: Celery) -> None:
    add(models, "entry")
    before = list(models.PeriodicTask.objects.values())
    plan(django_app, apply=True)
    assert list(models.PeriodicTask.objects.values()) == before


def test_without_a_django_project_one_line_says_what_to_do() -> None:
    look = "from redbeat_lite.interchange.sources import DjangoBeatSource; DjangoBeatSource()"
    done = subprocess.run([sys.executable, "-c", look], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "ConfigurationError: django-celery-beat: expected Django, DJANGO_SETTINGS_MODULE, and" in done.stderr


def test_no_column_of_its_table_is_a_stranger_in_a_beat_schedule(models: Any) -> None:
    """It takes them all in ``beat_schedule``, as far as they go into a row."""
    columns = {field.name for field in models.PeriodicTask._meta.concrete_fields} - {"id"}
    taken = {name for name in columns if name not in translate_fields({name: True})} | {*FIELDS, "relative"}
    assert {"one_off", "queue", "expire_seconds"} < columns
    assert [name for name in columns if name not in taken and FOREIGN_HINTS.get(name) is None] == []

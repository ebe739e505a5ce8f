"""What a silent beat tells about another one: the comparison, over stores that the real schedulers write."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
import redis
from celery import Celery
from celery.schedules import crontab, schedule
from redbeat import RedBeatSchedulerEntry

from redbeat_lite._base.times import to_ms
from redbeat_lite.interchange.move_in import Carrier
from redbeat_lite.interchange.shadow import Difference, Shadow
from redbeat_lite.interchange.sources import DjangoBeatSource, RedBeatSource
from redbeat_lite.settings import Settings
from tests.support.commands import commands
from tests.support.frozen import Clock
from tests.support.server import Server

Source = RedBeatSource | DjangoBeatSource


@pytest.fixture
def peer_app(make_app: Callable[..., Celery], server: Server) -> Celery:
    """An app whose beat is celery-redbeat."""
    return make_app(redbeat_redis_url=server.url)


class Watcher:
    """A shadow beside a store, and the clock both live by."""

    def __init__(self, app: Celery, source: Source, clock: Clock, tolerance: float = 2) -> None:
        carrier = Carrier(app, Settings.from_app(app))
        self.shadow = Shadow(carrier, app.timezone, tolerance=tolerance, lag=source.lag)
        self._source, self._clock = source, clock

    def look(self) -> list[Difference]:
        return [*self.shadow.look(self._source.read(), to_ms(self._clock.now))]

    def kinds(self) -> list[tuple[str, str]]:
        return [(each.name, each.kind) for each in self.look()]


@pytest.fixture
def watcher(peer_app: Celery, clock: Clock) -> Watcher:
    return Watcher(peer_app, RedBeatSource(peer_app), clock)


def save(app: Celery, name: str, found: Any, **fields: Any) -> None:
    RedBeatSchedulerEntry(name, "shop.sync", found, app=app, **fields).save()


def run(app: Celery, name: str) -> datetime:
    """A run as celery-redbeat notes it, when it says it is due."""
    entry = RedBeatSchedulerEntry.from_key(f"redbeat:{name}", app=app)
    return next(entry).last_run_at


def test_a_beat_that_does_as_we_would_differs_in_nothing(peer_app: Celery, watcher: Watcher, clock: Clock) -> None:
    drawn = random.Random(3)
    names = {"fast": schedule(1), "interval": schedule(7), "crontab": crontab(minute="*/2"), "daily": crontab(0, 13)}
    for name, found in names.items():
        save(peer_app, name, found)
    ran = 0
    for _ in range(150):
        # Its loop wakes up a little late, each time, and counts from there.
        clock.forward(drawn.uniform(0.2, 0.6))
        for name in names:
            if RedBeatSchedulerEntry.from_key(f"redbeat:{name}", app=peer_app).is_due().is_due:
                run(peer_app, name)
                ran += 1
        if drawn.random() < 0.3:
            assert watcher.look() == []
    assert watcher.look() == []
    assert watcher.shadow.watched == 4
    assert 0 <= ran - watcher.shadow.agreed <= 4 + 7, "all but those before the first look"


def test_each_way_of_doing_otherwise_is_told(peer_app: Celery, watcher: Watcher, clock: Clock) -> None:
    save(peer_app, "late", schedule(60))
    save(peer_app, "early", crontab(minute=30))
    save(peer_app, "silent", schedule(60))
    save(peer_app, "fewer", schedule(10))
    save(peer_app, "more", schedule(60))
    save(peer_app, "x" * 201, schedule(60))
    assert watcher.kinds() == [("x" * 201, "left out")]
    assert watcher.kinds() == []
    clock.forward(60)
    for name in ("early", "fewer", "more", "more", "more"):
        run(peer_app, name)
    assert watcher.kinds() == [("fewer", "fewer"), ("more", "more"), ("early", "early")]
    clock.forward(5)
    run(peer_app, "late")
    told = {each.name: each for each in watcher.look()}
    assert {name: each.kind for name, each in told.items()} == {"late": "late", "silent": "not sent"}
    assert told["late"].text == (
        "it was due at 2026-03-02 13:08:19.000+01:00, and sent at 2026-03-02 13:08:24.000+01:00"
    )
    clock.forward(1)
    assert watcher.kinds() == [], "told once"
    assert watcher.shadow.counts == {"left out": 1, "fewer": 1, "more": 1, "early": 1, "late": 1, "not sent": 1}


def test_what_is_overdue_at_the_first_look_has_its_time(peer_app: Celery, watcher: Watcher, clock: Clock) -> None:
    save(peer_app, "overdue", schedule(60), last_run_at=clock.now - timedelta(hours=1))
    assert watcher.look() == []
    clock.forward(1)
    assert watcher.look() == []
    clock.forward(2)
    assert watcher.kinds() == [("overdue", "not sent")]


def test_a_tolerance_longer_than_the_gap_does_not_take_one_run_for_two(peer_app: Celery, clock: Clock) -> None:
    watcher = Watcher(peer_app, RedBeatSource(peer_app), clock, tolerance=300)
    save(peer_app, "often", crontab())
    for _ in range(5):
        watcher.look()
        clock.set((clock.now + timedelta(minutes=1)).replace(second=1))
        run(peer_app, "often")
    assert watcher.look() == []
    assert (watcher.shadow.agreed, watcher.shadow.counts) == (5, {})


def test_an_edit_begins_anew(peer_app: Celery, watcher: Watcher, clock: Clock) -> None:
    save(peer_app, "edited", schedule(60))
    watcher.look()
    clock.forward(30)
    RedBeatSchedulerEntry("edited", "shop.sync", schedule(600), app=peer_app, last_run_at=clock.now).save()
    assert watcher.look() == []
    clock.forward(40)
    assert watcher.look() == []
    RedBeatSchedulerEntry("edited", "shop.sync", schedule(600), app=peer_app).delete()
    assert watcher.look() == []
    assert watcher.shadow.watched == 0


def test_django_celery_beat_is_given_the_time_it_takes_to_write_down_its_runs(
    models: Any, make_app: Callable[..., Celery], clock: Clock
) -> None:
    from django_celery_beat.schedulers import ModelEntry

    app = make_app()
    minute = models.IntervalSchedule.objects.create(every=60, period="seconds")
    row = models.PeriodicTask(name="often", task="shop.sync", interval=minute, last_run_at=clock.now)
    row.save()
    once = models.ClockedSchedule.objects.create(clocked_time=clock.now + timedelta(seconds=90))
    models.PeriodicTask(name="once", task="shop.sync", clocked=once, one_off=True).save()
    watcher = Watcher(app, DjangoBeatSource(), clock)
    assert watcher.look() == []
    entry = ModelEntry(row, app=app)
    for _ in range(3):
        clock.forward(60.05)
        entry = next(entry)
        assert watcher.look() == []
    assert watcher.shadow.undecided(to_ms(clock.now)) == 2
    entry.save()
    models.PeriodicTask.objects.filter(name="once").update(enabled=False, last_run_at=None)
    assert watcher.look() == []
    assert (watcher.shadow.agreed, watcher.shadow.undecided(to_ms(clock.now))) == (3, 0)
    clock.forward(60 + 190 + 3)
    assert watcher.kinds() == [("often", "not sent")]


def test_a_real_beat_of_django_celery_beat_is_followed(
    models: Any, make_app: Callable[..., Celery], clock: Clock
) -> None:
    from django_celery_beat.schedulers import DatabaseScheduler

    app = make_app(beat_sync_every=1)
    minute = models.IntervalSchedule.objects.create(every=60, period="seconds")
    hour = models.CrontabSchedule.objects.create(minute="*/5", timezone="Asia/Tokyo")
    models.PeriodicTask(name="interval", task="shop.sync", interval=minute, last_run_at=clock.now).save()
    models.PeriodicTask(name="crontab", task="shop.sync", crontab=hour, last_run_at=clock.now).save()
    watcher = Watcher(app, DjangoBeatSource(), clock)
    watcher.look()
    scheduler = DatabaseScheduler(app)
    ends = clock.now + timedelta(minutes=6)
    while clock.now < ends:
        clock.forward(max(scheduler.tick(), 0) + 0.01)
        assert watcher.look() == []
    assert watcher.shadow.agreed >= 6
    assert watcher.shadow.agreed == sum(row.total_run_count for row in models.PeriodicTask.objects.all())
    scheduler._finalize.cancel()


def test_it_only_reads(peer_app: Celery, watcher: Watcher, clock: Clock, server: Server, client: redis.Redis) -> None:
    save(peer_app, "often", schedule(1))
    run(peer_app, "often")
    before = {key: client.dump(key) for key in client.keys("*")}
    with commands(server) as asked:
        for _ in range(3):
            clock.forward(5)
            watcher.look()
    assert {command.split()[0].upper() for command in asked} <= {
        "ZRANGE",
        "SMEMBERS",
        "HMGET",
        "PTTL",
        "CLIENT",
        "HELLO",
        "PING",
    }
    assert {key: client.dump(key) for key in client.keys("*")} == before

"""The main job on the periodic tasks of public Celery projects."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter
from datetime import datetime, timedelta

import pytest
import redis
from celery.schedules import crontab

from redbeat_lite import Entry, Scheduler, Schedules
from tests.support.frozen import NOW, Clock
from tests.support.in_process import MakeApp, MakeBeat
from tests.support.messages import Message, parse
from tests.support.real import celerys_occurrences, real_entries


@pytest.fixture(scope="module")
def real() -> list[Entry]:
    return real_entries()


@pytest.fixture(params=[pytest.param(16, id="each sixteenth"), pytest.param(1, id="all", marks=pytest.mark.soak)])
def some(request: pytest.FixtureRequest, real: list[Entry]) -> list[Entry]:
    """As many of them as the ordinary run has the time to simulate, and all of them in the soak."""
    return real[:: request.param]


def test_there_are_hundreds_of_them_of_every_kind(real: list[Entry]) -> None:
    assert len(real) == len({entry.name for entry in real}) == 719
    assert Counter(type(entry.schedule).__name__ for entry in real) == {"crontab": 593, "schedule": 118, "solar": 8}


def test_the_form_of_each_makes_the_same_entry(real: list[Entry]) -> None:
    for entry in real:
        form = json.loads(json.dumps(entry.as_dict()["schedule"]))
        again = entry.replace(schedule=form)
        assert again == entry
        assert type(again.schedule) is type(entry.schedule)


@pytest.mark.usefixtures("clock")
def test_each_goes_in_and_reads_back_equal(schedules: Schedules, real: list[Entry]) -> None:
    schedules.add_many(real)
    stored = dict(schedules.items())
    assert len(stored) == len(real)
    for entry in real:
        assert stored[entry.name] == entry
        assert type(stored[entry.name].schedule) is type(entry.schedule)


def test_each_goes_in_through_the_configuration_and_reads_back_equal(
    make_app: MakeApp, make_beat: MakeBeat, clock: Clock, real: list[Entry]
) -> None:
    fields = ("task", "schedule", "args", "kwargs", "options")
    app = make_app(beat_schedule={entry.name: {field: getattr(entry, field) for field in fields} for entry in real})
    make_beat(app).run_due()
    schedules = Schedules(app)
    assert len(schedules) == len(real)
    for entry in real:
        assert schedules[entry.name] == entry


def test_each_crontab_is_planned_when_celery_says(
    schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis, some: list[Entry]
) -> None:
    crontabs = [entry for entry in some if isinstance(entry.schedule, crontab)]
    schedules.add_many(crontabs)
    for instant in (NOW, NOW + timedelta(hours=11, minutes=53), NOW + timedelta(days=27), NOW + timedelta(days=307)):
        clock.set(instant)
        while inner_beat.run_due() == 0:  # a year of so many takes more than one turn
            pass
        client.delete(*[key for key in client.keys("*") if client.type(key) == b"list"] or ["none"])
        planned = {entry.name: entry.next_run_at for entry in schedules.values()}
        for entry in crontabs:
            expected = next(celerys_occurrences(entry.schedule, clock.now, clock.now + timedelta(days=3000)))
            assert planned[entry.name] == expected, entry


#: The steps of the simulated day: minute by minute at first, for what runs often, then in thirds of an hour.
STEPS = [timedelta(minutes=1)] * 20 + [timedelta(minutes=20)] * 71


def test_a_simulated_day_sends_what_celery_would(
    schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis, some: list[Entry]
) -> None:
    start = NOW.replace(hour=0, minute=0, second=0)
    clock.set(start)
    schedules.add_many(some)
    crontabs = {entry.name: entry.schedule for entry in some if isinstance(entry.schedule, crontab)}
    sent: Counter[tuple[str, datetime]] = Counter()
    moments = [start]
    for step in STEPS:
        moments.append(moments[-1] + step)
        clock.set(moments[-1])
        inner_beat.run_due()
        for message in _drained(client):
            if message.entry in crontabs:
                sent[message.entry, message.scheduled_at or NOW] += 1
    assert moments[-1] - start == timedelta(days=1)
    expected: Counter[tuple[str, datetime]] = Counter()
    for name, schedule in crontabs.items():
        # What a step passed over is sent as one, the latest.
        latest = {bisect_left(moments, each): each for each in celerys_occurrences(schedule, start, moments[-1])}
        expected.update((name, each) for each in latest.values())
    assert sent == expected
    assert sent.total() > 15 * len(some)
    assert schedules.quarantined() == {}
    assert [entry.name for entry in schedules.values() if entry.last_error] == []


def _drained(client: redis.Redis) -> list[Message]:
    """All messages of all queues, which are then empty."""
    queues = [key for key in client.keys("*") if not key.startswith((b"{", b"_kombu")) and client.type(key) == b"list"]
    pipe = client.pipeline()
    for queue in queues:
        pipe.lrange(queue, 0, -1)
        pipe.delete(queue)
    return [parse(raw) for found in pipe.execute()[::2] for raw in found]

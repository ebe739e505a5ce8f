"""Moving in from the keys that the real celery-redbeat writes, held to its own answers."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import redis
from celery import Celery
from celery.schedules import BaseSchedule, crontab, schedule
from dateutil.rrule import MO, SU
from redbeat import RedBeatSchedulerEntry
from redbeat.schedules import rrule

from redbeat_lite import Entry, Scheduler, Schedules, every
from redbeat_lite.interchange.move_in import MoveIn, Step
from redbeat_lite.interchange.sources import RedBeatSource
from tests.support.commands import round_trips
from tests.support.frozen import Clock
from tests.support.messages import of_entry, queued
from tests.support.real import real_entries
from tests.support.server import Server


@pytest.fixture
def peer_app(make_app: Callable[..., Celery], server: Server) -> Celery:
    """An app whose beat is celery-redbeat."""
    return make_app(redbeat_redis_url=server.url)


def save(app: Celery, name: str, found: Any, *, last: datetime | None = None, runs: int = 0, **fields: Any) -> None:
    """An entry as celery-redbeat stores it; one that ran has been through a turn of its beat."""
    entry = RedBeatSchedulerEntry(name, "shop.sync", found, app=app, last_run_at=last, **fields).save()
    if runs:
        entry.total_run_count = runs - 1
        entry._next_instance(last_run_at=last)


def plan(app: Celery, *, apply: bool = False, replace: bool = False) -> dict[str, Step]:
    mover, source = MoveIn(app, replace=replace), RedBeatSource(app)
    moves = mover.plan(source.read())
    if apply:
        moves = mover.apply(moves)
    return {move.name: move for move in moves}


def own_answer(app: Celery, name: str, now: datetime) -> datetime | None:
    """When celery-redbeat itself would run an entry."""
    due, wait = RedBeatSchedulerEntry.from_key(f"redbeat:{name}", app=app).is_due()
    if due:
        return now
    return None if wait is None else now + timedelta(seconds=wait)


def thousand(now: datetime) -> Iterator[tuple[str, BaseSchedule]]:
    """A thousand: the schedules of public projects, as far as celery-redbeat can store them, and recurrences."""
    real = [each for each in real_entries() if type(each.schedule) in (crontab, schedule)]
    yield from ((each.name, each.schedule) for each in real)
    for index in range(1000 - len(real)):
        yield f"rrule:{index}", _recurrence(random.Random(index), now)


def _recurrence(drawn: random.Random, now: datetime) -> rrule:
    freq = drawn.choice(["YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY"])
    # dateutil walks to the present from the very start, each time it is asked.
    minutely = freq in ("HOURLY", "MINUTELY")
    ago = timedelta(minutes=drawn.randrange(3_000 if minutely else 1_000_000))
    parts: dict[str, Any] = {"dtstart": (now - ago).astimezone(ZoneInfo(drawn.choice(["UTC", "Asia/Kolkata"])))}
    parts["interval"] = 1 if minutely else drawn.choice([1, 1, 2, 5])
    if drawn.random() < 0.4:
        parts["byhour"] = drawn.sample(range(24), 2)
        parts["byminute"] = drawn.randrange(60)
    if drawn.random() < 0.3:
        parts["byweekday"] = drawn.choice([MO, [0, 2, 4], [SU, MO], 6])
    if drawn.random() < 0.3 and freq in ("YEARLY", "MONTHLY", "DAILY"):
        parts["bymonthday"] = drawn.choice([1, [1, 15], -1])
    if drawn.random() < 0.2:
        parts["until"] = now + timedelta(days=4000)
    elif drawn.random() < 0.2 and freq in ("DAILY", "WEEKLY"):
        parts["count"] = 720
    if drawn.random() < 0.2 and freq == "WEEKLY":
        parts["wkst"] = drawn.choice([0, 6])
    return rrule(freq, **parts)


@pytest.mark.parametrize("count", [250, pytest.param(1000, marks=pytest.mark.soak)])
def test_hundreds_of_entries_run_next_when_celery_redbeat_would_run_them(
    peer_app: Celery, clock: Clock, count: int
) -> None:
    drawn = random.Random(7)
    for name, found in islice(thousand(clock.now), None, None, 1000 // count):
        last = clock.now - timedelta(days=drawn.choice([0.001, 1, 30]) * drawn.random())
        save(peer_app, name, found, last=last)
    with round_trips() as trips:
        moves = plan(peer_app)
    assert len(moves) == count
    assert len(trips) < 20
    differing = []
    for name, move in moves.items():
        theirs = own_answer(peer_app, name, clock.now)
        if move.entry is None:
            assert theirs is None, move
            continue
        ours = max(move.entry.next_run_at, clock.now)
        if theirs is None or abs(ours - theirs) > timedelta(milliseconds=1):
            differing.append((name, move.entry.schedule, theirs, ours))
    assert not differing
    assert sum(move.entry is not None for move in moves.values()) > 0.99 * count


def test_everything_an_entry_holds_is_carried_over(peer_app: Celery, clock: Clock) -> None:
    since = datetime(2026, 2, 1, 12, tzinfo=UTC)
    options = {"queue": "slow", "priority": 3, "headers": {"tenant": "a"}, "expires": 90}
    last = clock.now - timedelta(seconds=20)
    save(
        peer_app,
        "nightly",
        crontab(minute="*/5", hour=3, day_of_week="mon-fri"),
        last=last,
        runs=17,
        args=[1, since, {"deep": [since]}],
        kwargs={"full": True},
        options=options,
    )
    save(peer_app, "off", schedule(60), enabled=False)
    plan(peer_app, apply=True)
    entry = Schedules(peer_app)["nightly"]
    assert entry == Entry(
        "nightly",
        "shop.sync",
        crontab(minute="*/5", hour=3, day_of_week="mon-fri"),
        [1, since, {"deep": [since]}],
        {"full": True},
        options,
    )
    assert entry.total_run_count == 17
    assert entry.last_run_at is not None
    assert abs(entry.last_run_at - last) <= timedelta(milliseconds=1)
    assert Schedules(peer_app)["off"].enabled is False


def test_what_cannot_be_carried_over_is_said_with_its_reason_and_stops_nothing_else(
    peer_app: Celery, client: redis.Redis
) -> None:
    save(peer_app, "fine", schedule(60))
    save(peer_app, "easter", rrule("YEARLY", byeaster=0))
    save(peer_app, "over", rrule("DAILY", dtstart=datetime(2020, 1, 1, tzinfo=UTC), count=3))
    save(peer_app, "weekday", schedule(60), args=[MO])
    save(peer_app, "x" * 201, schedule(60))
    for name in ("garbled", "gone", "odd", "dateless", "foreign", "counted"):
        save(peer_app, name, schedule(60))
    save(peer_app, "diverted", schedule(60), options={"queue": "{redbeat-lite}:due"})
    client.hset("redbeat:garbled", "definition", "{")
    client.delete("redbeat:gone")
    client.hset(
        "redbeat:odd", "definition", json.dumps({"name": "odd", "task": "t", "schedule": {"__type__": "lunar"}})
    )
    client.hset("redbeat:dateless", "meta", json.dumps({"last_run_at": "yesterday"}))
    client.hset("redbeat:counted", "meta", json.dumps({"total_run_count": 10**400}))
    client.delete("redbeat:foreign")
    client.set("redbeat:foreign", "text")
    moves = plan(peer_app, apply=True)
    reasons = {name[:10]: move.notes[0] for name, move in moves.items() if move.action == "left out"}
    expected = {
        "easter": "byeaster",
        "over": "an occurrence still to come",
        "weekday": r"args[0]",
        "x" * 10: "1 to 200 characters",
        "garbled": "cannot be read: JSONDecodeError",
        "gone": "its definition is gone",
        "odd": "schedule: expected",
        "dateless": "last_run_at is 'yesterday'",
        "foreign": "WRONGTYPE",
        "counted": "number of its runs",
        "diverted": "options.queue: expected a queue, which is no key of the schedule",
    }
    assert reasons.keys() == expected.keys()
    assert {name: words for name, words in expected.items() if words not in reasons[name]} == {}, reasons
    assert list(Schedules(peer_app)) == ["fine"]


def test_a_dry_run_writes_nothing(peer_app: Celery, client: redis.Redis) -> None:
    save(peer_app, "entry", schedule(60))
    before = {key: client.dump(key) for key in client.keys("*")}
    assert plan(peer_app)["entry"].action == "add"
    assert {key: client.dump(key) for key in client.keys("*")} == before


def test_nothing_is_sent_twice_or_late_at_the_switch(
    peer_app: Celery, clock: Clock, client: redis.Redis, make_beat: Callable[[Celery], Scheduler]
) -> None:
    ago = {"just": 0.2, "due": 7, "overdue": 3600}
    for word, seconds in ago.items():
        last = clock.now - timedelta(seconds=seconds)
        save(peer_app, f"interval {word}", schedule(7), last=last, runs=3)
        save(peer_app, f"crontab {word}", crontab(minute="7,12,40"), last=last, runs=3)
        save(peer_app, f"rrule {word}", rrule("MINUTELY", dtstart=clock.now - timedelta(hours=5)), last=last, runs=3)
    answers = {move: own_answer(peer_app, move, clock.now) for move in plan(peer_app, apply=True)}
    inner_beat = make_beat(peer_app)
    for answer in sorted({*answers.values()}):
        awaited = [name for name in answers if answers[name] == answer]
        if answer > clock.now:
            clock.set(answer - timedelta(milliseconds=2))
            inner_beat.run_due()
        assert not [name for name in awaited if of_entry(client, name)]
        clock.set(answer + timedelta(milliseconds=2))
        inner_beat.run_due()
        assert [len(of_entry(client, name)) for name in awaited] == [1] * len(awaited), awaited
    assert Schedules(peer_app)["interval just"].total_run_count >= 4


def test_entries_of_beat_schedule_stay_the_configurations_and_keep_their_last_run(
    peer_app: Celery, clock: Clock, client: redis.Redis, make_beat: Callable[[Celery], Scheduler]
) -> None:
    peer_app.conf.beat_schedule = {"slow": {"task": "shop.sync", "schedule": 3600}}
    save(peer_app, "slow", schedule(3600), last=clock.now - timedelta(minutes=50), runs=5)
    save(peer_app, "dropped", schedule(3600), last=clock.now, runs=5)
    client.sadd("redbeat::statics", "slow", "dropped")
    moves = plan(peer_app, apply=True)
    assert "beat_schedule" in moves["dropped"].notes[0]
    due = clock.now + timedelta(minutes=10)
    make_beat(peer_app).run_due()
    entry = Schedules(peer_app)["slow"]
    assert (entry.source, entry.next_run_at, entry.total_run_count) == ("config:proj", due, 5)
    assert not queued(client)


def test_an_entry_that_leaves_beat_schedule_right_after_the_import_is_removed(
    peer_app: Celery, make_beat: Callable[[Celery], Scheduler]
) -> None:
    peer_app.conf.beat_schedule = {"slow": {"task": "shop.sync", "schedule": 3600}}
    save(peer_app, "slow", schedule(3600))
    plan(peer_app, apply=True)
    peer_app.conf.beat_schedule = {}
    make_beat(peer_app).run_due()
    assert list(Schedules(peer_app)) == []


def test_a_disabled_entry_of_beat_schedule_is_paused(peer_app: Celery) -> None:
    peer_app.conf.beat_schedule = {"slow": {"task": "shop.sync", "schedule": 3600}}
    save(peer_app, "slow", schedule(3600), enabled=False)
    plan(peer_app, apply=True)
    entry = Schedules(peer_app)["slow"]
    assert entry.next_run_at is None
    assert entry.paused_note == "was disabled when it was moved in"


def test_what_the_configuration_disables_itself_is_not_paused_besides(
    peer_app: Celery, make_beat: Callable[[Celery], Scheduler]
) -> None:
    config = {"task": "shop.sync", "schedule": 3600}
    peer_app.conf.beat_schedule = {"slow": {**config, "enabled": False}}
    save(peer_app, "slow", schedule(3600), enabled=False)
    plan(peer_app, apply=True)
    assert Schedules(peer_app)["slow"].status == "disabled"
    peer_app.conf.beat_schedule = {"slow": config}
    make_beat(peer_app).run_due()
    assert Schedules(peer_app)["slow"].next_run_at is not None, "it runs once the configuration lets it"


def test_what_is_stored_here_already_is_replaced_only_on_request(peer_app: Celery, clock: Clock) -> None:
    schedules = Schedules(peer_app)
    schedules.add("mine", "shop.sync", every(5))
    schedules.pause("mine", note="as it was")
    save(peer_app, "mine", schedule(60), last=clock.now - timedelta(seconds=10), runs=2)
    left = plan(peer_app, apply=True)["mine"]
    assert (left.action, "--replace" in left.notes[0]) == ("stored", True)
    assert schedules["mine"].schedule == every(5)
    generation = schedules["mine"].generation
    plan(peer_app, apply=True, replace=True)
    entry = schedules["mine"]
    assert (entry.schedule, entry.total_run_count) == (schedule(60), 2)
    assert (entry.paused_note, entry.generation, entry.version) == ("as it was", generation, 3)
    schedules.resume("mine")
    assert schedules["mine"].next_run_at == clock.now + timedelta(seconds=50)


def test_a_second_import_sends_nothing_again_that_has_run_here_since(
    peer_app: Celery, clock: Clock, client: redis.Redis, make_beat: Callable[[Celery], Scheduler]
) -> None:
    last = clock.now - timedelta(seconds=50)
    save(peer_app, "mine", schedule(60), last=last, runs=2)
    plan(peer_app, apply=True)
    inner_beat = make_beat(peer_app)
    clock.set(clock.now + timedelta(seconds=11))
    inner_beat.run_due()
    assert len(of_entry(client, "mine")) == 1
    save(peer_app, "mine", schedule(60), last=last, runs=2, kwargs={"full": True})
    again = plan(peer_app, apply=True, replace=True)["mine"]
    stay = "has run here since, so its last run and counter stay"
    assert (again.action, *again.notes[-2:]) == ("replace", stay, "differs from what is stored here: kwargs")
    inner_beat.run_due()
    entry = Schedules(peer_app)["mine"]
    assert len(of_entry(client, "mine")) == 1
    assert (entry.kwargs, entry.total_run_count) == ({"full": True}, 3)
    assert entry.next_run_at == last + timedelta(seconds=120)
    save(peer_app, "mine", schedule(60), last=clock.now, runs=5)
    later = plan(peer_app, apply=True, replace=True)["mine"]
    assert not [note for note in later.notes if "has run here" in note]
    assert Schedules(peer_app)["mine"].total_run_count == 5


def test_a_pause_outlives_a_definition_that_cannot_be_read(peer_app: Celery, client: redis.Redis) -> None:
    schedules = Schedules(peer_app)
    schedules.add("mine", "shop.sync", every(5))
    schedules.pause("mine", note="as it was")
    client.hset("{redbeat-lite}:entries", "mine", "garbage")
    save(peer_app, "mine", schedule(60))
    assert plan(peer_app, apply=True, replace=True)["mine"].action == "replace"
    assert (schedules["mine"].schedule, schedules["mine"].paused_note) == (schedule(60), "as it was")


def test_an_owner_outlives_a_state_that_cannot_be_read(
    make_app: Callable[..., Celery], server: Server, make_beat: Callable[[Celery], Scheduler], client: redis.Redis
) -> None:
    make_beat(make_app("other", beat_schedule={"mine": {"task": "shop.sync", "schedule": 5}})).run_due()
    client.hset("{redbeat-lite}:state", "mine", "garbage")
    app = make_app(redbeat_redis_url=server.url)
    save(app, "mine", schedule(60))
    assert plan(app, apply=True, replace=True)["mine"].action == "left out"


def test_an_entry_of_another_configuration_is_never_touched(
    make_app: Callable[..., Celery], server: Server, make_beat: Callable[[Celery], Scheduler]
) -> None:
    other = make_app("other", beat_schedule={"mine": {"task": "shop.sync", "schedule": 5}})
    make_beat(other).run_due()
    app = make_app(redbeat_redis_url=server.url)
    save(app, "mine", schedule(60))
    move = plan(app, apply=True, replace=True)["mine"]
    assert (move.action, move.notes) == ("left out", ("the name is taken by the configuration of 'other'",))
    assert Schedules(app)["mine"].source == "config:other"


def test_an_entry_that_somebody_adds_after_the_plan_stays(peer_app: Celery) -> None:
    save(peer_app, "mine", schedule(60))
    mover, source = MoveIn(peer_app), RedBeatSource(peer_app)
    moves = mover.plan(source.read())
    Schedules(peer_app).add("mine", "shop.sync", every(5))
    [move] = mover.apply(moves)
    assert ([planned.action for planned in moves], move.action) == (["add"], "stored")
    assert Schedules(peer_app)["mine"].schedule == every(5)


def test_its_settings_say_where_it_is(make_app: Callable[..., Celery], server: Server) -> None:
    elsewhere = f"{server.url[:-1]}3"
    app = make_app(redbeat_redis_url=elsewhere, redbeat_key_prefix="old:")
    save(app, "entry", schedule(60))
    assert [*plan(app)] == ["entry"]


def test_its_sentinels_are_asked_as_ours_are() -> None:
    app = Celery("proj", set_as_current=False)
    app.conf.redbeat_redis_url = "redis-sentinel://ignored"
    app.conf.redbeat_redis_options = {"sentinels": [("a", 1), ("b", 2)], "service_name": "beat", "password": "secret"}
    source = RedBeatSource(app)
    assert source.where == "sentinel://a:1;sentinel://b:2, keys redbeat:*"

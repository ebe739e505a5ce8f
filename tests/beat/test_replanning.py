"""Next runs that were planned by a clock or a time zone that is no more, and are planned anew."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import redis
from celery import Celery
from celery.schedules import BaseSchedule, crontab, schedstate, schedule, solar
from msgspec.structs import replace

from redbeat_lite import Entry, Scheduler, Schedules, cron, every, register_schedule, rrule
from redbeat_lite.entries.state import EntryState
from redbeat_lite.store.leader_store import LeaderStore
from tests.beat.moments import nominals
from tests.support.beats import KEYS
from tests.support.cases import together
from tests.support.frozen import NOW, Clock
from tests.support.in_process import MakeApp, MakeBeat, one_turn
from tests.support.messages import of_entry

pytestmark = pytest.mark.usefixtures("clock")

LOS_ANGELES = ZoneInfo("America/Los_Angeles")


class Subclass(schedule):  # type: ignore[misc]  # Celery ships no types
    """Somebody's own class, which is asked in the app's zone and does not care."""


class Paced(BaseSchedule):  # type: ignore[misc]  # Celery ships no types
    """Somebody's own class, whose pauses between two runs differ."""

    pause = 3600

    def is_due(self, last_run_at: datetime) -> Any:
        rest = self.pause - (self.now() - last_run_at).total_seconds()
        return schedstate(rest <= 0, rest if rest > 0 else self.pause)


def local(entry: Entry, zone: Any = LOS_ANGELES) -> datetime:
    assert entry.next_run_at is not None
    return entry.next_run_at.astimezone(zone)


class TestZone:
    def test_what_goes_by_it_waits_for_its_time_in_the_new_one(
        self, make_app: MakeApp, make_beat: MakeBeat, clock: Clock, caplog: pytest.LogCaptureFixture
    ) -> None:
        def deploy(zone: str) -> Schedules:
            config = {"yearly": {"task": "t", "schedule": crontab(0, 9, day_of_month=1, month_of_year=6)}}
            return one_turn(make_app(timezone=zone, beat_schedule=config), make_beat)

        schedules = deploy("UTC")
        schedules.add("daily", "t", cron("0 9 * * *"))
        schedules.add("rrule", "t", rrule("FREQ=DAILY;BYHOUR=9;BYMINUTE=0;BYSECOND=0"))
        schedules.add("paused", "t", crontab(0, 9))
        schedules.pause("paused")
        schedules.add("later", "t", cron("0 9 * * *"), start_at=datetime(2026, 7, 1, tzinfo=UTC))
        stay = {
            "zoned": cron("0 9 * * *", tz="Asia/Tokyo"),
            "interval": every(86_400),
            "celerys": schedule(86_400),
            "sunset": solar("sunset", 52.5, 13.4),
        }
        for name, written in stay.items():
            schedules.add(name, "t", written)
        before = {name: schedules[name].next_run_at for name in stay}
        clock.forward(60)
        schedules = deploy("America/Los_Angeles")
        assert local(schedules["yearly"]) == datetime(2026, 6, 1, 9, tzinfo=LOS_ANGELES)
        assert local(schedules["daily"]) == datetime(2026, 3, 2, 9, tzinfo=LOS_ANGELES)
        assert local(schedules["rrule"]) == datetime(2026, 3, 2, 9, tzinfo=LOS_ANGELES)
        assert local(schedules.resume("paused")) == datetime(2026, 3, 2, 9, tzinfo=LOS_ANGELES)
        assert local(schedules["later"]) == datetime(2026, 7, 1, 9, tzinfo=LOS_ANGELES)
        assert {name: schedules[name].next_run_at for name in stay} == before
        assert {schedules[name].version for name in stay} == {1}
        upcoming = [each.nominal for each in schedules.upcoming(datetime(2026, 6, 2, tzinfo=UTC), limit=10_000)]
        assert upcoming.count(datetime(2026, 6, 1, 9, tzinfo=LOS_ANGELES)) >= 2
        [line] = [each for each in caplog.messages if "time zone" in each]
        assert line == (
            "beat: the app's time zone is 'America/Los_Angeles', and was 'UTC'; rescheduling entries that use it"
        )
        caplog.clear()
        deploy("America/Los_Angeles")
        assert "time zone" not in caplog.text

    def test_each_day_has_its_run_and_no_past_one_is_sent(
        self, make_app: MakeApp, make_beat: MakeBeat, clock: Clock, client: redis.Redis
    ) -> None:
        Schedules(make_app(timezone="UTC")).add("daily", "t", cron("0 13 * * *"))
        for zone in ("UTC", "America/Los_Angeles", "Asia/Tokyo", "UTC"):
            for _ in range(8):
                one_turn(make_app(timezone=zone), make_beat)
                clock.forward(3 * 3600)
        sent = [message.scheduled_at for message in of_entry(client, "daily")]
        assert sent == [
            datetime(2026, 3, 2, 13, tzinfo=UTC),
            datetime(2026, 3, 3, 13, tzinfo=LOS_ANGELES),
            datetime(2026, 3, 5, 13, tzinfo=ZoneInfo("Asia/Tokyo")),
            datetime(2026, 3, 5, 13, tzinfo=UTC),
        ]

    def test_what_is_due_already_stays_due(
        self, make_app: MakeApp, make_beat: MakeBeat, clock: Clock, client: redis.Redis
    ) -> None:
        schedules = one_turn(make_app(timezone="UTC"), make_beat)
        schedules.add("daily", "t", cron("0 13 * * *"))
        clock.forward(3600)
        one_turn(make_app(timezone="America/Los_Angeles"), make_beat)
        assert [each.scheduled_at for each in of_entry(client, "daily")] == [datetime(2026, 3, 2, 13, tzinfo=UTC)]
        assert local(schedules["daily"]) == datetime(2026, 3, 2, 13, tzinfo=LOS_ANGELES)

    def test_a_class_of_ones_own_that_does_not_care_is_left_alone(
        self, make_app: MakeApp, make_beat: MakeBeat, clock: Clock
    ) -> None:
        def deploy(zone: str) -> Schedules:
            config = {"own": {"task": "t", "schedule": Subclass(timedelta(days=30))}}
            return one_turn(make_app(timezone=zone, beat_schedule=config), make_beat)

        deploy("UTC")
        clock.forward(60)
        assert deploy("Asia/Tokyo")["own"].next_run_at == NOW + timedelta(days=30)

    def test_a_class_of_ones_own_keeps_the_run_that_it_has_named(
        self, make_app: MakeApp, make_beat: MakeBeat, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        register_schedule(Paced, lambda found: None, lambda stored: Paced(), name="tests.Paced")
        schedules = one_turn(make_app(timezone="UTC"), make_beat)
        schedules.add("paced", "t", Paced())
        named = schedules["paced"].next_run_at
        monkeypatch.setattr(Paced, "pause", 60)
        schedules = one_turn(make_app(timezone="America/Los_Angeles"), make_beat)
        assert schedules["paced"].next_run_at == named

    @together("noted", ['["<LocalTimezone: UTC+00>"]', "garbage", "7", "[7]", "[]", '["../etc"]'], emptied=True)
    def test_one_that_nobody_knows_is_replaced(
        self, make_app: MakeApp, make_beat: MakeBeat, client: redis.Redis, noted: str
    ) -> None:
        schedules = one_turn(make_app(timezone="UTC"), make_beat)
        schedules.add("daily", "t", cron("0 13 * * *"))
        client.hset(KEYS.meta, "zones", noted)
        schedules = one_turn(make_app(timezone="UTC"), make_beat)
        assert client.hget(KEYS.meta, "zones") == b"UTC"
        assert schedules["daily"].version == 1

    @pytest.mark.usefixtures("small_pages")
    @pytest.mark.parametrize("heir", ["America/Los_Angeles", "UTC", "Asia/Tokyo"])
    def test_a_leader_that_comes_to_no_end_leaves_the_rest_to_the_next(
        self, make_app: MakeApp, make_beat: MakeBeat, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, heir: str
    ) -> None:
        schedules = one_turn(make_app(timezone="UTC"), make_beat)
        schedules.add_many(Entry(f"e{number}", "t", cron("0 13 * * *")) for number in range(150))
        monkeypatch.setattr("redbeat_lite.beat.repair._SLICE", 0)
        beat = make_beat(make_app(timezone="America/Los_Angeles"))
        beat.run_due()
        assert len({score for _, score in client.zrange(KEYS.due, 0, -1, withscores=True)}) == 2, "half of it is done"
        beat.close()
        beat = make_beat(make_app(timezone=heir))
        while beat.run_due() == 0.0:
            pass
        following = datetime(2026, 3, 2, 13, tzinfo=ZoneInfo(heir))
        following += timedelta(days=following < NOW)
        scores = {score for _, score in client.zrange(KEYS.due, 0, -1, withscores=True)}
        assert scores == {following.timestamp() * 1000}


class TestClockBehind:
    @pytest.fixture
    def ahead(self, client: redis.Redis, clock: Clock) -> Callable[..., None]:
        """Makes it seem that entries were planned while the server's clock was so much ahead."""

        def make(nominals: dict[str, int]) -> None:
            for name, nominal in nominals.items():
                state = EntryState.decode(client.hget(KEYS.state, name))  # type: ignore[arg-type]
                client.hset(KEYS.state, name, replace(state, nominal=nominal, last=nominal - 10_000, count=5).encode())
                client.zadd(KEYS.due, {name: nominal})
            client.hset(KEYS.meta, "set_back", "1")

        return make

    def test_leaves_intervals_their_phases(
        self,
        schedules: Schedules,
        inner_beat: Scheduler,
        clock: Clock,
        client: redis.Redis,
        ahead: Callable[..., None],
    ) -> None:
        schedules.add_many([Entry(f"e{number}", "add", every(10)) for number in range(200)])
        now = round(clock.now.timestamp() * 1000)
        draw = random.Random(7)
        planned = {f"e{number}": now + 30_000 + draw.randrange(1, 10_000) for number in range(200)}
        ahead(planned)
        inner_beat.run_due()
        scores = {name.decode(): score for name, score in client.zrange(KEYS.due, 0, -1, withscores=True)}
        assert scores == {name: nominal - 30_000 for name, nominal in planned.items()}

    @pytest.mark.usefixtures("small_pages")
    def test_sends_while_a_large_schedule_is_planned_anew(
        self,
        schedules: Schedules,
        inner_beat: Scheduler,
        clock: Clock,
        client: redis.Redis,
        monkeypatch: pytest.MonkeyPatch,
        ahead: Callable[..., None],
    ) -> None:
        monkeypatch.setattr("redbeat_lite.beat.repair._SLICE", 0)
        schedules.add_many(Entry(f"e{number}", "add", every(86_400)) for number in range(250))
        schedules.add("soon", "add", every(10))
        schedules.add("other", "add", every(10))
        now = round(clock.now.timestamp() * 1000)
        ahead({"soon": now + 3_610_000})
        waits = []
        while not waits or waits[-1] == 0.0:
            waits.append(inner_beat.run_due())
            clock.forward(10)
        assert len(waits) == 1 + 3, "a page in each turn"
        assert nominals(client, "other") == [10, 20, 30]
        assert nominals(client, "soon")[-1] == 30
        assert client.hget(KEYS.meta, "set_back") == b""

    @pytest.mark.usefixtures("small_pages")
    def test_is_remembered_until_every_entry_is_planned(
        self,
        app: Celery,
        schedules: Schedules,
        make_beat: MakeBeat,
        clock: Clock,
        client: redis.Redis,
        monkeypatch: pytest.MonkeyPatch,
        ahead: Callable[..., None],
    ) -> None:
        monkeypatch.setattr("redbeat_lite.beat.repair._SLICE", 0)
        schedules.add_many(Entry(f"e{number:04}", "add", every(10)) for number in range(150))
        now = round(clock.now.timestamp() * 1000)
        ahead({f"e{number:04}": now + 3_601_000 + number for number in range(150)})
        first = make_beat(app)
        first.run_due()
        # It dies in the middle.
        first.close()
        assert client.zcount(KEYS.due, "-inf", now + 10_000) == 100
        second = make_beat(app)
        while second.run_due() == 0.0:
            pass
        assert client.zcount(KEYS.due, "-inf", now + 10_000) == 150

    def test_is_begun_anew_where_the_server_breaks_it_off(
        self,
        schedules: Schedules,
        inner_beat: Scheduler,
        clock: Clock,
        monkeypatch: pytest.MonkeyPatch,
        ahead: Callable[..., None],
    ) -> None:
        schedules.add("a", "add", every(10))
        ahead({"a": round(clock.now.timestamp() * 1000) + 3_605_000})
        scan, broken = LeaderStore.scan, []

        def breaking(store: LeaderStore) -> Any:
            if not broken:
                broken.append(True)
                raise redis.ConnectionError("gone")
            return scan(store)

        monkeypatch.setattr(LeaderStore, "scan", breaking)
        with pytest.raises(redis.ConnectionError):
            inner_beat.run_due()
        inner_beat.run_due()
        assert schedules["a"].next_run_at == NOW + timedelta(seconds=5)

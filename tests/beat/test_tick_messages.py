"""What the messages hold that a turn of the beat sends: expiry, routes, options, arguments."""

from __future__ import annotations

import base64
import json
import pickle
import zlib
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis
from celery import Celery
from celery.beat import BeatLazyFunc
from celery.utils.time import maybe_make_aware

from redbeat_lite import Entry, Once, Scheduler, Schedules, at, cron, every
from redbeat_lite._base import times
from redbeat_lite.entries.message import lock_life_ms
from redbeat_lite.store.redis_values import server_ms
from tests.beat.moments import after
from tests.support.cases import together
from tests.support.frozen import NOW, Clock
from tests.support.in_process import KEY, MakeApp, MakeBeat
from tests.support.messages import Message, of_entry, queued

pytestmark = pytest.mark.usefixtures("clock")


class TestExpires:
    def test_of_each_kind(self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis) -> None:
        kinds: dict[str, Any] = {"none": None, "seconds": 7, "timedelta": timedelta(minutes=2), "interval": "interval"}
        for name, expires in kinds.items():
            schedules.add(name, "add", every(10), expires=expires)
        for run in (1, 2):
            clock.forward(10)
            inner_beat.run_due()
            messages = {message.entry: message.headers for message in queued(client)[-4:]}
            for name, headers in messages.items():
                cleared = headers.get("redbeat_interval_expires", False)
                assert cleared is (name == "interval"), "workers clear this one alone"
            assert messages["none"]["expires"] is None
            for name, seconds in {"seconds": 7, "timedelta": 120, "interval": 15}.items():
                assert datetime.fromisoformat(messages[name]["expires"]) == after(10 * run + seconds), name

    def test_with_the_interval_lives_for_the_gap_however_late_it_is_sent(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add("office", "add", cron("0 9,17 * * *"))
        clock.set(datetime(2026, 3, 2, 17, 59, tzinfo=UTC))
        inner_beat.run_due()
        [message] = queued(client)
        assert datetime.fromisoformat(message.headers["expires"]) == datetime(2026, 3, 3, 9, 59, 5, tzinfo=UTC)

    @pytest.mark.parametrize("slack", [0, 0.5, 60])
    def test_with_the_interval_allows_for_clocks_that_differ(
        self, make_app: MakeApp, make_beat: MakeBeat, clock: Clock, client: redis.Redis, slack: float
    ) -> None:
        app = make_app(redbeat_lite_clock_slack=slack)
        Schedules(app).add("a", "add", every(2))
        beat = make_beat(app)
        clock.forward(2)
        beat.run_due()
        assert datetime.fromisoformat(queued(client)[0].headers["expires"]) == after(4 + slack)

    @pytest.mark.parametrize("option", ["countdown", "eta", "eta in text", "eta without a zone"])
    def test_with_the_interval_counts_from_when_it_may_run(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis, option: str
    ) -> None:
        later = after(63)
        options = {
            "countdown": {"countdown": 53},
            "eta": {"eta": later},
            "eta in text": {"eta": later.isoformat()},
            "eta without a zone": {"eta": later.replace(tzinfo=None)},
        }
        schedules.add("a", "add", every(10), options=options[option])
        clock.forward(10)
        inner_beat.run_due()
        [message] = queued(client)
        assert maybe_make_aware(datetime.fromisoformat(message.headers["eta"])) == later
        assert datetime.fromisoformat(message.headers["expires"]) == after(63 + 15)

    def test_jitter_shortens_no_life(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        for n in range(20):
            schedules.add(f"e{n}", "add", every(10), jitter=9.9)
        clock.forward(20)
        inner_beat.run_due()
        assert {each.headers["expires"] for each in queued(client)} == {after(35).isoformat()}

    def test_a_single_run_that_is_made_up_for_lives_until_it_has_run_and_a_late_tick_makes_up_for_none(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add("hourly", "add", cron("0 * * * *"), misfire="all")
        clock.set(datetime(2026, 3, 2, 13, 55, tzinfo=UTC))
        inner_beat.run_due()
        assert [each.headers["expires"] for each in of_entry(client, "hourly")] == [None]
        schedules.add("often", "add", every(0.1), misfire="all")
        clock.forward(0.35)
        inner_beat.run_due()
        found = [datetime.fromisoformat(each.headers["expires"]) for each in of_entry(client, "often")]
        assert found == [clock.now + timedelta(seconds=5.1)] * 3

    def test_what_is_made_up_for_lives_until_it_has_run(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add("a", "add", every(5), misfire="all")
        schedules.add("told", "add", every(5), misfire="all", expires=7)
        clock.forward(24)
        inner_beat.run_due()
        assert [each.headers["expires"] for each in of_entry(client, "a")] == [None] * 4
        told = [datetime.fromisoformat(each.headers["expires"]) for each in of_entry(client, "told")]
        assert told == [after(31)] * 4
        clock.forward(1)
        inner_beat.run_due()
        assert datetime.fromisoformat(of_entry(client, "a")[-1].headers["expires"]) == after(35), "this one is in time"

    def test_a_last_occurrence_expires_with_no_interval(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add("a", "add", at(after(10)))
        clock.forward(10)
        inner_beat.run_due()
        assert queued(client)[0].headers["expires"] is None

    def test_of_the_options_takes_precedence(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add("a", "add", every(10), options={"expires": 3})
        clock.forward(10)
        inner_beat.run_due()
        assert datetime.fromisoformat(queued(client)[0].headers["expires"]) == after(13)

    @pytest.mark.parametrize(("interval", "most"), [(10, 2), (5, 2), (1, 6), (0.25, 21)])
    def test_leaves_workers_that_were_down_no_more_than_the_clocks_may_differ(
        self,
        schedules: Schedules,
        inner_beat: Scheduler,
        clock: Clock,
        client: redis.Redis,
        interval: float,
        most: int,
    ) -> None:
        schedules.add("a", "add", every(interval))
        for _ in range(60):
            clock.forward(interval)
            inner_beat.run_due()
        messages = queued(client)
        assert len(messages) == 60
        alive = [each for each in messages if datetime.fromisoformat(each.headers["expires"]) > clock.now]
        assert len(alive) == most
        assert alive == messages[-most:]


class TestMessages:
    @pytest.mark.parametrize("task", ["registered.task", "unregistered.task"])
    @pytest.mark.parametrize("dispatch", ["auto", "batch", "plain"])
    def test_routes_and_stored_options_are_honoured_alike(
        self,
        make_app: MakeApp,
        make_beat: MakeBeat,
        clock: Clock,
        client: redis.Redis,
        task: str,
        dispatch: str,
    ) -> None:
        app = make_app(
            redbeat_lite_dispatch=dispatch,
            task_routes={"*.task": {"queue": "routed", "priority": 6}},
            accept_content=["json", "yaml", "pickle"],
        )

        @app.task(name="registered.task", shared=False)
        def registered(x: int = 0, y: int = 0) -> None: ...

        schedules, beat = Schedules(app), make_beat(app)
        schedules.add("routed", task, every(10))
        options = {
            "queue": "stored",
            "priority": 3,
            "serializer": "pickle",
            "compression": "zlib",
            "headers": {"team": "a", "n": [1]},
            "time_limit": 60,
            "soft_time_limit": 50,
            "shadow": "shown",
        }
        schedules.add("stored", task, every(10), ((1, (2, [3])),), {"y": {4}}, options)
        for _ in range(2):
            clock.forward(10)
            beat.run_due()
        routed = _raw(client, "routed")
        assert len(routed) == 2
        assert all(each["properties"]["priority"] == 6 for each in routed)
        stored = _raw(client, "stored")
        assert len(stored) == 2
        for number, message in enumerate(stored):
            headers = message["headers"]
            assert message["content-type"] == "application/x-python-serialize"
            body = pickle.loads(zlib.decompress(base64.b64decode(message["body"])))
            assert (body[0][0], body[1]) == ((1, (2, [3])), {"y": {4}}), "tuples and sets stay what they are"
            assert message["properties"]["priority"] == 3
            assert headers["compression"] == "application/x-gzip"
            assert (headers["team"], headers["n"], headers["shadow"]) == ("a", [1], "shown")
            assert headers["timelimit"] == [60, 50]
            assert headers["periodic_task_name"] == "stored"
            assert headers["scheduled_at"] == after(10 * number + 10).isoformat()

    def test_a_task_that_sets_its_own_queue_keeps_it(
        self,
        make_app: MakeApp,
        make_beat: MakeBeat,
        clock: Clock,
        client: redis.Redis,
    ) -> None:
        app = make_app()

        @app.task(name="own", queue="own-queue", expires=77, shared=False)
        def own() -> None: ...

        Schedules(app).add("a", "own", every(10), expires=None)
        clock.forward(10)
        make_beat(app).run_due()
        [message] = queued(client, "own-queue")
        assert datetime.fromisoformat(message.headers["expires"]) == after(87)

    def test_carry_the_entrys_name_and_the_nominal_time_in_utc(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add("nightly äöü", "add", cron("0 22 * * *", tz="Asia/Tokyo"), jitter=30)
        clock.set(datetime(2026, 3, 2, 13, 5, tzinfo=UTC))
        inner_beat.run_due()
        [message] = queued(client)
        assert message.headers["periodic_task_name"] == "nightly äöü"
        assert message.headers["scheduled_at"] == "2026-03-02T13:00:00+00:00"

    def test_are_the_same_under_every_way_of_dispatch(
        self,
        make_app: MakeApp,
        make_beat: MakeBeat,
        clock: Clock,
        client: redis.Redis,
    ) -> None:
        found: list[list[Message]] = []
        for dispatch in ("auto", "batch", "plain"):
            app = make_app(redbeat_lite_dispatch=dispatch)
            schedules, beat = Schedules(app), make_beat(app)
            clock.set(NOW)
            schedules.add("a", "some.task", every(10), (1, "é"), {"y": {"z": None}}, {"priority": 0})
            client.hset(KEY + "state", "a", "1|same|" + str(int(after(10).timestamp() * 1000)) + "|{}")
            for _ in range(3):
                clock.forward(10)
                beat.run_due()
            found.append(queued(client))
            beat.close()
            schedules.clear()
            client.delete("celery")
        for auto, batch, plain in zip(*found, strict=True):
            assert _without_tag(auto) == _without_tag(batch) == _without_tag(plain)


def _without_tag(message: Message) -> Message:
    varying = ("delivery_tag", "reply_to", "correlation_id")
    properties = {key: value for key, value in message.properties.items() if key not in varying}
    return message._replace(properties=properties)


def _raw(client: redis.Redis, queue: str) -> list[dict[str, Any]]:
    """Messages of a queue in all its priorities, whatever their serializer."""
    keys = [key for key in client.keys(f"{queue}*") if client.type(key) == b"list"]
    return [json.loads(raw) for key in keys for raw in reversed(client.lrange(key, 0, -1))]


def test_lazy_arguments_are_evaluated_at_each_run(
    app: Celery, make_beat: MakeBeat, clock: Clock, client: redis.Redis, schedules: Schedules
) -> None:
    values = iter("abc")
    lazy = BeatLazyFunc(lambda: next(values))
    app.conf.beat_schedule = {"a": {"task": "some.task", "schedule": 10, "kwargs": {"current": lazy}}}
    beat = make_beat(app)
    beat.run_due()
    for _ in range(2):
        clock.forward(10)
        beat.run_due()
    assert [message.kwargs for message in queued(client)] == [{"current": "a"}, {"current": "b"}]
    schedules.run_now("a")
    assert queued(client)[-1].kwargs == {"current": "c"}


class TestOnceLock:
    """Of messages that nobody takes."""

    def lock(self, client: redis.Redis) -> Any:
        [name] = client.keys("*once:lock*")
        return name

    def test_where_runs_are_close_one_message_waits_in_the_place_of_all(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add("a", "add", every(10), once=Once(scope="queue", lease=1))
        for _ in range(3):
            clock.forward(10)
            inner_beat.run_due()
        [message] = queued(client)
        assert client.pttl(self.lock(client)) > 14_000, "as long as its message, whatever the lease"
        assert client.hget(self.lock(client), "task") == message.id.encode()
        assert schedules["a"].skipped_count == 2

    def test_where_they_are_not_the_next_run_takes_its_place(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        clock.set(times.from_ms(server_ms(client)) - timedelta(hours=1))
        schedules.add("a", "add", every(3600), once=True)
        clock.forward(3600)
        inner_beat.run_due()
        lock = self.lock(client)
        assert 3_590_000 < client.pttl(lock) <= 3_599_000, "to just before the next run"
        clock.forward(3600)
        client.pexpire(lock, client.pttl(lock) - 3_600_000)  # an hour has passed for the server, too
        inner_beat.run_due()
        assert client.hget(lock, "task") == queued(client)[-1].id.encode()
        assert (len(queued(client)), schedules["a"].skipped_count) == (2, 0)

    @pytest.mark.parametrize(
        ("more", "passed", "least"),
        [
            ({"options": {"countdown": 90}}, 60_000, 80_000),
            ({"expires": None}, 0, 50_000),
            ({"expires": 600}, 60_000, 530_000),
            ({"options": {"expires": 600}}, 60_000, 530_000),
        ],
    )
    def test_what_may_run_later_than_the_next_run_is_due_keeps_it(
        self,
        schedules: Schedules,
        inner_beat: Scheduler,
        clock: Clock,
        client: redis.Redis,
        more: dict[str, Any],
        passed: int,
        least: int,
    ) -> None:
        clock.set(times.from_ms(server_ms(client)) - timedelta(minutes=1))
        schedules.add("a", "add", every(60), once=True, **more)
        clock.forward(60)
        inner_beat.run_due()
        lock = self.lock(client)
        clock.forward(60)
        client.pexpire(lock, client.pttl(lock) - passed)
        inner_beat.run_due()
        [message] = queued(client)
        assert client.hget(lock, "task") == message.id.encode()
        assert client.pttl(lock) > least

    @pytest.mark.parametrize("policy", [{"scope": "run"}, {"scope": "queue", "on_conflict": "wait"}])
    def test_one_that_workers_acquire_is_only_named(
        self,
        schedules: Schedules,
        inner_beat: Scheduler,
        clock: Clock,
        client: redis.Redis,
        policy: dict[str, Any],
    ) -> None:
        schedules.add("a", "add", every(10), once={"key": "k", **policy})
        schedules.run_now("a")
        clock.forward(10)
        inner_beat.run_due()
        assert [message.headers["redbeat_once"]["key"] for message in queued(client)] == ["k", "k"]
        assert client.keys("*once:lock*") == []

    @together("zone", ["", "Z", "+01:00"])
    def test_an_expiry_without_a_zone_is_utc_as_in_a_worker(self, zone: str) -> None:
        entry = Entry("a", "add", every(60), options={"expires": f"2026-03-03T10:00:00{zone}"}, once=True)
        now = datetime(2026, 3, 3, 8, tzinfo=UTC)
        assert lock_life_ms(entry, None, times.to_ms(now)) == (1 if zone == "+01:00" else 2) * 3_600_000

    def test_it_lasts_from_when_the_message_may_run(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add("a", "add", every(10), options={"countdown": 100}, once=True)
        clock.forward(10)
        inner_beat.run_due()
        assert 150_000 < client.pttl(self.lock(client)) <= 160_000, "a lease longer, as that exceeds its life"

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

from redbeat_lite import Scheduler, Schedules, at, cron, every
from tests.beat.moments import after
from tests.support.frozen import NOW, Clock
from tests.support.in_process import KEY, MakeApp, MakeBeat
from tests.support.messages import Message, queued

pytestmark = pytest.mark.usefixtures("clock")


class TestExpires:
    @pytest.mark.parametrize(
        ("expires", "seconds"),
        [(None, None), (7, 7), (timedelta(minutes=2), 120), ("interval", 10)],
        ids=["none", "seconds", "timedelta", "interval"],
    )
    @pytest.mark.parametrize("run", [1, 2])
    def test_of_each_kind(
        self,
        schedules: Schedules,
        inner_beat: Scheduler,
        clock: Clock,
        client: redis.Redis,
        expires: Any,
        seconds: float | None,
        run: int,
    ) -> None:
        schedules.add("a", "add", every(10), expires=expires)
        for _ in range(run):
            clock.forward(10)
            inner_beat.run_due()
        found = queued(client)[-1].headers["expires"]
        if seconds is None:
            assert found is None
        else:
            assert datetime.fromisoformat(found) == after(10 * run + seconds)

    def test_with_the_interval_follows_the_next_nominal_time_however_late_it_is_sent(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add("hourly", "add", cron("0 * * * *"))
        clock.set(datetime(2026, 3, 2, 13, 59, tzinfo=UTC))
        inner_beat.run_due()
        [message] = queued(client)
        assert datetime.fromisoformat(message.headers["expires"]) == datetime(2026, 3, 2, 14, 0, tzinfo=UTC)

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

    def test_leaves_workers_that_were_down_an_hour_one_message_to_run(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add("a", "add", every(10))
        for _ in range(360):
            clock.forward(10)
            inner_beat.run_due()
        messages = queued(client)
        assert len(messages) == 360
        alive = [each for each in messages if datetime.fromisoformat(each.headers["expires"]) > clock.now]
        assert [each.scheduled_at for each in alive] == [clock.now]


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
            client.hset(KEY + "state", "a", "1|same|" + str(int(after(10).timestamp() * 1000)) + "||0|0|0|0|")
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

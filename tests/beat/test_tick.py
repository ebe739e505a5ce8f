"""What one turn of the beat emits, when, and what it leaves behind: in one process, with a frozen wall clock."""

from __future__ import annotations

import base64
import json
import pickle
import time
import zlib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis
from celery import Celery
from celery.beat import BeatLazyFunc
from celery.schedules import BaseSchedule, crontab, schedstate
from kombu.exceptions import OperationalError

from redbeat_lite import Entry, Misfire, Scheduler, Schedules, at, cron, every, register_schedule
from redbeat_lite.beat.dispatch.broker import BrokerDown
from redbeat_lite.storage.leader_store import LeaderStore
from redbeat_lite.storage.stored import Advance, Term
from tests.support.commands import commands
from tests.support.frozen import NOW, Clock
from tests.support.kombus import needs_batches
from tests.support.messages import Message, by_entry, of_entry, queued
from tests.support.server import Server

pytestmark = pytest.mark.usefixtures("clock")

KEY = "{redbeat-lite}:"


def after(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def nominals(client: redis.Redis, name: str) -> list[float]:
    """Nominal times of an entry's messages, in seconds after the start of the test."""
    return seconds(of_entry(client, name))


def seconds(messages: list[Message]) -> list[float]:
    """The nominal times of messages, in seconds after the start of the test."""
    return [(message.scheduled_at - NOW).total_seconds() for message in messages if message.scheduled_at]


class TestFirstRun:
    @pytest.mark.parametrize(
        ("schedule", "first"),
        [
            (every(600), after(600)),
            (600, after(600)),
            (every(3600, align=True), datetime(2026, 3, 2, 13, 0, tzinfo=UTC)),
            (cron("0 4 * * *"), datetime(2026, 3, 3, 4, 0, tzinfo=UTC)),
            (crontab(minute=0, hour=4), datetime(2026, 3, 3, 4, 0, tzinfo=UTC)),
            (at(after(5)), after(5)),
            (at(after(-5)), after(-5)),
        ],
        ids=str,
    )
    def test_is_the_schedules_own_next_instant(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis, schedule: Any, first: Any
    ) -> None:
        schedules.add("a", "add", schedule)
        clock.set(max(first - timedelta(milliseconds=1), NOW))
        inner_beat.run_due()
        assert len(queued(client)) == (first <= NOW)
        clock.set(max(first, NOW))
        inner_beat.run_due()
        assert [message.scheduled_at for message in queued(client)] == [first]

    def test_is_start_at_where_that_is_given(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add("interval", "add", every(600), start_at=after(1800))
        schedules.add("cron", "add", cron("0 * * * *"), start_at=after(3600))
        assert inner_beat.run_due() == 300
        clock.set(after(1800))
        inner_beat.run_due()
        assert nominals(client, "interval") == [1800]
        assert schedules["cron"].next_run_at == datetime(2026, 3, 2, 14, 0, tzinfo=UTC)

    def test_is_not_put_off_by_a_beat_that_is_restarted_again_and_again(
        self,
        app: Celery,
        schedules: Schedules,
        make_beat: Callable[[Celery], Scheduler],
        clock: Clock,
        client: redis.Redis,
    ) -> None:
        app.conf.beat_schedule = {"configured": {"task": "add", "schedule": 86_400}}
        schedules.add("runtime", "add", every(86_400))
        for _ in range(25):
            beat = make_beat(app)
            beat.run_due()
            beat.close()
            clock.forward(3600)
        assert nominals(client, "configured") == nominals(client, "runtime") == [86_400]


class TestWaiting:
    def test_lasts_until_the_next_entry_and_no_longer_than_the_longest_sleep(
        self, app: Celery, schedules: Schedules, inner_beat: Scheduler, clock: Clock
    ) -> None:
        assert inner_beat.run_due() == inner_beat.max_interval == 300
        schedules.add("a", "add", every(1000))
        assert inner_beat.run_due() == 300
        schedules.add("b", "add", every(2.5))
        assert inner_beat.run_due() == 2.5
        clock.forward(2.5)
        assert inner_beat.run_due() == 2.5

    def test_of_a_stand_by_is_no_longer_than_the_longest_sleep(
        self, make_app: Callable[..., Celery], make_beat: Callable[[Celery], Scheduler], inner_beat: Scheduler
    ) -> None:
        inner_beat.run_due()
        assert make_beat(make_app(beat_max_loop_interval=7)).run_due() == 7

    def test_never_ends_early_so_that_nothing_fires_before_its_time(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add("a", "add", every(0.1))
        for _ in range(50):
            clock.forward(inner_beat.run_due())
        for message in queued(client):
            assert message.scheduled_at <= clock.now
        assert nominals(client, "a") == [pytest.approx(0.1 * n) for n in range(1, 50)]


class CannotTell(BaseSchedule):  # type: ignore[misc]  # Celery ships no types
    """A schedule that works for a while and then raises."""

    def __init__(self, fails_from: float) -> None:
        super().__init__()
        self.fails_from = fails_from

    def is_due(self, last_run_at: datetime) -> Any:
        if last_run_at.timestamp() >= self.fails_from:
            raise ZeroDivisionError("schedule is broken")
        since = (self.now() - last_run_at).total_seconds()
        return schedstate(is_due=since >= 10, next=10 if since >= 10 else 10 - since)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CannotTell) and other.fails_from == self.fails_from

    __hash__ = None  # type: ignore[assignment]


def poison(schedules: Schedules, client: redis.Redis, kind: str) -> None:
    """Make the entry ``bad``, due 10 s from now, and spoil it."""
    if kind == "raising schedule":
        schedules["bad"] = Entry("bad", "add", CannotTell(after(9).timestamp()))
        return
    if kind == "schedule that raises beyond its next run":
        schedules["bad"] = Entry("bad", "add", CannotTell(after(19).timestamp()))
        definition = json.loads(client.hget(KEY + "entries", "bad") or b"")
        client.hset(KEY + "entries", "bad", json.dumps({**definition, "jitter": 0.5}))
        return
    schedules.add("bad", "add", every(10))
    definition = json.loads(client.hget(KEY + "entries", "bad") or b"")
    state = (client.hget(KEY + "state", "bad") or b"").decode()
    match kind:
        case "no JSON":
            client.hset(KEY + "entries", "bad", "{")
        case "not UTF-8":
            client.hset(KEY + "entries", "bad", b"\xff\xfe")
        case "JSON of another kind":
            client.hset(KEY + "entries", "bad", "[1]")
        case "unknown schedule class":
            client.hset(KEY + "entries", "bad", json.dumps({**definition, "schedule": {"custom": "no.Such"}}))
        case "rule that takes minutes to search":
            costly = "DTSTART:10000101T000001 RRULE:FREQ=SECONDLY;INTERVAL=3607;COUNT=10000;BYMINUTE=0;BYSECOND=0"
            client.hset(KEY + "entries", "bad", json.dumps({**definition, "schedule": {"rrule": costly}}))
        case "field of a wrong type":
            client.hset(KEY + "entries", "bad", json.dumps({**definition, "jitter": "soon"}))
        case "format to come":
            client.hset(KEY + "entries", "bad", json.dumps({**definition, "v": 99}))
        case "task gone":
            client.hset(KEY + "entries", "bad", json.dumps({"v": 1, "schedule": {"every": 10_000}}))
        case "definition gone":
            client.hdel(KEY + "entries", "bad")
        case "state gone":
            client.hdel(KEY + "state", "bad")
        case "state garbage":
            client.hset(KEY + "state", "bad", "garbage")
        case "state that reads like another":
            client.hset(KEY + "state", "bad", " " + state)
        case "name not UTF-8":
            client.zadd(KEY + "due", {b"\xff\xfe": after(10).timestamp() * 1000})
            client.hset(KEY + "entries", b"\xff\xfe", json.dumps(definition))
            client.hset(KEY + "state", b"\xff\xfe", state)
            schedules.remove("bad")
        case "once key without its argument":
            client.hset(
                KEY + "entries", "bad", json.dumps({**definition, "once": {"key": "{missing}", "scope": "queue"}})
            )
        case _:
            raise AssertionError(kind)


class TestPoison:
    @pytest.mark.parametrize(
        "kind",
        [
            "no JSON",
            "not UTF-8",
            "JSON of another kind",
            "unknown schedule class",
            "rule that takes minutes to search",
            "field of a wrong type",
            "format to come",
            "task gone",
            "state garbage",
            "state that reads like another",
            "name not UTF-8",
            "raising schedule",
            "schedule that raises beyond its next run",
            "once key without its argument",
        ],
    )
    def test_an_entry_that_cannot_be_used_is_set_aside_and_the_others_fire_on_time(
        self,
        schedules: Schedules,
        inner_beat: Scheduler,
        clock: Clock,
        client: redis.Redis,
        caplog: pytest.LogCaptureFixture,
        kind: str,
    ) -> None:
        register_schedule(CannotTell, lambda found: found.fails_from, CannotTell, name="tests.CannotTell")
        schedules.add_many(Entry(f"good{number}", "add", every(10)) for number in range(99))
        poison(schedules, client, kind)
        inner_beat.leader.acquire()  # without the repair that begins a term: what is spoilt now, a tick meets
        clock.forward(10)
        inner_beat.run_due()
        clock.forward(10)
        inner_beat.run_due()
        sent = {name: seconds(messages) for name, messages in by_entry(client).items()}
        assert sent == {f"good{number}": [10, 20] for number in range(99)}
        [name] = schedules.quarantined()
        assert name == ("\\xff\\xfe" if kind == "name not UTF-8" else "bad")
        assert "bad" not in schedules
        errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
        assert len(errors) == 1
        assert f"entry {name!r} cannot be used and is quarantined: " in errors[0]

    @pytest.mark.parametrize(
        "kind", ["no JSON", "raising schedule", "format to come", "unknown schedule class", "state gone"]
    )
    def test_neither_a_new_leader_nor_a_clock_set_back_trips_over_it(
        self,
        app: Celery,
        schedules: Schedules,
        make_beat: Callable[[Celery], Scheduler],
        clock: Clock,
        client: redis.Redis,
        kind: str,
    ) -> None:
        register_schedule(CannotTell, lambda found: found.fails_from, CannotTell, name="tests.CannotTell")
        schedules.add("good", "add", every(10))
        poison(schedules, client, kind)
        app.conf.beat_schedule = {"configured": {"task": "add", "schedule": 10}}
        beat = make_beat(app)
        beat.run_due()
        clock.forward(-7200)
        beat.run_due()
        clock.forward(10)
        beat.run_due()
        assert nominals(client, "good") == nominals(client, "configured") == [-7190]

    @pytest.mark.parametrize(("kind", "runs"), [("state gone", [10, 20]), ("definition gone", [])])
    def test_an_entry_that_is_half_gone_is_mended_or_removed_and_the_others_fire_on_time(
        self,
        schedules: Schedules,
        inner_beat: Scheduler,
        clock: Clock,
        client: redis.Redis,
        kind: str,
        runs: list[float],
    ) -> None:
        schedules.add("good", "add", every(10))
        poison(schedules, client, kind)
        for _ in range(2):
            inner_beat.run_due()
            clock.forward(10)
        inner_beat.run_due()
        assert nominals(client, "good") == [10, 20]
        assert nominals(client, "bad") == runs
        assert ("bad" in schedules) == bool(runs)

    def test_a_list_does_not_trip_over_any(self, schedules: Schedules, client: redis.Redis) -> None:
        schedules.add("good", "add", every(10))
        for kind in ("no JSON", "format to come", "state gone"):
            poison(schedules, client, kind)
            assert "good" in [entry.name for entry in schedules.list()]
            schedules.add("good2", "add", every(10), replace=True)
            assert {each.name for each in schedules.upcoming(after(10))} == {"good", "good2"}
            client.zrem(KEY + "due", "bad")
            client.hdel(KEY + "entries", "bad")
            client.hdel(KEY + "state", "bad")

    def test_a_task_that_cannot_be_sent_is_put_off_and_the_others_fire_on_time(
        self,
        app: Celery,
        schedules: Schedules,
        inner_beat: Scheduler,
        clock: Clock,
        client: redis.Redis,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        @app.task(name="refuses", shared=False)
        def refuses() -> None: ...

        def refusing(*args: object, **kwargs: object) -> None:
            raise TypeError("cannot be sent")

        monkeypatch.setattr(app.tasks["refuses"], "apply_async", refusing)
        schedules.add_many(Entry(f"good{number}", "add", every(10)) for number in range(9))
        schedules.add("bad", "refuses", every(10))
        clock.forward(10)
        inner_beat.run_due()
        assert len(queued(client)) == 9
        bad = schedules["bad"]
        assert (bad.last_error, bad.total_run_count) == ("TypeError: cannot be sent", 0)
        assert bad.next_run_at == after(11)
        assert schedules.quarantined() == {}


class TestFailedPublish:
    @pytest.mark.parametrize("dispatch", ["auto", "batch", "plain"])
    def test_three_times_and_then_not_is_one_message_under_one_id(
        self,
        make_app: Callable[..., Celery],
        make_beat: Callable[[Celery], Scheduler],
        clock: Clock,
        client: redis.Redis,
        monkeypatch: pytest.MonkeyPatch,
        dispatch: str,
    ) -> None:
        app = make_app(redbeat_lite_dispatch=dispatch)
        schedules, beat = Schedules(app), make_beat(app)
        schedules.add("a", "some.task", every(3600))
        send, tried = app.amqp.send_task_message, []

        def failing(producer: Any, name: str, message: Any, **options: Any) -> Any:
            tried.append((clock.now, message.headers["id"]))
            assert options["retry"] is False, "a retry inside the publish would hold up all others"
            if len(tried) <= 3:
                raise RuntimeError(f"failure {len(tried)}")
            return send(producer, name, message, **options)

        monkeypatch.setattr(app.amqp, "send_task_message", failing)
        clock.forward(3600)
        errors = []
        for _ in range(4):
            wait = beat.run_due()
            errors.append(schedules["a"].last_error)
            clock.forward(wait)
        assert [moment for moment, _ in tried] == [after(3600), after(3601), after(3603), after(3607)]
        assert len({name for _, name in tried}) == 1
        assert errors == ["RuntimeError: failure 1", "RuntimeError: failure 2", "RuntimeError: failure 3", None]
        [message] = queued(client)
        assert (message.id, message.scheduled_at) == (tried[0][1], after(3600))
        entry = schedules["a"]
        assert (entry.total_run_count, entry.last_run_at, entry.last_task_id) == (1, after(3600), message.id)
        assert entry.next_run_at == after(7200)

    def test_of_a_broker_that_goes_away_does_not_send_again_what_is_out(
        self,
        make_app: Callable[..., Celery],
        make_beat: Callable[[Celery], Scheduler],
        client: redis.Redis,
        clock: Clock,
    ) -> None:
        app = make_app(redbeat_lite_dispatch="plain")
        Schedules(app).add_many(Entry(name, "add", every(10 + n)) for n, name in enumerate("abc"))
        beat = make_beat(app)
        clock.forward(15)

        def gone(entry: Any, producer: Any = None) -> None:
            if entry.name == "b":
                raise OperationalError("the broker went away")
            Scheduler.apply_entry(beat, entry, producer)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(beat, "apply_entry", gone)
            patch.setattr(beat._publisher, "answers", lambda: False)
            with pytest.raises(BrokerDown):
                beat.run_due()
        beat.run_due()
        assert [message.entry for message in queued(client)] == ["a", "b", "c"]

    def test_is_tried_every_minute_in_the_end(
        self, app: Celery, schedules: Schedules, inner_beat: Scheduler, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def failing(*args: object, **kwargs: object) -> None:
            raise RuntimeError("no")

        monkeypatch.setattr(app.amqp, "send_task_message", failing)
        schedules.add("a", "add", every(86_400))
        clock.forward(86_400)
        waits = []
        for _ in range(9):
            waits.append(inner_beat.run_due())
            clock.forward(waits[-1])
        assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]

    def test_a_queue_that_is_no_list_is_that_entrys_fault_alone(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        client.set("broken", "x", ex=60)
        schedules.add("bad", "add", every(3600), options={"queue": "broken"})
        schedules.add("good", "add", every(3600))
        clock.forward(3600)
        inner_beat.run_due()
        assert nominals(client, "good") == [3600]
        assert "WRONGTYPE" in (schedules["bad"].last_error or "")
        client.delete("broken")
        clock.forward(1)
        inner_beat.run_due()
        [message] = queued(client, "broken")
        assert message.scheduled_at == after(3600)
        assert schedules["bad"].last_error is None


class TestCounters:
    def test_are_exact_over_a_hundred_runs_three_leaders_and_ten_edits(
        self,
        app: Celery,
        schedules: Schedules,
        make_beat: Callable[[Celery], Scheduler],
        clock: Clock,
        client: redis.Redis,
    ) -> None:
        schedules.add("a", "add", every(10))
        beat = make_beat(app)
        for run in range(100):
            clock.forward(10)
            if run in (25, 50, 75):
                beat.close()
                beat = make_beat(app)
            beat.run_due()
            if run % 10 == 3:
                schedules.update("a", kwargs={"x": run})
        entry = schedules["a"]
        assert (entry.total_run_count, entry.last_run_at, entry.version) == (100, after(1000), 11)
        messages = queued(client)
        assert len({message.id for message in messages}) == len(messages) == 100
        assert nominals(client, "a") == [10 * run for run in range(1, 101)]
        assert entry.last_task_id == messages[-1].id

    def test_skipped_occurrences_are_counted_apart(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, caplog: pytest.LogCaptureFixture
    ) -> None:
        schedules.add("a", "add", every(10), misfire="skip")
        clock.forward(108)
        inner_beat.run_due()
        entry = schedules["a"]
        assert (entry.total_run_count, entry.skipped_count, entry.last_run_at) == (0, 10, None)
        assert "'a' missed 10 occurrences, left out by its policy 'skip'" in caplog.text


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
        make_app: Callable[..., Celery],
        make_beat: Callable[[Celery], Scheduler],
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
        make_app: Callable[..., Celery],
        make_beat: Callable[[Celery], Scheduler],
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
        make_app: Callable[..., Celery],
        make_beat: Callable[[Celery], Scheduler],
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


class TestEnds:
    def test_a_one_off_runs_once_and_keeps_its_record(
        self,
        app: Celery,
        schedules: Schedules,
        make_beat: Callable[[Celery], Scheduler],
        clock: Clock,
        client: redis.Redis,
    ) -> None:
        schedules.add("a", "add", at(after(10)))
        clock.forward(10)
        beat = make_beat(app)
        beat.run_due()
        beat.close()
        clock.forward(1000)
        make_beat(app).run_due()
        assert nominals(client, "a") == [10]
        entry = schedules["a"]
        assert (entry.finished, entry.next_run_at, entry.total_run_count) == (True, None, 1)

    def test_a_one_off_that_ran_does_not_run_again_because_it_is_edited(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add("a", "add", at(after(10)))
        clock.forward(10)
        inner_beat.run_due()
        schedules.update("a", description="it has been")
        schedules.add("a", "add", at(after(10)), args=(5,), replace=True)
        schedules.update("a", start_at=after(1))
        schedules.pause("a")
        schedules.resume("a", catch_up=True)
        inner_beat.run_due()
        assert nominals(client, "a") == [10]
        assert schedules["a"].finished

    def test_a_one_off_that_was_skipped_stays_skipped(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add("a", "add", at(after(10)), misfire=Misfire(grace=5))
        clock.forward(20)
        inner_beat.run_due()
        schedules.update("a", description="too late")
        inner_beat.run_due()
        assert queued(client) == []
        assert schedules["a"].finished

    def test_a_one_off_that_is_moved_runs_at_its_new_time(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add("a", "add", at(after(10)))
        clock.forward(10)
        inner_beat.run_due()
        schedules.update("a", schedule=at(after(30)))
        clock.forward(20)
        inner_beat.run_due()
        assert nominals(client, "a") == [10, 30]

    def test_nothing_fires_after_end_at(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add("a", "add", every(10), start_at=after(20), end_at=after(40))
        for _ in range(10):
            clock.forward(10)
            inner_beat.run_due()
        assert nominals(client, "a") == [20, 30, 40]
        assert schedules["a"].finished

    def test_what_end_at_cut_off_while_nobody_looked_is_caught_up_with_by_policy(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add("a", "add", every(10), end_at=after(45))
        clock.forward(1000)
        inner_beat.run_due()
        assert nominals(client, "a") == [40]

    def test_max_runs_are_so_many_over_restarts_and_edits(
        self,
        app: Celery,
        schedules: Schedules,
        make_beat: Callable[[Celery], Scheduler],
        clock: Clock,
        client: redis.Redis,
    ) -> None:
        schedules.add("a", "add", every(10), max_runs=3)
        for run in range(6):
            clock.forward(10)
            beat = make_beat(app)
            beat.run_due()
            beat.close()
            if run == 1:
                schedules.update("a", kwargs={"x": 1})
        assert nominals(client, "a") == [10, 20, 30]
        assert (schedules["a"].finished, schedules["a"].total_run_count) == (True, 3)

    def test_more_runs_bring_a_finished_entry_back(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add("a", "add", every(10), max_runs=1)
        clock.forward(10)
        inner_beat.run_due()
        clock.forward(100)
        assert schedules.update("a", max_runs=2).next_run_at == after(120)
        clock.forward(10)
        inner_beat.run_due()
        assert nominals(client, "a") == [10, 120]

    def test_a_run_that_a_once_lock_left_out_is_none_of_max_runs(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add("a", "add", every(10), max_runs=2, once=True)
        clock.forward(10)
        inner_beat.run_due()
        for _ in range(3):
            clock.forward(10)
            inner_beat.run_due()
        entry = schedules["a"]
        assert nominals(client, "a") == [10]
        assert (entry.finished, entry.total_run_count, entry.skipped_count) == (False, 1, 3)
        assert entry.next_run_at == after(50)

    def test_remove_when_done_leaves_nothing(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add("a", "add", at(after(10)), remove_when_done=True)
        schedules.add("b", "add", every(10), max_runs=2, remove_when_done=True)
        for _ in range(2):
            clock.forward(10)
            inner_beat.run_due()
        assert nominals(client, "a") == [10]
        assert nominals(client, "b") == [10, 20]
        assert list(schedules) == []
        assert not client.exists(KEY + "entries", KEY + "state", KEY + "due")


class TestMisfires:
    @pytest.mark.parametrize(
        ("misfire", "expected"),
        [
            ("coalesce", [100]),
            ("skip", []),
            ("all", [10, 20, 30, 40, 50, 60, 70, 80, 90, 100]),
            (Misfire("all", limit=4), [10, 20, 30, 40]),
            (Misfire("all", limit=20), [10, 20, 30, 40, 50, 60, 70, 80, 90, 100]),
            (Misfire("all", grace=25), [90, 100]),
            (Misfire("coalesce", grace=5), []),
            (Misfire("coalesce", grace=9), [100]),
        ],
        ids=str,
    )
    def test_ten_missed_are_sent_by_policy(
        self,
        schedules: Schedules,
        inner_beat: Scheduler,
        clock: Clock,
        client: redis.Redis,
        misfire: Any,
        expected: list[float],
    ) -> None:
        schedules.add("a", "add", every(10), misfire=misfire)
        clock.forward(108)
        inner_beat.run_due()
        assert nominals(client, "a") == expected
        clock.forward(2)
        inner_beat.run_due()
        assert nominals(client, "a") == [*expected, 110]

    @pytest.mark.parametrize("misfire", ["skip", Misfire("coalesce", grace=0.5), Misfire("all", grace=0.5)], ids=str)
    def test_jitter_is_no_lateness(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis, misfire: Any
    ) -> None:
        schedules.add("a", "add", every(100), jitter=60, misfire=misfire)
        offsets = []
        while len(offsets) < 10:
            clock.forward(inner_beat.run_due())
            inner_beat.run_due()
            if len(queued(client)) > len(offsets):
                offsets.append((clock.now - (queued(client)[-1].scheduled_at or NOW)).total_seconds())
            assert clock.now < after(1200)
        assert nominals(client, "a") == [100 * run for run in range(1, 11)]
        assert max(offsets) > 5

    def test_thousands_missed_under_all_are_sent_in_rounds_and_none_twice(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add("a", "add", every(1), misfire="all")
        clock.forward(1234)
        inner_beat.run_due()
        assert nominals(client, "a") == list(range(1, 1235))

    @needs_batches
    def test_many_entries_with_much_to_send_do_not_do_it_in_one_step(
        self,
        schedules: Schedules,
        inner_beat: Scheduler,
        clock: Clock,
        client: redis.Redis,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        schedules.add_many(Entry(f"e{number}", "add", every(1), misfire="all") for number in range(30))
        inner_beat.run_due()
        clock.forward(600)
        steps, commit = [], LeaderStore.commit

        def noted(store: LeaderStore, term: Term, now: int, advances: Sequence[Advance]) -> list[bool | str]:
            steps.append(sum(len(advance.commands) for advance in advances))
            return commit(store, term, now, advances)

        monkeypatch.setattr(LeaderStore, "commit", noted)
        inner_beat.run_due()
        assert sum(steps) == client.llen("celery") == 30 * 600
        assert max(steps) <= 5500, "one script sends as many messages as entries are due times what each has missed"


class TestEdits:
    def test_never_fire_for_the_past(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add("a", "add", cron("0 0 * * *"))
        clock.forward(3600)
        schedules.update("a", schedule=cron("*/5 * * * *"))
        schedules.add("b", "add", every(86_400))
        clock.forward(5000)
        schedules.update("b", schedule=every(10))
        inner_beat.run_due()
        assert nominals(client, "b") == []
        assert all(second > 3600 for second in nominals(client, "a"))

    def test_of_an_overdue_entrys_arguments_keep_what_is_due(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add("a", "add", every(10), (1,))
        clock.forward(10)
        schedules.update("a", args=(2,))
        inner_beat.run_due()
        assert [message.args for message in queued(client)] == [[2]]

    def test_that_switch_on_what_was_off_wait_for_the_next_instant(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add("a", "add", every(10), misfire="all")
        schedules.update("a", enabled=False)
        clock.forward(105)
        schedules.update("a", enabled=True)
        inner_beat.run_due()
        assert queued(client) == []
        assert schedules["a"].next_run_at == after(110)


class TestClock:
    def test_set_back_keeps_nobody_waiting_for_more_than_its_interval(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add("interval", "add", every(60))
        schedules.add("jittered", "add", every(60), jitter=20)
        schedules.add("cron", "add", cron("*/10 * * * *"))
        schedules.add("tomorrow", "add", every(60), start_at=after(86_400))
        schedules.add("one-off", "add", at(after(3600)))
        inner_beat.run_due()
        clock.forward(60)
        inner_beat.run_due()
        clock.forward(-7200)
        inner_beat.run_due()
        waits = {entry.name: (entry.next_run_at - clock.now).total_seconds() for entry in schedules.list()}
        assert waits["interval"] <= 60
        assert waits["jittered"] <= 80
        assert waits["cron"] <= 600
        assert schedules["tomorrow"].next_run_at == after(86_400)
        assert schedules["one-off"].next_run_at == after(3600)
        client.delete("celery")
        clock.forward(60)
        inner_beat.run_due()
        assert len(of_entry(client, "interval")) == 1

    def test_set_back_between_two_leaders_is_noticed_too(
        self,
        app: Celery,
        schedules: Schedules,
        make_beat: Callable[[Celery], Scheduler],
        clock: Clock,
    ) -> None:
        schedules.add("a", "add", every(60))
        beat = make_beat(app)
        clock.forward(60)
        beat.run_due()
        beat.close()
        clock.forward(-7200)
        make_beat(app).run_due()
        assert schedules["a"].next_run_at == clock.now + timedelta(seconds=60)

    @pytest.mark.parametrize("behind", [1.5, 59])
    @pytest.mark.parametrize(
        ("schedule", "gap"),
        [
            (cron("* * * * *"), 60),
            (every(60, align=True), 60),
            (every(1, align=True), 1),
            (cron("0 13 * * *"), 86_400),
        ],
        ids=str,
    )
    def test_of_the_next_leader_that_is_behind_sends_no_occurrence_twice(
        self,
        app: Celery,
        schedules: Schedules,
        make_beat: Callable[[Celery], Scheduler],
        clock: Clock,
        client: redis.Redis,
        schedule: Any,
        gap: int,
        behind: float,
    ) -> None:
        clock.set(datetime(2026, 3, 2, 12, 59, 59, 500_000, tzinfo=UTC))
        beat = make_beat(app)
        schedules.add("a", "add", schedule)
        schedules.add("moved", "add", schedule)
        schedules.update("moved", start_at=clock.now - timedelta(days=1))
        clock.forward(0.6)
        beat.run_due()
        beat.close()
        clock.forward(-behind)
        successor = make_beat(app)
        successor.run_due()
        assert schedules["a"].next_run_at == schedules["moved"].next_run_at == after(3161 + gap)
        for _ in range(70):
            clock.forward(1)
            successor.run_due()
        for name in ("a", "moved"):
            sent = nominals(client, name)
            assert sent[0] == 3161
            assert len(sent) == len(set(sent))
        assert len(queued(client)) == len({message.id for message in queued(client)})

    @pytest.mark.parametrize("again", [cron("* * * * 1-5"), every(60, align=True)], ids=str)
    def test_of_an_editor_that_is_behind_repeats_no_run_and_ends_nothing(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis, again: Any
    ) -> None:
        schedules.add("a", "add", cron("* * * * *"))
        clock.set(after(41.1))
        inner_beat.run_due()
        clock.forward(-0.5)
        schedules.update("a", schedule=again)
        clock.forward(61)
        inner_beat.run_due()
        assert nominals(client, "a") == [41, 101]

    def test_set_back_far_names_no_run_by_an_id_that_was_sent(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add("minutely", "add", cron("* * * * *"))
        schedules.add("daily", "add", cron("10 12 * * *"))
        schedules.add("interval", "add", every(60))
        for _ in range(2):
            for _ in range(5):
                inner_beat.run_due()
                clock.forward(60)
            clock.forward(-300)
        assert len(of_entry(client, "minutely")) > 5
        assert len(of_entry(client, "daily")) == 1
        assert len(of_entry(client, "interval")) > 5
        assert len(queued(client)) == len({message.id for message in queued(client)})

    def test_set_forward_while_the_beat_waits_ends_the_wait(
        self, schedules: Schedules, inner_beat: Scheduler, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ahead = [0]
        begun = time.clock_gettime(time.CLOCK_MONOTONIC)
        noon = round(NOW.timestamp() * 1000)

        def wall_ms() -> int:
            passed = time.clock_gettime(time.CLOCK_MONOTONIC) - begun
            return noon + round(1000 * passed) + (ahead[0] if passed > 1 else 0)

        for module in ("scheduler", "beat.dispatch.dispatcher"):
            monkeypatch.setattr(f"redbeat_lite.{module}.wall_ms", wall_ms)
        schedules.add("a", "add", every(250))
        inner_beat.run_due()
        ahead[0] = 7_200_000
        inner_beat.tick()
        inner_beat.run_due()
        assert time.clock_gettime(time.CLOCK_MONOTONIC) - begun < 10
        assert len(queued(client)) == 1

    @pytest.mark.parametrize(("misfire", "runs"), [("coalesce", 1), ("skip", 0), (Misfire("all", limit=7), 7)])
    def test_set_forward_two_hours_is_one_catch_up_by_policy(
        self,
        schedules: Schedules,
        inner_beat: Scheduler,
        clock: Clock,
        client: redis.Redis,
        misfire: Any,
        runs: int,
    ) -> None:
        schedules.add("a", "add", every(60), misfire=misfire)
        inner_beat.run_due()
        clock.forward(7200 + 30)
        inner_beat.run_due()
        assert len(queued(client)) == runs
        assert inner_beat.leader.leading
        inner_beat.run_due()
        assert len(queued(client)) == runs

    def test_a_schedule_that_cannot_be_stored_keeps_its_own_rule(
        self, app: Celery, make_beat: Callable[[Celery], Scheduler], clock: Clock, schedules: Schedules
    ) -> None:
        class Unstorable(CannotTell):
            __eq__, __hash__ = CannotTell.__eq__, None  # type: ignore[assignment]

            def is_due(self, last_run_at: datetime) -> Any:
                since = (self.now() - last_run_at).total_seconds()
                return schedstate(is_due=since >= 7000, next=7000 if since >= 7000 else 7000 - since)

        app.conf.beat_schedule = {"a": {"task": "add", "schedule": Unstorable(0)}}
        beat = make_beat(app)
        beat.run_due()
        assert schedules["a"].next_run_at == after(7000)
        clock.forward(-3600)
        beat.run_due()
        assert schedules["a"].next_run_at == after(7000 - 3600)


class TestCost:
    @pytest.mark.parametrize("stored", [1, 5000])
    def test_a_tick_with_nothing_due_is_one_command_whatever_is_stored(
        self, schedules: Schedules, inner_beat: Scheduler, server: Server, stored: int
    ) -> None:
        schedules.add_many(Entry(f"e{number}", "add", every(60 + number)) for number in range(stored))
        inner_beat.run_due()
        with commands(server) as seen:
            for _ in range(10):
                inner_beat.run_due()
        assert len(seen) == 10
        assert all(command.startswith("EVALSHA") for command in seen)

    @needs_batches
    @pytest.mark.parametrize("dispatch", ["auto", "batch"])
    def test_a_thousand_due_entries_cost_next_to_nothing_each(
        self,
        make_app: Callable[..., Celery],
        make_beat: Callable[[Celery], Scheduler],
        clock: Clock,
        client: redis.Redis,
        server: Server,
        dispatch: str,
    ) -> None:
        app = make_app(redbeat_lite_dispatch=dispatch)
        schedules, beat = Schedules(app), make_beat(app)
        schedules.add_many(Entry(f"e{number}", "add", every(60)) for number in range(1000))
        clock.forward(60)
        beat.run_due()
        clock.forward(60)
        with commands(server) as seen:
            beat.run_due()
        assert client.llen("celery") == 2000
        # Two batches of a peek and a commit, and the peek that finds nothing more.
        assert len(seen) == 5

    def test_a_paused_entry_costs_nothing(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, server: Server
    ) -> None:
        schedules.add_many(Entry(f"e{number}", "add", every(1)) for number in range(50))
        for number in range(50):
            schedules.pause(f"e{number}")
        inner_beat.run_due()
        clock.forward(1000)
        with commands(server) as seen:
            inner_beat.run_due()
        assert len(seen) == 1

    @pytest.mark.parametrize(
        ("dispatch", "most"),
        [
            pytest.param("auto", 3, marks=needs_batches),
            pytest.param("batch", 3, marks=needs_batches),
            ("plain", 300),
        ],
    )
    def test_a_result_backend_is_asked_nothing(
        self,
        make_app: Callable[..., Celery],
        make_beat: Callable[[Celery], Scheduler],
        clock: Clock,
        server: Server,
        dispatch: str,
        most: int,
    ) -> None:
        app = make_app(result_backend=server.url, redbeat_lite_dispatch=dispatch)

        @app.task(name="add", shared=False)
        def add() -> None: ...

        schedules, beat = Schedules(app), make_beat(app)
        schedules.add_many(Entry(f"e{number}", "add", every(60)) for number in range(100))
        clock.forward(60)
        beat.run_due()
        clock.forward(60)
        with commands(server) as seen:
            beat.run_due()
        assert len(seen) <= most
        assert not any("SUBSCRIBE" in command for command in seen)


def test_lazy_arguments_are_evaluated_at_each_run(
    app: Celery, make_beat: Callable[[Celery], Scheduler], clock: Clock, client: redis.Redis, schedules: Schedules
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

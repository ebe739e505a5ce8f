"""An edit is told by what it stores and by the runs that follow, never by what a class calls equal."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
import redis
from celery import Celery
from celery.schedules import BaseSchedule, crontab, schedstate, schedule

from redbeat_lite import Entry, Scheduler, Schedules, cron, every, register_schedule
from tests.support.cases import together
from tests.support.frozen import NOW, Clock
from tests.support.in_process import MakeApp, MakeBeat, one_turn
from tests.support.messages import of_entry

pytestmark = pytest.mark.usefixtures("clock")

MONTH = 30 * 86_400


class Ticks(BaseSchedule):  # type: ignore[misc]  # Celery ships no types
    """An interval. Celery's own comparison calls all of them equal, because their clocks are."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def is_due(self, last_run_at: datetime) -> Any:
        rest = self.seconds - (self.now() - last_run_at).total_seconds()
        return schedstate(is_due=rest <= 0, next=rest if rest > 0 else self.seconds)


class Local(Ticks):
    """The same, and nothing can store it."""

    def __repr__(self) -> str:
        return f"Local({self.seconds})"


class Dates(BaseSchedule):  # type: ignore[misc]  # Celery ships no types
    """A list of days since `NOW`, which nothing can store, and which its ``repr`` does not tell."""

    def __init__(self, *days: int) -> None:
        super().__init__()
        self.days = days

    def next_after(self, instant: datetime) -> datetime | None:
        return next((found for day in self.days if (found := NOW + timedelta(days=day)) > instant), None)


class NamedDates(Dates):
    """The same with a ``repr`` that tells the days."""

    def __repr__(self) -> str:
        return f"NamedDates{self.days}"


class Noons(BaseSchedule):  # type: ignore[misc]  # Celery ships no types
    """Noon of each day, by the clocks of the zone in which it is asked."""

    def is_due(self, last_run_at: datetime) -> Any:
        noon = last_run_at.replace(hour=12, minute=0, second=0, microsecond=0)
        noon += timedelta(days=noon <= last_run_at)
        rest = (noon - self.now()).total_seconds()
        return schedstate(is_due=rest <= 0, next=max(rest, 0))


class Forgetful(Local):
    """Answers for nothing that lies before an instant."""

    since = NOW

    def is_due(self, last_run_at: datetime) -> Any:
        if last_run_at < self.since:
            raise LookupError(f"no calendar for {last_run_at}")
        return super().is_due(last_run_at)


class Capricious(Local):
    """Answers differently each time."""

    __repr__ = object.__repr__

    def is_due(self, last_run_at: datetime) -> Any:
        self.seconds = 3600 + random.random()
        return super().is_due(last_run_at)


register_schedule(Ticks, lambda found: found.seconds, Ticks, name="tests.Ticks")


def left(entry: Entry, clock: Clock) -> float:
    """Seconds until the next run."""
    assert entry.next_run_at is not None
    return (entry.next_run_at - clock.now).total_seconds()


class TestOfARuntimeEntry:
    @together(
        ("before", "after"),
        [
            (Ticks(MONTH), Ticks(10)),
            (crontab(0, 0, day_of_month=1, month_of_year=1), Ticks(10)),
            (cron("0 0 1 1 *"), Ticks(10)),
            (schedule(7 * 86_400), every(10)),
        ],
        ids=["one class", "crontab", "cron", "interval"],
        emptied=True,
    )
    @together("how", ["update", "replace"], emptied=True)
    def test_another_schedule_counts_from_the_edit_on(
        self, schedules: Schedules, clock: Clock, before: Any, after: Any, how: str
    ) -> None:
        schedules.add("a", "add", before)
        clock.forward(60)
        if how == "update":
            schedules.update("a", schedule=after)
        else:
            schedules.add("a", "add", after, replace=True)
        assert left(schedules["a"], clock) == 10
        assert schedules["a"].version == 2

    @pytest.mark.parametrize(
        ("before", "after"),
        [(crontab(minute=0), crontab(minute="0")), (schedule(3600), every(3600)), (every(60), schedule(60.0))],
        ids=str,
    )
    def test_another_word_for_the_same_runs_postpones_nothing(
        self, schedules: Schedules, clock: Clock, before: Any, after: Any
    ) -> None:
        following = schedules.add("a", "add", before).next_run_at
        clock.forward(20)
        schedules.update("a", schedule=after)
        assert (schedules["a"].next_run_at, schedules["a"].version) == (following, 2)

    @together("args", [(True,), (1.0,)], emptied=True)
    def test_the_version_grows_where_python_sees_no_difference(self, schedules: Schedules, args: Any) -> None:
        schedules.add("a", "add", every(60), args=(1,))
        schedules.update("a", args=args)
        assert repr(schedules["a"].args) == repr(args)
        assert schedules["a"].version == 2

    def test_the_same_again_is_no_edit(self, schedules: Schedules, clock: Clock) -> None:
        first = schedules.add("a", "add", Ticks(60), args=(1,), kwargs={"y": 2})
        clock.forward(20)
        again = schedules.add("a", "add", Ticks(60), args=(1,), kwargs={"y": 2}, replace=True)
        assert (again.version, again.next_run_at) == (1, first.next_run_at)

    def test_mends_a_stored_schedule_that_is_no_rule(self, schedules: Schedules, client: redis.Redis) -> None:
        schedules.add("a", "add", every(60))
        client.hset("{redbeat-lite}:entries", "a", '{"v":3,"task":"add","schedule":{"schedule":0.001}}')
        assert schedules.update("a", schedule=every(5)).next_run_at == NOW + timedelta(seconds=5)


def test_a_new_start_moves_the_next_run(schedules: Schedules, clock: Clock) -> None:
    schedules.add("a", "add", every(600))
    start = clock.forward(100).replace(day=NOW.day + 1)
    assert schedules.update("a", start_at=start).next_run_at == start
    schedules.update("a", start_at=None)
    assert schedules["a"].next_run_at == clock.forward(600)


def test_failures_of_the_publish_are_forgotten(
    app: Celery, inner_beat: Scheduler, schedules: Schedules, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The edit may have mended what was wrong: it is tried at once, and its next failure is the first."""

    def failing(*args: Any, **options: Any) -> None:
        raise LookupError("no such thing")

    monkeypatch.setattr(app.tasks["add"], "apply_async", failing)
    schedules.add("a", "add", every(3600))
    clock.forward(3600)
    for _ in range(4):
        wait = inner_beat.run_due()
        clock.forward(wait)
    assert wait == 8.0
    schedules.update("a", description="mended")
    assert schedules["a"].last_error is None
    assert inner_beat.run_due() == 1.0
    assert schedules["a"].last_error == "LookupError: no such thing"


def test_entries_of_other_schedules_are_not_equal() -> None:
    assert Entry("a", "t", Ticks(10)) == Entry("a", "t", Ticks(10))
    assert Entry("a", "t", Ticks(10)) != Entry("a", "t", Ticks(MONTH))
    own = Local(10)
    assert Entry("a", "t", own) == Entry("a", "t", own) != Entry("b", "t", own)


class TestOfTheConfiguration:
    @pytest.fixture
    def deploy(self, make_app: MakeApp, make_beat: MakeBeat) -> Callable[..., Entry]:
        def deploy(written: Any, **fields: Any) -> Entry:
            app = make_app(beat_schedule={"a": {"task": "t", "schedule": written, **fields}})
            beat = make_beat(app)
            beat.run_due()
            beat.close()
            return Schedules(app)["a"]

        return deploy

    @pytest.mark.parametrize("kind", [Ticks, Local])
    @pytest.mark.parametrize(("before", "after"), [(MONTH, 10), (10, MONTH)])
    def test_another_schedule_counts_from_the_restart_on(
        self, deploy: Callable[..., Entry], clock: Clock, kind: type[Ticks], before: float, after: float
    ) -> None:
        deploy(kind(before))
        clock.forward(5)
        entry = deploy(kind(after))
        assert (left(entry, clock), entry.version) == (after, 2)
        clock.forward(1)
        entry = deploy(kind(after))
        assert (left(entry, clock), entry.version) == (after - 1, 2)

    @pytest.mark.parametrize(
        ("before", "after"), [(Local(MONTH), every(60)), (every(60), Local(MONTH))], ids=["local first", "local then"]
    )
    def test_one_that_can_be_stored_in_place_of_one_that_cannot_is_another(
        self, deploy: Callable[..., Entry], clock: Clock, before: Any, after: Any
    ) -> None:
        deploy(before)
        clock.forward(5)
        entry = deploy(after)
        assert left(entry, clock) == (60 if isinstance(before, Local) else MONTH)

    @pytest.mark.parametrize("kind", [Local, Forgetful, Capricious])
    def test_restarts_postpone_nothing(
        self, deploy: Callable[..., Entry], clock: Clock, monkeypatch: pytest.MonkeyPatch, kind: type[Local]
    ) -> None:
        first = deploy(kind(7200))
        for _ in range(3):
            clock.forward(1000)
            monkeypatch.setattr(Forgetful, "since", clock.now)
            entry = deploy(kind(7200), args=[1])
        assert (entry.next_run_at, entry.version) == (first.next_run_at, 2)
        if kind is not Forgetful:
            assert deploy(kind(7200)).next_run_at == first.next_run_at

    @pytest.mark.parametrize(
        ("before", "after", "following"),
        [
            ((1, 2, 3, 4, 40), (1, 2, 3, 4, 5, 40), 5),
            ((1, 2, 3, 4, 5, 40), (1, 2, 3, 4, 40), 40),
            ((1, 2, 3, 4), (1, 2, 3, 4, 5), 5),
        ],
        ids=["added", "removed", "added after the end"],
    )
    def test_another_repr_is_another_schedule(
        self,
        deploy: Callable[..., Entry],
        clock: Clock,
        client: redis.Redis,
        before: tuple[int, ...],
        after: tuple[int, ...],
        following: int,
    ) -> None:
        deploy(NamedDates(*before))
        for _ in range(4):
            clock.forward(86_400)
            deploy(NamedDates(*before))
        for _ in range(2):
            entry = deploy(NamedDates(*after))
            assert (entry.next_run_at, entry.version) == (NOW + timedelta(days=following), 2)
        clock.set(NOW + timedelta(days=following))
        deploy(NamedDates(*after))
        sent = [message.scheduled_at for message in of_entry(client, "a")]
        assert sent == [NOW + timedelta(days=day) for day in (1, 2, 3, 4, following)]

    def test_with_the_same_repr_an_earlier_run_is_seen_at_once_and_a_later_one_after_the_next(
        self, deploy: Callable[..., Entry], clock: Clock, client: redis.Redis
    ) -> None:
        deploy(Dates(30, 40))
        clock.forward(86_400)
        for _ in range(2):
            entry = deploy(Dates(3, 30, 40))
            assert (entry.next_run_at, entry.version) == (NOW + timedelta(days=3), 2)
        entry = deploy(Dates(30, 40))
        assert entry.next_run_at == NOW + timedelta(days=3)
        clock.forward(2 * 86_400)
        assert deploy(Dates(30, 40)).next_run_at == NOW + timedelta(days=30)
        assert [message.scheduled_at for message in of_entry(client, "a")] == [NOW + timedelta(days=3)]

    def test_of_what_is_past_costs_no_run_that_is_due(
        self, deploy: Callable[..., Entry], clock: Clock, client: redis.Redis
    ) -> None:
        deploy(Dates(1, 2, 3, 4, 5, 40))
        clock.forward(4 * 86_400)
        deploy(Dates(1, 2, 3, 4, 5, 40))
        clock.forward(86_400 + 60)
        assert deploy(Dates(4, 5, 40)).version == 1
        assert of_entry(client, "a")[-1].scheduled_at == NOW + timedelta(days=5)

    def test_hourly_restarts_with_runs_in_between_postpone_nothing(
        self, clock: Clock, client: redis.Redis, make_app: MakeApp, make_beat: MakeBeat
    ) -> None:
        start_at = NOW + timedelta(hours=9)
        fields: dict[str, dict[str, Any]] = {
            "plain": {},
            "late": {"start_at": start_at},
            "few": {"max_runs": 5},
            "spread": {"jitter": 60},
        }
        written = {name: {"task": "t", "schedule": Local(10_000), **more} for name, more in fields.items()}
        for hour in range(40):
            schedules = one_turn(make_app(beat_schedule=written), make_beat)
            for name in written:
                if hour == 20:
                    schedules.pause(name)
                if hour == 24:
                    schedules.resume(name)
            clock.forward(3600)
        for name in written:
            sent = [message.scheduled_at for message in of_entry(client, name)]
            assert len(sent) == 5 if name == "few" else len(sent) > 7
            assert all(after - before >= timedelta(seconds=10_000) for before, after in pairwise(sent))
            assert name != "late" or sent[0] > start_at
            assert schedules[name].version == 3

    @pytest.mark.parametrize("late", [60, 86_400])
    def test_another_time_zone_is_no_edit_of_one_that_goes_by_it(
        self, make_app: MakeApp, make_beat: MakeBeat, clock: Clock, client: redis.Redis, late: float
    ) -> None:
        stored = []
        for zone in ("UTC", "America/Los_Angeles", "America/Los_Angeles"):
            app = make_app(timezone=zone, beat_schedule={"a": {"task": "t", "schedule": Noons()}})
            beat = make_beat(app)
            beat.run_due()
            beat.close()
            stored.append(client.hget("{redbeat-lite}:entries", "a"))
            clock.forward(late)
        assert len(set(stored)) == 1
        if late > 60:
            assert of_entry(client, "a")[0].scheduled_at == datetime(2026, 3, 3, 12, tzinfo=NOW.tzinfo)

    def test_another_time_zone_makes_no_other_schedule(
        self, make_app: MakeApp, make_beat: MakeBeat, clock: Clock, client: redis.Redis
    ) -> None:
        stored = []
        for zone in ("UTC", "America/Los_Angeles"):
            app = make_app(timezone=zone, beat_schedule={"a": {"task": "t", "schedule": Local(7200)}})
            make_beat(app).run_due()
            make_beat(app).close()
            stored.append(client.hget("{redbeat-lite}:entries", "a"))
            clock.forward(60)
        assert stored[0] == stored[1]

    def test_one_that_raises_is_told_and_blocks_no_other(
        self,
        make_app: MakeApp,
        make_beat: MakeBeat,
        clock: Clock,
        client: redis.Redis,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        def deploy(enabled: bool) -> Schedules:
            entries = {
                "calendar": {"task": "t", "schedule": Forgetful(1), "enabled": enabled},
                "healthy": {"task": "t", "schedule": 60},
            }
            app = make_app(beat_schedule=entries)
            beat = make_beat(app)
            beat.run_due()
            beat.close()
            return Schedules(app)

        deploy(enabled=False)
        clock.forward(5)
        monkeypatch.setattr(Forgetful, "since", clock.now - timedelta(seconds=0.5))
        for _ in range(2):
            schedules = deploy(enabled=True)  # which is to find out where the interval stands by now
            clock.forward(60)
        assert "config entry 'calendar' is refused: LookupError: no calendar" in caplog.text
        assert sorted(schedules) == ["calendar", "healthy"]
        assert not schedules["calendar"].enabled
        assert len(of_entry(client, "healthy")) == 1
        clock.forward(1)
        deploy(enabled=True)
        assert len(of_entry(client, "healthy")) == 2

    def test_a_new_one_that_raises_is_left_out(
        self,
        make_app: MakeApp,
        make_beat: MakeBeat,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        from redbeat_lite.entries import lifecycle

        created = lifecycle.created

        def raising(entry: Entry, *rest: Any) -> Any:
            if entry.name == "bad":
                raise LookupError("gone between the check and the plan")
            return created(entry, *rest)

        monkeypatch.setattr(lifecycle, "created", raising)
        entries = {name: {"task": "t", "schedule": 60} for name in ("bad", "good")}
        app = make_app(beat_schedule=entries)
        beat = make_beat(app)
        beat.run_due()
        assert list(Schedules(app)) == ["good"]
        assert "config entry 'bad' is refused: LookupError: gone between the check and the plan" in caplog.text
        assert beat._parts.leadership.config.stored_count == 1


class Broken(Local):
    """Raises once it is spoilt."""

    spoilt = False

    def is_due(self, last_run_at: datetime) -> Any:
        if self.spoilt:
            raise RuntimeError("the calendar is away")
        return super().is_due(last_run_at)


class Unstorable:
    """An argument that JSON cannot hold."""


class TestReleaseOfAConfigEntry:
    @pytest.fixture
    def app(self, make_app: MakeApp, make_beat: MakeBeat, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Celery:
        """An app whose one entry was set aside, and mended since."""
        fields = {"task": "t", "schedule": Broken(20), "args": (1, Unstorable()), "expires": None}
        app = make_app(task_serializer="pickle", beat_schedule={"a": fields})
        beat = make_beat(app)
        beat.run_due()
        monkeypatch.setattr(Broken, "spoilt", True)
        clock.forward(20)
        beat.run_due()
        beat.close()
        assert list(Schedules(app).quarantined()) == ["a"]
        monkeypatch.setattr(Broken, "spoilt", False)
        return app

    def test_puts_back_what_was_set_aside(
        self, app: Celery, make_beat: MakeBeat, clock: Clock, client: redis.Redis
    ) -> None:
        schedules = Schedules(app)
        definition = schedules.quarantined()["a"]["definition"]
        entry = schedules.release("a")
        assert client.hget("{redbeat-lite}:entries", "a") == definition.encode()
        assert isinstance(entry.schedule, Broken)
        assert isinstance(entry.args[1], Unstorable)
        assert left(schedules["a"], clock) == 20
        beat = make_beat(app)
        beat.run_due()
        clock.forward(20)
        beat.run_due()
        assert client.llen("celery") == 1
        assert schedules["a"].source == "config:proj"

    def test_in_another_app_leaves_the_next_run_to_the_leader(
        self, app: Celery, make_app: MakeApp, make_beat: MakeBeat, clock: Clock, client: redis.Redis
    ) -> None:
        elsewhere = Schedules(make_app("elsewhere"))
        entry = elsewhere.release("a")
        assert (repr(entry.schedule), entry.args) == ("Local(20)", ())
        beat = make_beat(app)
        beat.run_due()
        clock.forward(1)
        beat.run_due()
        assert client.llen("celery") == 0
        assert left(elsewhere["a"], clock) == 19
        clock.forward(19)
        beat.run_due()
        assert client.llen("celery") == 1

    def test_puts_back_arguments_that_another_app_does_not_know(
        self, make_app: MakeApp, make_beat: MakeBeat, client: redis.Redis
    ) -> None:
        fields = {"task": "t", "schedule": 20, "args": (Unstorable(),)}
        app = make_app(beat_schedule={"a": fields})
        beat = make_beat(app)
        beat.run_due()
        client.hset("{redbeat-lite}:state", "a", "garbage")
        client.zadd("{redbeat-lite}:due", {"a": 1})
        beat.run_due()
        beat.close()
        elsewhere = Schedules(make_app("elsewhere"))
        definition = elsewhere.quarantined()["a"]["definition"]
        elsewhere.release("a")
        assert client.hget("{redbeat-lite}:entries", "a") == definition.encode()

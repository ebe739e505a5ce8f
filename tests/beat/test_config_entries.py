"""Config entries: the configuration owns their definition, Redis their state."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
import redis
from celery import Celery
from celery.beat import BeatLazyFunc
from celery.schedules import BaseSchedule, crontab, schedstate, schedule, solar

from redbeat_lite import Calendar, ConfigOwned, Entry, Misfire, Once, Schedules, at, cron, every, register_schedule
from redbeat_lite.beat.config_check import Configuration
from redbeat_lite.beat.leader import Leader
from redbeat_lite.entries import lifecycle
from redbeat_lite.settings import Settings
from redbeat_lite.store.store import Store
from tests.support.cases import together
from tests.support.frozen import NOW, Clock
from tests.support.in_process import KEY, MakeApp, MakeBeat, one_turn
from tests.support.messages import of_entry, queued
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("clock")


class Workdays(BaseSchedule):  # type: ignore[misc]  # Celery ships no types
    """Every 20 s; a class of the user's own, which nothing can store."""

    def is_due(self, last_run_at: datetime) -> Any:
        since = (self.now() - last_run_at).total_seconds()
        return schedstate(is_due=since >= 20, next=20 if since >= 20 else 20 - since)


def entries(make_app: MakeApp, beat_schedule: dict[str, Any], **conf: Any) -> Celery:
    return make_app(beat_schedule=beat_schedule, **conf)


class TestForms:
    @together(
        ("written", "expected", "first"),
        [
            (30, schedule(30), NOW + timedelta(seconds=30)),
            (30.5, schedule(30.5), NOW + timedelta(seconds=30.5)),
            (timedelta(minutes=2), schedule(120), NOW + timedelta(minutes=2)),
            (schedule(10), schedule(10), NOW + timedelta(seconds=10)),
            (crontab(minute="*/15"), crontab(minute="*/15"), datetime(2026, 3, 2, 12, 15, tzinfo=UTC)),
            (
                crontab(minute=0, hour=9, day_of_week="mon-fri"),
                crontab(minute=0, hour=9, day_of_week="mon-fri"),
                datetime(2026, 3, 3, 9, 0, tzinfo=UTC),
            ),
            (solar("sunset", 52.5, 13.4), solar("sunset", 52.5, 13.4), None),
            (every(7), every(7), NOW + timedelta(seconds=7)),
            (cron("0 9 * * *", tz="Asia/Tokyo"), cron("0 9 * * *", tz="Asia/Tokyo"), datetime(2026, 3, 3, tzinfo=UTC)),
        ],
        ids=str,
        emptied=True,
    )
    def test_celerys_own_and_ours_work_unchanged(
        self, make_app: MakeApp, make_beat: MakeBeat, written: Any, expected: Any, first: datetime | None
    ) -> None:
        app = entries(make_app, {"a": {"task": "t", "schedule": written, "args": (1, 2), "options": {"queue": "q"}}})
        entry = one_turn(app, make_beat)["a"]
        assert entry.schedule == expected
        assert (entry.args, entry.options, entry.source) == ((1, 2), {"queue": "q"}, "config:proj")
        assert entry.next_run_at is not None
        assert first is None or entry.next_run_at == first

    def test_a_relative_interval_is_celerys(self, make_app: MakeApp, make_beat: MakeBeat) -> None:
        app = entries(make_app, {"a": {"task": "t", "schedule": timedelta(hours=1), "relative": True}})
        assert one_turn(app, make_beat)["a"].next_run_at == datetime(2026, 3, 2, 13, 0, tzinfo=UTC)

    def test_take_the_keys_of_this_package_too(self, make_app: MakeApp, make_beat: MakeBeat) -> None:
        fields = {
            "task": "t",
            "schedule": 60,
            "once": True,
            "expires": 5,
            "misfire": {"policy": "all", "limit": 3},
            "jitter": 2,
            "start_at": NOW + timedelta(days=1),
            "max_runs": 4,
            "description": "why",
        }
        entry = one_turn(entries(make_app, {"a": fields}), make_beat)["a"]
        assert (entry.once, entry.expires, entry.misfire) == (Once(scope="queue"), 5.0, Misfire("all", limit=3))
        assert (entry.jitter, entry.start_at, entry.max_runs) == (2.0, fields["start_at"], 4)
        assert entry.description == "why"

    def test_a_schedule_that_cannot_be_stored_is_kept_by_its_beat(
        self, make_app: MakeApp, make_beat: MakeBeat, clock: Clock, client: redis.Redis
    ) -> None:
        app = entries(make_app, {"a": {"task": "t", "schedule": Workdays()}})
        beat = make_beat(app)
        for _ in range(5):
            beat.run_due()
            clock.forward(10)
        assert [message.scheduled_at for message in queued(client)] == [
            NOW + timedelta(seconds=20),
            NOW + timedelta(seconds=40),
        ]
        schedules = Schedules(app)
        assert isinstance(schedules["a"].schedule, Workdays)
        assert [each.at for each in schedules.upcoming(NOW + timedelta(seconds=90))] == [
            NOW + timedelta(seconds=60),
            NOW + timedelta(seconds=80),
        ]
        schedules.pause("a")
        clock.forward(105)
        assert schedules.resume("a").next_run_at == NOW + timedelta(seconds=160)

    def test_a_schedule_that_cannot_be_stored_is_left_to_the_app_that_knows_it(
        self, make_app: MakeApp, make_beat: MakeBeat, clock: Clock, client: redis.Redis
    ) -> None:
        app = entries(make_app, {"a": {"task": "t", "schedule": Workdays()}})
        one_turn(app, make_beat)
        elsewhere = Schedules(make_app("elsewhere"))
        assert elsewhere["a"].next_run_at == NOW + timedelta(seconds=20)
        assert [run.at for run in elsewhere.upcoming(NOW + timedelta(seconds=200))] == [NOW + timedelta(seconds=20)]
        assert repr(elsewhere["a"].schedule) == "<tests.beat.test_config_entries.Workdays object>"
        assert elsewhere.run_now("a") == queued(client)[0].id, "only its schedule is not known there"
        client.delete("celery")
        elsewhere.pause("a")
        clock.forward(100)
        Schedules(app).resume("a", catch_up=True)
        beat = make_beat(make_app("elsewhere"))
        beat.run_due()
        assert "only the configuration of 'proj' has all of its parts" in (elsewhere["a"].last_error or "")
        assert queued(client) == []

    def test_a_schedule_that_cannot_be_stored_is_resumed_by_any_app_and_planned_by_its_own(
        self, make_app: MakeApp, make_beat: MakeBeat, clock: Clock, client: redis.Redis
    ) -> None:
        beat = make_beat(entries(make_app, {"a": {"task": "t", "schedule": Workdays()}}))
        beat.run_due()
        elsewhere = Schedules(make_app("elsewhere"))
        elsewhere.pause("a")
        clock.forward(10)
        assert elsewhere.resume("a").next_run_at == NOW + timedelta(seconds=20), "it was not missed"
        elsewhere.pause("a")
        clock.forward(95)
        assert elsewhere.resume("a").next_run_at == NOW + timedelta(seconds=106), "the leader is to be asked at once"
        clock.forward(1)
        beat.run_due()
        assert elsewhere["a"].next_run_at == NOW + timedelta(seconds=125)
        clock.forward(19)
        beat.run_due()
        assert [message.scheduled_at for message in queued(client)] == [NOW + timedelta(seconds=125)]

    def test_arguments_that_cannot_be_stored_are_shown_and_sent_by_their_own_app_alone(
        self, make_app: MakeApp, make_beat: MakeBeat, clock: Clock, client: redis.Redis
    ) -> None:
        app = entries(make_app, {"a": {"task": "t", "schedule": 10, "args": (BeatLazyFunc(lambda: 5), 2)}})
        one_turn(app, make_beat)
        elsewhere = Schedules(make_app("elsewhere"))
        assert elsewhere["a"].as_dict()["unstored"] == {"args": "<celery.beat.BeatLazyFunc object>"}
        with pytest.raises(
            ConfigOwned, match="entry 'a' has parts that cannot be stored; do this in the app of 'proj'"
        ):
            elsewhere.run_now("a")
        clock.forward(10)
        one_turn(app, make_beat)
        assert [message.args for message in queued(client)] == [[5, 2]]
        assert elsewhere["a"].version == 1, "two beats agree on the text"


class TestOverRestarts:
    def test_an_unchanged_definition_keeps_next_run_history_and_pause(
        self, make_app: MakeApp, make_beat: MakeBeat, clock: Clock
    ) -> None:
        def app() -> Celery:
            fields = {"task": "t", "schedule": every(3600)}
            return entries(make_app, {"a": dict(fields), "b": dict(fields)})

        schedules = one_turn(app(), make_beat)
        schedules.pause("b", "operator")
        clock.forward(3600)
        one_turn(app(), make_beat)
        clock.forward(1800)
        one_turn(app(), make_beat)
        entry = schedules["a"]
        assert (entry.total_run_count, entry.next_run_at) == (1, NOW + timedelta(seconds=7200))
        assert entry.version == 1
        assert schedules["b"].paused_note == "operator"

    def test_a_changed_schedule_counts_from_the_restart(
        self, make_app: MakeApp, make_beat: MakeBeat, clock: Clock, client: redis.Redis
    ) -> None:
        one_turn(entries(make_app, {"a": {"task": "t", "schedule": 86_400}}), make_beat)
        clock.forward(600)
        schedules = one_turn(entries(make_app, {"a": {"task": "t", "schedule": 60}}), make_beat)
        assert schedules["a"].next_run_at == NOW + timedelta(seconds=660)
        assert queued(client) == []

    def test_any_other_change_keeps_the_next_run(self, make_app: MakeApp, make_beat: MakeBeat, clock: Clock) -> None:
        one_turn(entries(make_app, {"a": {"task": "t", "schedule": 3600}}), make_beat)
        clock.forward(600)
        schedules = one_turn(entries(make_app, {"a": {"task": "u", "schedule": 3600, "args": [5]}}), make_beat)
        entry = schedules["a"]
        assert (entry.task, entry.args, entry.next_run_at) == ("u", (5,), NOW + timedelta(seconds=3600))

    def test_any_other_change_beside_a_schedule_that_cannot_be_stored_keeps_the_next_run(
        self, make_app: MakeApp, make_beat: MakeBeat, clock: Clock
    ) -> None:
        one_turn(entries(make_app, {"a": {"task": "t", "schedule": Workdays()}}), make_beat)
        clock.forward(15)
        schedules = one_turn(entries(make_app, {"a": {"task": "u", "schedule": Workdays()}}), make_beat)
        assert (schedules["a"].task, schedules["a"].next_run_at) == ("u", NOW + timedelta(seconds=20))

    def test_what_left_the_configuration_is_removed(self, make_app: MakeApp, make_beat: MakeBeat) -> None:
        both = {"a": {"task": "t", "schedule": 60}, "b": {"task": "t", "schedule": 60}}
        assert sorted(one_turn(entries(make_app, both), make_beat)) == ["a", "b"]
        assert list(one_turn(entries(make_app, {"b": both["b"]}), make_beat)) == ["b"]
        assert list(one_turn(entries(make_app, {}), make_beat)) == []

    def test_runtime_entries_and_those_of_other_owners_are_not_touched(
        self, make_app: MakeApp, make_beat: MakeBeat
    ) -> None:
        Schedules(make_app()).add("runtime", "t", 60)
        one_turn(make_app("first", beat_schedule={"a": {"task": "t", "schedule": 60}}), make_beat)
        schedules = one_turn(make_app("second", beat_schedule={"b": {"task": "t", "schedule": 60}}), make_beat)
        assert {entry.name: entry.source for entry in schedules.values()} == {
            "runtime": "runtime",
            "a": "config:first",
            "b": "config:second",
        }
        one_turn(make_app("first", beat_schedule={}), make_beat)
        assert sorted(schedules) == ["b", "runtime"]

    def test_the_owner_can_be_named(self, make_app: MakeApp, make_beat: MakeBeat) -> None:
        app = entries(make_app, {"a": {"task": "t", "schedule": 60}}, redbeat_lite_owner="team-a")
        assert one_turn(app, make_beat)["a"].source == "config:team-a"

    def test_a_removed_config_entry_comes_back_with_the_next_leader(
        self, make_app: MakeApp, make_beat: MakeBeat
    ) -> None:
        app = entries(make_app, {"a": {"task": "t", "schedule": 60}})
        schedules = one_turn(app, make_beat)
        del schedules["a"]
        one_turn(app, make_beat)
        assert "a" in schedules


class TestClash:
    def test_a_name_taken_at_runtime_stays_so_and_is_an_error_for_that_name_alone(
        self,
        make_app: MakeApp,
        make_beat: MakeBeat,
        clock: Clock,
        client: redis.Redis,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        app = entries(make_app, {"a": {"task": "config", "schedule": 60}, "b": {"task": "config", "schedule": 60}})
        Schedules(app).add("a", "runtime", 60)
        beat = make_beat(app)
        beat.run_due()
        clock.forward(60)
        beat.run_due()
        assert of_entry(client, "a")[0].task == "runtime"
        assert of_entry(client, "b")[0].task == "config"
        assert "config entry 'a' is refused: the name is taken by a runtime entry" in caplog.text
        assert Schedules(app)["a"].source == "runtime"
        Schedules(app).remove("a")
        beat._parts.leadership._next_check = 0.0  # some leases later
        beat.run_due()
        assert Schedules(app)["a"].source.startswith("config:"), "it has the name as soon as that is free"

    def test_a_name_taken_by_another_owner_is_an_error_for_that_name_alone(
        self, make_app: MakeApp, make_beat: MakeBeat, caplog: pytest.LogCaptureFixture
    ) -> None:
        first = make_app("first", beat_schedule={"a": {"task": "t", "schedule": 60}})
        leader, stand_by = make_beat(first), make_beat(first)
        leader.run_due()
        stand_by.run_due()
        leader.close()
        schedules = one_turn(make_app("second", beat_schedule={"a": {"task": "u", "schedule": 60}}), make_beat)
        assert (schedules["a"].task, schedules["a"].source) == ("t", "config:first")
        assert "config entry 'a' is refused: the name is taken by the configuration of 'first'" in caplog.text

    @together(
        "change",
        [
            lambda schedules: schedules.update("a", args=[1]),
            lambda schedules: schedules.add("a", "t", 60, replace=True),
            lambda schedules: schedules.add_many([Entry("a", "t", 60)], replace=True),
            lambda schedules: schedules.__setitem__("a", Entry("a", "t", 60)),
        ],
        emptied=True,
    )
    def test_the_definition_of_a_config_entry_is_not_for_the_api_to_change(
        self, make_app: MakeApp, make_beat: MakeBeat, change: Callable[[Schedules], object]
    ) -> None:
        schedules = one_turn(entries(make_app, {"a": {"task": "t", "schedule": 60}}), make_beat)
        with pytest.raises(ConfigOwned, match="entry 'a' belongs to the configuration of 'proj'; change it there"):
            change(schedules)
        assert schedules["a"].source == "config:proj"

    def test_a_config_entry_can_be_paused_resumed_and_run(
        self, make_app: MakeApp, make_beat: MakeBeat, client: redis.Redis
    ) -> None:
        schedules = one_turn(entries(make_app, {"a": {"task": "t", "schedule": 60}}), make_beat)
        assert schedules.pause("a").next_run_at is None
        assert schedules.resume("a").next_run_at == NOW + timedelta(seconds=60)
        assert queued(client) == []
        assert schedules.run_now("a") == queued(client)[0].id


BAD: dict[str, Any] = {
    "no schedule": {"task": "t"},
    "no task": {"schedule": 60},
    "unknown field": {"task": "t", "schedule": 60, "expire": 5},
    "wrong schedule": {"task": "t", "schedule": "5 minutes"},
    "raising schedule": {"task": "t", "schedule": type("Raising", (BaseSchedule,), {})()},
    "too large": {"task": "t", "schedule": 60, "args": ["x" * 70_000]},
    "no dict": 60,
    "a lock whose key is a function": {"task": "t", "schedule": 60, "once": Once(key=lambda: "x")},
    "": {"task": "t", "schedule": 60},
    "unknown serializer": {"task": "t", "schedule": 60, "options": {"serializer": "nope"}},
    "an Entry of another name": Entry("other", "t", 60),
    "over": {"task": "t", "schedule": 60, "end_at": NOW - timedelta(days=1)},
}


def test_a_bad_config_entry_is_told_and_blocks_no_other(
    make_app: MakeApp,
    make_beat: MakeBeat,
    clock: Clock,
    client: redis.Redis,
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = entries(make_app, {"good": {"task": "t", "schedule": 60}, **BAD, "fine": every(60)})
    app.conf.beat_schedule["fine"] = {"task": "t", "schedule": every(60)}
    beat = make_beat(app)
    beat.run_due()
    clock.forward(60)
    beat.run_due()
    assert sorted(message.entry or "" for message in queued(client)) == ["fine", "good"]
    for kind in BAD:
        assert len([line for line in caplog.messages if f"config entry {kind!r} is refused" in line]) == 1, kind


class TestWrongSinceItWasStored:
    GOOD: dict[str, Any] = {"task": "t", "schedule": every(60)}  # noqa: RUF012 - never changed

    def test_an_entry_keeps_its_pause_and_history_until_it_is_mended(
        self, make_app: MakeApp, make_beat: MakeBeat, clock: Clock, caplog: pytest.LogCaptureFixture
    ) -> None:
        app = entries(make_app, {"a": self.GOOD, "b": self.GOOD})
        beat = make_beat(app)
        beat.run_due()
        clock.forward(60)
        beat.run_due()
        beat.close()
        schedules = Schedules(app)
        schedules.pause("a", "data centre move")
        app.conf.beat_schedule = {"a": {**self.GOOD, "jitter": "oops"}, "b": self.GOOD}
        for _ in range(2):
            caplog.clear()
            one_turn(app, make_beat)
            assert "config entry 'a' is refused: jitter: expected" in caplog.text
        app.conf.beat_schedule = {"a": self.GOOD, "b": self.GOOD}
        entry = one_turn(app, make_beat)["a"]
        assert (entry.paused_note, entry.total_run_count) == ("data centre move", 1)

    def test_an_entry_goes_on_by_its_last_good_definition(
        self, make_app: MakeApp, make_beat: MakeBeat, clock: Clock, client: redis.Redis
    ) -> None:
        one_turn(entries(make_app, {"a": self.GOOD}), make_beat)
        beat = make_beat(entries(make_app, {"a": {"task": "u", "schedule": "1 minute"}}))
        beat.run_due()
        clock.forward(60)
        beat.run_due()
        assert [message.task for message in queued(client)] == ["t"]

    def test_an_entry_is_removed_once_it_left_the_configuration(self, make_app: MakeApp, make_beat: MakeBeat) -> None:
        one_turn(entries(make_app, {"a": self.GOOD}), make_beat)
        assert list(one_turn(entries(make_app, {"a": {"task": "t"}}), make_beat)) == ["a"]
        assert list(one_turn(entries(make_app, {}), make_beat)) == []

    def test_an_entry_whose_end_has_passed_is_finished_and_no_error(
        self, make_app: MakeApp, make_beat: MakeBeat, clock: Clock, caplog: pytest.LogCaptureFixture
    ) -> None:
        app = entries(make_app, {"a": {**self.GOOD, "end_at": NOW + timedelta(seconds=90)}})
        beat = make_beat(app)
        beat.run_due()
        for _ in range(3):
            clock.forward(60)
            beat.run_due()
        beat.close()
        app.conf.beat_schedule["a"]["task"] = "u"
        for _ in range(2):
            entry = one_turn(app, make_beat)["a"]
        assert (entry.finished, entry.total_run_count, entry.task) == (True, 1, "u")
        assert [record for record in caplog.records if record.levelname == "ERROR"] == []


@pytest.mark.parametrize("change", ["changed", "removed", "mended"])
def test_a_pause_at_the_moment_the_configuration_is_read_loses_neither(
    make_app: MakeApp, make_beat: MakeBeat, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    # The interleaving: read by the beat that begins to lead, paused by an operator, written by the beat.
    app = entries(make_app, {"a": {"task": "t", "schedule": every(60)}})
    schedules = one_turn(app, make_beat)
    if change == "changed":
        app.conf.beat_schedule = {"a": {"task": "u", "schedule": every(60)}}
    elif change == "removed":
        app.conf.beat_schedule = {}
    else:
        client.zrem("{redbeat-lite}:due", "a")
    beat = make_beat(app)
    put, done = beat.store.put, []

    def put_after_a_pause(edits: Any, term: Any = None) -> list[bool]:
        edits = list(edits)
        if edits and not done:
            done.append(schedules.pause("a", "operator"))
            if change == "mended":
                client.zrem("{redbeat-lite}:due", "a")
        return put(edits, term)

    monkeypatch.setattr(beat.store, "put", put_after_a_pause)
    beat.run_due()
    assert done
    if change == "removed":
        assert "a" not in schedules
    else:
        assert (schedules["a"].task, schedules["a"].paused_note) == ("u" if change == "changed" else "t", "operator")
        assert [entry.name for entry in schedules.list()] == ["a"]


def test_the_cleanup_of_result_backends_is_scheduled_as_celery_does(make_app: MakeApp, make_beat: MakeBeat) -> None:
    schedules = one_turn(make_app(result_expires=86_400), make_beat)
    entry = schedules["celery.backend_cleanup"]
    assert entry.schedule == crontab("0", "4", "*")
    assert entry.options == {"expires": 12 * 3600}


def test_djangos_namespace_works(make_beat: MakeBeat, server: Any, no_leaks: None, make_app: MakeApp) -> None:
    class Django:
        CELERY_BROKER_URL = server.url
        CELERY_REDBEAT_LITE_KEY_PREFIX = "django"
        CELERY_REDBEAT_LITE_LEASE = 600
        CELERY_RESULT_EXPIRES = None
        CELERY_BEAT_SCHEDULE = {"a": {"task": "t", "schedule": 60}}  # noqa: RUF012 - as a settings module has it

    app = Celery("django", set_as_current=False)
    app.config_from_object(Django(), namespace="CELERY")
    schedules = one_turn(app, make_beat)
    assert list(schedules) == ["a"]
    with server.client() as client:
        assert client.keys("{django}:*")
        client.delete(*client.keys("{django}:*"))
    app.close()


@pytest.mark.parametrize(
    "last", [{"schedule": at(NOW + timedelta(seconds=5))}, {"schedule": 5, "max_runs": 1}], ids=["one-off", "max_runs"]
)
def test_a_finished_entry_does_not_run_again_because_its_record_was_to_be_removed(
    make_app: MakeApp, make_beat: MakeBeat, clock: Clock, client: redis.Redis, last: dict[str, Any]
) -> None:
    app = entries(make_app, {"finished": {"task": "add", "remove_when_done": True, **last}})
    for _ in range(4):
        one_turn(app, make_beat)
        clock.forward(10)
    assert len(of_entry(client, "finished")) == 1
    assert Schedules(app)["finished"].finished
    app.conf.beat_schedule = {}
    assert len(one_turn(app, make_beat)) == 0


class Spoilt(Workdays):
    """Tells its first run, and raises when it is asked for the next."""

    def is_due(self, last_run_at: datetime) -> Any:
        if last_run_at > NOW + timedelta(seconds=15):
            raise ZeroDivisionError("schedule is broken")
        return super().is_due(last_run_at)


class TestQuarantine:
    @pytest.fixture
    def app(self, make_app: MakeApp, request: pytest.FixtureRequest) -> Celery:
        register_schedule(Spoilt, lambda found: None, lambda stored: Spoilt(), name="tests.Spoilt")
        return entries(make_app, {"bad": {"task": "t", "schedule": Spoilt()}})

    def spoil(self, app: Celery, make_beat: MakeBeat, clock: Clock) -> Schedules:
        beat = make_beat(app)
        beat.run_due()
        clock.forward(20)
        beat.run_due()
        beat.close()
        schedules = Schedules(app)
        assert list(schedules.quarantined()) == ["bad"]
        clock.set(NOW)  # or the schedule would raise as soon as it is read
        return schedules

    def test_of_an_entry_that_raises_when_it_is_planned_lasts_over_leaders_with_one_line(
        self, app: Celery, make_beat: MakeBeat, clock: Clock, caplog: pytest.LogCaptureFixture
    ) -> None:
        schedules = self.spoil(app, make_beat, clock)
        for _ in range(3):
            beat = make_beat(app)
            beat.run_due()
            beat._parts.leadership._restore_schedule(beat.leader.term)
            clock.forward(20)
            beat.run_due()
            beat.close()
            clock.set(NOW)
            assert "bad" not in schedules
            assert list(schedules.quarantined()) == ["bad"]
        errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
        assert len(errors) == 1
        assert "entry 'bad' cannot be used and is quarantined: " in errors[0]

    def test_of_an_entry_is_no_damage_to_mend(self, app: Celery, make_beat: MakeBeat, clock: Clock) -> None:
        self.spoil(app, make_beat, clock)
        beat = make_beat(app)
        beat.run_due()
        assert beat.leader.min_entries == 0

    @pytest.mark.parametrize("change", ["another schedule", "another task"])
    def test_ends_with_the_definition_that_was_set_aside(
        self, app: Celery, make_beat: MakeBeat, clock: Clock, change: str
    ) -> None:
        schedules = self.spoil(app, make_beat, clock)
        other = {"schedule": every(10)} if change == "another schedule" else {"task": "u"}
        app.conf.beat_schedule = {"bad": {"task": "t", "schedule": Spoilt(), **other}}
        one_turn(app, make_beat)
        assert "bad" in schedules
        assert schedules.quarantined() == {}

    @pytest.mark.parametrize("end", ["release", "discard"])
    def test_ends_when_somebody_says_so(self, app: Celery, make_beat: MakeBeat, clock: Clock, end: str) -> None:
        schedules = self.spoil(app, make_beat, clock)
        getattr(schedules, end)("bad")
        one_turn(app, make_beat)
        assert schedules["bad"].source == "config:proj"
        assert schedules.quarantined() == {}

    def test_that_somebody_discards_ends_with_the_same_leader(
        self, make_app: MakeApp, make_beat: MakeBeat, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        app = make_app(beat_schedule={"bad": {"task": "t", "schedule": every(10)}}, redbeat_lite_lease=3)
        schedules, beat = Schedules(app), make_beat(app)
        beat.run_due()
        clock.forward(10)
        with monkeypatch.context() as patch:
            patch.setattr(lifecycle, "plan", lambda *_: 1 / 0)
            beat.run_due()
        assert list(schedules.quarantined()) == ["bad"]
        eventually(lambda: beat.leader.needs_repair, what="the next renewal to miss the entry")
        beat.run_due()
        assert "bad" not in schedules, "its definition is configured still"
        schedules.discard("bad")
        eventually(lambda: beat.leader.needs_repair, what="the next renewal to see it")
        beat.run_due()
        assert schedules["bad"].source == "config:proj"
        assert schedules.quarantined() == {}

    @pytest.mark.parametrize("part", ["definition", "state"])
    def test_whose_record_is_no_text_stops_nobody(
        self, app: Celery, make_beat: MakeBeat, clock: Clock, client: redis.Redis, part: str
    ) -> None:
        schedules = self.spoil(app, make_beat, clock)
        record = {**schedules.quarantined()["bad"], part: "\ud800"}
        client.hset("{redbeat-lite}:quarantine", "bad", json.dumps(record))
        assert "bad" in one_turn(app, make_beat)

    def test_for_a_state_that_was_spoilt_ends_with_the_next_reading_of_the_configuration(
        self, make_app: MakeApp, make_beat: MakeBeat, clock: Clock, client: redis.Redis
    ) -> None:
        app = entries(make_app, {"a": {"task": "t", "schedule": every(10)}})
        beat = make_beat(app)
        beat.run_due()
        client.hset("{redbeat-lite}:state", "a", "garbage")
        clock.forward(10)
        beat.run_due()
        beat.close()
        assert list(Schedules(app).quarantined()) == ["a"]
        assert "a" in one_turn(app, make_beat)

    def test_for_a_state_that_was_spoilt_ends_with_the_same_leader(
        self, make_app: MakeApp, make_beat: MakeBeat, clock: Clock, client: redis.Redis
    ) -> None:
        app = make_app(beat_schedule={"a": {"task": "t", "schedule": 10}}, redbeat_lite_lease=3)
        schedules, beat = Schedules(app), make_beat(app)
        beat.run_due()
        schedules.add("runtime", "t", every(3600))  # or the number of the entries would tell
        client.hset(f"{KEY}state", "a", "garbage")
        clock.forward(10)
        beat.run_due()
        assert list(schedules.quarantined()) == ["a"]
        eventually(lambda: beat.leader.needs_repair, what="the next renewal to see it")
        beat.run_due()
        assert "a" in schedules
        assert schedules.quarantined() == {}

    def test_of_one_whose_definition_is_configured_still_lets_the_leader_compare_once(
        self, make_app: MakeApp, make_beat: MakeBeat, clock: Clock, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        app = make_app(beat_schedule={"bad": {"task": "t", "schedule": every(10)}})
        schedules, beat = Schedules(app), make_beat(app)
        beat.run_due()
        clock.forward(10)
        with monkeypatch.context() as patch:
            patch.setattr(lifecycle, "plan", lambda *_: 1 / 0)
            beat.run_due()
        assert client.hget(f"{KEY}meta", "synced") == b"quarantined"
        beat.leader.needs_repair = True  # as the next renewal finds
        for _ in range(3):
            beat.run_due()
            clock.forward(10)
        assert list(schedules.quarantined()) == ["bad"]
        stamp = beat._parts.leadership.config.stamp
        assert client.hget(f"{KEY}meta", "synced") == stamp.encode()

    def test_of_one_that_has_left_the_configuration_meanwhile_ends_in_its_removal(
        self, make_app: MakeApp, make_beat: MakeBeat, clock: Clock, client: redis.Redis
    ) -> None:
        kept = {"b": {"task": "t", "schedule": 3600}}
        beat = make_beat(make_app(beat_schedule={"a": {"task": "t", "schedule": 10}, **kept}))
        beat.run_due()
        client.hset(f"{KEY}state", "a", "garbage")
        clock.forward(10)
        beat.run_due()
        beat.close()
        app = make_app(beat_schedule=kept)
        schedules = one_turn(app, make_beat)
        assert schedules.release("a").source == "config:proj"
        one_turn(app, make_beat)
        assert list(schedules) == ["b"]
        assert schedules.quarantined() == {}

    def test_of_a_schedule_that_cannot_be_stored_ends_with_a_release_and_the_entry_runs_on(
        self,
        make_app: MakeApp,
        make_beat: MakeBeat,
        clock: Clock,
        client: redis.Redis,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        app = make_app(beat_schedule={"a": {"task": "t", "schedule": Workdays()}}, redbeat_lite_lease=3)
        schedules, beat = Schedules(app), make_beat(app)
        beat.run_due()
        clock.forward(20)
        with monkeypatch.context() as patch:
            patch.setattr(Workdays, "is_due", lambda *_: 1 / 0)
            beat.run_due()
        assert list(schedules.quarantined()) == ["a"]
        eventually(lambda: beat.leader.needs_repair, what="the next renewal to miss the entry")
        beat.run_due()
        schedules.release("a")
        eventually(lambda: beat.leader.needs_repair, what="the next renewal to see the release")
        beat.run_due()
        clock.forward(20)
        beat.run_due()
        assert len(of_entry(client, "a")) == 1


def test_one_that_is_removed_while_the_configuration_is_read_comes_back(
    make_app: MakeApp, make_beat: MakeBeat, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app(beat_schedule={"a": {"task": "t", "schedule": 3600}}, redbeat_lite_lease=3)
    schedules, beat = Schedules(app), make_beat(app)
    schedules.add("runtime", "t", 3600)  # or the number of the entries would tell
    rewrite = beat.store.rewrite

    def then_removed(*args: Any) -> None:
        rewrite(*args)
        schedules.remove("a")

    with monkeypatch.context() as patch:
        patch.setattr(beat.store, "rewrite", then_removed)
        beat.run_due()
    assert "a" not in schedules
    eventually(lambda: beat.leader.needs_repair, what="the next renewal to see it")
    beat.run_due()
    assert "a" in schedules


def test_one_that_cannot_be_read_comes_back_after_its_removal(
    make_app: MakeApp, make_beat: MakeBeat, client: redis.Redis
) -> None:
    app = make_app(beat_schedule={"a": {"task": "t", "schedule": 3600}}, redbeat_lite_lease=3)
    schedules, beat = Schedules(app), make_beat(app)
    beat.run_due()
    client.hset(f"{KEY}entries", "a", "garbage")
    schedules.remove("a")
    schedules.add("runtime", "t", every(3600))  # or the number of the entries would tell
    eventually(lambda: beat.leader.needs_repair, what="the next renewal to see the removal")
    beat.run_due()
    assert schedules["a"].source == "config:proj"


@pytest.mark.parametrize("owner_before", ["new", "old"])
def test_one_that_a_dying_leader_has_stored_is_removed_once_it_left_the_configuration(
    make_app: MakeApp, make_beat: MakeBeat, monkeypatch: pytest.MonkeyPatch, owner_before: str
) -> None:
    """The interleaving: the leader stores the entry of a deployment, dies, and the deployment is rolled back.

    Or it has taken the entry over from an owner that has no beat any more.
    """
    old = {"a": {"task": "t", "schedule": 3600}}
    both = {**old, "b": {"task": "t", "schedule": 3600}}
    before = old if owner_before == "new" else both
    schedules = one_turn(make_app(beat_schedule=before, redbeat_lite_owner=owner_before), make_beat)
    beat = make_beat(make_app(beat_schedule=both, redbeat_lite_owner="new"))
    rewrite = beat.store.rewrite

    def then_dead(*args: Any) -> None:
        rewrite(*args)
        raise SystemExit

    monkeypatch.setattr(beat.store, "rewrite", then_dead)
    with pytest.raises(SystemExit):
        beat.run_due()
    beat.leader.resign()
    assert sorted(schedules) == ["a", "b"]
    one_turn(make_app(beat_schedule=old, redbeat_lite_owner="new"), make_beat)
    assert list(schedules) == ["a"]


def test_the_pause_of_a_runtime_entry_is_not_that_of_the_config_entry_of_its_name(
    make_app: MakeApp, make_beat: MakeBeat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interleaving: a beat that stands by reads the pauses while the leader stores the configuration."""
    app = make_app(beat_schedule={"a": {"task": "t", "schedule": 3600}})
    schedules = Schedules(app)
    schedules.add("a", "t", every(60))
    schedules.pause("a")
    beat, standby = make_beat(app), make_beat(app)
    rewrite = beat.store.rewrite

    def read_and_rewrite(*args: Any) -> None:
        standby._parts.leadership.config.pauses.read()
        rewrite(*args)

    monkeypatch.setattr(beat.store, "rewrite", read_and_rewrite)
    beat.run_due()
    beat.leader.resign()
    schedules.remove("a")
    standby.run_due()
    assert not schedules["a"].state.paused


def test_a_pause_outlives_a_flush_that_meets_a_beat_standing_by(
    make_app: MakeApp, make_beat: MakeBeat, client: redis.Redis
) -> None:
    app = entries(make_app, {name: {"task": "t", "schedule": 10} for name in ("paused", "resumed")})
    schedules, leader, standby = Schedules(app), make_beat(app), make_beat(app)
    leader.run_due()
    schedules.select("*").pause("do not run")
    standby.run_due()
    schedules.resume("resumed")
    standby.run_due()
    client.flushall()
    standby.run_due()
    assert standby.leader.holds_lease
    assert {name: entry.paused_note for name, entry in schedules.items()} == {"paused": "do not run", "resumed": None}


def test_a_pause_outlives_the_loss_of_all_states(make_app: MakeApp, make_beat: MakeBeat, client: redis.Redis) -> None:
    app = entries(make_app, {name: {"task": "t", "schedule": 10} for name in ("paused", "other")})
    schedules, leader, standby = Schedules(app), make_beat(app), make_beat(app)
    leader.run_due()
    schedules.pause("paused", note="do not run")
    standby.run_due()
    client.delete(f"{KEY}state", f"{KEY}leader")
    standby.run_due()
    assert standby.leader.holds_lease
    assert {name: entry.paused_note for name, entry in schedules.items()} == {"paused": "do not run", "other": None}


def test_what_is_expected_is_compared_with_a_year_of_runs_once_and_the_watchdog_hears_of_each_entry(
    make_app: MakeApp, make_beat: MakeBeat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes up to a tenth of a second for an entry: many must neither count as a hang nor delay each sync."""
    told: list[str] = []
    progress, gap_over = Leader.progress, lifecycle.gap_over

    def note_progress(leader: Leader, doing: object, within: float = 0.0) -> None:
        told.append("progress")
        progress(leader, doing, within)

    def note_search(*args: Any) -> Any:
        told.append("search")
        return gap_over(*args)

    monkeypatch.setattr(Leader, "progress", note_progress)
    monkeypatch.setattr(lifecycle, "gap_over", note_search)

    def deploy(succeed_every: str) -> int:
        hourly = {"task": "t", "schedule": crontab(minute=5), "expect": {"succeed_every": succeed_every}}
        told.clear()
        one_turn(entries(make_app, dict.fromkeys("abc", hourly)), make_beat)
        assert ["search", "search"] not in [told[at : at + 2] for at in range(len(told))]
        return told.count("search")

    assert [deploy("2h"), deploy("2h"), deploy("3h")] == [3, 0, 3]


def test_a_server_that_is_away_for_a_moment_refuses_no_entry(
    make_app: MakeApp, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    hourly = {"task": "t", "schedule": crontab(minute=5), "expect": {"succeed_every": "2h"}}
    app = entries(make_app, {"a": hourly})
    store = Schedules(app)._store
    configuration = Configuration(app, store, Settings.from_app(app))

    def be_away(*_: Any) -> None:
        raise redis.ConnectionError("away")

    monkeypatch.setattr(Store, "read", be_away)
    with pytest.raises(redis.ConnectionError):
        list(configuration.check(0))


def test_a_calendar_that_is_changed_while_the_configuration_is_stored_holds_for_its_entries(
    make_app: MakeApp, make_beat: MakeBeat, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app(beat_schedule={"a": {"task": "t", "schedule": cron("0 9 * * *"), "calendar": "de"}})
    schedules = Schedules(app)
    schedules.calendars["de"] = Calendar({date(2026, 3, 4)}, until=date(2030, 1, 1))
    one_turn(app, make_beat)
    beat = make_beat(app)
    config = beat._parts.leadership.config
    store_entries = config._store_entries

    def change_first(*args: Any) -> None:
        monkeypatch.undo()
        schedules.calendars["de"] = Calendar({date(2026, 3, 3)}, until=date(2030, 1, 1))
        store_entries(*args)

    monkeypatch.setattr(config, "_store_entries", change_first)
    beat.run_due()
    assert client.hget(f"{KEY}meta", "synced") != config.stamp.encode()
    beat.leader.needs_repair = True  # as the next renewal finds
    beat.run_due()
    assert client.hget(f"{KEY}meta", "synced") == config.stamp.encode()
    assert schedules["a"].next_run_at == datetime(2026, 3, 4, 9, tzinfo=UTC)

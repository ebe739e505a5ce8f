"""The Schedules API against a real server: every method by what it promises."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable, MutableMapping
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Literal

import pytest
import redis
from celery import Celery
from celery.beat import ScheduleEntry
from kombu.exceptions import OperationalError

from redbeat_lite import (
    CorruptEntry,
    Entry,
    EntryChanged,
    EntryExists,
    EntryNotFound,
    InvalidEntry,
    Misfire,
    Once,
    Scheduler,
    Schedules,
    UnsupportedFormat,
    Upcoming,
    at,
    cron,
    every,
)
from tests.support.commands import commands, round_trips
from tests.support.frozen import NOW, Clock
from tests.support.messages import of_entry, queued
from tests.support.server import Server

pytestmark = pytest.mark.usefixtures("clock")


class TestAdd:
    def test_what_is_read_back_is_what_was_added(self, schedules: Schedules) -> None:
        added = schedules.add(
            "nightly",
            "add",
            cron("0 3 * * *", tz="Europe/Berlin"),
            args=(1, [2, {"three": 3}]),
            kwargs={"since": datetime(2026, 1, 1, tzinfo=UTC)},
            options={"queue": "reports", "priority": 5, "headers": {"team": "a"}},
            expires=timedelta(minutes=5),
            once=Once(key="nightly", lease=30),
            misfire=Misfire("all", grace=60, limit=7),
            jitter=1.5,
            start_at=NOW + timedelta(days=1),
            end_at=NOW + timedelta(days=9),
            max_runs=3,
            enabled=False,
            description="Every night, äöü",
            remove_when_done=True,
        )
        read = schedules["nightly"]
        assert read == added
        assert read.definition() == added.definition()
        assert read.schedule.tz_name == "Europe/Berlin"
        assert (read.expires, read.jitter, read.max_runs, read.enabled) == (300.0, 1.5, 3, False)
        assert (read.version, read.generation, read.source) == (1, added.generation, "runtime")

    def test_a_new_entry_has_no_history_and_fires_at_the_schedules_next_instant(self, schedules: Schedules) -> None:
        schedules.add("hourly", "add", cron("0 * * * *"))
        entry = schedules["hourly"]
        assert entry.next_run_at == datetime(2026, 3, 2, 13, 0, tzinfo=UTC)
        assert (entry.last_run_at, entry.total_run_count, entry.last_task_id) == (None, 0, None)
        assert (entry.paused_note, entry.last_error, entry.finished) == (None, None, False)

    def test_a_taken_name_is_refused_and_left_as_it_is(self, schedules: Schedules) -> None:
        first = schedules.add("a", "add", every(10))
        with pytest.raises(EntryExists, match=r"'a'.*replace=True"):
            schedules.add("a", "add", every(20))
        assert schedules["a"] == first

    def test_a_task_may_be_given_itself(self, app: Celery, schedules: Schedules) -> None:
        assert schedules.add("a", app.tasks["add"], 10).task == "add"

    def test_replacing_with_the_same_schedule_keeps_history_and_next_run(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock
    ) -> None:
        schedules.add("a", "add", every(10))
        clock.forward(10)
        inner_beat.run_due()
        before = schedules["a"]
        clock.forward(3)
        schedules.add("a", "add", every(10), args=(1,), replace=True)
        after = schedules["a"]
        assert after.args == (1,)
        assert after.next_run_at == before.next_run_at == NOW + timedelta(seconds=20)
        assert (after.total_run_count, after.last_run_at) == (1, NOW + timedelta(seconds=10))
        assert (after.generation, after.version) == (before.generation, before.version + 1)

    def test_replacing_with_another_schedule_keeps_history_and_counts_from_now(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock
    ) -> None:
        schedules.add("a", "add", every(10))
        clock.forward(10)
        inner_beat.run_due()
        clock.forward(3)
        schedules.add("a", "add", every(60), replace=True)
        assert schedules["a"].next_run_at == NOW + timedelta(seconds=73)
        assert schedules["a"].total_run_count == 1

    def test_replacing_with_the_very_same_changes_nothing(self, schedules: Schedules, clock: Clock) -> None:
        schedules.add("a", "add", every(10))
        clock.forward(3)
        again = schedules.add("a", "add", every(10), replace=True)
        assert (again.version, again.next_run_at) == (1, NOW + timedelta(seconds=10))
        assert schedules["a"].version == 1

    def test_replacing_what_is_not_there_creates_it(self, schedules: Schedules) -> None:
        schedules.add("a", "add", every(10), replace=True)
        assert schedules["a"].next_run_at == NOW + timedelta(seconds=10)

    def test_a_name_that_is_removed_and_added_again_is_another_entry(self, schedules: Schedules) -> None:
        first = schedules.add("a", "add", every(10))
        del schedules["a"]
        assert schedules.add("a", "add", every(10)).generation != first.generation

    def test_the_apps_defaults_fill_what_is_left_out(self, make_app: Callable[..., Celery]) -> None:
        app = make_app(redbeat_lite_expires=90, redbeat_lite_misfire="skip", redbeat_lite_once_lease=7)
        entry = Schedules(app).add("a", "add", 10, once=True)
        assert (entry.expires, entry.misfire, entry.once) == (90.0, Misfire("skip"), Once(scope="queue", lease=7))
        assert Schedules(app).add("b", "add", 10, expires=None, misfire="all").expires is None

    def test_a_schedule_of_a_newer_version_is_refused_and_not_touched(
        self, schedules: Schedules, client: redis.Redis
    ) -> None:
        client.hset("{redbeat-lite}:meta", "format", 99)
        with pytest.raises(UnsupportedFormat, match="format 99"):
            schedules.add("a", "add", 10)
        assert not client.exists("{redbeat-lite}:entries")

    def test_an_unknown_task_is_a_warning_once_the_app_is_final(
        self, app: Celery, schedules: Schedules, caplog: pytest.LogCaptureFixture
    ) -> None:
        schedules.add("early", "no.such.task", 10)
        assert not caplog.records
        app.finalize()
        schedules.add("late", "no.such.task", 10)
        schedules.add("known", "add", 10)
        schedules.add_many(Entry(f"e{number}", "no.such.task", every(10)) for number in range(3))
        assert [record.getMessage() for record in caplog.records] == [
            "entry 'late': no task 'no.such.task' is registered in this app",
            "entry 'e0' (and 2 more): no task 'no.such.task' is registered in this app",
        ]

    def test_an_unknown_task_is_said_where_nobody_has_set_up_logging(self, server: Server) -> None:
        script = f"""
from celery import Celery
from redbeat_lite import Schedules
app = Celery("proj", broker={server.url!r})
app.finalize()
Schedules(app).add("late", "no.such.task", 10)
"""
        ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        assert ran.stderr == "entry 'late': no task 'no.such.task' is registered in this app\n"

    def test_a_signature_brings_its_arguments_and_options(self, app: Celery, schedules: Schedules) -> None:
        add = app.tasks["add"]
        entry = schedules.add("a", add.s(1, y=2).set(queue="mail", priority=3), 10, options={"priority": 5})
        assert schedules["a"] == entry
        assert (entry.task, entry.args, entry.kwargs) == ("add", (1,), {"y": 2})
        assert entry.options == {"queue": "mail", "priority": 5}
        changed = schedules.update("a", task=add.s(3))
        assert (changed.args, changed.kwargs, changed.options) == ((3,), {}, entry.options)

    def test_an_option_of_the_tasks_own_is_kept(self, schedules: Schedules) -> None:
        options = {"tenant": "acme", "stamped_headers": ["expire"], "expire": 1}
        assert schedules.add("a", "add", 10, options=options).options == options


class TestMapping:
    def test_tells_where_its_entries_are(self, schedules: Schedules, server: Server) -> None:
        assert repr(schedules) == f"<Schedules of 'proj': {server.url} under 'redbeat-lite'>"

    def test_is_a_mutable_mapping(self, schedules: Schedules) -> None:
        assert isinstance(schedules, MutableMapping)

    def test_an_absent_name_is_a_key_error_that_reads_well(self, schedules: Schedules) -> None:
        with pytest.raises(KeyError) as caught:
            schedules["nobody"]
        assert isinstance(caught.value, EntryNotFound)
        assert str(caught.value) == "no entry 'nobody' is stored"
        assert schedules.get("nobody") is None
        assert "nobody" not in schedules

    @pytest.mark.parametrize("name", ["", "x" * 201, "a\nb", "\ud800", 5, None])
    def test_a_name_that_no_entry_can_have_is_not_there(self, schedules: Schedules, name: str) -> None:
        assert name not in schedules
        assert schedules.get(name) is None
        with pytest.raises(EntryNotFound):
            del schedules[name]

    def test_assignment_creates_and_replaces(self, schedules: Schedules) -> None:
        schedules["a"] = Entry("a", "add", every(10))
        generation = schedules["a"].generation
        schedules["a"] = Entry("a", "add", every(10), (1, 2))
        assert schedules["a"].args == (1, 2)
        assert schedules["a"].generation == generation

    @pytest.mark.parametrize("value", [Entry("b", "add", 10), {"task": "add", "schedule": 10}, None])
    def test_assignment_wants_an_entry_of_that_name(self, schedules: Schedules, value: Entry) -> None:
        with pytest.raises(InvalidEntry, match="entry: expected an Entry named 'a'"):
            schedules["a"] = value
        assert not schedules

    def test_deletion_leaves_nothing(self, schedules: Schedules, client: redis.Redis) -> None:
        schedules.add("a", "add", 10)
        del schedules["a"]
        assert "a" not in schedules
        for key in ("due", "entries", "state"):
            assert not client.exists(f"{{redbeat-lite}}:{key}")
        with pytest.raises(EntryNotFound):
            del schedules["a"]

    def test_remove_tells_of_an_absent_name_unless_told_not_to(self, schedules: Schedules) -> None:
        schedules.add("a", "add", 10)
        schedules.remove("a")
        with pytest.raises(EntryNotFound, match="'a'"):
            schedules.remove("a")
        schedules.remove("a", missing_ok=True)

    def test_of_two_who_remove_an_entry_one_is_told_that_it_was_gone(
        self, schedules: Schedules, app: Celery, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # The interleaving: read by one, removed by the other, removed by the one.
        schedules.add("a", "add", 10)
        put, other = schedules._store.put, Schedules(app)

        def put_after_another(edits: list[object]) -> list[bool]:
            other.remove("a", missing_ok=True)
            return put(edits)  # type: ignore[arg-type]

        monkeypatch.setattr(schedules._store, "put", put_after_another)
        with pytest.raises(EntryNotFound):
            schedules.remove("a")

    def test_pop_and_setdefault_work_as_for_any_mapping(self, schedules: Schedules) -> None:
        entry = schedules.setdefault("a", Entry("a", "add", 10))
        assert schedules.setdefault("a", Entry("a", "add", 99)) == entry
        assert schedules.pop("a") == entry
        assert schedules.pop("a", None) is None

    def test_iteration_items_values_and_length_agree(self, schedules: Schedules) -> None:
        names = {f"e{number}" for number in range(2345)}
        schedules.add_many(Entry(name, "add", 10) for name in names)
        assert len(schedules) == len(names)
        assert sorted(schedules) == sorted(names)
        assert {name for name, entry in schedules.items() if entry.name == name} == names
        assert {entry.name for entry in schedules.values()} == names
        assert "e7" in schedules
        assert 7 not in schedules

    def test_items_of_a_large_schedule_cost_a_round_trip_per_thousand(self, schedules: Schedules) -> None:
        schedules.add_many(Entry(f"e{number}", "add", 10) for number in range(3000))
        with round_trips() as trips:
            assert len(list(schedules.items())) == 3000
        assert len(trips) <= 6

    def test_clear_removes_everything(self, schedules: Schedules, client: redis.Redis) -> None:
        schedules.add_many(Entry(f"e{number}", "add", 10) for number in range(1500))
        schedules.pause("e3")
        schedules.clear()
        assert len(schedules) == 0
        assert list(schedules) == []
        assert client.keys("*due") == client.keys("*entries") == client.keys("*state") == []

    def test_clear_removes_garbage_too(self, schedules: Schedules, client: redis.Redis) -> None:
        schedules.add("a", "add", 10)
        client.zadd("{redbeat-lite}:due", {b"\xff\xfe": 5, "ghost": 5})
        client.hset("{redbeat-lite}:entries", "ghost", "{")
        schedules.clear()
        assert client.keys("*due") == client.keys("*entries") == []

    def test_clear_removes_what_is_too_long_to_be_shown(self, schedules: Schedules, client: redis.Redis) -> None:
        schedules.add_many(Entry(f"e{number}", "add", 10) for number in range(3))
        client.hset("{redbeat-lite}:state", "e1", "x" * 1_000_000)
        with round_trips() as trips:
            schedules.clear()
        assert len(schedules) == 0
        assert len(trips) <= 4

    def test_clear_ends_also_where_entries_change_faster_than_it_can_remove_them(
        self, schedules: Schedules, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        schedules.add("a", "add", 10)
        monkeypatch.setattr(schedules._store, "put", lambda edits: [False for _ in edits])
        with pytest.raises(EntryChanged, match="too often"):
            schedules.clear()

    def test_building_it_opens_no_connection(self, make_app: Callable[..., Celery], server: Server) -> None:
        with round_trips() as trips:
            Schedules(make_app())
            Schedules(make_app(broker_url="redis://127.0.0.1:1/0"))
        assert trips == []
        with pytest.raises((redis.ConnectionError, OperationalError)):
            len(Schedules(make_app(broker_url="redis://127.0.0.1:1/0")))


class TestUpdate:
    def test_changes_only_what_is_named(self, schedules: Schedules) -> None:
        before = schedules.add("a", "add", every(10), (1,), {"y": 2}, {"queue": "q"}, jitter=1, description="old")
        after = schedules.update("a", description="new", args=[5])
        assert after == schedules["a"]
        assert after.definition() == {**before.definition(), "description": "new", "args": (5,)}
        assert after.version == 2

    def test_a_changed_schedule_counts_from_the_edit(self, schedules: Schedules, clock: Clock) -> None:
        schedules.add("a", "add", every(86_400))
        clock.forward(100)
        assert schedules.update("a", schedule=every(10)).next_run_at == NOW + timedelta(seconds=110)

    def test_any_other_change_keeps_the_next_run(self, schedules: Schedules, clock: Clock) -> None:
        schedules.add("a", "add", every(10))
        clock.forward(5)
        schedules.update("a", kwargs={"x": 1}, options={"queue": "other"}, expires=None)
        assert schedules["a"].next_run_at == NOW + timedelta(seconds=10)

    def test_a_version_that_is_still_right_is_accepted_once(self, schedules: Schedules) -> None:
        version = schedules.add("a", "add", every(10)).version
        schedules.update("a", if_version=version, description="first")
        with pytest.raises(EntryChanged, match="entry 'a' has version 2 by now, not 1"):
            schedules.update("a", if_version=version, description="second")
        assert schedules["a"].description == "first"

    def test_a_run_is_no_new_version(self, schedules: Schedules, inner_beat: Scheduler, clock: Clock) -> None:
        schedules.add("a", "add", every(10))
        clock.forward(10)
        inner_beat.run_due()
        assert schedules.update("a", if_version=1, description="fine").total_run_count == 1

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"schedul": 5}, r"entry 'a': schedul: expected a known field, got 5 \(did you mean 'schedule'\?\)"),
            ({"jitter": -1}, "entry 'a': jitter: expected seconds or a timedelta, not negative, got -1"),
            ({"schedule": "x"}, "entry 'a': schedule: expected seconds, a timedelta or a schedule, got 'x'"),
            ({"schedule": None}, "entry 'a': schedule: expected seconds, a timedelta or a schedule, got None"),
        ],
    )
    def test_a_wrong_change_changes_nothing(
        self, schedules: Schedules, changes: dict[str, object], message: str
    ) -> None:
        before = schedules.add("a", "add", every(10))
        with pytest.raises(InvalidEntry, match=message):
            schedules.update("a", **changes)
        assert (schedules["a"], schedules["a"].version) == (before, 1)

    @pytest.mark.parametrize("version", ["1", 1.0, True])
    def test_a_version_is_a_whole_number(self, schedules: Schedules, version: Any) -> None:
        schedules.add("a", "add", every(10))
        with pytest.raises(ValueError, match=f"if_version: expected None or a whole number, got {version!r}"):
            schedules.update("a", if_version=version, description="x")

    def test_many_entries_are_not_one(self, schedules: Schedules) -> None:
        with pytest.raises(InvalidEntry, match=r"name: expected the name of one entry, got .*add_many"):
            schedules.update({"a": {"schedule": 5}})  # type: ignore[arg-type]

    def test_an_absent_entry_cannot_be_edited(self, schedules: Schedules) -> None:
        with pytest.raises(EntryNotFound):
            schedules.update("a", description="x")

    def test_an_edit_made_while_the_beat_runs_it_loses_neither(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # The interleaving: read by the edit, advanced by the beat, written by the edit.
        schedules.add("a", "add", every(10))
        clock.forward(10)
        put, done = schedules._store.put, []

        def put_after_a_tick(edits: list[object]) -> list[bool]:
            if not done:
                done.append(inner_beat.run_due())
            return put(edits)  # type: ignore[arg-type]

        monkeypatch.setattr(schedules._store, "put", put_after_a_tick)
        schedules.update("a", description="edited")
        entry = schedules["a"]
        assert (entry.description, entry.total_run_count) == ("edited", 1)
        assert entry.next_run_at == NOW + timedelta(seconds=20)


class TestAfterItsEnd:
    """An entry with a fixed ``end_at`` is written again after it: by an application that starts, or by an edit."""

    END = NOW + timedelta(seconds=90)

    @pytest.fixture
    def ended(self, schedules: Schedules, inner_beat: Scheduler, clock: Clock) -> Schedules:
        schedules.add("a", "add", every(60), end_at=self.END)
        for _ in range(3):
            clock.forward(60)
            inner_beat.run_due()
        assert (schedules["a"].finished, schedules["a"].total_run_count) == (True, 1)
        return schedules

    @pytest.mark.parametrize(
        "write",
        [
            lambda schedules, end: schedules.add("a", "add", every(60), end_at=end, description="x", replace=True),
            lambda schedules, end: schedules.update("a", description="x"),
            lambda schedules, end: schedules.add_many(
                [Entry("a", "add", every(60), end_at=end, description="x")], replace=True
            ),
            lambda schedules, end: schedules.__setitem__(
                "a", Entry("a", "add", every(60), end_at=end, description="x")
            ),
        ],
        ids=["add", "update", "add_many", "assignment"],
    )
    def test_what_was_right_when_it_was_stored_is_right_still(
        self, ended: Schedules, write: Callable[[Schedules, datetime], object]
    ) -> None:
        write(ended, self.END)
        entry = ended["a"]
        assert (entry.description, entry.finished, entry.next_run_at, entry.total_run_count) == ("x", True, None, 1)

    @pytest.mark.parametrize("change", [{"schedule": every(30)}, {"end_at": NOW + timedelta(seconds=100)}], ids=str)
    def test_another_schedule_or_end_must_have_an_occurrence_to_come(
        self, ended: Schedules, change: dict[str, object]
    ) -> None:
        with pytest.raises(InvalidEntry, match="entry 'a': schedule: expected a schedule with an occurrence still to"):
            ended.update("a", **change)

    def test_a_new_one_must_have_an_occurrence_to_come(self, ended: Schedules) -> None:
        with pytest.raises(InvalidEntry, match="entry 'b': schedule: expected a schedule with an occurrence still to"):
            ended.add("b", "add", every(60), end_at=self.END, replace=True)
        assert "b" not in ended


class TestPause:
    def test_a_paused_entry_does_not_fire_and_keeps_its_history_and_note(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add("a", "add", every(10))
        clock.forward(10)
        inner_beat.run_due()
        paused = schedules.pause("a", note="data centre move | at 5")
        assert (paused.paused_note, paused.next_run_at) == ("data centre move | at 5", None)
        clock.forward(1000)
        inner_beat.run_due()
        assert len(queued(client)) == 1
        entry = schedules["a"]
        assert (entry.paused_note, entry.total_run_count) == ("data centre move | at 5", 1)

    def test_resuming_waits_for_the_next_instant_in_the_old_phase(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add("a", "add", every(10))
        schedules.pause("a")
        clock.forward(1003)
        resumed = schedules.resume("a")
        assert (resumed.paused_note, resumed.next_run_at) == (None, NOW + timedelta(seconds=1010))
        inner_beat.run_due()
        assert queued(client) == []
        clock.forward(7)
        inner_beat.run_due()
        assert [message.scheduled_at for message in queued(client)] == [NOW + timedelta(seconds=1010)]

    @pytest.mark.parametrize(("misfire", "runs"), [("coalesce", 1), ("skip", 0), (Misfire("all", limit=4), 4)])
    def test_resuming_with_catch_up_leaves_the_pause_to_the_misfire_policy(
        self,
        schedules: Schedules,
        inner_beat: Scheduler,
        clock: Clock,
        client: redis.Redis,
        misfire: Misfire,
        runs: int,
    ) -> None:
        schedules.add("a", "add", every(10), misfire=misfire)
        schedules.pause("a")
        clock.forward(108)
        schedules.resume("a", catch_up=True)
        inner_beat.run_due()
        assert len(queued(client)) == runs
        assert schedules["a"].next_run_at == NOW + timedelta(seconds=110)

    def test_resuming_what_is_not_paused_changes_nothing(self, schedules: Schedules, clock: Clock) -> None:
        schedules.add("a", "add", every(10))
        clock.forward(15)
        assert schedules.resume("a").version == 1
        assert schedules["a"].next_run_at == NOW + timedelta(seconds=10)

    def test_pausing_again_renews_the_note(self, schedules: Schedules) -> None:
        schedules.add("a", "add", every(10))
        schedules.pause("a", "first")
        assert schedules.pause("a", "second").paused_note == "second"
        assert schedules["a"].paused_note == "second"

    def test_an_edit_of_a_paused_entry_does_not_wake_it(self, schedules: Schedules) -> None:
        schedules.add("a", "add", every(10))
        schedules.pause("a", "why")
        edited = schedules.update("a", schedule=every(5))
        assert (edited.paused_note, edited.next_run_at) == ("why", None)

    def test_a_note_is_text(self, schedules: Schedules) -> None:
        schedules.add("a", "add", every(10))
        with pytest.raises(InvalidEntry, match=r"entry 'a': note: expected text.*, got 5"):
            schedules.pause("a", 5)  # type: ignore[arg-type]

    def test_a_note_has_bounds(self, schedules: Schedules) -> None:
        schedules.add("a", "add", every(10))
        with pytest.raises(InvalidEntry, match="entry 'a': note: expected text of at most 1000 characters"):
            schedules.pause("a", "x" * 1001)

    def test_a_disabled_entry_does_not_fire_until_it_is_enabled(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add("a", "add", every(10), enabled=False)
        clock.forward(25)
        inner_beat.run_due()
        assert queued(client) == []
        assert schedules.update("a", enabled=True).next_run_at == NOW + timedelta(seconds=30)


class TestRunNow:
    def test_emits_one_task_with_the_entrys_own_options_and_leaves_the_plan(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add(
            "a", "add", every(60), (1,), {"y": 2}, {"queue": "q", "priority": 3, "headers": {"team": "x"}}, expires=30
        )
        before = schedules["a"]
        task_id = schedules.run_now("a")
        [message] = queued(client, "q" if client.exists("q") else "q\x06\x163")
        assert (message.id, message.task, message.args, message.kwargs) == (task_id, "add", [1], {"y": 2})
        assert message.properties["priority"] == 3
        assert message.headers["team"] == "x"
        assert (message.entry, message.scheduled_at) == ("a", NOW)
        assert message.headers["expires"] == (NOW + timedelta(seconds=30)).isoformat()
        after = schedules["a"]
        assert (after.version, after.next_run_at, after.total_run_count) == (1, before.next_run_at, 0)
        clock.forward(60)
        inner_beat.run_due()
        assert schedules["a"].last_run_at == NOW + timedelta(seconds=60)

    def test_two_are_two_tasks(self, schedules: Schedules) -> None:
        schedules.add("a", "add", every(60))
        assert schedules.run_now("a") != schedules.run_now("a")

    def test_a_paused_entry_and_an_unknown_task_run_too(self, schedules: Schedules, client: redis.Redis) -> None:
        schedules.add("a", "not.registered.here", every(60))
        schedules.pause("a")
        task_id = schedules.run_now("a")
        assert [(message.id, message.task) for message in queued(client)] == [(task_id, "not.registered.here")]

    def test_an_absent_entry_is_told(self, schedules: Schedules) -> None:
        with pytest.raises(EntryNotFound):
            schedules.run_now("a")

    def test_the_once_lock_is_taken_and_where_it_is_held_left_to_the_worker(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add("a", "add", every(60), once=True)
        first, second = schedules.run_now("a"), schedules.run_now("a")
        told = {message.id: message.headers["redbeat_once"] for message in queued(client)}
        assert told[first]["key"] == told[second]["key"]
        assert (told[first]["queued"], told[second]["queued"]) == (True, False)
        clock.forward(60)
        inner_beat.run_due()
        assert len(queued(client)) == 2
        assert schedules["a"].skipped_count == 1

    def test_a_failure_gives_the_once_lock_back(
        self, app: Celery, schedules: Schedules, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        schedules.add("a", "some.task", every(60), once=True)

        def failing(*args: object, **kwargs: object) -> None:
            raise OperationalError("no broker")

        with monkeypatch.context() as patched:
            patched.setattr(app, "send_task", failing)
            with pytest.raises(OperationalError):
                schedules.run_now("a")
        assert not client.keys("*once:lock*")
        schedules.run_now("a")
        assert queued(client)[0].headers["redbeat_once"]["queued"] is True


class TestAddMany:
    def test_stores_a_thousand_in_a_round_trip(self, schedules: Schedules) -> None:
        len(schedules)  # connected by now
        schedules.add("warm", "add", 10)
        for number, most in ((1000, 1), (1001, 2), (3000, 3)):
            schedules.clear()
            entries = [Entry(f"e{index}", "add", every(10)) for index in range(number)]
            with round_trips() as trips:
                schedules.add_many(entries)
            assert len(trips) == most
            assert len(schedules) == number

    def test_stores_nothing_if_one_is_wrong(self, schedules: Schedules) -> None:
        entries = [Entry(f"e{index}", "add", every(10)) for index in range(1500)]
        entries.append(Entry("bad", "add", every(10), (object(),)))
        with pytest.raises(InvalidEntry, match=r"entry 'bad': args\[0\]: expected"):
            schedules.add_many(entries)
        entries[-1] = Entry("late", "add", every(10), jitter=10)
        with pytest.raises(InvalidEntry, match="entry 'late': jitter: expected less than the shortest gap"):
            schedules.add_many(entries)
        entries[-1] = Entry("large", "add", every(10), ("x" * 70_000,))
        with pytest.raises(InvalidEntry, match="entry 'large': entry: expected a definition of at most 65536 bytes"):
            schedules.add_many(entries)
        with pytest.raises(InvalidEntry, match="entry 'large': entry: expected a definition of at most 65536 bytes"):
            schedules.add_many(entries, replace=True)
        assert len(schedules) == 0

    def test_names_that_are_taken_are_told_and_the_others_stored(self, schedules: Schedules) -> None:
        schedules.add("e1", "add", every(99))
        with pytest.raises(EntryExists, match="already stored: 'e1'; pass replace=True"):
            schedules.add_many(Entry(f"e{index}", "add", every(10)) for index in range(3))
        assert len(schedules) == 3
        assert schedules["e1"].schedule == every(99)

    def test_with_replace_history_and_next_run_are_kept(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock
    ) -> None:
        entries = [Entry(f"e{index}", "add", every(10)) for index in range(1200)]
        schedules.add_many(entries[:1100])
        clock.forward(10)
        inner_beat.run_due()
        clock.forward(1)
        with round_trips() as trips:
            schedules.add_many(entries, replace=True)
        assert len(trips) == 4
        assert schedules["e5"].total_run_count == 1
        assert schedules["e5"].next_run_at == NOW + timedelta(seconds=20)
        assert schedules["e1150"].next_run_at == NOW + timedelta(seconds=21)

    def test_a_name_twice_in_one_call_is_told(self, schedules: Schedules) -> None:
        with pytest.raises(EntryExists, match="'a'"):
            schedules.add_many([Entry("a", "add", every(10)), Entry("a", "add", every(20))])
        assert schedules["a"].schedule == every(10)

    def test_anything_but_an_entry_is_refused(self, schedules: Schedules) -> None:
        with pytest.raises(InvalidEntry, match="entry: expected an Entry, got"):
            schedules.add_many([{"task": "add", "schedule": 10}])  # type: ignore[list-item]


class TestList:
    @pytest.fixture
    def many(self, schedules: Schedules) -> Schedules:
        """Ten entries that fire the earlier, the later their name."""
        schedules.add_many(Entry(f"e{number}", "add", every(100 - number)) for number in range(10))
        return schedules

    def test_in_due_order(self, many: Schedules) -> None:
        many.pause("e9")
        assert [entry.name for entry in many.list()] == [*(f"e{number}" for number in range(8, -1, -1)), "e9"]
        assert [entry.name for entry in many.list(offset=2, limit=3)] == ["e6", "e5", "e4"]

    def test_by_name(self, many: Schedules) -> None:
        assert [entry.name for entry in many.list(order="name")] == [f"e{number}" for number in range(10)]
        assert [entry.name for entry in many.list(offset=8, limit=5, order="name")] == ["e8", "e9"]

    @pytest.mark.parametrize("order", ["due", "name"])
    def test_beyond_the_end_and_nothing_at_all_are_empty(self, many: Schedules, order: str) -> None:
        assert many.list(offset=10, order=order) == []  # type: ignore[arg-type]
        assert many.list(limit=0, order=order) == []  # type: ignore[arg-type]

    def test_an_unknown_order_is_refused(self, many: Schedules) -> None:
        with pytest.raises(ValueError, match="order: expected 'due' or 'name', got 'age'"):
            many.list(order="age")  # type: ignore[arg-type]

    @pytest.mark.parametrize(("offset", "limit"), [(-1, 5), (0, -1), (None, 5), (0, "5"), (0, True)])
    @pytest.mark.parametrize("order", ["due", "name"])
    def test_a_page_is_counted_in_whole_numbers(
        self, many: Schedules, order: str, offset: object, limit: object
    ) -> None:
        with pytest.raises(ValueError, match="expected a whole number from 0, got"):
            many.list(offset, limit, order)  # type: ignore[arg-type]

    @pytest.mark.parametrize(("order", "most"), [("due", 1), ("name", 5)])
    def test_a_page_of_ten_thousand_costs_as_much_as_one_of_ten(
        self, schedules: Schedules, server: Server, order: str, most: int
    ) -> None:
        schedules.add_many(Entry(f"e{number:05}", "add", every(60 + number)) for number in range(10_000))
        schedules.list(order=order)  # type: ignore[arg-type]
        with commands(server) as seen, round_trips() as trips:
            page = schedules.list(offset=5000, limit=1000, order=order)  # type: ignore[arg-type]
        assert [entry.name for entry in page] == [f"e{number:05}" for number in range(5000, 6000)]
        for number, entry in enumerate(page, 5000):
            assert entry.next_run_at == NOW + timedelta(seconds=60 + number)
        assert len(trips) <= 2
        assert len(seen) <= 1 + most

    @pytest.mark.parametrize("order", ["due", "name"])
    def test_a_long_page_is_read_a_thousand_at_a_time_so_that_it_blocks_nobody(
        self, schedules: Schedules, order: Literal["due", "name"], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        names = [f"e{number:04}" for number in range(2500)]
        schedules.add_many(Entry(name, "add", every(60 + number)) for number, name in enumerate(names))
        store = schedules._store
        sizes: list[int] = []

        def measured(read: Callable[..., Any]) -> Callable[..., Any]:
            def reading(*args: Any) -> Any:
                found = read(*args)
                sizes.append(len(found))
                return found

            return reading

        monkeypatch.setattr(store, "page", measured(store.page))
        monkeypatch.setattr(store, "read", measured(store.read))
        assert [entry.name for entry in schedules.list(1, 2200, order)] == names[1:2201]
        assert sizes == [1000, 1000, 200]
        assert [entry.name for entry in schedules.list(2000, 10**9, order)] == names[2000:]

    def test_entries_that_slip_to_a_page_already_read_are_seen_too(self, schedules: Schedules) -> None:
        schedules.add_many(Entry(f"e{number}", "add", every(1000 + number)) for number in range(2500))
        seen = []
        for entry in schedules.values():
            seen.append(entry.name)
            if entry.name == "e5":  # its page is read, the next is not
                for number in range(3):
                    schedules.update(f"e{number}", schedule=every(90_000))
                schedules.remove("e2000")
        assert len(seen) == len(set(seen)) == 2499
        assert set(schedules) <= set(seen)

    def test_what_cannot_be_read_is_left_out_with_a_warning(
        self, many: Schedules, client: redis.Redis, caplog: pytest.LogCaptureFixture
    ) -> None:
        client.hset("{redbeat-lite}:entries", "e3", "{")
        client.zadd("{redbeat-lite}:due", {b"\xff": 1})
        assert len(many.list()) == 9
        assert "entry 'e3': not readable as JSON" in caplog.text
        with pytest.raises(CorruptEntry, match="entry 'e3': not readable as JSON"):
            many["e3"]


class TestUpcoming:
    def test_is_what_the_beat_then_does(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add_many(
            [
                Entry("jittered", "add", every(60), jitter=25.5),
                Entry("cron", "add", cron("*/7 * * * *"), jitter=90),
                Entry("berlin", "add", cron("30 13 * * *", tz="Europe/Berlin")),
                Entry("late", "add", every(45), start_at=NOW + timedelta(minutes=5)),
                Entry("short", "add", every(30), end_at=NOW + timedelta(seconds=100)),
                Entry("thrice", "add", every(40), max_runs=3),
                Entry("once", "add", at(NOW + timedelta(seconds=77))),
                Entry("paused", "add", every(10)),
                Entry("off", "add", every(10), enabled=False),
            ]
        )
        schedules.pause("paused")
        until = NOW + timedelta(minutes=30)
        expected = schedules.upcoming(until)
        assert expected == sorted(expected)
        fired = []
        while clock.now < until:
            wait = inner_beat.run_due()
            for message in queued(client):
                fired.append(Upcoming(clock.now, message.entry or "", message.scheduled_at or NOW))
            client.delete("celery")
            clock.forward(wait)
        assert fired[: len(expected)] == expected
        assert {each.name for each in expected} == {"jittered", "cron", "berlin", "late", "short", "thrice", "once"}
        assert sum(each.at != each.nominal for each in expected) > 20

    @pytest.mark.parametrize("misfire", ["coalesce", "skip", "all", Misfire("all", limit=2), Misfire("all", grace=25)])
    def test_after_an_outage_is_what_the_beat_then_does(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis, misfire: Misfire
    ) -> None:
        schedules.add("a", "add", every(10), misfire=misfire)
        schedules.add("b", "add", every(60), jitter=30, misfire=misfire)
        clock.forward(129)
        expected = schedules.upcoming(clock.now + timedelta(seconds=60))
        end = clock.now + timedelta(seconds=60)
        fired = []
        while clock.now <= end:
            wait = inner_beat.run_due()
            for message in queued(client):
                fired.append(Upcoming(clock.now, message.entry or "", message.scheduled_at or NOW))
            client.delete("celery")
            clock.forward(wait)
        fired.sort()
        assert expected == [each for each in fired if each.at <= end]

    def test_is_bounded_by_its_limit_and_its_end(self, schedules: Schedules) -> None:
        schedules.add("a", "add", every(1))
        assert len(schedules.upcoming(NOW + timedelta(days=365), limit=7)) == 7
        assert [each.at for each in schedules.upcoming(NOW + timedelta(seconds=2))] == [
            NOW + timedelta(seconds=1),
            NOW + timedelta(seconds=2),
        ]
        assert schedules.upcoming(NOW) == []

    @pytest.mark.parametrize("limit", [-1, "5", None])
    def test_is_bounded_by_a_whole_number(self, schedules: Schedules, limit: Any) -> None:
        with pytest.raises(ValueError, match=f"limit: expected a whole number from 0, got {limit!r}"):
            schedules.upcoming(NOW + timedelta(days=1), limit=limit)

    def test_wants_an_aware_end(self, schedules: Schedules) -> None:
        with pytest.raises(InvalidEntry, match="until: expected an aware datetime, got"):
            schedules.upcoming(datetime(2026, 3, 3))


class TestQuarantine:
    def test_a_bad_entry_can_be_seen_mended_and_released(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add("a", "add", every(10), (1,))
        client.hset("{redbeat-lite}:state", "a", "garbage")
        clock.forward(10)
        inner_beat.run_due()
        assert "a" not in schedules
        record = schedules.quarantined()["a"]
        assert "state is not readable" in record["error"]
        assert record["state"] == "garbage"
        assert record["at"] == (NOW + timedelta(seconds=10)).timestamp() * 1000
        released = schedules.release("a")
        assert schedules.quarantined() == {}
        assert schedules["a"] == released == Entry("a", "add", every(10), (1,))
        assert released.next_run_at == NOW + timedelta(seconds=20)

    def test_what_is_still_bad_stays(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add("a", "add", every(10))
        client.hset("{redbeat-lite}:entries", "a", "{")
        clock.forward(10)
        inner_beat.run_due()
        with pytest.raises(CorruptEntry, match="not readable as JSON"):
            schedules.release("a")
        assert list(schedules.quarantined()) == ["a"]

    def test_what_is_not_there_cannot_be_released(self, schedules: Schedules) -> None:
        with pytest.raises(EntryNotFound, match="no entry 'a' is in quarantine"):
            schedules.release("a")

    def test_a_new_entry_of_the_name_takes_it_out_of_quarantine(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add("a", "add", every(10))
        client.hset("{redbeat-lite}:entries", "a", "{")
        clock.forward(10)
        inner_beat.run_due()
        schedules.add("a", "add", every(10))
        assert schedules.quarantined() == {}


class TestEntry:
    def test_is_an_entry_of_celerys(self, schedules: Schedules) -> None:
        schedules.add("a", "add", every(10), (1,), {"y": 2}, {"queue": "q"})
        entry = schedules["a"]
        assert isinstance(entry, ScheduleEntry)
        assert (entry.name, entry.task, entry.args, entry.kwargs) == ("a", "add", (1,), {"y": 2})
        assert entry.options == {"queue": "q"}
        assert repr(entry) == "<Entry 'a': add(1, y=2) every(10)>"

    def test_two_that_a_user_would_write_alike_are_equal(self, schedules: Schedules) -> None:
        schedules.add("a", "add", 10, [1])
        assert schedules["a"] == Entry("a", "add", timedelta(seconds=10), (1,))
        for other in (Entry("b", "add", 10, [1]), Entry("a", "add", 11, [1]), Entry("a", "add", 10, [2]), "a"):
            assert schedules["a"] != other

    @pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda entry: pickle.loads(pickle.dumps(entry))])
    def test_a_copy_carries_everything(self, schedules: Schedules, duplicate: Callable[[Entry], Entry]) -> None:
        schedules.add("a", "add", cron("0 3 * * *", tz="Asia/Tokyo"), (1,), once=True, misfire="skip", jitter=2)
        schedules.pause("a", "why")
        entry = schedules["a"]
        twin = duplicate(entry)
        assert twin == entry
        assert twin is not entry
        assert (twin.version, twin.paused_note, twin.generation) == (2, "why", entry.generation)
        assert twin.next_run_at == entry.next_run_at

    def test_instants_come_back_aware(self, schedules: Schedules) -> None:
        tokyo = timezone(timedelta(hours=9))
        schedules.add("a", "add", every(10), start_at=datetime(2026, 3, 3, 9, tzinfo=tokyo))
        entry = schedules["a"]
        assert entry.start_at == entry.next_run_at == datetime(2026, 3, 3, tzinfo=UTC)
        assert entry.next_run_at.tzinfo is UTC

    def test_the_last_task_id_is_the_one_that_was_sent(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add("a", "add", every(10))
        clock.forward(10)
        inner_beat.run_due()
        assert schedules["a"].last_task_id == of_entry(client, "a")[0].id

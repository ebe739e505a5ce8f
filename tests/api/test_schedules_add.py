"""Entries that are added, one by one and many at once: what is stored of them, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any
from weakref import finalize

import pytest
import redis
from celery import Celery, chain, signature

from redbeat_lite import (
    Entry,
    EntryChanged,
    EntryExists,
    InvalidEntry,
    Misfire,
    Once,
    Scheduler,
    Schedules,
    UnsupportedFormat,
    cron,
    every,
)
from redbeat_lite.entries.canvas import CANVAS
from tests.support.cases import together
from tests.support.commands import round_trips
from tests.support.frozen import NOW, Clock
from tests.support.in_process import MakeApp, MakeBeat
from tests.support.processes import ROOT, run_python
from tests.support.server import Server

#: End of the warning about a task that the app does not know.
UNKNOWN = "is registered in this app; correct the name, or import its module"

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

    def test_the_apps_defaults_fill_what_is_left_out(self, make_app: MakeApp) -> None:
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

    def test_an_unknown_task_is_a_warning(
        self, app: Celery, schedules: Schedules, caplog: pytest.LogCaptureFixture
    ) -> None:
        schedules.add("late", "no.such.task", 10)
        schedules.add("known", "add", 10)
        app.tasks.pop(CANVAS, None)
        schedules.add("canvas", chain(signature("add"), signature("gone")), 10)
        schedules.add_many(Entry(f"e{number}", "no.such.task", every(10)) for number in range(3))
        assert [record.getMessage() for record in caplog.records] == [
            f"entry 'late': no task 'no.such.task' {UNKNOWN}",
            f"entry 'canvas': no task 'gone' {UNKNOWN}",
            f"entry 'canvas': no task 'redbeat_lite.canvas' {UNKNOWN}",
            f"entry 'e0': no task 'no.such.task' {UNKNOWN}",
        ]

    @together(
        ("expression", "words"),
        [
            ("0 3 */100,1-7 * MON", "on about 124 days a year; to run only if both match, use Celery's crontab"),
            ("H 3 8-14 * wed", "on the first Monday, write 'MON#1'"),
            ("0 3 22-28 jan mon,tue 30", "use Celery's crontab"),
            ("0 3 1,15 * mon", "on about 70 days a year; to run only if both match, use Celery's crontab"),
            ("0 3 L * fri", "use Celery's crontab"),
            ("0 3 1-7 * *", None),
            ("0 3 */1 * mon", None),
            ("0 3 * * mon#1", None),
        ],
        emptied=True,
    )
    def test_a_day_of_month_beside_a_day_of_week_is_a_warning(
        self, schedules: Schedules, caplog: pytest.LogCaptureFixture, expression: str, words: str | None
    ) -> None:
        schedules.add("a", "add", cron(expression, tz="UTC"))
        said = [record.getMessage() for record in caplog.records]
        assert [f"entry 'a': {expression!r} restricts" in text and str(words) in text for text in said] == (
            [True] if words else []
        )

    @together(
        ("expression", "seconds", "is_warned"),
        [
            ("0 0 3 * * *", "last", True),
            ("*/5 * * * * *", "last", True),
            ("0 0 3 * * *", "first", False),
            ("* * * * * *", "last", False),
            ("0 3 * * * 0", "last", False),
            ("0 3 * * *", "last", False),
        ],
        emptied=True,
    )
    def test_a_cron_that_runs_each_second_of_a_minute_is_a_warning(
        self, schedules: Schedules, caplog: pytest.LogCaptureFixture, expression: str, seconds: Any, is_warned: bool
    ) -> None:
        schedules.add("a", "add", cron(expression, tz="UTC", seconds=seconds), expires=30)
        warned = [text for text in caplog.messages if f"{expression!r} runs 60 times in each minute" in text]
        assert len(warned) == is_warned

    def test_an_unknown_task_is_said_where_nobody_has_set_up_logging(self, server: Server, tmp_path: Path) -> None:
        script = f"""
from celery import Celery
from redbeat_lite import Schedules
app = Celery("proj", broker={server.url!r})
Schedules(app).add("late", "no.such.task", 10)
"""
        (tmp_path / "adds.py").write_text(script)
        ran = run_python("adds.py", env={"PYTHONPATH": str(ROOT)}, cwd=tmp_path)
        assert ran.stderr == f"entry 'late': no task 'no.such.task' {UNKNOWN}\n"

    def test_a_task_of_a_module_that_was_not_imported_is_known(
        self,
        app: Celery,
        schedules: Schedules,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        (tmp_path / "shoptasks.py").write_text(
            "from celery import shared_task\n@shared_task(name='shop.count')\ndef count(): ...\n"
        )
        monkeypatch.syspath_prepend(tmp_path)
        app.conf.include = ["shoptasks"]
        schedules.add("known", "shop.count", 10)
        schedules.add("unknown", "shop.cuont", 10)
        assert caplog.messages == [f"entry 'unknown': no task 'shop.cuont' {UNKNOWN}"]

    def test_a_module_that_is_still_imported_hears_of_no_unknown_task(self, server: Server, tmp_path: Path) -> None:
        module = f"""
from celery import Celery
from redbeat_lite import Schedules
app = Celery("proj", broker={server.url!r})
Schedules(app).add("early", "midway.later", 10)
assert not app.finalized
@app.task
def later(): ...
"""
        (tmp_path / "midway.py").write_text(module)
        (tmp_path / "imports.py").write_text("import midway; print('imported')")
        ran = run_python("imports.py", env={"PYTHONPATH": str(ROOT)}, cwd=tmp_path)
        assert (ran.stdout, ran.stderr) == ("imported\n", "")

    def test_arguments_that_the_task_does_not_take_are_a_warning(
        self, schedules: Schedules, caplog: pytest.LogCaptureFixture
    ) -> None:
        schedules.add("right", "add", 10, args=(1, 2))
        schedules.add("wrong", "add", 10, args=(1, 2, 3))
        [line] = caplog.messages
        assert line.startswith("entry 'wrong': add does not take these arguments: add() takes ")

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


class TestAddMany:
    def test_stores_250_in_a_round_trip(self, schedules: Schedules) -> None:
        len(schedules)  # connected by now
        schedules.add("warm", "add", 10)
        for number, most in ((250, 1), (251, 2)):
            schedules.clear()
            entries = [Entry(f"e{index}", "add", every(10)) for index in range(number)]
            with round_trips() as trips:
                schedules.add_many(entries)
            assert len(trips) == most
            assert len(schedules) == number

    @pytest.mark.usefixtures("small_pages")
    def test_stores_nothing_if_one_is_wrong(self, schedules: Schedules) -> None:
        entries = [Entry(f"e{index}", "add", every(10)) for index in range(150)]
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

    def test_of_those_that_are_nearly_alike_each_is_stored_as_it_is_alone(
        self, schedules: Schedules, client: redis.Redis
    ) -> None:
        misfire = Misfire("coalesce", grace=5)
        differing: list[dict[str, Any]] = [{}, {"options": {"priority": 1}}, {"options": {"priority": True}}]
        differing += [{"options": {"time_limit": 60}}, {"options": {"time_limit": 60.0}}, {"args": ()}, {"kwargs": {}}]
        differing += [{"args": (), "kwargs": {}}, {"args": ("ä",), "kwargs": {"ä": 1}}, {"kwargs": {"custom": 1}}]
        differing += [{"kwargs": {"__type__": "x"}}, {"kwargs": {"b": NOW}}, {"schedule": every(60, align=True)}]
        differing += [{"schedule": every(60, spread=True)}, {"schedule": cron("0 3 * * mon")}, {"schedule": 60}]
        differing += [{"schedule": cron("0 3 * * MON")}, {"schedule": cron("0 3 * * mon", tz="Europe/Berlin")}]
        differing += [{"schedule": cron("H 3 * * *")}, {"misfire": misfire}, {"misfire": "skip"}, {"once": True}]
        differing += [{"start_at": NOW}, {"end_at": NOW + timedelta(days=99)}, {"jitter": 5}, {"expires": 60}]
        differing += [{"max_runs": 1}, {"history": 1}, {"enabled": False}, {"expect": False}, {"tags": ["a"]}]
        differing += [{"on_failure": "pause:3"}, {"task": "mul"}, {"expires": None}, {"remove_when_done": True}]
        fields = [
            {"task": "add", "schedule": every(60), "args": (1,), "kwargs": {"a": 1}, **each} for each in differing
        ]
        entries = [Entry(f"e{number}", **each) for number, each in enumerate([*fields, *fields])]
        schedules.add_many(entries)
        stored = client.hgetall("{redbeat-lite}:entries"), client.zrange("{redbeat-lite}:due", 0, -1, withscores=True)
        schedules.clear()
        for number, each in enumerate([*fields, *fields]):
            schedules.add(f"e{number}", **each)
        assert stored[0] == client.hgetall("{redbeat-lite}:entries")
        assert stored[1] == client.zrange("{redbeat-lite}:due", 0, -1, withscores=True)

    def test_each_interval_counts_from_when_its_entry_is_added(
        self, schedules: Schedules, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ticks = count(5_400_000_000_000)
        monkeypatch.setattr("redbeat_lite.api.writer.wall_ms", lambda: next(ticks) // 3)
        entries = [Entry(f"e{number}", "add", every(60)) for number in range(9)]
        schedules.add_many(entries)
        first, *_, last = [entry.state.nominal or 0 for entry in entries]
        assert last - first >= 2

    def test_what_derives_from_a_schedule_is_never_stored_as_that(self, schedules: Schedules) -> None:
        class Odd(every):
            pass

        with pytest.raises(InvalidEntry, match="entry 'odd': schedule"):
            schedules.add_many([Entry("plain", "add", every(60)), Entry("odd", "add", Odd(60))])
        assert len(schedules) == 0

    def test_each_of_many_that_are_alike_is_checked_for_its_arguments(self, schedules: Schedules) -> None:
        calls = [("good", (1,)), ("bad", ({1},))]
        with pytest.raises(InvalidEntry, match=r"entry 'bad': args\[0\]: expected a value that the serializer 'json'"):
            schedules.add_many(Entry(name, "add", every(10), args) for name, args in calls)
        assert len(schedules) == 0

    def test_a_collection_that_makes_its_entries_is_asked_once(self, schedules: Schedules) -> None:
        schedules.add_many([Entry(f"e{number}", "add", every(10)) for number in range(3)])
        with round_trips() as trips, pytest.raises(EntryExists, match="already stored: 'e0', 'e1', 'e2'; pass"):
            schedules.add_many(schedules.values())
        assert len(trips) <= 4

    @pytest.mark.usefixtures("small_pages")
    def test_of_an_iterator_a_page_is_held_at_a_time(
        self, app: Celery, schedules: Schedules, caplog: pytest.LogCaptureFixture
    ) -> None:
        app.finalize()
        schedules.add("e0", "add", every(99))
        gone: list[int] = []

        def made() -> Iterator[Entry]:
            for number in range(350):
                entry = Entry(f"e{number}", "add" if number < 300 else "unknown", every(10))
                finalize(entry, gone.append, number)
                assert number - len(gone) <= 200
                yield entry
            yield Entry("late", "add", every(10), jitter=10)

        with pytest.raises(InvalidEntry, match="entry 'late': jitter: expected less"):
            schedules.add_many(made())
        assert len(schedules) == 300, "what came before the page of the wrong one"
        numbers = [*range(100), *range(400, 600)]
        with pytest.raises(EntryExists, match=r"already stored: 'e0', .* and 90 more; pass replace=True"):
            schedules.add_many(Entry(f"e{number}", f"no{number % 2}", every(10)) for number in numbers)
        assert len(schedules) == 500
        told = [message for message in caplog.messages if "'no0' is registered" in message]
        assert told == [f"entry 'e0': no task 'no0' {UNKNOWN}"]

    def test_names_that_are_taken_are_told_and_the_others_stored(self, schedules: Schedules) -> None:
        schedules.add("e1", "add", every(99))
        with pytest.raises(EntryExists, match="already stored: 'e1'; pass replace=True"):
            schedules.add_many(Entry(f"e{index}", "add", every(10)) for index in range(3))
        assert len(schedules) == 3
        assert schedules["e1"].schedule == every(99)

    @pytest.mark.usefixtures("small_pages")
    def test_with_replace_history_and_next_run_are_kept(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock
    ) -> None:
        entries = [Entry(f"e{index}", "add", every(10)) for index in range(120)]
        schedules.add_many(entries[:110])
        clock.forward(10)
        inner_beat.run_due()
        clock.forward(1)
        with round_trips() as trips:
            schedules.add_many(entries, replace=True)
        assert len(trips) == 2
        assert schedules["e5"].total_run_count == 1
        assert schedules["e5"].next_run_at == NOW + timedelta(seconds=20)
        assert schedules["e115"].next_run_at == NOW + timedelta(seconds=21)

    def test_stores_nothing_if_two_have_one_name(self, schedules: Schedules) -> None:
        entries = [Entry(name, "add", every(10)) for name in ("q1", "q2", "q1")]
        for given in (entries, iter(entries)):
            with pytest.raises(
                InvalidEntry, match="name: expected a name that no other entry of the list has, got 'q1'"
            ):
                schedules.add_many(given)
        assert len(schedules) == 0

    def test_anything_but_an_entry_is_refused(self, schedules: Schedules) -> None:
        with pytest.raises(InvalidEntry, match="entry: expected an Entry, got"):
            schedules.add_many([{"task": "add", "schedule": 10}])  # type: ignore[list-item]

    def test_an_entry_that_runs_at_this_moment_is_replaced_all_the_same(
        self,
        app: Celery,
        schedules: Schedules,
        make_beat: MakeBeat,
        clock: Clock,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        schedules.add("a", "add", every(10))
        beat, put, turns = make_beat(app), schedules._store.put, list[float]()
        clock.forward(10)

        def put_after_a_turn(edits: Any, term: Any = None) -> list[bool]:
            if not turns:
                turns.append(beat.run_due())
            return put(edits)

        monkeypatch.setattr(schedules._store, "put", put_after_a_turn)
        schedules.add_many([Entry("a", "add", every(10), description="edited")], replace=True)
        found = schedules["a"]
        assert (found.description, found.total_run_count) == ("edited", 1)

    def test_replacing_ends_also_where_entries_change_faster_than_it_can(
        self, schedules: Schedules, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        schedules.add("a", "add", 10)
        monkeypatch.setattr(schedules._store, "put", lambda edits, term=None: [False for _ in edits])
        with pytest.raises(EntryChanged, match="1 entry is being changed too often to be replaced"):
            schedules.add("a", "add", 20, replace=True)
        assert schedules["a"].schedule.run_every == timedelta(seconds=10)

    def test_of_a_name_twice_in_one_call_the_last_takes_its_place(self, schedules: Schedules) -> None:
        schedules.add_many([Entry("a", "add", 10), Entry("b", "add", 10), Entry("a", "add", 20)], replace=True)
        assert [schedules[name].schedule.run_every for name in "ab"] == [timedelta(seconds=20), timedelta(seconds=10)]

"""Stored calendars, and the entries that name them."""

from __future__ import annotations

import doctest
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
import redis
from celery import Celery
from celery.beat import BeatLazyFunc
from celery.schedules import crontab

from redbeat_lite import (
    Calendar,
    Entry,
    EntryNotFound,
    InvalidEntry,
    Scheduler,
    Schedules,
    at,
    cron,
    every,
    manual,
    rrule,
)
from redbeat_lite.operate.why import explain
from redbeat_lite.operate.why_case import gather
from redbeat_lite.store import records
from redbeat_lite.store.store import Store
from tests.support.beats import KEYS
from tests.support.cases import together
from tests.support.frozen import NOW, Clock
from tests.support.in_process import MakeApp, MakeBeat
from tests.support.pages import blocks, document

pytestmark = pytest.mark.usefixtures("clock")

#: NOW is the noon of a Monday, 2026-03-02.
DAILY = cron("0 9 * * *", tz="UTC")


class Own(crontab):  # type: ignore[misc]  # Celery ships no types
    """Somebody's own, whose runs nobody can tell from the fields that it was given."""


def days(*numbers: int, until: date = date(2026, 12, 31)) -> Calendar:
    """Days of March."""
    return Calendar({date(2026, 3, number) for number in numbers}, until)


def march(day: int, hour: int = 9) -> datetime:
    return datetime(2026, 3, day, hour, tzinfo=UTC)


def test_an_entry_does_not_run_on_the_days_of_its_calendar(schedules: Schedules) -> None:
    schedules.calendars["closed"] = days(3, 4, 6)
    entry = schedules.add("a", "add", DAILY, calendar="closed")
    assert entry.next_run_at == schedules["a"].next_run_at == march(5)
    assert str(schedules["a"].calendar) == "closed@1"
    assert [each.at for each in schedules.upcoming(march(9, 0))] == [march(5), march(7), march(8)]
    assert schedules.add("b", "add", rrule("FREQ=DAILY;BYHOUR=9", tz="UTC"), calendar="closed").next_run_at == march(5)
    assert schedules.update("a", calendar=None).next_run_at == march(3)
    assert schedules.update("a", calendar="closed").next_run_at == march(5)


def test_calendars_are_a_mapping(schedules: Schedules) -> None:
    found = schedules.calendars
    assert (len(found), [*found]) == (0, [])
    found["b"], found["a"] = days(3), days(4)
    assert [*found] == ["a", "b"]
    assert (found["b"].days, str(found["b"]), found["b"].until) == ({date(2026, 3, 3)}, "b@1", date(2026, 12, 31))
    del found["b"]
    assert "b" not in found
    with pytest.raises(EntryNotFound, match="no calendar 'b' is stored"):
        found["b"]


def test_the_same_again_is_no_new_revision(schedules: Schedules) -> None:
    for each, revision in ((days(3), 1), (days(3), 1), (days(4), 2), (days(4, until=date(2027, 1, 1)), 3)):
        schedules.calendars["closed"] = each
        assert schedules.calendars["closed"].revision == revision


@together(
    ("fields", "words"),
    [
        (
            {"calendar": "close"},
            "calendar: expected the name of a stored calendar, got 'close' (did you mean",
        ),
        ({"calendar": "x"}, "(store it: schedules.calendars[name] = ...)"),
        ({"calendar": 5}, "calendar: expected the name of a stored calendar, or None, got 5"),
        ({"calendar": "closed@1"}, "the name of a stored calendar, or None, got 'closed@1'"),
        ({"calendar": days(3)}, "store it: schedules.calendars[name] = ..."),
        ({"schedule": every(60)}, "schedule: expected cron, crontab or rrule beside a calendar, got every('1m')"),
        ({"schedule": at(march(9))}, "cron, crontab or rrule beside a calendar"),
        ({"schedule": manual()}, "cron, crontab or rrule beside a calendar"),
        ({"schedule": Own("0", "9")}, "a schedule that can be stored"),
        ({"calendar": "over"}, "one that has not ended, got 'over@1, which knows until 2026-03-01'"),
        ({"schedule": cron("0 9 3 3 *", tz="UTC")}, "one with a run of the entry until 2026-12-31, got 'closed@1'"),
    ],
)
def test_what_can_never_run_so_is_refused(schedules: Schedules, fields: dict[str, Any], words: str) -> None:
    schedules.calendars["closed"] = days(3)
    schedules.calendars["over"] = days(1, until=date(2026, 3, 1))
    with pytest.raises(InvalidEntry) as refused:
        schedules.add("a", "add", **{"schedule": DAILY, "calendar": "closed", **fields})
    assert words in str(refused.value)
    assert "a" not in schedules


def test_an_entry_whose_calendar_has_ended_since_can_be_edited(schedules: Schedules, clock: Clock) -> None:
    schedules.calendars["closed"] = days(3, until=date(2026, 3, 4))
    schedules.add("a", "add", DAILY, calendar="closed")
    clock.forward(5 * 86_400)
    assert schedules.update("a", description="x").next_run_at == march(4)
    schedules.add("a", "add", DAILY, calendar="closed", replace=True)
    with pytest.raises(InvalidEntry, match="one that has not ended"):
        schedules.add("b", "add", DAILY, calendar="closed")


def test_a_name_that_its_revision_would_follow_is_refused(schedules: Schedules) -> None:
    for name, value, words in (("a@1", days(3), "without @"), ("", days(3), "name"), ("a", {}, "a Calendar, got {}")):
        with pytest.raises(InvalidEntry, match=words):
            schedules.calendars[name] = value  # type: ignore[assignment]


def test_a_calendar_that_an_entry_names_is_not_removed(schedules: Schedules) -> None:
    schedules.calendars["closed"] = days(3)
    schedules.add("a", "add", DAILY, calendar="closed")
    with pytest.raises(InvalidEntry, match=r"one that no entry names, got 'closed' .*'a'"):
        del schedules.calendars["closed"]
    schedules.remove("a")
    del schedules.calendars["closed"]


def test_a_new_revision_edits_its_entries_and_no_others(schedules: Schedules) -> None:
    schedules.calendars["closed"], schedules.calendars["other"] = days(3), days(3)
    for name, calendar in (("a", "closed"), ("paused", "closed"), ("b", "other"), ("c", None)):
        schedules.add(name, "add", DAILY, calendar=calendar)
    schedules.pause("paused", "why")
    before = {name: schedules[name].version for name in schedules}
    schedules.calendars["closed"] = days(4)
    assert [schedules[name].next_run_at for name in ("a", "b", "c")] == [march(3), march(4), march(3)]
    assert {name for name in schedules if schedules[name].version > before[name]} == {"a", "paused"}
    assert schedules["paused"].paused_note == "why"
    assert schedules.resume("paused").next_run_at == march(3)
    edited, stored = schedules.changes()[1:3]
    assert (edited.action, {*edited.names}, edited.fields[0][0]) == ("edited", {"a", "paused"}, "calendar")
    assert (stored.action, stored.note) == ("edited", "calendar closed@2: 1 day, until 2026-12-31")


def test_what_is_due_stays_due_unless_it_is_left_out_now(schedules: Schedules, clock: Clock) -> None:
    schedules.calendars["closed"] = days(9)
    schedules.add("a", "add", DAILY, calendar="closed")
    clock.forward(2 * 86_400)  # the run of the third, at nine, is late
    schedules.calendars["closed"] = days(5)
    assert schedules["a"].next_run_at == march(3)
    schedules.calendars["closed"] = days(3)
    assert schedules["a"].next_run_at == march(4)


def test_a_day_that_comes_free_is_run_but_no_run_a_second_time(
    schedules: Schedules, clock: Clock, app: Celery, make_beat: MakeBeat
) -> None:
    schedules.calendars["closed"] = days(4)
    schedules.add("a", "add", DAILY, calendar="closed")
    beat = make_beat(app)
    clock.forward(86_400)
    beat.run_due()
    assert schedules["a"].last_run_at == march(3)
    schedules.calendars["closed"] = days(9)
    assert schedules["a"].next_run_at == march(4)
    clock.forward(-4 * 3600)  # a clock that is behind: it is eight
    schedules.calendars["closed"] = days(10)
    assert schedules["a"].next_run_at == march(4)


def test_what_the_page_shows_is_true(schedules: Schedules) -> None:
    page = document("many.md")
    text = "".join(block.text for block in blocks(page, "Leave dates out") if block.language == "pycon")
    shown = doctest.DocTestParser().get_doctest(text, {"schedules": schedules}, "many.md", None, 0)
    report: list[str] = []
    results = doctest.DocTestRunner(verbose=False).run(shown, out=report.append)
    assert results.attempted == 7
    assert not results.failed, "".join(report)


def test_bounds_of_an_entry_hold(schedules: Schedules) -> None:
    schedules.calendars["closed"] = days(3, 4)
    schedules.add("late", "add", DAILY, calendar="closed", start_at=march(5, 0))
    schedules.add("ends", "add", DAILY, calendar="closed", end_at=march(5, 12))
    schedules.calendars["closed"] = days(5)
    assert schedules["late"].next_run_at == march(6)
    assert schedules["ends"].next_run_at == march(3)
    schedules.calendars["closed"] = days(3, 4, 5)
    assert schedules["ends"].finished
    schedules.add("once", "add", DAILY, calendar="closed", max_runs=1)
    schedules.calendars["closed"] = days(3, 5)  # what was left out by mistake is not lost
    assert schedules["ends"].next_run_at == march(4)


def test_an_entry_that_had_all_of_its_runs_has_no_more_by_a_new_revision(
    schedules: Schedules, clock: Clock, inner_beat: Scheduler
) -> None:
    schedules.calendars["closed"] = days(4)
    schedules.add("a", "add", DAILY, calendar="closed", max_runs=1)
    clock.forward(86_400)
    inner_beat.run_due()
    schedules.calendars["closed"] = days(5)
    assert schedules["a"].finished


def test_250_entries_are_edited_at_once_and_what_broke_off_is_done_by_the_same_again(
    schedules: Schedules, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert records.AT_ONCE == 250
    monkeypatch.setattr("redbeat_lite.store.store.AT_ONCE", 5)
    schedules.calendars["closed"] = days(3)
    schedules.add_many(Entry(f"e{number:04}", "add", DAILY, calendar="closed") for number in range(12))
    sizes, put = [], Store.put

    def breaking(store: Store, edits: Any, term: Any = None) -> list[bool]:
        sizes.append(len(edits))
        if len(sizes) == 2:
            raise redis.ConnectionError("gone")
        return put(store, edits, term)

    monkeypatch.setattr(Store, "put", breaking)
    with pytest.raises(redis.ConnectionError):
        schedules.calendars["closed"] = days(4)
    assert sizes == [5, 5]
    assert {str(entry.calendar) for entry in schedules.values()} == {"closed@1", "closed@2"}
    schedules.calendars["closed"] = days(4)
    assert sizes[2:] == [0, 5, 2]
    assert {str(entry.calendar) for entry in schedules.values()} == {"closed@2"}
    assert {entry.version for entry in schedules.values()} == {2}


def test_an_entry_that_is_changed_meanwhile_is_edited_all_the_same(
    schedules: Schedules, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedules.calendars["closed"] = days(3)
    schedules.add("a", "add", DAILY, calendar="closed")
    put = Store.put

    def late(store: Store, edits: Any, term: Any = None) -> list[bool]:
        monkeypatch.setattr(Store, "put", put)
        schedules.pause("a", "meanwhile")
        return put(store, edits, term)

    monkeypatch.setattr(Store, "put", late)
    schedules.calendars["closed"] = days(4)
    assert (str(schedules["a"].calendar), schedules["a"].paused_note) == ("closed@2", "meanwhile")


def test_two_who_store_at_once_get_a_revision_each(schedules: Schedules, monkeypatch: pytest.MonkeyPatch) -> None:
    schedules.calendars["closed"] = days(3)
    scripts = schedules._store.backend.scripts
    run = scripts.run

    def late(name: str, *args: Any, **values: Any) -> Any:
        if name == "schedule/transact":
            monkeypatch.undo()
            schedules.calendars["closed"] = days(5)
        return run(name, *args, **values)

    monkeypatch.setattr(scripts, "run", late)
    schedules.calendars["closed"] = days(4)
    assert [change.note for change in schedules.changes(limit=2)] == [
        f"calendar closed@{revision}: 1 day, until 2026-12-31" for revision in (3, 2)
    ]
    assert (schedules.calendars["closed"].days, str(schedules.calendars["closed"])) == (days(4).days, "closed@3")


def test_who_is_slower_to_edit_the_entries_leaves_them_by_what_is_stored(
    schedules: Schedules, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedules.calendars["closed"] = days(3)
    schedules.add("a", "add", DAILY, calendar="closed")
    rewrite = Store.rewrite

    def late(*args: Any, **more: Any) -> None:
        monkeypatch.undo()
        schedules.calendars["closed"] = days(5)
        rewrite(*args, **more)

    monkeypatch.setattr(Store, "rewrite", late)
    schedules.calendars["closed"] = days(4)
    assert str(schedules["a"].calendar) == str(schedules.calendars["closed"]) == "closed@3"
    assert schedules["a"].next_run_at == march(3)


@pytest.mark.parametrize("way", ["add", "replace", "add_many", "replace_many", "item", "update"])
def test_an_entry_that_is_written_while_its_calendar_is_stored_is_by_that(
    schedules: Schedules, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    schedules.calendars["closed"] = days(3)
    entry, put = Entry("a", "add", DAILY, calendar="closed"), Store.put
    if way not in ("add", "add_many"):
        schedules.add("a", "add", DAILY)

    def late(store: Store, edits: Any, term: Any = None) -> list[bool]:
        monkeypatch.undo()
        schedules.calendars["closed"] = days(4)  # finds no entry that names it
        return put(store, edits, term)

    monkeypatch.setattr(Store, "put", late)
    if way == "update":
        schedules.update("a", calendar="closed")
    elif way == "item":
        schedules["a"] = entry
    elif way in ("add", "replace"):
        schedules.add("a", "add", DAILY, calendar="closed", replace=way == "replace")
    else:
        schedules.add_many([entry], replace=way == "replace_many")
    assert (str(schedules["a"].calendar), schedules["a"].next_run_at) == ("closed@2", march(3))


def test_an_entry_that_would_grow_too_large_is_told_and_the_others_are_edited(schedules: Schedules) -> None:
    schedules.calendars["closed"] = days(3)
    for name, args in (("a", ()), ("b", ("x" * 60_000,)), ("c", ())):
        schedules.add(name, "add", DAILY, args, calendar="closed")
    many = {date(2026, 3, 4) + timedelta(days=number) for number in range(900)}
    with pytest.raises(InvalidEntry, match="entry 'b': entry: expected a definition of at most 65536 bytes"):
        schedules.calendars["closed"] = Calendar(many, date(2029, 1, 1))
    assert [str(schedules[name].calendar) for name in "abc"] == ["closed@2", "closed@1", "closed@2"]


def test_entries_that_are_replaced_ask_for_the_calendars_once(schedules: Schedules, client: redis.Redis) -> None:
    schedules.calendars["closed"] = days(3)
    entries = [Entry(f"e{number}", "add", DAILY, calendar="closed") for number in range(50)]
    schedules.add_many(entries)
    client.config_resetstat()
    schedules.add_many(entries, replace=True)
    asked = client.info("commandstats")
    assert asked["cmdstat_hgetall"]["calls"] == 2  # before, and to see that it is still the same
    assert asked["cmdstat_hmget"]["calls"] < 10


def test_an_entry_of_the_configuration_names_a_calendar(
    make_app: MakeApp, make_beat: MakeBeat, schedules: Schedules, clock: Clock
) -> None:
    schedules.calendars["closed"] = days(3)
    written = {"task": "add", "schedule": DAILY, "calendar": "closed", "args": (BeatLazyFunc(int), 2)}
    app = make_app(beat_schedule={"a": written, "b": {**written, "calendar": "gone"}})
    beat = make_beat(app)
    beat.run_due()
    assert schedules["a"].next_run_at == march(4)
    assert "expected the name of a stored calendar, got 'gone'" in schedules.refused()["b"]
    schedules.calendars["closed"] = days(4, 5)
    assert schedules["a"].next_run_at == march(3)
    version = schedules["a"].version
    clock.forward(86_400)
    beat.run_due()  # holds what cannot be stored, and goes by the revision that is stored
    assert (schedules["a"].last_run_at, schedules["a"].next_run_at) == (march(3), march(6))
    make_beat(make_app(beat_schedule={"a": written}))
    assert schedules["a"].version == version


def test_a_calendar_of_the_configuration_is_put_back_with_its_entries(
    make_app: MakeApp, make_beat: MakeBeat, schedules: Schedules, client: redis.Redis
) -> None:
    schedules.calendars["closed"] = days(3)
    beat = make_beat(make_app(beat_schedule={"a": {"task": "add", "schedule": DAILY, "calendar": "closed"}}))
    beat.run_due()
    client.delete(KEYS.entries, KEYS.state, KEYS.due, KEYS.calendars, KEYS.meta)
    beat.leader.needs_repair = True
    beat.run_due()
    assert (str(schedules["a"].calendar), str(schedules.calendars["closed"])) == ("closed@1", "closed@1")


def test_an_entry_of_the_configuration_comes_once_its_calendar_is_stored(
    make_app: MakeApp, make_beat: MakeBeat, schedules: Schedules
) -> None:
    beat = make_beat(make_app(beat_schedule={"a": {"task": "add", "schedule": DAILY, "calendar": "closed"}}))
    beat.run_due()
    assert "a" in schedules.refused()
    schedules.calendars["closed"] = days(3)
    beat._parts.leadership._next_check = 0.0  # some leases later
    beat.run_due()
    assert (schedules["a"].next_run_at, schedules.refused()) == (march(4), {})
    assert not beat._parts.leadership.config.refused_count


def test_an_entry_of_the_configuration_that_cannot_be_stored_takes_no_calendar(
    make_app: MakeApp, make_beat: MakeBeat, schedules: Schedules
) -> None:
    """Whoever stores a revision could not plan it."""
    schedules.calendars["closed"] = days(3)
    here = crontab("0", "9", nowfun=lambda: datetime.now(UTC))
    beat = make_beat(make_app(beat_schedule={"a": {"task": "add", "schedule": here, "calendar": "closed"}}))
    beat.run_due()
    assert "a schedule without nowfun" in schedules.refused()["a"]
    assert schedules.quarantined() == {}


def test_what_a_calendar_leaves_out_was_not_missed_although_a_lock_was_held(
    make_app: MakeApp,
    make_beat: MakeBeat,
    schedules: Schedules,
    clock: Clock,
    client: redis.Redis,
    caplog: pytest.LogCaptureFixture,
) -> None:
    schedules.calendars["closed"] = days(3)
    schedules.add("a", "add", cron("* * * * * 0,30", tz="UTC"), calendar="closed", once=True, expires=None)
    beat, midnight = make_beat(make_app()), march(4, 0)
    clock.set(midnight - timedelta(days=1, seconds=30))
    beat.run_due()
    caplog.clear()
    for seconds in (0, 30, 60):  # nobody takes what is queued, until the third
        if seconds == 60:
            client.delete(*client.keys("*once:lock*"))
        clock.set(midnight + timedelta(seconds=seconds))
        beat.run_due()
    assert "missed" not in caplog.text
    assert not [run for run in schedules.runs("a", outcome="skipped") if run.scheduled_at >= march(3, 0)]
    assert [run.count for run in schedules.runs("a", outcome="left out")] == [2]


def test_what_is_left_out_has_no_row_and_why_says_so(
    make_app: MakeApp, make_beat: MakeBeat, schedules: Schedules, clock: Clock, client: redis.Redis
) -> None:
    schedules.calendars["closed"] = days(4, 5, 7)
    schedules.add("b", "add", DAILY, calendar="closed")
    schedules.add("a", "add", cron("0 9,10 * * *", tz="UTC"), calendar="closed", misfire="all", expires=None)
    client.delete("{redbeat-lite}:calendars")  # nobody asks for it
    beat = make_beat(make_app())
    for _ in range(6 * 24):
        clock.forward(3600)
        beat.run_due()
    assert schedules.runs("a", outcome="skipped") == schedules.runs("b", outcome="skipped") == []
    assert (schedules["a"].skipped_count, schedules["a"].total_run_count) == (0, 6)
    said = explain(gather(make_app(), "b", NOW + timedelta(days=6), UTC), march(7))
    assert said.causes[0] == "Its calendar closed@1 leaves out 2026-03-07."


def test_a_run_that_was_sent_is_told_of_although_its_day_is_left_out_now(
    make_app: MakeApp, make_beat: MakeBeat, schedules: Schedules, clock: Clock
) -> None:
    schedules.calendars["closed"] = days(9)
    schedules.add("a", "add", DAILY, calendar="closed")
    clock.forward(86_400)
    make_beat(make_app()).run_due()
    schedules.calendars["closed"] = days(3)
    case = gather(make_app(), "a", NOW + timedelta(days=1), UTC)
    assert "no occurrence" not in explain(case, march(3)).verdict


def test_what_is_no_calendar_in_redis_is_passed_over_and_replaced(schedules: Schedules, client: redis.Redis) -> None:
    for rubbish in (b"", b"{", b"[]", b'{"of": 5}', b"\xff"):
        client.hset("{redbeat-lite}:calendars", "closed", rubbish)
        assert len(schedules.calendars) == 0
        with pytest.raises(InvalidEntry, match="entry 'a': calendar: expected the name of a stored calendar"):
            schedules.add("a", "add", DAILY, calendar="closed")
        schedules.calendars["closed"] = days(3)
        assert schedules.calendars["closed"].revision == 1

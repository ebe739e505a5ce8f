"""What a beat does under a freeze, and under pauses with an end: what waits, what comes after, and what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
import redis
from msgspec.structs import replace

from redbeat_lite import Entry, Scheduler, Schedules, at, every
from redbeat_lite.entries.changes import Edit
from redbeat_lite.entries.state import EntryState
from redbeat_lite.once.locks import locks
from redbeat_lite.store.leader_store import LeaderStore
from redbeat_lite.store.records import Advance, Term
from tests.beat.moments import after, nominals
from tests.beat.ways import Setup
from tests.support.beats import KEYS
from tests.support.commands import commands
from tests.support.frozen import Clock
from tests.support.in_process import MakeApp, MakeBeat
from tests.support.kombus import needs_batches
from tests.support.server import Server

pytestmark = pytest.mark.usefixtures("clock")


class Turns:
    """A beat that is turned at each second."""

    def __init__(self, schedules: Schedules, beat: Scheduler, clock: Clock, client: redis.Redis) -> None:
        self.schedules, self.beat, self.clock, self.client = schedules, beat, clock, client

    def until(self, second: float) -> None:
        while self.clock.now < after(second):
            self.clock.forward(1)
            self.beat.run_due()

    def sent(self, name: str = "a") -> list[float]:
        return nominals(self.client, name)


@pytest.fixture
def turns(schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis) -> Turns:
    inner_beat.run_due()
    return Turns(schedules, inner_beat, clock, client)


@pytest.mark.parametrize("holds", ["freeze", "pause"])
@pytest.mark.parametrize(
    ("misfire", "expected"),
    [("coalesce", [10, 40, 50]), ("all", [10, 20, 30, 40, 50]), ("skip", [10, 50])],
)
def test_what_was_due_meanwhile_is_decided_on_at_the_end(
    turns: Turns, misfire: str, expected: list[float], holds: str
) -> None:
    turns.schedules.add("a", "add", every(10), misfire=misfire)
    turns.schedules.add("other", "add", every(10))
    turns.until(15)
    if holds == "freeze":
        turns.schedules.freeze(31)
    else:
        assert turns.schedules.pause("a", seconds=31).next_run_at == after(46)
    before = turns.client.hget(KEYS.state, "a")
    turns.until(45)
    assert turns.client.hget(KEYS.state, "a") == before, "nothing is edited meanwhile"
    assert turns.sent("other") == ([10] if holds == "freeze" else [10, 20, 30, 40])
    turns.until(55)
    assert turns.sent() == expected
    assert turns.schedules["a"].status == "waiting"
    skipped = {"coalesce": 2, "all": 0, "skip": 3}[misfire]
    assert turns.schedules["a"].skipped_count == skipped
    ranges = [(run.outcome, run.count) for run in turns.schedules.runs("a") if run.outcome == "skipped"]
    assert ranges == ([("skipped", skipped)] if skipped else [])


def test_runs_that_were_due_before_a_freeze_are_sent_after_it(turns: Turns) -> None:
    """The beat was behind when the freeze was made, so the freeze must not drop what waits since then."""
    turns.schedules.add("a", "add", every(1), misfire="all")
    turns.clock.forward(10)
    turns.schedules.freeze(6)
    turns.until(15)
    assert turns.sent() == []
    turns.until(17)
    assert turns.sent() == [*range(1, 18)]


def test_a_second_freeze_ends_none_sooner(turns: Turns) -> None:
    turns.schedules.add("a", "add", every(1), misfire="all")
    turns.until(9)
    turns.client.delete("celery")
    turns.until(10)
    turns.schedules.freeze(45)
    turns.until(20)
    assert turns.schedules.freeze(15).until == after(55)
    turns.until(54)
    assert turns.sent() == [10]
    turns.until(56)
    assert turns.sent() == [*range(10, 57)]


def test_an_entry_that_comes_due_after_the_end_of_its_pause_keeps_its_time(turns: Turns) -> None:
    turns.schedules.add("a", "add", at(after(50)))
    assert turns.schedules.pause("a", seconds=20).next_run_at == after(50)
    assert turns.schedules["a"].paused_until == after(20)
    turns.until(30)
    assert (turns.schedules["a"].status, turns.schedules["a"].paused_until) == ("waiting", None)
    turns.until(49)
    assert turns.sent() == []
    turns.until(50)
    assert turns.sent() == [50]


def test_a_pause_with_an_end_is_ended_replaced_and_kept_by_edits(turns: Turns) -> None:
    for name in "abcd":
        turns.schedules.add(name, "add", every(10))
        turns.schedules.pause(name, "disk", seconds=35)
    turns.schedules.resume("a")
    turns.schedules.pause("b", "for good")
    turns.schedules.update("c", schedule=every(3))
    assert turns.schedules.select("[bcd]").pause(seconds=1) == []
    turns.schedules.run_now("d")
    turns.until(34)
    assert [turns.sent(name) for name in "abc"] == [[10, 20, 30], [], []]
    assert turns.client.llen("celery") == 3 + 1
    turns.until(40)
    assert (turns.sent("b"), turns.sent("c")) == ([], [33, 36, 39])
    assert turns.schedules["b"].paused_note == "for good"


def test_a_pause_that_holds_ends_no_sooner_by_another_one(turns: Turns) -> None:
    for name in "abcd":
        turns.schedules.add(name, "add", every(10))
    turns.schedules.pause("a", "short", seconds=15)
    turns.schedules.pause("b", "long", seconds=100)
    turns.schedules.pause("c", "for good")
    assert sorted(turns.schedules.select("*").pause("deploy", seconds=45)) == ["a", "d"]
    paused = turns.schedules.pause("b", "again", seconds=25)
    assert (paused.paused_note, paused.paused_until) == ("long", after(100))
    assert turns.schedules.pause("c", "again", seconds=25).paused_until is None
    assert turns.schedules["c"].paused_note == "for good"
    assert turns.schedules.changes("c")[0].note == "for good"
    turns.until(44)
    assert [turns.sent(name) for name in "abcd"] == [[], [], [], []]
    turns.until(60)
    assert [turns.sent(name) for name in "abcd"] == [[40, 50, 60], [], [], [40, 50, 60]]
    assert sorted(turns.schedules.select("*").pause("for good")) == ["a", "b", "d"]


def test_a_disabled_entry_does_not_fire_when_its_pause_ends(turns: Turns) -> None:
    turns.schedules.add("a", "add", every(10))
    turns.schedules.pause("a", seconds=15)
    turns.schedules.update("a", enabled=False)
    turns.until(30)
    assert (turns.sent(), turns.schedules["a"].next_run_at) == ([], None)
    turns.schedules.update("a", enabled=True)
    turns.until(45)
    assert turns.sent()


def test_a_publish_that_has_failed_is_tried_again_at_the_end(turns: Turns, client: redis.Redis) -> None:
    turns.schedules.add("a", "add", every(60))
    [stored] = turns.beat.store.read(["a"])
    failed = replace(EntryState.decode(stored.state or b""), attempts=3, error="down")
    due = int(after(5).timestamp() * 1000)
    assert turns.beat.store.put([Edit("a", stored.state, failed.encode(), None, due)]) == [True]
    turns.schedules.freeze(70)
    turns.until(69)
    assert client.hget(KEYS.state, "a") == failed.encode().encode()
    turns.until(70)
    assert (turns.sent(), turns.schedules["a"].last_error) == ([60], None)


@needs_batches
def test_nothing_goes_out_in_one_step_once_it_is_frozen(turns: Turns, monkeypatch: pytest.MonkeyPatch) -> None:
    turns.schedules.add("a", "add", every(10), once=True)
    commit = LeaderStore.commit

    def frozen_first(store: LeaderStore, term: Term, advances: Sequence[Advance], *args: Any) -> Any:
        monkeypatch.undo()
        turns.schedules.freeze(100)
        return commit(store, term, advances, *args)

    monkeypatch.setattr(LeaderStore, "commit", frozen_first)
    turns.until(11)
    assert turns.sent() == []
    assert not locks(turns.schedules._app).list()
    turns.until(111)
    assert turns.sent() == [110]


def test_a_freeze_in_the_middle_of_a_batch_doubles_nothing(setup: Setup, clock: Clock) -> None:
    setup.schedules.add("a", "add", every(10))
    setup.beat.run_due()
    clock.forward(10)
    setup.commit_after(lambda: setup.schedules.freeze(15) if setup.schedules.frozen() is None else None)
    out = 0 if setup.beat._parts.publisher.commit_sends else 1
    assert setup.broker.llen("celery") == out == setup.schedules["a"].total_run_count
    clock.forward(10)
    setup.beat.run_due()
    assert setup.broker.llen("celery") == out
    clock.forward(5)
    setup.beat.run_due()
    assert setup.broker.llen("celery") == out + 1 == setup.schedules["a"].total_run_count


def test_while_all_is_frozen_a_turn_reads_nothing(turns: Turns, server: Server) -> None:
    turns.schedules.add_many(Entry(f"e{n}", "add", every(1)) for n in range(100))
    turns.schedules.freeze(100)
    turns.until(10)
    with commands(server) as seen:
        turns.until(20)
    assert len(seen) == 10
    assert all(each.startswith("EVALSHA") for each in seen), seen[0]
    with commands(server) as seen:
        turns.until(99)
    assert turns.client.llen("celery") == 0
    turns.until(100)
    assert turns.client.llen("celery") == 100


def test_a_freeze_and_pauses_of_the_configuration_come_back_after_a_flush(
    make_app: MakeApp, make_beat: MakeBeat, clock: Clock, client: redis.Redis
) -> None:
    app = make_app(beat_schedule={name: {"task": "add", "schedule": 10} for name in "ab"})
    schedules, beat = Schedules(app), make_beat(app)
    beat.run_due()
    freeze = schedules.freeze(100, "deploy")
    schedules.pause("b", "disk", seconds=1000)
    beat._parts.leadership.config.pauses.read()
    beat.run_due()
    for _ in range(2):
        client.flushall()
        beat.run_due()
        beat.run_due()
        assert schedules.frozen() == freeze
        assert (schedules["b"].paused_until, schedules["b"].paused_note) == (after(1000), "disk")
        clock.forward(15)
        beat.run_due()
        assert client.llen("celery") == 0
    standby = make_beat(app)
    standby.run_due()
    client.flushall()
    standby.run_due()
    standby.run_due()
    assert schedules.frozen() == freeze, "by whoever leads then"


@pytest.mark.parametrize("lost", ["freeze", "thaw"])
def test_one_that_a_fail_over_has_undone_is_put_back(turns: Turns, client: redis.Redis, lost: str) -> None:
    turns.schedules.add("a", "add", every(10))
    turns.schedules.freeze(100)
    if lost == "freeze":
        turns.schedules.thaw()
    turns.beat.run_due()
    of_the_replica = client.hget(KEYS.meta, "freeze")
    freeze = turns.schedules.freeze(1000) if lost == "freeze" else turns.schedules.thaw()
    turns.beat.run_due()
    client.hset(KEYS.meta, "freeze", of_the_replica)
    turns.until(20)
    assert turns.schedules.frozen() == freeze
    assert turns.sent() == ([] if lost == "freeze" else [10, 20])


def test_one_that_is_made_by_a_slow_clock_counts_as_later(turns: Turns, clock: Clock) -> None:
    turns.schedules.freeze(1000)
    turns.beat.run_due()
    clock.forward(-30)
    turns.schedules.thaw()
    turns.beat.run_due()
    assert turns.schedules.frozen() is None


@pytest.mark.parametrize("who", ["leader", "standby"])
def test_one_that_is_made_after_a_flush_replaces_the_lost_one(
    schedules: Schedules, inner_beat: Scheduler, make_beat: MakeBeat, client: redis.Redis, who: str
) -> None:
    inner_beat.run_due()
    standby = make_beat(schedules._app)
    schedules.freeze(1000)
    for beat in (inner_beat, standby):
        beat.run_due()
    if who == "standby":
        inner_beat.leader.resign()
    client.flushall()
    made = schedules.freeze(100)
    for _ in range(2):
        (inner_beat if who == "leader" else standby).run_due()
    assert schedules.frozen() == made


def test_one_that_was_thawed_does_not_come_back_with_the_next_leader(
    schedules: Schedules, inner_beat: Scheduler, make_beat: MakeBeat
) -> None:
    standby = make_beat(schedules._app)
    schedules.freeze(100)
    for beat in (inner_beat, standby):
        beat.run_due()
    schedules.thaw()
    inner_beat.run_due()
    inner_beat.leader.resign()
    for _ in range(2):
        standby.run_due()
    assert schedules.frozen() is None


def test_garbage_in_its_place_stops_nothing(turns: Turns, client: redis.Redis) -> None:
    turns.schedules.add("a", "add", every(10))
    for text in (b"\xff", b"x|", b"x|{", b"0|[[]]", b"y|5", b""):
        client.hset(KEYS.meta, "freeze", text)
        turns.beat.run_due()
        assert turns.schedules.frozen() is None
    client.hset(KEYS.meta, "freeze", b"99999999999999|[]")
    unreadable = turns.schedules.frozen()
    assert unreadable is not None
    assert unreadable.note == "its reason cannot be read"
    turns.schedules.thaw()
    turns.until(10)
    assert turns.sent() == [10]
    assert turns.schedules.freeze(timedelta(days=1)).until == after(10 + 86400)

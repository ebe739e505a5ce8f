"""What a beat does under freezes: what waits, what is left out, what comes after, and what it costs."""

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


@pytest.mark.parametrize(
    ("misfire", "expected"),
    [("coalesce", [10, 40, 50]), ("all", [10, 20, 30, 40, 50]), ("skip", [10, 50])],
)
def test_what_was_due_meanwhile_is_decided_on_at_the_end(turns: Turns, misfire: str, expected: list[float]) -> None:
    turns.schedules.add("a", "add", every(10), misfire=misfire)
    turns.schedules.add("other", "add", every(10))
    turns.until(15)
    before = turns.client.hget(KEYS.state, "a")
    turns.schedules.freezes.add("a", seconds=31)
    turns.until(45)
    assert turns.client.hget(KEYS.state, "a") == before, "nothing is edited"
    assert turns.schedules["a"].next_run_at == after(46)
    turns.until(55)
    assert (turns.sent(), turns.sent("other")) == (expected, [10, 20, 30, 40, 50])
    skipped = {"coalesce": 2, "all": 0, "skip": 3}[misfire]
    assert turns.schedules["a"].skipped_count == skipped
    ranges = [(run.outcome, run.count) for run in turns.schedules.runs("a") if run.outcome == "skipped"]
    assert ranges == ([("skipped", skipped)] if skipped else [])
    turns.until(56)
    assert turns.client.hget(KEYS.meta, "freezes").endswith(b"|[]"), "what has ended is forgotten"


def test_runs_that_were_due_before_a_freeze_are_sent_after_it(turns: Turns) -> None:
    """The beat was behind when the freeze was made, so the freeze must not drop what waits since then."""
    turns.schedules.add("a", "add", every(1), misfire="all")
    turns.clock.forward(10)
    turns.schedules.freezes.add("*", seconds=6)
    turns.until(15)
    assert turns.sent() == []
    turns.until(17)
    assert turns.sent() == [*range(1, 18)]


def test_freezes_that_overlap_hold_until_the_last_of_them_ends(turns: Turns) -> None:
    turns.schedules.add("a", "add", every(1), misfire="all")
    turns.until(9)
    turns.client.delete("celery")
    for begin, end in ((10, 35), (20, 55)):
        turns.until(begin)
        turns.schedules.freezes.add("*", task="add", until=after(end))
    turns.until(54)
    assert turns.sent() == [10]
    turns.until(56)
    assert turns.sent() == [*range(10, 57)]


def test_a_thaw_gives_what_waits_its_due_time_back(turns: Turns, client: redis.Redis) -> None:
    turns.schedules.add("a", "add", every(10), misfire="all")
    turns.schedules.add("late", "add", at(after(500)))
    turns.schedules.add("paused", "add", every(10))
    turns.until(12)
    freeze = turns.schedules.freezes.add("[alp]*", until=after(500))
    other = turns.schedules.freezes.add("p*", until=after(600))
    turns.until(25)
    turns.schedules.pause("paused")
    states = client.hgetall(KEYS.state)
    turns.schedules.freezes.thaw(freeze.id)
    assert client.zscore(KEYS.due, "a") == after(500).timestamp() * 1000
    assert turns.beat.run_due() == 0, "the next turn reschedules"
    turns.beat.run_due()
    assert turns.sent() == [10, 20]
    assert {name for name, state in client.hgetall(KEYS.state).items() if state != states[name]} == {b"a"}
    assert [each.id for each in turns.schedules.freezes] == [other.id]
    turns.schedules.resume("paused", catch_up=True)
    turns.beat.run_due()
    assert client.zscore(KEYS.due, "paused") == after(600).timestamp() * 1000, "the other one takes it again"
    turns.until(35)
    assert (turns.sent(), turns.sent("paused"), turns.sent("late")) == ([10, 20, 30], [10], [])


def test_a_thaw_that_breaks_off_is_taken_up_by_the_next_beat(
    turns: Turns, make_beat: MakeBeat, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns.schedules.add_many(Entry(f"e{n}", "add", every(10)) for n in range(3))
    freeze = turns.schedules.freezes.add("e*", seconds=1000)
    turns.until(10)
    turns.schedules.freezes.thaw(freeze.id)
    turns.beat.run_due()
    monkeypatch.setattr("redbeat_lite.beat.repair.PAGE", 1)
    put, made = LeaderStore.put, []

    def once(*args: Any) -> list[bool]:
        if made:
            raise KeyboardInterrupt
        made.append(args)
        return put(*args)

    monkeypatch.setattr(LeaderStore, "put", once)
    with pytest.raises(KeyboardInterrupt):
        turns.beat.run_due()
    monkeypatch.undo()
    turns.beat.leader.resign()
    successor = make_beat(turns.schedules._app)
    for _ in range(2):
        successor.run_due()
    assert [turns.sent(f"e{n}") for n in range(3)] == [[10]] * 3


def test_a_thaw_gives_back_a_slice_at_a_time_and_what_is_due_beside_it_goes_out_meanwhile(
    turns: Turns, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where others are due at the very end of the freeze, and come and go there while it is thawed."""
    monkeypatch.setattr("redbeat_lite.beat.repair.PAGE", 10)
    monkeypatch.setattr("redbeat_lite.beat.repair._SLICE", 0)
    schedules, end = turns.schedules, after(1000)
    schedules.add_many(Entry(f"e{n:03}", "add", at(after(9))) for n in range(100))
    schedules.add_many(Entry(f"e{n:03}x", "add", at(end)) for n in range(0, 100, 3))
    schedules.add("other", "add", every(1), misfire="all")
    freeze = schedules.freezes.add("e*", until=end)
    turns.until(10)
    assert client.zcount(KEYS.due, end.timestamp() * 1000, "inf") == 134
    schedules.freezes.thaw(freeze.id)
    rewrite, given, sent = LeaderStore.rewrite, list[int](), list[int]()

    def slowly(store: LeaderStore, names: list[bytes], *args: Any) -> list[str | bytes]:
        made = rewrite(store, names, *args)
        given.append(len(made))
        sent.append(len(turns.sent("other")))
        if len(given) == 5:
            schedules.remove("e000x")
        if len(given) == 7:
            schedules.add("a", "add", at(end))
        turns.clock.forward(1)
        return made

    monkeypatch.setattr(LeaderStore, "rewrite", slowly)
    while schedules.freezes.known().all:
        turns.beat.run_due()
    assert sum(given) == 100 >= 10 * max(given)
    assert all(found >= 9 + place for place, found in enumerate(sent)), "each run of another entry, a slice later"
    assert {len(turns.sent(f"e{n:03}")) for n in range(100)} == {1}


def test_what_is_edited_run_or_resumed_meanwhile_stays_frozen(turns: Turns, client: redis.Redis) -> None:
    for name in "abc":
        turns.schedules.add(name, "add", every(10))
    turns.schedules.pause("c")
    turns.schedules.freezes.add("[abc]", seconds=100)
    turns.schedules.freezes.add("b", seconds=50)
    turns.until(15)
    assert turns.schedules["b"].next_run_at == after(100)
    turns.schedules.update("a", schedule=every(2))
    turns.schedules.run_now("b")
    turns.schedules.resume("c")
    turns.until(90)
    assert client.llen("celery") == 1
    turns.until(102)
    assert (len(turns.sent()), turns.sent("b")[-1], turns.sent("c")[-1]) == (2, 100, 100)


def test_a_publish_that_has_failed_is_tried_again_at_the_end(turns: Turns, client: redis.Redis) -> None:
    turns.schedules.add("a", "add", every(60))
    [stored] = turns.beat.store.read(["a"])
    failed = replace(EntryState.decode(stored.state or b""), attempts=3, error="down")
    due = int(after(5).timestamp() * 1000)
    assert turns.beat.store.put([Edit("a", stored.state, failed.encode(), None, due)]) == [True]
    turns.schedules.freezes.add("a", seconds=70)
    turns.until(69)
    assert client.hget(KEYS.state, "a") == failed.encode().encode()
    turns.until(70)
    assert (turns.sent(), turns.schedules["a"].last_error) == ([60], None)


@needs_batches
def test_nothing_goes_out_in_one_step_once_it_is_frozen(
    turns: Turns, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns.schedules.add("a", "add", every(10), once=True)
    turns.schedules.add("b", "add", every(10))
    commit = LeaderStore.commit

    def frozen_first(store: LeaderStore, term: Term, advances: Sequence[Advance], *args: Any) -> Any:
        monkeypatch.undo()
        turns.schedules.freezes.add("a", seconds=100)
        assert locks(turns.schedules._app).list()
        return commit(store, term, advances, *args)

    monkeypatch.setattr(LeaderStore, "commit", frozen_first)
    turns.until(11)
    assert (turns.sent(), turns.sent("b")) == ([], [10])
    assert not locks(turns.schedules._app).list(), "what was claimed is given back"
    turns.until(111)
    assert turns.sent() == [110]


def test_a_freeze_in_the_middle_of_a_batch_doubles_nothing(setup: Setup, clock: Clock) -> None:
    setup.schedules.add("a", "add", every(10))
    setup.beat.run_due()
    clock.forward(10)
    setup.commit_after(lambda: setup.schedules.freezes.add("a", seconds=15) if not [*setup.schedules.freezes] else None)
    out = 0 if setup.beat._parts.publisher.one_step else 1
    assert setup.broker.llen("celery") == out == setup.schedules["a"].total_run_count
    clock.forward(10)
    setup.beat.run_due()
    assert setup.broker.llen("celery") == out
    clock.forward(5)
    setup.beat.run_due()
    assert setup.broker.llen("celery") == out + 1 == setup.schedules["a"].total_run_count


@needs_batches
def test_many_that_are_frozen_and_due_do_not_stand_in_the_way_of_one_that_is_not(turns: Turns, server: Server) -> None:
    turns.schedules.add_many(Entry(f"e{n}", "add", every(1)) for n in range(600))
    turns.schedules.add("z", "add", every(1.5))
    turns.schedules.freezes.add("e*", seconds=100)
    turns.until(2)
    assert turns.sent("z") == [1.5]
    with commands(server) as seen:
        turns.until(4)
    assert turns.sent("z") == [1.5, 3]
    # One commit for each of them, two batches, and nothing of them ever after.
    assert len(seen) == 2 + 2, seen


def test_while_all_is_frozen_a_turn_reads_nothing(turns: Turns, server: Server) -> None:
    turns.schedules.add_many(Entry(f"e{n}", "add", every(1)) for n in range(100))
    turns.schedules.freezes.add(seconds=100)
    turns.until(10)
    with commands(server) as seen:
        turns.until(20)
    assert len(seen) == 10
    assert all(each.startswith("EVALSHA") and each.split()[-2] == "0" for each in seen), seen[0]
    with commands(server) as seen:
        turns.until(99)
    assert turns.client.llen("celery") == 0
    turns.until(100)
    assert turns.client.llen("celery") == 100


def test_freezes_come_back_after_a_flush(
    make_app: MakeApp, make_beat: MakeBeat, clock: Clock, client: redis.Redis
) -> None:
    app = make_app(beat_schedule={"a": {"task": "add", "schedule": 10}})
    schedules, beat = Schedules(app), make_beat(app)
    beat.run_due()
    freeze = schedules.freezes.add("a", seconds=100, note="deploy")
    beat.run_due()
    for _ in range(2):
        client.flushall()
        beat.run_due()
        beat.run_due()
        assert [*schedules.freezes] == [freeze]
        clock.forward(15)
        beat.run_due()
        assert client.llen("celery") == 0
    standby = make_beat(app)
    standby.run_due()
    client.flushall()
    standby.run_due()
    standby.run_due()
    assert [*schedules.freezes] == [freeze], "by whoever leads then"


@pytest.mark.parametrize("who", ["leader", "standby"])
def test_one_that_is_made_before_they_are_back_holds_beside_them(
    schedules: Schedules, inner_beat: Scheduler, make_beat: MakeBeat, client: redis.Redis, clock: Clock, who: str
) -> None:
    inner_beat.run_due()
    standby = make_beat(schedules._app)
    ended = schedules.freezes.add("d", seconds=1000)
    before = schedules.freezes.add("a", seconds=100)
    for beat in (inner_beat, standby):
        beat.run_due()
    schedules.freezes.thaw(ended.id)
    for beat in (inner_beat, standby):
        beat.run_due()
    if who == "standby":
        inner_beat.leader.resign()
    client.flushall()
    after = schedules.freezes.add("b", seconds=100)
    schedules.add("a", "add", every(10))
    schedules.add("b", "add", every(10))
    clock.forward(20)
    for _ in range(2):
        (inner_beat if who == "leader" else standby).run_due()
    assert [*schedules.freezes] == [before, after]
    assert client.llen("celery") == 0
    clock.forward(100)
    for _ in range(2):
        (inner_beat if who == "leader" else standby).run_due()
    assert client.llen("celery") == 2


def test_one_that_was_thawed_does_not_come_back_with_the_next_leader(
    schedules: Schedules, inner_beat: Scheduler, make_beat: MakeBeat, client: redis.Redis
) -> None:
    standby = make_beat(schedules._app)
    freeze = schedules.freezes.add("a", seconds=100)
    for beat in (inner_beat, standby):
        beat.run_due()
    schedules.freezes.thaw(freeze.id)
    for _ in range(2):
        inner_beat.run_due()
    assert client.hget(KEYS.meta, "freezes").endswith(b"|[]")
    inner_beat.leader.resign()
    standby.run_due()
    assert [*schedules.freezes] == []


def test_garbage_in_their_place_stops_nothing(turns: Turns, client: redis.Redis) -> None:
    turns.schedules.add("a", "add", every(10))
    for text in (b"\xff", b"x|", b"x|{", b"x|[[]]", b"y|5", b'z|[["a","b",null,"*","c","d","e","f","g","h"]]', b""):
        client.hset(KEYS.meta, "freezes", text)
        turns.beat.run_due()
    turns.until(10)
    assert turns.sent() == [10]
    turns.schedules.freezes.add(seconds=5)
    assert len([*turns.schedules.freezes]) == 1
    assert turns.schedules.freezes.add("b", seconds=timedelta(days=1)).until == after(10 + 86400)

"""Backfills as a leader sends them: each occurrence once, whatever happens."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
import redis
from msgspec.structs import replace

from redbeat_lite import Backfill, Entry, Expect, InvalidEntry, cron, every, locks, manual
from redbeat_lite._base.times import to_ms
from redbeat_lite.entries.state import task_id
from redbeat_lite.once.claims import Hold
from redbeat_lite.once.lock_store import LockStore
from redbeat_lite.store.leader_store import LeaderStore
from redbeat_lite.store.redis_values import server_ms
from redbeat_lite.store.store import Store
from tests.beat.incidents import Stage
from tests.beat.ways import Setup, exactly_once
from tests.support.frozen import NOW, Clock
from tests.support.messages import of_entry, queued
from tests.support.run_records import Worker
from tests.support.run_rows import RunRows

HOURLY = cron("0 * * * *", tz="UTC")
NOON = NOW.replace(minute=0, second=0)


def hours(first: int, last: int) -> tuple[datetime, datetime]:
    """From so many hours before noon to so many."""
    return NOON - timedelta(hours=first), NOON - timedelta(hours=last)


def sent(setup: Setup, name: str = "a") -> list[float]:
    """The nominal times of what is in the queue, in hours before noon."""
    times = [message.scheduled_at for message in of_entry(setup.broker, name)]
    return [(NOON - at).total_seconds() / 3600 for at in times if at is not None]


Turns = Callable[..., None]


@pytest.fixture
def turns(clock: Clock) -> Turns:
    """So many turns of the beat, each when the next step is due."""

    def take(setup: Setup, number: int = 1) -> None:
        for _ in range(number):
            clock.forward(0.2)
            setup.beat.run_due()

    return take


def fast(setup: Setup, first: int, last: int, **more: Any) -> Backfill:
    """A backfill that goes by a rate alone."""
    return setup.schedules.backfills.start("a", *hours(first, last), max_active=None, rate=1000, **more)


def test_each_occurrence_is_sent_once_oldest_first(setup: Setup, turns: Turns) -> None:
    setup.schedules.add("a", "add", HOURLY, options={"headers": {"own": 1}})
    backfill = fast(setup, 100, 1, note="the disk was full")
    assert (backfill.total, backfill.left, backfill.sent, backfill.ended) == (100, 100, 0, "")
    assert (backfill.start, backfill.end, backfill.note) == (*hours(100, 1), "the disk was full")
    turns(setup, 5)
    assert sent(setup) == [*range(100, 0, -1)]
    found = setup.schedules.backfills[backfill.id]
    assert (found.left, found.sent, found.ended) == (0, 100, "done")
    message = queued(setup.broker)[0]
    told = (message.headers["redbeat_backfill"], message.headers["own"], message.headers["expires"])
    assert told == (backfill.id, 1, None)
    assert len({message.id for message in queued(setup.broker)}) == 100


def test_asked_again_or_overlapping_it_sends_nothing_twice(setup: Setup, turns: Turns) -> None:
    setup.schedules.add("a", "add", HOURLY)
    fast(setup, 20, 11)
    with pytest.raises(InvalidEntry, match=r"got 0 \(backfill \w+ has 10 left: wait for its end, cancel it"):
        fast(setup, 30, 5)
    turns(setup, 2)
    with pytest.raises(
        InvalidEntry, match="start: expected a range with 1 to 100,000 occurrences that no backfill has"
    ):
        fast(setup, 20, 11)
    assert fast(setup, 30, 5, dry_run=True).total == 16
    cancelled = fast(setup, 90, 5)
    turns(setup)
    setup.schedules.backfills.cancel(cancelled.id)
    assert fast(setup, 100, 5).total == 36, "what a cancelled one has not sent can be asked for anew"
    turns(setup, 5)
    assert sorted(sent(setup)) == [*range(5, 101)]
    again = fast(setup, 12, 9, again=1)
    turns(setup, 2)
    assert sent(setup)[-4:] == [12, 11, 10, 9]
    assert [each.ended for each in setup.schedules.backfills] == ["done", "cancelled", "done", "done"]
    assert setup.schedules.backfills[again.id].sent == 4
    ids = [message.id for message in queued(setup.broker)]
    assert len({*ids}) == len(ids) == 100


def test_during_a_freeze_it_sends_nothing_until_the_thaw(setup: Setup, turns: Turns) -> None:
    setup.schedules.add("a", "add", HOURLY)
    fast(setup, 20, 1)
    setup.schedules.freeze(3600)
    turns(setup, 3)
    assert sent(setup) == []
    setup.schedules.thaw()
    turns(setup, 4)
    assert sent(setup) == [*range(20, 0, -1)]


@exactly_once
def test_a_step_that_was_planned_before_a_freeze_is_not_sent_after_it(
    setup: Setup, turns: Turns, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup.schedules.add("a", "add", HOURLY)
    fast(setup, 20, 1)
    commit = LeaderStore.commit

    def late(self: LeaderStore, *args: Any) -> Any:
        setup.schedules.freeze(3600)
        return commit(self, *args)

    monkeypatch.setattr(LeaderStore, "commit", late)
    turns(setup, 3)
    assert sent(setup) == []
    setup.schedules.thaw()
    monkeypatch.undo()
    turns(setup, 4)
    assert sent(setup) == [*range(20, 0, -1)]


Meanwhile = Callable[[Callable[[], object]], None]


@pytest.fixture
def before_commit(monkeypatch: pytest.MonkeyPatch) -> Meanwhile:
    """Have something happen between the plan of the next step and its commit."""
    commit = LeaderStore.commit

    def arrange(meanwhile: Callable[[], object]) -> None:
        def late(self: LeaderStore, *args: Any) -> Any:
            monkeypatch.setattr(LeaderStore, "commit", commit)
            meanwhile()
            return commit(self, *args)

        monkeypatch.setattr(LeaderStore, "commit", late)

    return arrange


def test_a_step_that_was_planned_before_an_edit_of_the_entry_is_planned_again(
    setup: Setup, turns: Turns, before_commit: Meanwhile
) -> None:
    setup.schedules.add("a", "add", HOURLY, args=("old",))
    backfill = fast(setup, 3, 1)
    before_commit(lambda: setup.schedules.update("a", args=("new",)))
    setup.beat.run_due()
    setup.beat.run_due()
    turns(setup)
    # If broker and schedule are two databases, the messages had been sent before the edit. They are not sent again.
    args = ["new"] if setup.beat._parts.publisher.commit_sends else ["old"]
    assert [message.args for message in of_entry(setup.broker, "a")] == [args] * 3
    assert sent(setup) == [3, 2, 1]
    assert setup.schedules.backfills[backfill.id].ended == "done"


@exactly_once
@pytest.mark.parametrize("successor", [False, True])
def test_a_step_that_was_planned_before_its_entry_was_removed_is_not_sent_after_it(
    setup: Setup, turns: Turns, before_commit: Meanwhile, successor: bool
) -> None:
    setup.schedules.add("a", "add", HOURLY, once=True)
    backfill = fast(setup, 3, 1)

    def remove() -> None:
        setup.schedules.remove("a")
        if successor:
            setup.schedules.add("a", "add", HOURLY)

    before_commit(remove)
    turns(setup, 2)
    assert sent(setup) == []
    assert setup.schedules.backfills[backfill.id].ended.startswith("cancelled, as its entry is gone: ")
    assert not locks(setup.app).list()


@exactly_once
def test_a_pause_or_a_run_of_the_entry_beside_a_step_holds_it_up_for_one_turn_at_most(
    setup: Setup, before_commit: Meanwhile, client: redis.Redis
) -> None:
    setup.schedules.add("a", "add", HOURLY)
    fast(setup, 3, 1)
    before_commit(lambda: setup.schedules.pause("a"))
    setup.beat.run_due()
    assert sent(setup) == []
    state = setup.schedules["a"].state

    def run() -> None:
        moved = replace(state, nominal=(state.nominal or 0) + 3_600_000, last=state.nominal, count=1)
        client.hset("{redbeat-lite}:state", "a", moved.encode())

    before_commit(run)
    setup.beat.run_due()
    assert sent(setup) == [3, 2, 1]


@exactly_once
def test_a_reply_that_was_lost_doubles_nothing(setup: Setup, turns: Turns, monkeypatch: pytest.MonkeyPatch) -> None:
    setup.schedules.add("a", "add", HOURLY)
    fast(setup, 250, 1)
    commit = LeaderStore.commit

    def torn(self: LeaderStore, *args: Any) -> Any:
        commit(self, *args)
        raise redis.ConnectionError("cut")

    monkeypatch.setattr(LeaderStore, "commit", torn)
    for _ in range(5):
        with pytest.raises(redis.ConnectionError):
            turns(setup)
        setup.restart()
    monkeypatch.undo()
    turns(setup)
    assert sent(setup) == [*range(250, 0, -1)]


def test_a_leader_that_dies_before_it_notes_what_is_out_sends_it_again_by_the_same_ids(
    apart: Setup, turns: Turns
) -> None:
    apart.schedules.add("a", "add", HOURLY)
    fast(apart, 60, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LeaderStore, "commit", lambda *_: pytest.fail("killed"))
        with pytest.raises(BaseException, match="killed"):
            turns(apart)
    apart.restart()
    turns(apart, 4)
    ids = [message.id for message in queued(apart.broker)]
    assert (len(ids), len({*ids})) == (110, 60)
    assert [*dict.fromkeys(sent(apart))] == [*range(60, 0, -1)]


def test_an_edit_of_the_schedule_on_the_way_loses_no_backfill(setup: Setup, turns: Turns) -> None:
    setup.schedules.add("a", "add", HOURLY)
    backfill = fast(setup, 110, 1)
    turns(setup)
    setup.schedules.update("a", schedule=cron("*/20 * * * *", tz="UTC"))
    turns(setup, 5)
    found = setup.schedules.backfills[backfill.id]
    assert (found.ended, found.left, found.total) == ("done", 0, 110)
    assert found.sent == len(sent(setup)) == len({*sent(setup)}) > 200


def test_who_starts_one_forgets_old_ones_of_entries_that_are_gone_in_one_round_trip(
    setup: Setup, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redbeat_lite.api.backfills._ENDED", 3)
    setup.schedules.add_many(Entry(f"e{number}", "add", HOURLY) for number in range(10))
    backfills = setup.schedules.backfills
    for number in range(9):
        clock.forward(1)
        backfills.cancel(backfills.start(f"e{number}", NOON, NOON, max_active=None).id)
    setup.schedules.remove("e0")
    monkeypatch.setattr(Store, "exists", lambda *_: pytest.fail("one by one"))
    backfills.start("e9", NOON, NOON, max_active=None)
    assert sorted(each.name for each in backfills) == [f"e{number}" for number in range(1, 10)]


def test_cancelled_or_paused_nothing_more_is_sent_whenever_it_comes(setup: Setup, turns: Turns) -> None:
    setup.schedules.add("a", "add", HOURLY)
    found, backfill = setup.schedules.backfills, fast(setup, 300, 1)
    found.pause(backfill.id)
    turns(setup, 2)
    assert sent(setup) == []
    found.resume(backfill.id)
    turns(setup)
    assert sent(setup) == [*range(300, 250, -1)]
    commit = LeaderStore.commit

    def late(self: LeaderStore, *args: Any) -> Any:
        found.cancel(backfill.id)
        return commit(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LeaderStore, "commit", late)
        turns(setup)
    turns(setup, 3)
    # If broker and schedule are two databases, the batch under way has been sent.
    out = 50 if setup.beat._parts.publisher.commit_sends else 100
    assert (len(sent(setup)), found[backfill.id].ended, found[backfill.id].sent) == (out, "cancelled", 50)
    with pytest.raises(KeyError, match=f"backfill '{backfill.id}' has ended: cancelled"):
        found.resume(backfill.id)
    assert fast(setup, 300, 200).total == 51
    turns(setup, 5)
    assert [*dict.fromkeys(sent(setup))] == [*range(300, 199, -1)], "another one goes on where it stopped"


@pytest.fixture
def worker(client: redis.Redis) -> Worker:
    found = Worker(client)
    found.reports()
    return found


#: Further fields of a line of the feed.
END: dict[Any, Any] = {
    "name": "a",
    "nominal": to_ms(NOW),
    "begin": "",
    "duration": "",
    "attempt": 0,
    "worker": "",
    "error": "",
}


def ends(setup: Setup, client: redis.Redis, number: int, outcome: str = "s") -> None:
    """Tell the end of a message, as a worker does."""
    line = {**END, "id": queued(setup.broker)[number].id, "outcome": outcome}
    client.xadd("{redbeat-lite}:runs:feed", line)


@exactly_once
def test_so_many_are_out_at_once(setup: Setup, turns: Turns, worker: Worker, client: redis.Redis) -> None:
    setup.schedules.add("a", "add", HOURLY)
    backfill = setup.schedules.backfills.start("a", *hours(9, 1), max_active=2)
    turns(setup, 3)
    assert sent(setup) == [9, 8]
    ends(setup, client, 1, "y")
    turns(setup, 3)
    assert sent(setup) == [9, 8], "one that is tried again has not ended"
    ends(setup, client, 1, "f")
    setup.restart()
    turns(setup, 3)
    assert sent(setup) == [9, 8, 7]
    setup.schedules.backfills.pause(backfill.id)
    assert len(setup.schedules.backfills.resume(backfill.id).active) == 0
    turns(setup, 3)
    assert sent(setup) == [9, 8, 7, 6, 5], "the end of those may have been lost"
    assert queued(setup.broker)[0].headers["redbeat_history"] == 1000, "or the end of an old run is not recorded"


@exactly_once
def test_a_run_whose_worker_has_died_counts_as_ended_once_its_lease_is_over(
    setup: Setup, turns: Turns, worker: Worker, client: redis.Redis
) -> None:
    setup.schedules.add("a", "add", HOURLY)
    setup.schedules.backfills.start("a", *hours(9, 1), max_active=1)
    turns(setup)
    [message], store = queued(setup.broker), LockStore(client, "redbeat-lite")
    assert store.begin(Hold("token", message.id, 0, 60_000, life_ms=60_000)).word == "run"
    turns(setup, 3)
    assert sent(setup) == [9]
    client.hset(store.keys.guard(message.id), "until", server_ms(client) - 1)
    turns(setup, 3)
    assert sent(setup) == [9, 8]


def test_it_needs_workers_that_record(setup: Setup, turns: Turns, client: redis.Redis) -> None:
    setup.schedules.add("a", "add", HOURLY)
    with pytest.raises(ValueError, match=r"max_active: expected None \(--max-active none\), as no worker that records"):
        setup.schedules.backfills.start("a", *hours(9, 1))


@exactly_once
def test_it_waits_for_the_once_lock_and_is_never_left_out(setup: Setup, turns: Turns, client: redis.Redis) -> None:
    setup.schedules.add("a", "add", HOURLY, once=True)
    backfill = fast(setup, 3, 1)
    turns(setup, 3)
    assert sent(setup) == [3]
    for hour in (2, 1):
        [lock] = client.keys("{redbeat-lite}:once:lock:*")
        client.delete(lock)
        turns(setup, 3)
        assert sent(setup)[-1] == hour
    assert setup.schedules.backfills[backfill.id].ended == "done"
    assert all(message.headers["redbeat_once"] for message in queued(setup.broker))


@pytest.mark.parametrize("on_conflict", ["skip", "raise"])
def test_where_workers_take_the_lock_it_waits_there(setup: Setup, turns: Turns, on_conflict: str) -> None:
    once = {"key": "k", "on_conflict": on_conflict, "max_waiters": 1}
    setup.schedules.add("a", "add", HOURLY, once=once)
    fast(setup, 3, 1)
    turns(setup, 2)
    policies = [message.headers["redbeat_once"]["policy"] for message in queued(setup.broker)]
    assert policies == [{"on_conflict": "wait"}] * 3
    setup.schedules.run_now("a")
    assert queued(setup.broker)[-1].headers["redbeat_once"]["policy"].get("on_conflict", "skip") == on_conflict


def test_a_paused_entry_runs_and_one_that_is_gone_ends_it(setup: Setup, turns: Turns) -> None:
    setup.schedules.add("a", "add", HOURLY, max_runs=1)
    setup.schedules.pause("a")
    backfill = fast(setup, 120, 1)
    turns(setup)
    setup.schedules.add("a", "add", HOURLY, replace=True)
    turns(setup)
    assert len(sent(setup)) == 100
    del setup.schedules["a"]
    setup.schedules.add("a", "add", HOURLY)
    turns(setup, 2)
    assert len(sent(setup)) == 100
    ended = setup.schedules.backfills[backfill.id].ended
    assert ended == "cancelled, as its entry is gone: another one has its name"
    told = [change.note for change in setup.schedules.changes("a") if change.action == "backfill"]
    span = " to ".join(map(str, hours(120, 1)))
    assert told == [f"{backfill.id} {ended}: 100 sent", f"{backfill.id} started, 120 from {span}"]


@exactly_once
def test_what_cannot_be_sent_is_tried_again_and_never_skipped(
    setup: Setup, turns: Turns, client: redis.Redis, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    setup.schedules.add("a", "add", HOURLY, options={"queue": "odd"})
    setup.schedules.add("b", "add", HOURLY)
    client.set("odd", "no list")
    fast(setup, 2, 1)
    other = setup.schedules.backfills.start("b", *hours(2, 1), max_active=None)
    turns(setup, 4)
    assert (sent(setup, "b"), setup.schedules.backfills[other.id].ended) == ([2, 1], "done")
    assert "could not publish 'a', trying again later" in caplog.text
    client.delete("odd")
    clock.forward(60)
    turns(setup, 2)
    assert [message.scheduled_at for message in queued(setup.broker, "odd")] == [*hours(2, 1)]


def test_without_the_key_of_its_lock_no_run_is_sent(setup: Setup, turns: Turns) -> None:
    setup.schedules.add("a", "add", HOURLY, kwargs={"x": 1}, once={"key": "{y}"})
    backfill = fast(setup, 2, 1)
    turns(setup, 3)
    assert sent(setup) == []
    assert not setup.schedules.backfills[backfill.id].ended


@exactly_once
def test_one_instant_is_one_run_whatever_the_schedule(setup: Setup, turns: Turns) -> None:
    setup.schedules.add("a", "add", manual())
    odd = NOW - timedelta(days=3, seconds=1.5)
    found = setup.schedules.backfills
    with pytest.raises(InvalidEntry, match=r"got '0 of manual\(\)'"):
        fast(setup, 9, 1)
    backfill = found.start("a", odd, odd, max_active=None)
    turns(setup, 2)
    [message] = queued(setup.broker)
    assert (message.scheduled_at, found[backfill.id].ended) == (odd, "done")
    with pytest.raises(InvalidEntry, match="that no backfill has sent"):
        found.start("a", odd, odd, max_active=None)
    found.start("a", odd, odd, max_active=None, again=1)
    turns(setup)
    assert len({message.id for message in queued(setup.broker)}) == 2


#: What may stand in any field of a damaged record.
DAMAGE: list[Any] = [None, 0, -1, 0.0, 1e308, 10**30, "", "x", True, [], [[]], [[1]], [1, 2, "x"], {}, {"a": 1}]


@pytest.mark.parametrize("setup", ["one step"], indirect=True)
def test_a_damaged_record_is_quarantined_and_the_beat_goes_on(setup: Setup, clock: Clock, client: redis.Redis) -> None:
    setup.schedules.add("a", "add", HOURLY)
    setup.schedules.add("control", "add", every(1), misfire="all")
    setup.beat.run_due()
    key, whole = "{redbeat-lite}:backfills:", fast(setup, 2, 1).id
    stored = json.loads(client.hget(key + "state", whole) or b"")
    fields = Backfill.__struct_fields__
    for field in fields:
        for number, damage in enumerate(DAMAGE):
            id_ = f"{field}-{number}"
            client.hset(key + "state", id_, json.dumps({**stored, field: damage}))
            client.zadd(key + "due", {id_: 0})
    turns = 0
    while client.zcount(key + "due", 0, 0):
        clock.forward(0.01)
        setup.beat.run_due()
        turns += 1
        assert turns < 2 * len(fields) * len(DAMAGE), "each has its turn"
    clock.forward(2)
    setup.beat.run_due()
    assert len(sent(setup, "control")) == int(turns * 0.01) + 2
    aside = {text.decode() for text in client.hkeys(key + "quarantine")}
    assert {*fields} == {id_.partition("-")[0] for id_ in aside}
    readable = [*setup.schedules.backfills]
    assert len(readable) + len(aside) == len(fields) * len(DAMAGE) + 1
    client.flushall()


@pytest.mark.parametrize("setup", ["one step"], indirect=True)
def test_during_a_freeze_it_is_not_looked_at_and_it_goes_on_soon_after_a_thaw(setup: Setup, clock: Clock) -> None:
    setup.schedules.add("a", "add", HOURLY)
    setup.schedules.freeze(3600)
    fast(setup, 20, 1)
    looks = 0
    began = clock.now
    while clock.now < began + timedelta(seconds=1200):
        clock.forward(max(setup.beat.run_due(), 0.01))
        looks += 1
    assert looks < 10, "the beat sleeps as long as it may"
    setup.schedules.thaw()
    setup.beat.run_due()
    clock.forward(4)
    setup.beat.run_due()
    assert sent(setup) == [*range(20, 0, -1)]


def test_its_failures_are_no_failures_of_the_entry(stage: Stage) -> None:
    stage.schedules.add("a", "add", cron("* * * * *", tz="UTC"), expect=Expect(failures=1))
    backfill = stage.schedules.backfills.start("a", NOW - timedelta(minutes=3), NOW)
    stage.turn(0.2)
    [message] = of_entry(stage.client, "a")
    assert (message.headers["redbeat_backfill"], message.headers.get("redbeat_expect")) == (backfill.id, None)
    assert message.headers["redbeat_history"] == 1000, "or the end of an old run is not told"
    stage.client.xadd("{redbeat-lite}:runs:feed", {**END, "id": message.id, "outcome": "f"})
    stage.turn(1)
    assert stage.schedules.incidents() == []
    stage.client.xadd("{redbeat-lite}:runs:feed", {**END, "id": str(uuid4()), "outcome": "f"})
    stage.turn(1)
    assert [each.kind for each in stage.schedules.incidents()] == ["failed"], "that of a live run is one"
    rows, now = RunRows(stage.client, stage.schedules), NOW - timedelta(minutes=1)
    rows.row("a", now, "failed", task_id("a", "g", to_ms(now)))
    rows.row("a", now, "failed", message.id)
    assert stage.schedules["a"].failures_in_a_row == 1

"""Entries with much to catch up with: they get through, and keep nobody else waiting."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
import redis
from celery.schedules import BaseSchedule, schedstate
from msgspec.structs import replace

from redbeat_lite import Entry, Scheduler, Schedules, every, register_schedule, rrule
from redbeat_lite.beat.dispatch import dispatcher
from redbeat_lite.entries.state import EntryState
from redbeat_lite.store.leader_store import LeaderStore
from redbeat_lite.store.records import Advance, Term
from tests.support.beats import KEYS
from tests.support.frozen import NOW, Clock
from tests.support.in_process import MakeApp
from tests.support.messages import of_entry, queued


class Stopwatch:
    """Time that passes where a test says so."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class Slow(BaseSchedule):  # type: ignore[misc]  # Celery ships no types
    """A user's own schedule: each ten seconds, and it takes its time to answer."""

    watch = Stopwatch()
    clock: Clock | None = None
    takes = 1.5
    asked = 0

    def is_due(self, last_run_at: datetime) -> Any:
        Slow.asked += 1
        self.watch.seconds += self.takes
        rest = 10 - (self.now() - last_run_at).total_seconds()
        if self.clock is not None:
            self.clock.forward(self.takes)
        return schedstate(rest <= 0, rest if rest > 0 else 10)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stopwatch]:
    """What planning takes for its time: only what the schedules of this module take."""
    monkeypatch.setattr(dispatcher, "elapsed", Slow.watch)
    register_schedule(Slow, lambda found: None, lambda stored: Slow(), name="tests.Slow")
    yield Slow.watch
    Slow.watch.seconds, Slow.clock = 0.0, None


class Batches(list[list[str]]):
    """The names of the entries that each batch of a beat moved on, and what it told."""

    def __init__(self, beat: Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.told: list[str] = []
        commit, progress = LeaderStore.commit, beat.leader.progress

        def noted(store: LeaderStore, term: Term, advances: Sequence[Advance], *args: Any) -> Any:
            self.append(sorted(advance.name.decode() for advance in advances))
            return commit(store, term, advances, *args)

        def heard(doing: object, within: float = 0.0) -> None:
            self.told.append(str(doing))
            progress(doing, within)

        monkeypatch.setattr(LeaderStore, "commit", noted)
        monkeypatch.setattr(beat.leader, "progress", heard)


@pytest.fixture
def batches(inner_beat: Scheduler, monkeypatch: pytest.MonkeyPatch) -> Batches:
    return Batches(inner_beat, monkeypatch)


@pytest.mark.usefixtures("watch")
def test_a_slow_schedule_of_a_user_is_asked_once_a_turn_after_its_neighbours(
    schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis, batches: Batches
) -> None:
    """An entry of each second waits for one question, and not for all of them."""
    slow = [f"slow{number}" for number in range(4)]
    schedules.add_many(Entry(name, "add", Slow(), expires=None) for name in slow)
    schedules.add("quick", "add", every(1), expires=None)
    inner_beat.run_due()
    clock.forward(10)
    Slow.asked, Slow.clock = 0, clock
    inner_beat.run_due()
    assert [len(batch) for batch in batches[:8]] == [1] * 8
    assert batches[:8:2] == [["quick"]] * 4
    assert sorted(name for [name] in batches[1:8:2]) == slow
    assert Slow.asked == 4
    assert "asking the schedule of 'slow0'" in batches.told
    assert len(queued(client)) == 4 + len(of_entry(client, "quick"))


@pytest.mark.usefixtures("watch")
def test_quick_schedules_of_users_are_asked_in_one_turn(
    schedules: Schedules, inner_beat: Scheduler, clock: Clock, batches: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"quick{number}" for number in range(9)]
    schedules.add_many(Entry(name, "add", Slow(), expires=None) for name in names)
    inner_beat.run_due()
    clock.forward(10)
    monkeypatch.setattr(Slow, "takes", 0.001)
    inner_beat.run_due()
    assert sorted(batches) == [[name] for name in names]
    assert batches.told.count("planning") == 1


def test_backlogs_that_fill_every_batch_take_turns_with_the_others(
    schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis, batches: Batches
) -> None:
    schedules.add_many(
        Entry(f"backlog{number:02}", "add", every(1), misfire="all", expires=None) for number in range(12)
    )
    schedules.add("other", "add", every(399), options={"queue": "other"})
    inner_beat.run_due()
    clock.forward(400)
    inner_beat.run_due()
    assert "other" in batches[0], "which is full with four of those who missed 400 runs"
    assert len(queued(client)) == 12 * 400


def test_a_beat_with_more_to_send_than_it_can_looks_after_its_other_affairs_all_the_same(
    schedules: Schedules,
    inner_beat: Scheduler,
    clock: Clock,
    client: redis.Redis,
    batches: Batches,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dispatcher, "elapsed", lambda: 60.0 * len(batches))
    schedules.add("a", "add", every(1), misfire="all", expires=None)
    inner_beat.run_due()
    clock.forward(1200)
    assert [inner_beat.run_due() for _ in range(3)] == [0.0, 0.0, 1.0]
    assert len(queued(client)) == 1200


#: Found within the steps that a recurrence may take, but each occurrence costs thousands of them.
COSTLY = "DTSTART:10000101T000000 RRULE:FREQ=SECONDLY;INTERVAL=3607;BYMINUTE=0;BYSECOND=0"


def test_those_that_take_a_minute_to_walk_through_keep_no_program_waiting(
    make_app: MakeApp, client: redis.Redis, clock: Clock
) -> None:
    """Whoever can write to the server can say that a run is missed since the year 1003."""
    app = make_app()
    schedules = Schedules(app)
    for name in ("costly", *(f"costly-{number}" for number in range(6))):
        schedules.add(name, "add", rrule(COSTLY, tz="UTC"))
        state = EntryState.decode(client.hget(KEYS.state, name) or b"")
        client.hset(KEYS.state, name, replace(state, nominal=-30_500_000_000_000).encode())
        client.zadd(KEYS.due, {name: 1})
    asks: tuple[Callable[[], object], ...] = (
        lambda: schedules.upcoming(NOW + timedelta(days=400)),
        lambda: schedules.run_now("costly"),
        lambda: [schedules.pause("costly"), schedules.resume("costly")],
    )

    for ask in asks:
        began = time.thread_time()
        assert ask()
        assert time.thread_time() - began < 5, "it takes many times as long to walk through"

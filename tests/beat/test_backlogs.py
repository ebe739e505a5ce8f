"""Entries with much to catch up with: they get through, and keep nobody else waiting."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
import redis
from celery.schedules import BaseSchedule

from redbeat_lite import Entry, Scheduler, Schedules, every, register_schedule, rrule
from redbeat_lite.beat.dispatch import dispatcher, planner
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


class Minutely(BaseSchedule):  # type: ignore[misc]  # Celery ships no types
    """A schedule of somebody's own, which has to be asked for each occurrence and takes its time to answer."""

    watch = Stopwatch()
    takes = 0.001

    def __init__(self, second: int) -> None:
        super().__init__()
        self.second = second

    def next_after(self, instant: datetime) -> datetime:
        self.watch.seconds += self.takes
        this = instant.replace(second=self.second, microsecond=0)
        return this if this > instant else this + timedelta(minutes=1)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stopwatch]:
    """What planning takes for its time: only what the schedules of this module take."""
    monkeypatch.setattr(planner, "elapsed", Minutely.watch)
    register_schedule(Minutely, lambda found: found.second, Minutely, name="tests.Minutely")
    yield Minutely.watch
    Minutely.watch.seconds, Minutely.takes = 0.0, 0.001


class Batches(list[list[str]]):
    """The names of the entries that each batch of a beat moved on; how long its planning took; what it told."""

    def __init__(self, beat: Scheduler, watch: Stopwatch, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self.told: list[str] = []
        commit, progress = LeaderStore.commit, beat.leader.progress

        def noted(store: LeaderStore, term: Term, advances: Sequence[Advance], *args: Any) -> Any:
            self.append([advance.name.decode() for advance in advances])
            self.seconds.append(watch.seconds)
            watch.seconds = 0.0
            return commit(store, term, advances, *args)

        def heard(doing: object, within: float = 0.0) -> None:
            self.told.append(str(doing))
            progress(doing, within)

        monkeypatch.setattr(LeaderStore, "commit", noted)
        monkeypatch.setattr(beat._parts.dispatcher._planner, "_progress", heard)


@pytest.fixture
def batches(inner_beat: Scheduler, watch: Stopwatch, monkeypatch: pytest.MonkeyPatch) -> Batches:
    return Batches(inner_beat, watch, monkeypatch)


def test_of_rules_that_are_walked_are_planned_in_bounded_batches_that_keep_what_they_have_done(
    schedules: Schedules,
    inner_beat: Scheduler,
    clock: Clock,
    client: redis.Redis,
    batches: Batches,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An hour of six entries is 0.36 s of work, here, and each half of a batch has 0.08 s for it."""
    schedules.add_many(Entry(f"heavy{second}", "add", Minutely(second), expires=None) for second in range(6))
    schedules.add("light", "add", every(3600), options={"queue": "light"})
    inner_beat.run_due()
    clock.set(NOW.replace(second=30) + timedelta(minutes=60))
    inner_beat.run_due()
    assert "light" in batches[0]
    assert len(batches) == 3
    assert max(batches.seconds) < 0.2, "twice that, and a few steps of each"
    assert "planning 'heavy0'" in batches.told
    assert len(of_entry(client, "light", "light")) == 1
    first, *_ = queued(client)
    assert first.entry == "heavy0", "one is walked to its end in the first batch"
    for second in range(6):
        [message] = of_entry(client, f"heavy{second}")
        assert message.scheduled_at == clock.now.replace(second=second)
        entry = schedules[f"heavy{second}"]
        assert (entry.total_run_count, entry.skipped_count) == (1, 59)
    lines = [record for record in caplog.records if "heavy" in record.getMessage()]
    assert len(lines) == 6 + 3, "three of them in two parts, and no line each time that somebody else has the turn"


@pytest.mark.parametrize(("giant", "small", "second"), [("a", "b", 20), ("b", "a", 40)])
def test_one_with_very_much_to_catch_up_with_does_not_take_every_turn(
    schedules: Schedules,
    inner_beat: Scheduler,
    clock: Clock,
    client: redis.Redis,
    batches: Batches,
    giant: str,
    small: str,
    second: int,
) -> None:
    """A day is eighteen turns, here, and an hour one."""
    schedules.add(giant, "add", Minutely(second), expires=None)
    clock.forward(23 * 3600)
    schedules.add_many(Entry(f"{small}{number}", "add", Minutely(second + 1), expires=None) for number in range(3))
    clock.forward(3600)
    inner_beat.run_due()
    *others, last = [message.entry for message in queued(client)]
    assert (sorted(filter(None, others)), last) == ([f"{small}{number}" for number in range(3)], giant)
    assert max(batches.seconds) < 0.2


def test_where_each_step_is_slow_the_rest_of_a_batch_is_left_to_the_next(
    schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis, batches: Batches
) -> None:
    schedules.add_many(Entry(f"slow{number}", "add", Minutely(10 + number), expires=None) for number in range(6))
    inner_beat.run_due()
    Minutely.takes = 0.6
    clock.set(NOW.replace(second=30) + timedelta(minutes=1))
    inner_beat.run_due()
    assert batches == [["slow0", "slow5"], ["slow1", "slow4"], ["slow2", "slow3"]]
    assert len(queued(client)) == 6


def test_backlogs_that_fill_every_batch_take_turns_with_the_others(
    schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis, batches: Batches
) -> None:
    schedules.add_many(
        Entry(f"backlog{number:02}", "add", every(1), misfire="all", expires=None) for number in range(12)
    )
    schedules.add("other", "add", every(999), options={"queue": "other"})
    inner_beat.run_due()
    clock.forward(1000)
    inner_beat.run_due()
    assert "other" in batches[0], "which is full with four of those who missed 1,000 runs"
    assert len(queued(client)) == 12 * 1000


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

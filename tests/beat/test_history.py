"""What a turn of the beat leaves behind for the record of runs."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from celery import Celery

from redbeat_lite import Entry, Misfire, Scheduler, Schedules, every
from redbeat_lite.entries.run import HISTORY_HEADER, LIFE_MS
from redbeat_lite.runs.run_store import RunKeys, RunStore
from tests.beat.moments import nominals
from tests.beat.ways import Setup
from tests.support.frozen import NOW, Clock
from tests.support.in_process import MakeApp, MakeBeat
from tests.support.messages import of_entry

pytestmark = pytest.mark.usefixtures("clock")

KEYS = RunKeys("redbeat-lite")


def sent(schedules: Schedules, name: str) -> list[float]:
    """What the state of an entry says was sent, in seconds after the start of the test, oldest first."""
    return [ms / 1000 - NOW.timestamp() for ms in reversed(schedules[name].state.sent)]


def turns(beat: Scheduler, clock: Clock, *seconds: float) -> None:
    """Let time pass, and the beat take a turn after each of these."""
    for each in seconds:
        clock.forward(each)
        beat.run_due()


class TestWhatWasSent:
    def test_the_state_tells_the_last_that_were_sent_whatever_the_way(
        self, setup: Setup, clock: Clock, client: redis.Redis
    ) -> None:
        setup.schedules.add("a", "add", every(10), misfire="all", history=5)
        turns(setup.beat, clock, 10, 30, 10)
        assert sent(setup.schedules, "a") == nominals(setup.broker, "a") == [10, 20, 30, 40, 50]
        ids = [message.id for message in of_entry(setup.broker, "a")]
        assert setup.schedules["a"].last_task_id == ids[-1]
        clock.forward(10)
        setup.crash_before_the_commit()
        setup.restart()
        turns(setup.beat, clock, 0, 10)
        assert sent(setup.schedules, "a") == [30, 40, 50, 60, 70]

    def test_nothing_is_stored_beside_it_of_runs_that_nobody_has_told_of(
        self, setup: Setup, clock: Clock, client: redis.Redis
    ) -> None:
        setup.schedules.add_many(Entry(f"e{n}", "add", every(3600 if n else 10)) for n in range(100))
        turns(setup.beat, clock, 10, 10)
        assert setup.schedules["e0"].total_run_count == 2
        assert not [*client.scan_iter("{redbeat-lite}:runs:*")]

    @pytest.mark.parametrize(("own", "kept"), [(None, 3), (0, 0), (1, 1), (7, 7)])
    def test_so_many_as_the_entry_says_and_else_the_app(
        self, make_app: MakeApp, make_beat: MakeBeat, clock: Clock, own: int | None, kept: int
    ) -> None:
        app = make_app(redbeat_lite_history=3)
        Schedules(app).add("a", "add", every(10), history=own)
        turns(make_beat(app), clock, *(10 for _ in range(9)))
        assert sent(Schedules(app), "a") == [10.0 * run for run in range(10 - kept, 10)]

    def test_another_history_holds_from_the_next_run_on(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock
    ) -> None:
        schedules.add("a", "add", every(10))
        turns(inner_beat, clock, 10, 10, 10)
        schedules.update("a", history=2)
        assert sent(schedules, "a") == [10, 20, 30]
        turns(inner_beat, clock, 10)
        assert sent(schedules, "a") == [30, 40]
        schedules.update("a", history=0)
        turns(inner_beat, clock, 10)
        assert sent(schedules, "a") == []
        schedules.update("a", history=None)
        turns(inner_beat, clock, 10)
        assert sent(schedules, "a") == [60]

    def test_what_was_left_out_was_not_sent(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add("locked", "add", every(10), ("x",), once=True, misfire="all")
        schedules.add("late", "add", every(10), misfire="coalesce")
        turns(inner_beat, clock, 10, 10)
        [lock] = client.keys("*once:lock*")
        turns(inner_beat, clock, 35)
        client.delete(lock)
        turns(inner_beat, clock, 10)
        assert sent(schedules, "locked") == nominals(client, "locked") == [10, 60]
        assert sent(schedules, "late") == nominals(client, "late") == [10, 20, 50, 60]


#: What a row tells: its outcome, from when to when, in seconds after the start of the test, and of how many.
Told = tuple[str, float, float, int]


def rows(client: redis.Redis, name: str) -> list[Told]:
    """The rows of an entry, oldest first."""
    [found] = RunStore(client, "redbeat-lite").rows([name], 1000)
    start = NOW.timestamp()
    told = []
    for row in reversed(found):
        assert (row.task_id, row.begin, row.feed) == ("", None, "")
        first = row.nominal / 1000 - start
        told.append((row.outcome, first, first + (row.duration or 0) / 1000, row.attempt))
    return told


class TestWhatWasDecidedAgainst:
    def test_what_a_policy_skips_is_a_range(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        skipped: dict[Any, list[Told]] = {
            "coalesce": [("skipped", 10, 90, 9)],
            "skip": [("skipped", 10, 100, 10)],
            "all": [],
            Misfire("all", limit=4): [("skipped", 50, 100, 6)],
            Misfire("all", grace=45, limit=2): [("skipped", 10, 60, 6), ("skipped", 90, 100, 2)],
        }
        for misfire in skipped:
            schedules.add(str(misfire), "add", every(10), misfire=misfire)
        turns(inner_beat, clock, 108, 2)
        for misfire, expected in skipped.items():
            assert rows(client, str(misfire)) == expected
            assert client.exists(KEYS.rows(str(misfire))) == (expected != [])

    def test_it_is_told_by_the_commit_whatever_the_way(self, setup: Setup, clock: Clock, client: redis.Redis) -> None:
        setup.schedules.add("a", "add", every(10))
        clock.forward(108)
        setup.crash_before_the_commit()
        assert rows(client, "a") == []
        setup.restart()
        turns(setup.beat, clock, 0, 2)
        assert rows(client, "a") == [("skipped", 10, 90, 9)]

    def test_what_a_lock_leaves_out_joins_until_something_is_sent(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add("a", "add", every(60), ("x",), once=True, expires=None)
        turns(inner_beat, clock, *(60 for _ in range(30)))
        assert sent(schedules, "a") == [60]
        assert rows(client, "a") == [("left out", 120, 1800, 29)]
        [lock] = client.keys("*once:lock*")
        client.delete(lock)
        turns(inner_beat, clock, 60, 60, 60, 60 * 5)
        assert rows(client, "a") == [
            ("left out", 120, 1800, 29),
            ("left out", 1920, 1980, 2),
            ("skipped", 2040, 2220, 4),
            ("left out", 2280, 2280, 1),
        ]

    def test_what_is_decided_in_one_plan_is_told_in_its_order(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add("a", "add", every(10), ("x",), once=True, expires=None, misfire=Misfire("all", grace=45))
        turns(inner_beat, clock, 108)
        assert sent(schedules, "a") == [70]
        assert rows(client, "a") == [("skipped", 10, 60, 6), ("left out", 80, 100, 3)]

    def test_so_many_rows_are_kept_as_the_history_says(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        kept = {"0": 0, "1": 1, "3": 3, "as the app says": 4}
        for name in kept:
            schedules.add(name, "add", every(10), history=int(name) if name.isdigit() else None)
        turns(inner_beat, clock, 25, 25, 25, 25)
        for name, number in kept.items():
            starts = [first for _, first, _, _ in rows(client, name)]
            assert starts == [10, 30, 60, 80][4 - number :]
            assert bool(client.exists(KEYS.rows(name))) == bool(number)
            if number:
                assert LIFE_MS - 60_000 < client.pttl(KEYS.rows(name)) <= LIFE_MS

    def test_a_publish_that_fails_decides_nothing(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add("a", "add", every(10))
        client.set("celery", "no list")
        turns(inner_beat, clock, 35)
        assert schedules["a"].last_error
        assert rows(client, "a") == []
        client.delete("celery")
        turns(inner_beat, clock, 9)
        assert rows(client, "a") == [("skipped", 10, 30, 3)]

    def test_rows_that_are_none_stop_nothing(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add_many(Entry(name, "add", every(10)) for name in ("text", "odd"))
        client.set(KEYS.rows("text"), "something else", ex=100)
        client.zadd(KEYS.rows("odd"), {"|k|no range|": 10**15})
        turns(inner_beat, clock, 35, 5)
        assert nominals(client, "text") == nominals(client, "odd") == [30, 40]
        assert client.get(KEYS.rows("text")) == b"something else"
        assert rows(client, "odd") == [("skipped", 10, 20, 2)]


class TestHeader:
    @pytest.mark.parametrize("dispatch", ["auto", "plain"])
    def test_only_messages_of_entries_that_say_carry_how_many_are_remembered(
        self, make_app: MakeApp, make_beat: MakeBeat, clock: Clock, client: redis.Redis, dispatch: str
    ) -> None:
        app: Celery = make_app(redbeat_lite_dispatch=dispatch, redbeat_lite_history=9)
        given: dict[str, Any] = {"none": None, "off": 0, "seven": 7}
        schedules = Schedules(app)
        schedules.add_many(Entry(name, "add", every(10), history=history) for name, history in given.items())
        turns(make_beat(app), clock, 10, 10)
        schedules.run_now("none")
        schedules.run_now("seven")
        for name, history in given.items():
            found = [message.headers.get(HISTORY_HEADER, "not there") for message in of_entry(client, name)]
            assert set(found) == {"not there" if history is None else history}, name
            assert len(found) == 2 + (name != "off")

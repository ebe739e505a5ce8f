"""Entries that come to an end: one-offs, `end_at`, `max_runs`."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
import redis
from celery import Celery
from celery.schedules import BaseSchedule, schedstate

from redbeat_lite import Misfire, Scheduler, Schedules, at, every, register_schedule
from redbeat_lite._base.times import to_ms
from redbeat_lite.rules.occurrences import offset_ms
from tests.beat.moments import after, nominals
from tests.support.frozen import Clock
from tests.support.in_process import KEY, MakeBeat, one_turn
from tests.support.messages import queued

pytestmark = pytest.mark.usefixtures("clock")


class Asking(BaseSchedule):  # type: ignore[misc]  # Celery ships no types
    """Every 10 s; it says only whether it is due."""

    def is_due(self, last_run_at: datetime) -> Any:
        since = (self.now() - last_run_at).total_seconds()
        return schedstate(is_due=since >= 10, next=10 if since >= 10 else 10 - since)


class TestEnds:
    def test_a_one_off_runs_once_and_keeps_its_record(
        self,
        app: Celery,
        schedules: Schedules,
        make_beat: MakeBeat,
        clock: Clock,
        client: redis.Redis,
    ) -> None:
        schedules.add("a", "add", at(after(10)))
        clock.forward(10)
        one_turn(app, make_beat)
        clock.forward(1000)
        make_beat(app).run_due()
        assert nominals(client, "a") == [10]
        entry = schedules["a"]
        assert (entry.finished, entry.next_run_at, entry.total_run_count) == (True, None, 1)

    def test_a_one_off_that_ran_does_not_run_again_because_it_is_edited(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add("a", "add", at(after(10)))
        clock.forward(10)
        inner_beat.run_due()
        schedules.update("a", description="it has been")
        schedules.add("a", "add", at(after(10)), args=(5,), replace=True)
        schedules.update("a", start_at=after(1))
        schedules.pause("a")
        schedules.resume("a", catch_up=True)
        inner_beat.run_due()
        assert nominals(client, "a") == [10]
        assert schedules["a"].finished

    def test_a_one_off_that_was_skipped_stays_skipped(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add("a", "add", at(after(10)), misfire=Misfire(grace=5))
        clock.forward(20)
        inner_beat.run_due()
        schedules.update("a", description="too late")
        inner_beat.run_due()
        assert queued(client) == []
        assert schedules["a"].finished

    def test_a_one_off_that_is_moved_runs_at_its_new_time(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add("a", "add", at(after(10)))
        clock.forward(10)
        inner_beat.run_due()
        schedules.update("a", schedule=at(after(30)))
        clock.forward(20)
        inner_beat.run_due()
        assert nominals(client, "a") == [10, 30]

    def test_a_one_off_that_is_moved_to_the_past_runs_at_once(
        self, schedules: Schedules, inner_beat: Scheduler, client: redis.Redis
    ) -> None:
        schedules.add("a", "add", at(after(10)))
        schedules.update("a", schedule=at(after(-10)))
        inner_beat.run_due()
        assert nominals(client, "a") == [-10]

    def test_nothing_fires_after_end_at(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add("a", "add", every(10), start_at=after(20), end_at=after(40))
        for _ in range(10):
            clock.forward(10)
            inner_beat.run_due()
        assert nominals(client, "a") == [20, 30, 40]
        assert schedules["a"].finished

    def test_what_end_at_cut_off_while_nobody_looked_is_caught_up_with_by_policy(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add("a", "add", every(10), end_at=after(45))
        clock.forward(1000)
        inner_beat.run_due()
        assert nominals(client, "a") == [40]

    def test_max_runs_are_so_many_over_restarts_and_edits(
        self,
        app: Celery,
        schedules: Schedules,
        make_beat: MakeBeat,
        clock: Clock,
        client: redis.Redis,
    ) -> None:
        schedules.add("a", "add", every(10), max_runs=3)
        for run in range(6):
            clock.forward(10)
            one_turn(app, make_beat)
            if run == 1:
                schedules.update("a", kwargs={"x": 1})
        assert nominals(client, "a") == [10, 20, 30]
        assert (schedules["a"].finished, schedules["a"].total_run_count) == (True, 3)

    def test_more_runs_bring_a_finished_entry_back(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add("a", "add", every(10), max_runs=1)
        clock.forward(10)
        inner_beat.run_due()
        clock.forward(100)
        assert schedules.update("a", max_runs=2).next_run_at == after(120)
        clock.forward(10)
        inner_beat.run_due()
        assert nominals(client, "a") == [10, 120]

    def test_a_run_that_a_once_lock_left_out_is_none_of_max_runs(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add("a", "add", every(10), max_runs=2, once=True)
        clock.forward(10)
        inner_beat.run_due()
        for _ in range(3):
            clock.forward(10)
            inner_beat.run_due()
        entry = schedules["a"]
        assert nominals(client, "a") == [10]
        assert (entry.finished, entry.total_run_count, entry.skipped_count) == (False, 1, 3)
        assert entry.next_run_at == after(50)

    @pytest.mark.parametrize(
        "limits", [{"max_runs": 2}, {"max_runs": 4, "end_at": after(52)}, {}], ids=["few", "until an end", "none"]
    )
    def test_missed_runs_are_made_up_for_whether_or_not_max_runs_would_end_the_entry(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis, limits: dict[str, Any]
    ) -> None:
        schedules.add("a", "add", every(10), misfire="all", once=True, **limits)
        clock.forward(55)
        inner_beat.run_due()
        entry = schedules["a"]
        assert nominals(client, "a") == [10]
        assert (entry.total_run_count, entry.skipped_count) == (1, 4)

    @pytest.mark.parametrize("max_runs", [10, None])
    def test_a_run_that_is_left_out_at_the_end_brings_back_none_that_was_skipped(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis, max_runs: int | None
    ) -> None:
        misfire = Misfire("all", limit=2)
        schedules.add("a", "add", every(10), misfire=misfire, once=True, max_runs=max_runs, end_at=after(52))
        clock.forward(55)
        inner_beat.run_due()
        entry = schedules["a"]
        assert nominals(client, "a") == [10]
        assert (entry.finished, entry.total_run_count, entry.skipped_count) == (True, 1, 4)

    def test_a_run_that_is_left_out_leaves_its_place_to_the_next_one_whose_jitter_is_not_over(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        def jitter(name: str, seconds: int) -> float:
            return offset_ms(name, to_ms(after(seconds)), 40_000, 50_000) / 1000

        names = (f"entry-{number}" for number in range(9999))
        name = next(name for name in names if max(jitter(name, 50), jitter(name, 100)) < 5 and jitter(name, 200) > 20)
        schedules.add(name, "add", every(50), jitter=40, once=True, max_runs=2)
        clock.forward(55)
        inner_beat.run_due()
        clock.forward(155)
        inner_beat.run_due()
        entry = schedules[name]
        assert nominals(client, name) == [50]
        assert (entry.total_run_count, entry.skipped_count) == (1, 2)
        assert entry.next_run_at == after(200 + jitter(name, 200))

    @pytest.mark.parametrize("max_runs", [2, None])
    def test_one_run_of_a_users_schedule_makes_up_for_an_outage_also_if_it_is_left_out(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, max_runs: int | None
    ) -> None:
        register_schedule(Asking, lambda schedule: None, lambda stored: Asking(), name="tests.Asking")
        schedules.add("a", "add", Asking(), once=True, max_runs=max_runs)
        clock.forward(10)
        inner_beat.run_due()
        clock.forward(45)
        inner_beat.run_due()
        entry = schedules["a"]
        assert (entry.total_run_count, entry.skipped_count) == (1, 1)
        assert entry.next_run_at == after(65)

    def test_remove_when_done_leaves_nothing(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add("a", "add", at(after(10)), remove_when_done=True)
        schedules.add("b", "add", every(10), max_runs=2, remove_when_done=True)
        for _ in range(2):
            clock.forward(10)
            inner_beat.run_due()
        assert nominals(client, "a") == [10]
        assert nominals(client, "b") == [10, 20]
        assert list(schedules) == []
        assert not client.exists(KEY + "entries", KEY + "state", KEY + "due")

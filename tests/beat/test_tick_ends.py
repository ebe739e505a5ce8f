"""Entries that come to an end: one-offs, `end_at`, `max_runs`."""

from __future__ import annotations

import pytest
import redis
from celery import Celery

from redbeat_lite import Misfire, Scheduler, Schedules, at, every
from tests.beat.moments import after, nominals
from tests.support.frozen import Clock
from tests.support.in_process import KEY, MakeBeat, one_turn
from tests.support.messages import queued

pytestmark = pytest.mark.usefixtures("clock")


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

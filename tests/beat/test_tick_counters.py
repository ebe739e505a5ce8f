"""What an entry's counters say of its runs, and of those that were left out."""

from __future__ import annotations

import pytest
import redis
from celery import Celery

from redbeat_lite import Scheduler, Schedules, every, locks
from tests.beat.moments import after, nominals
from tests.support.frozen import Clock
from tests.support.in_process import MakeBeat
from tests.support.messages import queued

pytestmark = pytest.mark.usefixtures("clock")


class TestCounters:
    def test_are_exact_over_a_hundred_runs_three_leaders_and_ten_edits(
        self,
        app: Celery,
        schedules: Schedules,
        make_beat: MakeBeat,
        clock: Clock,
        client: redis.Redis,
    ) -> None:
        schedules.add("a", "add", every(10))
        beat = make_beat(app)
        for run in range(100):
            clock.forward(10)
            if run in (25, 50, 75):
                beat.close()
                beat = make_beat(app)
            beat.run_due()
            if run % 10 == 3:
                schedules.update("a", kwargs={"x": run})
        entry = schedules["a"]
        assert (entry.total_run_count, entry.last_run_at, entry.version) == (100, after(1000), 11)
        messages = queued(client)
        assert len({message.id for message in messages}) == len(messages) == 100
        assert nominals(client, "a") == [10 * run for run in range(1, 101)]
        assert entry.last_task_id == messages[-1].id

    def test_skipped_occurrences_are_counted_apart(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, caplog: pytest.LogCaptureFixture
    ) -> None:
        schedules.add("a", "add", every(10), misfire="skip")
        clock.forward(108)
        inner_beat.run_due()
        entry = schedules["a"]
        assert (entry.total_run_count, entry.skipped_count, entry.last_run_at) == (0, 10, None)
        assert "'a' was late: it left out 10 occurrences and sent 0 (misfire policy 'skip')" in caplog.text
        clock.forward(8)
        inner_beat.run_due()
        assert "'a' was late: it left out 1 occurrence and sent 0 (misfire policy 'skip')" in caplog.text

    def test_what_a_held_lock_leaves_out_is_counted_and_told_each_time(
        self,
        app: Celery,
        schedules: Schedules,
        inner_beat: Scheduler,
        clock: Clock,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        caplog.set_level("INFO")
        for name in "ab":
            schedules.add(name, "add", every(10), (name,), once=True)
        for times in (1, 2):
            for _ in range(4):
                clock.forward(10)
                inner_beat.run_due()
            for name in "ab":
                assert (schedules[name].total_run_count, schedules[name].skipped_count) == (times, 3 * times)
                assert caplog.text.count(f"beat: '{name}' is left out while its once-lock is held: ") == 3 * times
            for held in locks(app).list():
                locks(app).clear(held.key)

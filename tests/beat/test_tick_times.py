"""When a turn of the beat sends an entry first, how long it waits for the next, and what an edit changes in that."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis
from celery import Celery
from celery.schedules import crontab

from redbeat_lite import Scheduler, Schedules, at, cron, every
from tests.beat.moments import after, nominals
from tests.support.cases import together
from tests.support.frozen import NOW, Clock
from tests.support.in_process import MakeApp, MakeBeat, one_turn
from tests.support.messages import queued

pytestmark = pytest.mark.usefixtures("clock")


class TestFirstRun:
    @pytest.mark.parametrize(
        ("schedule", "first"),
        [
            (every(600), after(600)),
            (600, after(600)),
            (every(3600, align=True), datetime(2026, 3, 2, 13, 0, tzinfo=UTC)),
            (cron("0 4 * * *"), datetime(2026, 3, 3, 4, 0, tzinfo=UTC)),
            (crontab(minute=0, hour=4), datetime(2026, 3, 3, 4, 0, tzinfo=UTC)),
            (at(after(5)), after(5)),
            (at(after(-5)), after(-5)),
        ],
        ids=str,
    )
    def test_is_the_schedules_own_next_instant(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis, schedule: Any, first: Any
    ) -> None:
        schedules.add("a", "add", schedule)
        clock.set(max(first - timedelta(milliseconds=1), NOW))
        inner_beat.run_due()
        assert len(queued(client)) == (first <= NOW)
        clock.set(max(first, NOW))
        inner_beat.run_due()
        assert [message.scheduled_at for message in queued(client)] == [first]

    def test_is_start_at_where_that_is_given(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add("interval", "add", every(600), start_at=after(1800))
        schedules.add("cron", "add", cron("0 * * * *"), start_at=after(3600))
        assert inner_beat.run_due() == 300
        clock.set(after(1800))
        inner_beat.run_due()
        assert nominals(client, "interval") == [1800]
        assert schedules["cron"].next_run_at == datetime(2026, 3, 2, 14, 0, tzinfo=UTC)

    @together("schedule", [every(600), 600], ids=str, emptied=True)
    @together(("start", "first"), [(-1500, 300), (0, 600), (1, 1)], emptied=True)
    def test_counts_from_a_start_at_that_is_past_and_is_not_made_up_for(
        self, schedules: Schedules, schedule: Any, start: float, first: float
    ) -> None:
        assert schedules.add("a", "add", schedule, start_at=after(start)).next_run_at == after(first)

    def test_of_an_aligned_interval_does_not_count_from_it(self, schedules: Schedules) -> None:
        entry = schedules.add("a", "add", every(3600, align=True), start_at=after(-1500))
        assert entry.next_run_at == datetime(2026, 3, 2, 13, 0, tzinfo=UTC)

    def test_is_not_put_off_by_a_beat_that_is_restarted_again_and_again(
        self,
        app: Celery,
        schedules: Schedules,
        make_beat: MakeBeat,
        clock: Clock,
        client: redis.Redis,
    ) -> None:
        app.conf.beat_schedule = {"configured": {"task": "add", "schedule": 86_400}}
        schedules.add("runtime", "add", every(86_400))
        for _ in range(25):
            one_turn(app, make_beat)
            clock.forward(3600)
        assert nominals(client, "configured") == nominals(client, "runtime") == [86_400]


class TestWaiting:
    def test_lasts_until_the_next_entry_and_no_longer_than_the_longest_sleep(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock
    ) -> None:
        assert inner_beat.run_due() == inner_beat.max_interval == 300
        schedules.add("a", "add", every(1000))
        assert inner_beat.run_due() == 300
        schedules.add("b", "add", every(2.5))
        assert inner_beat.run_due() == 2.5
        clock.forward(2.5)
        assert inner_beat.run_due() == 2.5

    def test_of_a_stand_by_is_no_longer_than_the_longest_sleep(
        self, make_app: MakeApp, make_beat: MakeBeat, inner_beat: Scheduler
    ) -> None:
        inner_beat.run_due()
        assert make_beat(make_app(beat_max_loop_interval=7)).run_due() == 7

    def test_never_ends_early_so_that_nothing_fires_before_its_time(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add("a", "add", every(0.1))
        for _ in range(50):
            clock.forward(inner_beat.run_due())
        for message in queued(client):
            assert message.scheduled_at <= clock.now
        assert nominals(client, "a") == [pytest.approx(0.1 * n) for n in range(1, 50)]


class TestEdits:
    def test_never_fire_for_the_past(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add("a", "add", cron("0 0 * * *"))
        clock.forward(3600)
        schedules.update("a", schedule=cron("*/5 * * * *"))
        schedules.add("b", "add", every(86_400))
        clock.forward(5000)
        schedules.update("b", schedule=every(10))
        inner_beat.run_due()
        assert nominals(client, "b") == []
        assert all(second > 3600 for second in nominals(client, "a"))

    def test_of_an_overdue_entrys_arguments_keep_what_is_due(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add("a", "add", every(10), (1,))
        clock.forward(10)
        schedules.update("a", args=(2,))
        inner_beat.run_due()
        assert [message.args for message in queued(client)] == [[2]]

    def test_that_switch_on_what_was_off_wait_for_the_next_instant(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add("a", "add", every(10), misfire="all")
        schedules.update("a", enabled=False)
        clock.forward(105)
        schedules.update("a", enabled=True)
        inner_beat.run_due()
        assert queued(client) == []
        assert schedules["a"].next_run_at == after(110)

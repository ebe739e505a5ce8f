"""A server's clock that is set back or forward: nobody waits too long, nothing runs twice."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from unittest import mock

import pytest
import redis
from celery import Celery
from celery.schedules import schedstate

from redbeat_lite import Misfire, Scheduler, Schedules, at, cron, every
from redbeat_lite.store.redis_values import server_ms
from tests.beat.moments import after, nominals
from tests.beat.poison import CannotTell
from tests.support.beats import KEYS
from tests.support.frozen import Clock
from tests.support.in_process import MakeBeat, tell_set_back
from tests.support.messages import of_entry, queued

pytestmark = pytest.mark.usefixtures("clock")


class TestClock:
    def test_set_back_keeps_nobody_waiting_for_more_than_its_interval(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add("interval", "add", every(60))
        schedules.add("jittered", "add", every(60), jitter=20)
        schedules.add("cron", "add", cron("*/10 * * * *"))
        schedules.add("tomorrow", "add", every(60), start_at=after(86_400))
        schedules.add("one-off", "add", at(after(3600)))
        inner_beat.run_due()
        clock.forward(60)
        inner_beat.run_due()
        clock.forward(-7200)
        tell_set_back(inner_beat)
        inner_beat.run_due()
        waits = {entry.name: (entry.next_run_at - clock.now).total_seconds() for entry in schedules.list()}
        assert waits["interval"] <= 60
        assert waits["jittered"] <= 80
        assert waits["cron"] <= 600
        assert schedules["tomorrow"].next_run_at == after(86_400)
        assert schedules["one-off"].next_run_at == after(3600)
        client.delete("celery")
        clock.forward(60)
        inner_beat.run_due()
        assert len(of_entry(client, "interval")) == 1

    def test_set_back_keeps_no_retry_waiting_for_the_clock_to_catch_up(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add("interval", "add", every(60))
        clock.forward(60)
        with mock.patch.object(type(inner_beat), "apply_async", side_effect=ValueError("refused")):
            clock.forward(0.5)
            inner_beat.run_due()  # The run is due by the right clock, and its publish fails.
            clock.forward(7200)
            inner_beat.run_due()  # The retry is planned by a clock that is two hours ahead.
        clock.forward(-7200)
        tell_set_back(inner_beat)
        inner_beat.run_due()
        inner_beat.run_due()
        assert nominals(client, "interval") == [60]

    def test_set_back_between_two_leaders_is_noticed_too(
        self,
        app: Celery,
        schedules: Schedules,
        make_beat: MakeBeat,
        clock: Clock,
        client: redis.Redis,
    ) -> None:
        schedules.add("a", "add", every(60))
        beat = make_beat(app)
        clock.forward(60)
        beat.run_due()
        beat.close()
        clock.forward(-7200)
        client.hset(KEYS.meta, "ticked", server_ms(client) + 7_200_000)
        make_beat(app).run_due()
        assert schedules["a"].next_run_at == clock.now + timedelta(seconds=60)

    @pytest.mark.parametrize("behind", [1.5, 59])
    @pytest.mark.parametrize(
        ("schedule", "gap"),
        [
            (cron("* * * * *"), 60),
            (every(60, align=True), 60),
            (every(1, align=True), 1),
            (cron("0 13 * * *"), 86_400),
        ],
        ids=str,
    )
    def test_set_back_between_two_leaders_sends_no_occurrence_twice(
        self,
        app: Celery,
        schedules: Schedules,
        make_beat: MakeBeat,
        clock: Clock,
        client: redis.Redis,
        schedule: Any,
        gap: int,
        behind: float,
    ) -> None:
        clock.set(datetime(2026, 3, 2, 12, 59, 59, 500_000, tzinfo=UTC))
        beat = make_beat(app)
        schedules.add("a", "add", schedule)
        schedules.add("moved", "add", schedule)
        schedules.update("moved", start_at=clock.now - timedelta(days=1))
        clock.forward(0.6)
        beat.run_due()
        beat.close()
        clock.forward(-behind)
        client.hset(KEYS.meta, "set_back", "1")
        successor = make_beat(app)
        successor.run_due()
        assert schedules["a"].next_run_at == schedules["moved"].next_run_at == after(3161 + gap)
        for _ in range(70):
            clock.forward(1)
            successor.run_due()
        for name in ("a", "moved"):
            sent = nominals(client, name)
            assert sent[0] == 3161
            assert len(sent) == len(set(sent))
        assert len(queued(client)) == len({message.id for message in queued(client)})

    @pytest.mark.parametrize("again", [cron("* * * * 1-5"), every(60, align=True)], ids=str)
    def test_of_an_editor_that_is_behind_repeats_no_run_and_ends_nothing(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis, again: Any
    ) -> None:
        schedules.add("a", "add", cron("* * * * *"))
        clock.set(after(41.1))
        inner_beat.run_due()
        clock.forward(-0.5)
        schedules.update("a", schedule=again)
        clock.forward(61)
        inner_beat.run_due()
        assert nominals(client, "a") == [41, 101]

    def test_set_back_far_names_no_run_by_an_id_that_was_sent(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add("minutely", "add", cron("* * * * *"))
        schedules.add("daily", "add", cron("10 12 * * *"))
        schedules.add("interval", "add", every(60))
        for _ in range(2):
            for _ in range(5):
                inner_beat.run_due()
                clock.forward(60)
            clock.forward(-300)
            tell_set_back(inner_beat)
        assert len(of_entry(client, "minutely")) > 5
        assert len(of_entry(client, "daily")) == 1
        assert len(of_entry(client, "interval")) > 5
        assert len(queued(client)) == len({message.id for message in queued(client)})

    @pytest.mark.parametrize(("misfire", "runs"), [("coalesce", 1), ("skip", 0), (Misfire("all", limit=7), 7)])
    def test_set_forward_two_hours_is_one_catch_up_by_policy(
        self,
        schedules: Schedules,
        inner_beat: Scheduler,
        clock: Clock,
        client: redis.Redis,
        misfire: Any,
        runs: int,
    ) -> None:
        schedules.add("a", "add", every(60), misfire=misfire)
        inner_beat.run_due()
        clock.forward(7200 + 30)
        inner_beat.run_due()
        assert len(queued(client)) == runs
        assert inner_beat.leader.holds_lease
        inner_beat.run_due()
        assert len(queued(client)) == runs

    def test_a_schedule_that_cannot_be_stored_keeps_its_own_rule(
        self, app: Celery, make_beat: MakeBeat, clock: Clock, schedules: Schedules
    ) -> None:
        class Unstorable(CannotTell):
            __eq__, __hash__ = CannotTell.__eq__, None  # type: ignore[assignment]

            def is_due(self, last_run_at: datetime) -> Any:
                since = (self.now() - last_run_at).total_seconds()
                return schedstate(is_due=since >= 7000, next=7000 if since >= 7000 else 7000 - since)

        app.conf.beat_schedule = {"a": {"task": "add", "schedule": Unstorable(0)}}
        beat = make_beat(app)
        beat.run_due()
        assert schedules["a"].next_run_at == after(7000)
        clock.forward(-3600)
        tell_set_back(beat)
        beat.run_due()
        assert schedules["a"].next_run_at == after(7000 - 3600)

"""What Celery says of an entry that does not say it itself: its name, and how late it may be sent."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
import redis
from celery.schedules import crontab

from redbeat_lite import cron
from tests.support.frozen import Clock
from tests.support.in_process import MakeApp, MakeBeat, one_turn
from tests.support.messages import queued

pytestmark = pytest.mark.usefixtures("clock")


class TestLongNames:
    def test_an_entry_that_celery_names_for_its_call_runs_under_the_beginning_of_that_name(
        self, make_app: MakeApp, make_beat: MakeBeat, clock: Clock, client: redis.Redis
    ) -> None:
        app = make_app()

        @app.task(name="reports.build", shared=False)
        def build(numbers: list[int]) -> None: ...

        for last in (60, 61):
            app.add_periodic_task(10.0, build.s(numbers=[*range(59), last]))
        names = [*one_turn(app, make_beat)]
        assert len(names) == 2
        assert all(len(name) == 200 and name.startswith("reports.build(numbers=[0, 1, 2, ") for name in names)
        clock.forward(10)
        beat = make_beat(app)
        beat.run_due()
        assert sorted(message.kwargs["numbers"][-1] for message in queued(client)) == [60, 61]


class TestStartingDeadline:
    def test_of_celery_bounds_how_late_a_crontab_is_sent(
        self, make_app: MakeApp, make_beat: MakeBeat, clock: Clock, client: redis.Redis
    ) -> None:
        half_hourly = crontab(minute="*/30")
        schedules = {
            "late": half_hourly,
            "ours": cron("*/30 * * * *"),
            "interval": 60.0,
            "told": half_hourly,
        }
        conf: dict[str, Any] = {name: {"task": "t", "schedule": schedule} for name, schedule in schedules.items()}
        conf["told"]["misfire"] = "coalesce"
        app = make_app(beat_schedule=conf, beat_cron_starting_deadline=120)
        one_turn(app, make_beat)
        clock.set(datetime(2026, 3, 2, 12, 34, 50, tzinfo=UTC))
        one_turn(app, make_beat)
        assert {message.entry for message in queued(client)} == {"interval", "told"}
        clock.set(datetime(2026, 3, 2, 13, 1, 50, tzinfo=UTC))
        one_turn(app, make_beat)
        assert {message.entry for message in queued(client)} == {"interval", "told", "late", "ours"}

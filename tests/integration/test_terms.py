"""What a new leader owes the schedule is done, even if the server goes away in the middle of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC

import pytest
import redis
from celery import Celery

from redbeat_lite import Entry, Scheduler, Schedules, every
from redbeat_lite.checks import server_warnings
from redbeat_lite.repair import Repair
from tests.support.server import Server


def test_a_term_that_broke_off_at_its_beginning_is_begun_anew(
    make_app: Callable[..., Celery], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app(beat_schedule={"configured": {"task": "add", "schedule": 60}})
    scheduler = Scheduler(app)
    with monkeypatch.context() as patch:

        def gone(*args: object) -> None:
            raise redis.ConnectionError("the server went away")

        patch.setattr(scheduler._config, "sync", gone)
        with pytest.raises(redis.ConnectionError):
            scheduler.run_due()
    assert scheduler.leader.leading
    scheduler.run_due()
    assert "configured" in Schedules(app)
    scheduler.close()


def test_mending_a_large_schedule_is_progress_for_the_watchdog(make_app: Callable[..., Celery], server: Server) -> None:
    app = make_app()
    Schedules(app).add_many(Entry(f"e{number}", "add", every(60)) for number in range(2500))
    scheduler = Scheduler(app)
    told: list[str] = []
    repair = Repair(scheduler.backend, scheduler.store, scheduler.keys, UTC, lambda name: None, told.append)
    with server.client() as client:
        client.delete(scheduler.keys.due)
        repair.run(round(time.time() * 1000))
        assert client.zcard(scheduler.keys.due) == 2500
    assert len(told) == 3
    scheduler.close()


def test_a_connection_that_breaks_while_the_server_is_looked_at_is_no_clean_bill() -> None:
    class Gone:
        def info(self, *sections: str) -> None:
            raise redis.ConnectionError("the server went away")

    with pytest.raises(redis.ConnectionError):
        server_warnings(Gone())

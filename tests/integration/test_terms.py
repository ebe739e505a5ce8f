"""What a new leader owes the schedule is done, even if the server goes away in the middle of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis
from celery import Celery

from redbeat_lite import Scheduler, Schedules


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

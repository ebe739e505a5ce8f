"""A project that is moving in; ``MOVING_URL`` is its server."""

from __future__ import annotations

import os
import sys

from celery import Celery

if "MOVING_ALONE" in os.environ:
    sys.modules["redbeat"] = None  # type: ignore[assignment]  # as if it were not installed

app = Celery("proj", broker=os.environ["MOVING_URL"])
app.conf.update(
    redbeat_redis_url=os.environ["MOVING_URL"],
    timezone="Europe/Berlin",
    result_expires=None,
    beat_schedule={"configured": {"task": "proj.sync", "schedule": 3600}},
)


@app.task(name="proj.sync")
def sync(*args: object) -> None:
    """Do nothing."""

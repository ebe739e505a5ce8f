"""The Celery project of the fault suite's workers. Its task bodies note themselves in the history."""

from __future__ import annotations

import os
import random
import time
from typing import Any

from celery import Task
from celery.exceptions import Reject

import redbeat_lite
from tests.acceptance.proj import app
from tests.harness.history import Body, HistoryLog

__all__ = ["app"]

#: Whether the package has no part in the worker, for comparison.
PLAIN = "PROJ_PLAIN" in os.environ

#: The message of a run that is killed comes again, whether its worker lives or not.
LATE = {"acks_late": True, "reject_on_worker_lost": True}

if not PLAIN:
    redbeat_lite.install(app)


def begin(task: Any, key: str | None) -> Body:
    """Note that a task's body begins."""
    request = task.request
    return HistoryLog.of_environment().body(
        request.id,
        key,
        entry=request.get("periodic_task_name"),
        attempt=request.retries,
        copies=not isinstance(task, redbeat_lite.Task),
    )


def work(self: Any, key: str) -> None:
    """Run for a random time, about as long as the interval of its entry."""
    body = begin(self, key)
    end = time.monotonic() + random.uniform(0.1, 0.6)
    while time.monotonic() < end:
        time.sleep(0.02)
        body.lives()
    body.ends(end="well")


def act(self: Any, seconds: float, end: str) -> None:
    """Run for a random time, and end as told.

    Parameters:
        seconds: the longest time.
        end: ``well``, ``ill``, ``either`` at random, or ``again``: it is retried, and then ends at
            random.
    """
    body = begin(self, None)
    time.sleep(random.uniform(0, seconds))
    if end == "either" or (end == "again" and self.request.retries):
        end = random.choice(["well", "ill"])
    retry = None
    if end == "again":
        try:
            retry = self.retry(countdown=random.choice([0, 0.2]), throw=False)
        except Reject:
            end = "ill"  # Its broker is away.
    body.ends(done=end != "again", end=end)
    if retry is not None:
        raise retry
    if end == "ill":
        raise ValueError("as it was told")


def register(name: str, body: Any, base: type, **options: Any) -> None:
    """Register a task with this body."""
    bound = {"bind": True, "shared": False, "throws": (ValueError,)}
    app.task(name=f"proj.{name}", base=base, **bound, **options)(body)


guarded_base = Task if PLAIN else redbeat_lite.Task
register("work", work, guarded_base, **LATE)
register("guarded", act, guarded_base, **LATE)
register("late", act, Task, **LATE)
register("plain", act, Task)

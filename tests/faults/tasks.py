"""The Celery project of the fault suite's workers, whose task bodies note themselves."""

from __future__ import annotations

import os
import random
import time
from contextlib import AbstractContextManager
from typing import Any

from celery import Task
from celery.exceptions import Reject

import redbeat_lite
from tests.acceptance.proj import app
from tests.harness.history import Body
from tests.harness.project import REQUEUED, noted

__all__ = ["app"]

#: Whether the worker runs without the package, for comparison.
PLAIN = "PROJ_PLAIN" in os.environ

if not PLAIN:
    redbeat_lite.install(app)


def run_of_entry(task: Any) -> AbstractContextManager[Body]:
    """Note a body, with its entry and its attempt, around the block that is the body."""
    request = task.request
    return noted(task, entry=request.get("periodic_task_name"), attempt=request.retries)


def work(self: Any, name: str) -> None:
    """Run for a random time, about as long as the interval of the entry of this name."""
    with run_of_entry(self) as body:
        end = time.monotonic() + random.uniform(0.1, 0.6)
        while time.monotonic() < end:
            time.sleep(0.02)
            body.lives()


def act(self: Any, seconds: float, end: str) -> None:
    """Run for a random time, and end as the entry says.

    Parameters:
        seconds: the longest time.
        end: ``well``, ``ill``, ``either`` at random, or ``again``: it is retried, and then ends at
            random.
    """
    with run_of_entry(self) as body:
        time.sleep(random.uniform(0, seconds))
        if end == "either" or (end == "again" and self.request.retries):
            end = random.choice(["well", "ill"])
        error: Exception = ValueError("as asked")
        if end == "again":
            try:
                error = self.retry(countdown=random.choice([0, 0.2]), throw=False)
            except Reject:
                end = "ill"  # Its broker is away.
        body.record["end"] = end
        if end != "well":
            raise error


def register(name: str, body: Any, base: type, **options: Any) -> None:
    """Register a task with this body."""
    bound = {"bind": True, "shared": False, "throws": (ValueError,)}
    app.task(name=f"proj.{name}", base=base, **bound, **options)(body)


guarded_base = Task if PLAIN else redbeat_lite.Task
register("work", work, guarded_base, **REQUEUED)
register("guarded", act, guarded_base, **REQUEUED)
register("late", act, Task, **REQUEUED)
register("plain", act, Task)

"""The app of the workers: each run of its tasks notes what it does in the file that ``PROJ_JOURNAL`` names."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

from celery import Task
from celery.exceptions import Reject

import redbeat_lite
from tests.acceptance.proj import app
from tests.faults.journal import Journal

__all__ = ["app"]

#: Whether nothing of this package is in the worker, for comparison.
PLAIN = "PROJ_PLAIN" in os.environ

if not PLAIN:
    redbeat_lite.install(app)

_journal = Journal(Path(os.environ["PROJ_JOURNAL"]))


_BASE = Task if PLAIN else redbeat_lite.Task

#: The message of a run that is killed comes again, whether its worker lives or not.
_LATE = {"acks_late": True, "reject_on_worker_lost": True}


@app.task(shared=False, name="proj.work", bind=True, base=_BASE, **_LATE)
def work(self: Any, key: str) -> None:
    """Runs for a time drawn by lot, about as long as the interval of its entry."""
    start, seconds = time.monotonic(), random.uniform(0.1, 0.6)
    _journal.note(key, self.request.id, start)
    while time.monotonic() < start + seconds:
        time.sleep(0.02)
        _journal.note(key, self.request.id, start)
    _journal.note(key, self.request.id, start, done=True)


def act(self: Any, seconds: float, end: str) -> None:
    """Runs for a time drawn by lot, and ends as it is told; notes its attempt, and behind that its end.

    Parameters:
        seconds: the longest time.
        end: ``well``, ``ill``, ``either`` by lot, or ``again``: is retried, and then ends by lot.
    """
    start, attempt = time.monotonic(), self.request.retries
    _journal.note(f"{attempt}", self.request.id, start)
    time.sleep(random.uniform(0, seconds))
    if end == "either" or (end == "again" and attempt):
        end = random.choice(["well", "ill"])
    if end == "again":
        try:
            retry = self.retry(countdown=random.choice([0, 0.2]), throw=False)
        except Reject:
            end = "ill"  # Its broker is away.
    _journal.note(f"{attempt} {end}", self.request.id, start, done=True)
    if end == "again":
        raise retry
    if end == "ill":
        raise ValueError("as it was told")


for _name, _base, _options in (("guarded", _BASE, _LATE), ("late", Task, _LATE), ("plain", Task, {})):
    app.task(act, shared=False, name=f"proj.{_name}", bind=True, base=_base, throws=(ValueError,), **_options)

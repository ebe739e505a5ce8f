"""The app of the workers: each run of its task notes that it lives in the file that ``PROJ_JOURNAL`` names."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

from celery import Task

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


# The message of a run that is killed comes again, whether its worker lives or not.
@app.task(shared=False, name="proj.work", bind=True, base=_BASE, acks_late=True, reject_on_worker_lost=True)
def work(self: Any, key: str) -> None:
    """Runs for a time drawn by lot, about as long as the interval of its entry."""
    start, seconds = time.monotonic(), random.uniform(0.1, 0.6)
    _journal.note(key, self.request.id, start)
    while time.monotonic() < start + seconds:
        time.sleep(0.02)
        _journal.note(key, self.request.id, start)
    _journal.note(key, self.request.id, start, done=True)

"""A process that resumes each run that failed or was cancelled, again and again, and cancels some.

The set ``runs`` in Redis holds their ids. While the key ``calm`` exists, none is cancelled.
"""

from __future__ import annotations

import random
import sys
import time
from contextlib import suppress
from typing import Any

from redbeat_lite import NotResumable, PipelineNotFound, PipelineRun
from redbeat_lite.pipeline.pipeline_store import store_of
from tests.harness.history import HistoryLog
from tests.pipeline.lab import note_successes
from tests.pipeline.steps import make_app


def main(url: str) -> None:
    app = make_app(url)
    log = HistoryLog.of_environment()
    client = store_of(app).client
    while True:
        for run_id in client.smembers("runs"):
            run = PipelineRun(app, run_id.decode())
            with suppress(NotResumable, PipelineNotFound):
                state = store_of(app).read(run.id)[0].get("state")
                if state in ("FAILED", "ABORTED"):
                    client.incr("resumes asked for")
                    note_successes(log, run)
                    if run.resume():
                        client.incr("resumes")
                elif state in ("RUNNING", "WAITING") and is_to_be_cancelled(client):
                    client.incrby("cancels", int(run.cancel(terminate=random.random() < 0.3)))
        time.sleep(0.01)  # so that other processes get a processor


def is_to_be_cancelled(client: Any) -> bool:
    """Return whether to cancel a run, by chance."""
    return random.random() < 0.002 and not client.exists("calm")


if __name__ == "__main__":
    main(sys.argv[1])

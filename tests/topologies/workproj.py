"""The app of the test of workers under an ACL: locks, waiters, retries and a pipeline; run as a module, the caller."""

from __future__ import annotations

import os
import time
from typing import Any

import celery
from celery import Celery

import redbeat_lite
from redbeat_lite import Once, Pipeline, PipelineTask
from redbeat_lite._base.clock import wall_ms
from redbeat_lite.entries.message import run_headers

app = Celery("proj", broker=os.environ["PROJ_URL"], task_cls="redbeat_lite:Task")
app.conf.redbeat_lite_once_lease = 2
app.conf.broker_transport_options = {"visibility_timeout": 3}
redbeat_lite.install(app)


@app.task(name="proj.wait", once=Once(key="k", on_conflict="wait"))
def wait() -> None:
    time.sleep(0.9)  # longer than a third of its lease, so that it is renewed


@app.task(name="proj.skip", once=Once(key="k2", on_conflict="skip"))
def skip() -> None:
    time.sleep(0.5)


@app.task(name="proj.retry", bind=True, max_retries=2)
def retry(self: Any) -> None:
    if self.request.retries == 0:
        raise self.retry(countdown=0)


@app.task(name="proj.plain", base=celery.Task)
def plain() -> None:
    """Of a class that knows nothing of locks."""


@app.task(name="first", base=PipelineTask)
def first(params: dict[str, Any]) -> dict[str, Any]:
    return {"y": 1}


@app.task(name="second", base=PipelineTask)
def second(params: dict[str, Any]) -> dict[str, Any]:
    return {"z": 2}


def main() -> None:
    for _ in range(3):
        wait.delay()
        skip.delay()
    for task in (retry, plain):
        task.apply_async(headers=run_headers("entry", wall_ms()))
    run = Pipeline(app, [["first", 1], ["second", 2]], {"x": 1}).start()
    with redbeat_lite.lock(app, "block", lease=3) as held:
        assert held
    run.wait(timeout=20)
    print(run.status().state)


if __name__ == "__main__":
    main()

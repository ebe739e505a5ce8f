"""The app of the promises: settings come as JSON in ``PROJ_CONF``, the broker in ``PROJ_URL``."""

from __future__ import annotations

import json
import os
import time

from celery import Celery

import redbeat_lite
from redbeat_lite import Once, PipelineTask

app = Celery("proj", broker=os.environ["PROJ_URL"], task_cls="redbeat_lite:Task")
app.conf.update(beat_max_loop_interval=300, result_expires=None)
app.conf.update(json.loads(os.environ.get("PROJ_CONF", "{}")))
redbeat_lite.install(app)


@app.task(name="proj.add")
def add(x: int = 0, y: int = 0) -> int:
    return x + y


@app.task(name="proj.fail")
def fail() -> None:
    raise ValueError("as asked")


@app.task(name="proj.sleep", once=Once(key="sleeper", on_conflict="wait"))
def sleep(seconds: float, path: str) -> None:
    """Write down when the body began and ended."""
    began = time.monotonic()
    time.sleep(seconds)
    with open(path, "a") as file:
        file.write(f"{began} {time.monotonic()}\n")


@app.task(name="proj.step", base=PipelineTask)
def step(params: dict[str, list[str]], name: str) -> dict[str, list[str]]:
    return {"done": [*params.get("done", []), name]}

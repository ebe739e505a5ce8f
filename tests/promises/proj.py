"""The app of the promises: settings come as JSON in ``PROJ_CONF``, the broker in ``PROJ_URL``."""

from __future__ import annotations

import json
import os
import time
from typing import Any

from celery import Celery
from celery.signals import before_task_publish

import redbeat_lite
from redbeat_lite import Once, PipelineTask

app = Celery("proj", broker=os.environ["PROJ_URL"], task_cls="redbeat_lite:Task")
app.conf.update(beat_max_loop_interval=300, result_expires=None)
app.conf.update(json.loads(os.environ.get("PROJ_CONF", "{}")))
redbeat_lite.install(app)


def route_slowly(*_: object, **__: object) -> None:
    """Router for ``task_routes`` that leaves each message where it is, after a while."""
    time.sleep(0.1)


def route_for_ever(*_: object, **__: object) -> None:
    """Router for ``task_routes`` that never returns."""
    time.sleep(3600)


def stamp(headers: dict[str, object], **_: object) -> None:
    """Receiver of ``before_task_publish`` that writes into each message what only this one has."""
    headers["stamped"] = headers["id"]


if app.conf.get("proj_stamps"):
    before_task_publish.connect(stamp)


@app.task(name="proj.add")
def add(x: int = 0, y: int = 0) -> int:
    return x + y


@app.task(name="proj.fail")
def fail() -> None:
    raise ValueError("as asked")


@app.task(name="proj.sleep", once=Once(key="sleeper", on_conflict="wait", lease=3))
def sleep(seconds: float, path: str) -> None:
    """Write down when the body began and ended."""
    began = time.monotonic()
    time.sleep(seconds)
    with open(path, "a") as file:
        file.write(f"{began} {time.monotonic()}\n")


@app.task(name="proj.step", base=PipelineTask)
def step(params: dict[str, list[str]], name: str) -> dict[str, list[str]]:
    return {"done": [*params.get("done", []), name]}


@app.task(name="proj.note")
def note(path: str, text: str, seconds: float = 0.0) -> None:
    """Write down a text, once the task is done."""
    time.sleep(seconds)
    with open(path, "a") as file:
        file.write(f"{text}\n")


@app.task(name="proj.slow", bind=True, acks_late=True)
def slow(self: Any, path: str, seconds: float) -> None:
    """Write down when the body began; with a late acknowledgement, so that it is delivered again."""
    with open(path, "a") as file:
        file.write(f"began {self.request.id}\n")
    time.sleep(seconds)
    with open(path, "a") as file:
        file.write(f"ended {self.request.id}\n")


@app.task(name="proj.broken", base=PipelineTask)
def broken(params: dict[str, Any]) -> None:
    raise ValueError("broken as asked")

"""The app of the promises: settings come as JSON in ``PROJ_CONF``, the broker in ``PROJ_URL``."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from celery import Celery
from celery import Task as CeleryTask
from celery.signals import before_task_publish

import redbeat_lite
from redbeat_lite import Once, PipelineTask, Scheduler
from redbeat_lite.events import (
    Dispatched,
    Failed,
    Hooks,
    IncidentClosed,
    IncidentOpened,
    LeaderGained,
    LeaderLost,
    Misfired,
    Quarantined,
    Skipped,
    Ticked,
    subscribe,
)
from redbeat_lite.pipeline import task_process
from tests.promises.gate import Gated

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


def shift_clock(path: Path) -> None:
    """Let the wall clock of this process differ from the machine's by the seconds in a file."""
    machine_time = time.time

    def shifted() -> float:
        return machine_time() + float(path.read_text())

    time.time = shifted


if app.conf.get("proj_stamps"):
    before_task_publish.connect(stamp)

if app.conf.get("proj_clock"):
    shift_clock(Path(app.conf.proj_clock))

if app.conf.get("proj_gated_entry"):
    app.conf.beat_schedule["gated"] = {"task": "proj.add", "schedule": Gated()}


class Journal(Hooks):
    """Hooks that write to a file which of them were called, each with the class of its event."""

    def __init__(self, path: str) -> None:
        self._path = path

    def _write(self, hook: str, event: object) -> None:
        with open(self._path, "a") as file:
            file.write(f"{hook} {type(event).__name__}\n")

    def dispatched(self, event: Dispatched) -> None:
        self._write("dispatched", event)

    def misfired(self, event: Misfired) -> None:
        self._write("misfired", event)

    def skipped(self, event: Skipped) -> None:
        self._write("skipped", event)

    def failed(self, event: Failed) -> None:
        self._write("failed", event)

    def quarantined(self, event: Quarantined) -> None:
        self._write("quarantined", event)

    def leader_gained(self, event: LeaderGained) -> None:
        self._write("leader_gained", event)

    def leader_lost(self, event: LeaderLost) -> None:
        self._write("leader_lost", event)

    def ticked(self, event: Ticked) -> None:
        self._write("ticked", event)

    def incident_opened(self, event: IncidentOpened) -> None:
        self._write("incident_opened", event)

    def incident_closed(self, event: IncidentClosed) -> None:
        self._write("incident_closed", event)


if app.conf.get("proj_heard"):
    subscribe(app, Journal(app.conf.proj_heard))


class FailingScheduler(Scheduler):
    """A scheduler whose turns fail for a reason that nobody foresaw."""

    def run_due(self) -> float:
        super().run_due()
        raise RuntimeError("as asked")


@app.task(name="proj.add")
def add(x: int = 0, y: int = 0) -> int:
    return x + y


@app.task(name="proj.plain", base=CeleryTask)
def plain() -> None:
    """A task of Celery's own class. A beat makes its messages by copying one of them."""


@app.task(name="proj.gated")
def gated() -> None: ...


@app.task(name="proj.fail")
def fail() -> None:
    raise ValueError("as asked")


@app.task(name="proj.again", bind=True, base=CeleryTask)
def again(self: Any) -> None:
    """Fail once; the retry is due in two seconds."""
    if not self.request.retries:
        raise self.retry(countdown=2)


@app.task(name="proj.break", base=CeleryTask)
def break_() -> None:
    """A task of Celery's own class. A thread of its worker reports its runs."""
    raise ValueError("broken without a lock")


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


@app.task(name="proj.refuse", bind=True, base=PipelineTask)
def refuse(self: PipelineTask, params: dict[str, Any]) -> tuple[bool, dict[str, Any]]:
    """A step that fails half way by returning False."""
    self.progress(50, "half way")
    return False, {}


@app.task(name="proj.process", bind=True, base=PipelineTask)
@task_process
def process(data: dict[str, Any]) -> tuple[bool, dict[str, Any]]:
    """A step of a task process."""
    return True, {"seen": data["params"]["day"] == "today"}


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

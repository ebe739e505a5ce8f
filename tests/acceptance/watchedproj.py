"""An app whose workers record, a task that fails while a key is there, and hooks that write down what they hear."""

from __future__ import annotations

import os
import time

import celery
import redis
from celery import Celery

from redbeat_lite import PipelineTask, install
from redbeat_lite.events import Hooks, IncidentClosed, IncidentOpened, subscribe

app = Celery("watched", broker=os.environ["PROJ_URL"])
app.conf.update(redbeat_lite_lease=1, worker_prefetch_multiplier=1)
app.conf.result_expires = None  # as in proj.py
install(app)
client = redis.Redis.from_url(os.environ["PROJ_URL"])


@app.task(name="proj.fragile", base=celery.Task, shared=False)
def fragile() -> None:
    if client.exists("broken"):
        raise ValueError("as asked")


@app.task(name="proj.stage", base=PipelineTask, shared=False)
def stage(params: dict[str, object]) -> None:
    while client.exists("held"):
        time.sleep(0.05)
    fragile()


class Told(Hooks):
    def incident_opened(self, event: IncidentOpened) -> None:
        client.rpush("told", f"{event.kind} {event.entry} {event.id}")

    def incident_closed(self, event: IncidentClosed) -> None:
        client.rpush("told", f"-{event.kind} {event.entry} {event.id}")


subscribe(app, Told())

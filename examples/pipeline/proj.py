"""A staged pipeline at work. In one shell: ``celery -A proj worker -l INFO``; in another: ``python proj.py``.

Needs a Redis or Valkey at redis://localhost:6379/0, or the address in ``BROKER_URL``.
"""

from __future__ import annotations

import os
import time
from typing import Any

from celery import Celery

import redbeat_lite
from redbeat_lite import Pipeline, PipelineTask
from redbeat_lite.pipeline import progress_line

URL = os.environ.get("BROKER_URL", "redis://localhost:6379/0")

app = Celery("proj", broker=URL, backend=URL)
redbeat_lite.install(app)


@app.task(base=PipelineTask, acks_late=True)
def load(params: dict[str, Any]) -> dict[str, Any]:
    """What a step returns is merged into the params of the stages after it."""
    time.sleep(1)
    return {"rows": [3, 1, 2]}


@app.task(base=PipelineTask, acks_late=True)
def clean(params: dict[str, Any]) -> tuple[bool, dict[str, Any]]:
    """``(True, {...})`` is the same; ``(False, reason)`` would end the pipeline."""
    time.sleep(1)
    return True, {"clean": sorted(params["rows"])}


@app.task(base=PipelineTask, acks_late=True)
def index(params: dict[str, Any]) -> None:
    """Runs beside ``clean``; nothing to add."""
    time.sleep(2)


@app.task(base=PipelineTask, acks_late=True)
def report(params: dict[str, Any]) -> dict[str, Any]:
    """Runs last, and sees everything."""
    return {"report": f"{params['day']}: {params['clean']}"}


def main() -> None:
    pipeline = Pipeline(app, [("load", 3), ("clean", 2), ("index", 2), ("report", 1)], params={"day": "2026-11-21"})
    run = pipeline.start()
    run.wait(timeout=60, progress=lambda status: print(progress_line(status)))
    print(run.params()["report"])


if __name__ == "__main__":
    main()

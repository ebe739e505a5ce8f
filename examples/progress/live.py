"""The steps of the example, and how a page hears of their progress: server-sent events, from one command of Redis each.

Needs a Redis or Valkey at redis://localhost:6379/0, or the address in ``BROKER_URL``.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from typing import Any

from celery import Celery

import redbeat_lite
from redbeat_lite import Pipeline, PipelineRun, PipelineTask

URL = os.environ.get("BROKER_URL", "redis://localhost:6379/0")

app = Celery("live", broker=URL, backend=URL)
redbeat_lite.install(app)

#: Seconds between two looks at a run.
PAUSE = 0.5


@app.task(bind=True, base=PipelineTask, acks_late=True)
def load(self: Any, params: dict[str, Any]) -> dict[str, Any]:
    for row in range(params["rows"]):
        self.progress(100 * row / params["rows"], f"row {row} of {params['rows']}")
        time.sleep(0.1)
    return {"loaded": params["rows"]}


@app.task(base=PipelineTask, acks_late=True)
def report(params: dict[str, Any]) -> dict[str, Any]:
    return {"report": f"{params['loaded']} rows"}


def start() -> str:
    """Start a run; its id."""
    return Pipeline(app, [("load", 2), ("report", 1)], params={"rows": 20}).start().id


def events(run_id: str) -> Iterator[str]:
    """The status of a run at each change, as server-sent events, until it has ended.

    A run that nobody knows raises at once, and not when the first event is asked for.
    """
    run = PipelineRun(app, run_id)
    run.status()
    return _events(run)


def _events(run: PipelineRun) -> Iterator[str]:
    said = None
    while said is None or not said.ended:
        status = run.status()
        # A comment where nothing is new: by it the server notices that nobody listens any more.
        yield f"data: {json.dumps(status.as_json())}\n\n" if status != said else ": \n\n"
        said = status
        time.sleep(0 if said.ended else PAUSE)


PAGE = """<!doctype html>
<meta charset="utf-8">
<title>Progress</title>
<p id="line">…</p>
<progress id="bar" max="100"></progress>
<ul id="steps"></ul>
<script>
const source = new EventSource(location.pathname + "/events");
source.onmessage = ({data}) => {
  const run = JSON.parse(data), steps = document.getElementById("steps");
  document.getElementById("line").textContent = run.progress;
  document.getElementById("bar").value = run.percent;
  steps.replaceChildren(...run.steps.map((step) => {
    const item = document.createElement("li");
    item.textContent = `${step.name}: ${step.state} ${step.note ?? ""}`;
    return item;
  }));
  if (run.ended) source.close();
};
</script>
"""

"""The tests' side of the project of pipelines: it starts runs, and reads how they went."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from celery import Celery
from celery.app.trace import build_tracer

from redbeat_lite import Pipeline, PipelineNotFound, PipelineRun
from redbeat_lite.pipeline import RunStatus, State, sweep
from tests.harness.history import HistoryLog
from tests.harness.workers import Worker
from tests.support.audit import Record
from tests.support.server import Server
from tests.support.waiting import eventually

APP = "tests.pipeline.steps"


def step_worker(url: str, *, queue: str = "celery", **options: Any) -> Worker:
    """Start a worker of the project of pipelines; the options are those of `Worker`."""
    return Worker(APP, queues=queue, PIPE_URL=url, **options)


class Lab:
    """Starts pipelines of a server's app, and notes them in the history."""

    def __init__(self, server: Server, app: Celery) -> None:
        self.server = server
        self.app = app
        self.client = server.client(decode_responses=True)
        self.log = HistoryLog.of_environment()
        self.marks = self.log.marks
        self.runs: list[PipelineRun] = []

    def sig(self, task: str = "proj.step", *, queue: str | None = None, **kwargs: Any) -> Any:
        """Return the signature of a step that does as its keyword arguments say."""
        signature = self.app.tasks[task].s(**kwargs)
        return signature.set(queue=queue) if queue else signature

    def start(
        self,
        *steps: Any,
        params: Any = None,
        run_id: str | None = None,
        **options: Any,
    ) -> PipelineRun:
        """Start a pipeline of these steps: name, signature, priority."""
        run = Pipeline(self.app, steps, params, **options).start(run_id)
        self.note_run(run, steps, at_once=options.get("at_once"))
        return run

    # -- the history -------------------------------------------------------------------------------

    def note_run(self, run: PipelineRun, steps: Sequence[Any], **fields: Any) -> None:
        """Note that a run was started; the fields are those of `tests.support.audit`."""
        priorities = sorted({priority for *_, priority in steps}, reverse=True)
        stages = {name: priorities.index(priority) for name, *_, priority in steps}
        self.log.append({"kind": "run", "id": run.id, "steps": stages, **fields})
        self.runs.append(run)

    def note_successes(self) -> None:
        """Note which steps of all runs have succeeded, and when, as the package reports it."""
        for run in self.runs:
            with suppress(PipelineNotFound):  # it has not begun, or was forgotten
                note_successes(self.log, run)

    def bodies(self, run: PipelineRun) -> list[Record]:
        """Return the records of the bodies of a run, in the order in which they began."""
        return self.log.bodies(run=run.id)

    def ended_bodies(self, run: PipelineRun) -> list[Record]:
        """Return the bodies of a run that finished, in the order in which they did."""
        return self.log.ended_bodies(run=run.id)

    def names(self, run: PipelineRun) -> list[str]:
        """Return the step of each body of a run, in the order in which the bodies began."""
        return [body["step"] for body in self.bodies(run)]

    def started(self, run: PipelineRun, *names: str) -> None:
        """Wait until these steps have started."""
        eventually(lambda: {*names} <= {*self.names(run)}, what=f"start of {names}")

    # -- signals -----------------------------------------------------------------------------------

    def go(self, run: PipelineRun) -> None:
        """Let steps with ``how="until"`` end."""
        self.marks.add(f"go-{run.id}")

    def fail(self, run: PipelineRun) -> None:
        """Let steps with ``how="fail when marked"`` fail."""
        self.marks.add(f"fail-{run.id}")

    def swept(self, run: PipelineRun, *, within: float = 60.0) -> RunStatus:
        """Sweep until the run has ended."""

        def ended() -> RunStatus | None:
            sweep(self.app)
            status = run.status()
            return status if status.ended else None

        status = eventually(ended, within=within, what=f"the end of {run.id}")
        assert status is not None
        return status


def note_successes(log: HistoryLog, run: PipelineRun) -> None:
    """Note which steps of a run have succeeded, and when.

    A test does so before it resumes a run, because a step that runs again gets a later end.
    """
    for step in run.status().steps:
        if step.state is State.SUCCEEDED and step.ended_at is not None:
            at = round(1000 * step.ended_at.timestamp())
            log.append({"kind": "success", "run": run.id, "step": step.name, "at": at})


def states(status: RunStatus) -> dict[str, str]:
    """Return step name -> state."""
    return {step.name: str(step.state) for step in status.steps}


def record(store: Any, run_id: str, step: int = 0, **changed: Any) -> dict[str, Any]:
    """Change these fields of a step's stored record, and return the whole record."""
    key = store.keys(run_id).steps
    fields: dict[str, Any] = json.loads(store.client.hget(key, step) or "{}")
    if changed:
        store.client.hset(key, step, json.dumps({**fields, **changed}))
    return {**fields, **changed}


def handle(lab: Lab, message: dict[str, Any]) -> Any:
    """Run a message as a worker does, and return what the task returned or raised."""
    args, kwargs, _ = json.loads(base64.b64decode(message["body"]))
    headers = message["headers"]
    task = lab.app.tasks[headers["task"]]
    trace = build_tracer(task.name, task, app=lab.app)
    request = {
        **headers,
        "args": args,
        "kwargs": kwargs,
        "delivery_info": {},
        "hostname": "test",
        "is_eager": False,
    }
    result, info, *_ = trace(headers["id"], args, kwargs, request)
    return result if info is None else info.retval

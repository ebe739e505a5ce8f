"""Real worker processes, and what the tests ask of runs."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import time
from collections.abc import Iterable
from typing import Any

from celery import Celery
from celery.app.trace import build_tracer

from redbeat_lite import Pipeline, PipelineRun
from redbeat_lite.pipeline import RunStatus, State, sweep
from redbeat_lite.pipeline.store import PipelineStore
from tests.support.process_table import descendants
from tests.support.processes import Process, celery
from tests.support.server import Server
from tests.support.waiting import eventually

APP = "tests.pipeline.pipeproj"


class Worker:
    """One ``celery worker`` process."""

    def __init__(
        self,
        url: str,
        *,
        concurrency: int = 2,
        queue: str = "celery",
        ready: bool = True,
        pool: str = "prefork",
        **env: Any,
    ) -> None:
        name = f"w{time.monotonic_ns()}@test"
        words = ["worker", "-P", pool, "-c", str(concurrency), "-n", name, "-Q", queue, "-l", "INFO"]
        self.process: Process = celery(APP, *words, "--without-gossip", "--without-mingle", **{"PIPE_URL": url, **env})
        if ready:
            self.ready()

    def ready(self) -> None:
        """Wait until it consumes."""
        self.process.says(r" ready\.", within=40)

    def kill(self) -> None:
        """The whole worker at once, as when its machine is gone."""
        for pid in [self.process.pid, *descendants(self.process.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        if self.process.alive:
            self.kill()
        self.process.destroy()


class Lab:
    """Starts pipelines and looks at what became of them."""

    def __init__(self, server: Server, app: Celery) -> None:
        self.server, self.app = server, app
        self.client = server.client(decode_responses=True)

    def sig(self, task: str = "proj.step", *, queue: str | None = None, **kwargs: Any) -> Any:
        """The signature of a step that does as its keyword arguments say."""
        signature = self.app.tasks[task].s(**kwargs)
        return signature.set(queue=queue) if queue else signature

    def start(self, *steps: Any, params: Any = None, run_id: str | None = None, **options: Any) -> PipelineRun:
        return Pipeline(self.app, steps, params, **options).start(run_id)

    def all(self, run: PipelineRun) -> list[dict[str, Any]]:
        """What the steps of a run wrote, in the order in which they did."""
        return [json.loads(line) for line in self.client.lrange(f"log:{run.id}", 0, -1)]

    def log(self, run: PipelineRun, event: str = "start") -> list[dict[str, Any]]:
        """What they wrote of one kind."""
        return [entry for entry in self.all(run) if entry["event"] == event]

    def names(self, run: PipelineRun, event: str = "start") -> list[str]:
        return [entry["step"] for entry in self.log(run, event)]

    def started(self, run: PipelineRun, *names: str, times: int = 1) -> None:
        """Wait until these steps have started so often."""
        eventually(
            lambda: all(self.names(run).count(name) >= times for name in names), within=20, what=f"start of {names}"
        )

    def go(self, run: PipelineRun) -> None:
        """Let steps with ``how="until"`` end."""
        self.client.set(f"go:{run.id}", 1)

    def fail(self, run: PipelineRun) -> None:
        """Let steps with ``how="fail when told"`` fail."""
        self.client.set(f"fail:{run.id}", 1)

    def swept(self, run: PipelineRun, *, within: float = 20.0) -> RunStatus:
        """Sweep until the run has ended."""

        def ended() -> RunStatus | None:
            sweep(self.app)
            status = run.status()
            return status if status.ended else None

        found = eventually(ended, within=within, what=f"the end of {run.id}")
        assert found is not None
        return found


def states(status: RunStatus) -> dict[str, str]:
    """Step name -> state."""
    return {step.name: str(step.state) for step in status.steps}


def record(store: PipelineStore, run_id: str, step: int = 0, **changed: Any) -> dict[str, Any]:
    """What is recorded of a step, after these fields of it were changed; it is empty where nothing is."""
    key = store.keys(run_id).steps
    found: dict[str, Any] = json.loads(store.client.hget(key, step) or "{}")
    if changed:
        store.client.hset(key, step, json.dumps({**found, **changed}))
    return {**found, **changed}


def in_order(entries: Iterable[dict[str, Any]]) -> bool:
    """Whether no step started before all of the stages before had ended for the first time."""
    starts: dict[int, float] = {}
    ends: dict[int, dict[str, float]] = {}
    for entry in entries:
        if entry["event"] == "start":
            starts[entry["stage"]] = min(starts.get(entry["stage"], entry["at"]), entry["at"])
        else:
            ends.setdefault(entry["stage"], {}).setdefault(entry["step"], entry["at"])
    return all(starts[stage] >= max(ends[stage - 1].values()) for stage in starts if stage)


def note_successes(client: Any, run: PipelineRun) -> None:
    """Remember when each step was first seen to have succeeded: one that ran again would end anew."""
    for step in run.status().steps:
        if step.state is State.SUCCEEDED and step.ended_at is not None:
            client.hsetnx(f"succeeded:{run.id}", step.name, step.ended_at.timestamp())


def after_its_success(lab: Lab, run: PipelineRun) -> list[str]:
    """The steps of a run that started once more after they had succeeded."""
    note_successes(lab.client, run)
    succeeded = lab.client.hgetall(f"succeeded:{run.id}")
    # The server tells of its ends in whole milliseconds.
    return [each["step"] for each in lab.log(run) if each["at"] > float(succeeded.get(each["step"], "inf")) + 0.001]


def at_one_moment(entries: Iterable[dict[str, Any]]) -> int:
    """How many steps, of those whose bodies came to their end, ran side by side at most."""
    began: dict[Any, float] = {}
    spans: list[tuple[float, float, str]] = []
    for each in entries:
        which = each["step"], each["id"], each["pid"]
        if each["event"] == "start":
            began[which] = each["at"]
        elif which in began:
            spans.append((began.pop(which), each["at"], each["step"]))
    return max((len({step for begun, ended, step in spans if begun <= at < ended}) for at, *_ in spans), default=0)


def handle(lab: Lab, message: dict[str, Any]) -> Any:
    """Run a message as a worker does; what the task returned or raised."""
    args, kwargs, _ = json.loads(base64.b64decode(message["body"]))
    headers = message["headers"]
    task = lab.app.tasks[headers["task"]]
    trace = build_tracer(task.name, task, app=lab.app)
    request = {**headers, "args": args, "kwargs": kwargs, "delivery_info": {}, "hostname": "test", "is_eager": False}
    _, info, *_ = returned = trace(headers["id"], args, kwargs, request)
    return info.retval if info is not None else returned[0]

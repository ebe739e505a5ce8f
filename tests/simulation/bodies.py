"""The tasks of the simulated project, and what their bodies do: take time, succeed, fail, ask for a retry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from celery import Celery
from celery.exceptions import Reject, Retry
from greenlet import getcurrent  # type: ignore[import-untyped]

from redbeat_lite import Once, PipelineTask, Task
from redbeat_lite.pipeline.publish import HEADER
from tests.simulation.story import Story
from tests.simulation.world import MICROS, Process, World

#: Seconds between two looks of a body at whether it has lost its lock.
_LOOK = 0.5

#: Options of the tasks whose message is acknowledged after the run.
_LATE: dict[str, Any] = {"acks_late": True, "reject_on_worker_lost": True}


class TaskFailed(Exception):
    """A body failed, as its seed wants."""


@dataclass(frozen=True)
class Kind:
    """One task.

    Parameters:
        longest: seconds that a body takes at most.
        fails: probability that a body fails.
        retries: probability that a body asks for a retry.
        options: of ``app.task``.
    """

    longest: float
    fails: float
    retries: float
    options: dict[str, Any]


_WAITS = Once(lease=2.0, on_conflict="wait")
_IN_LINE = Once(lease=2.0, on_conflict="wait", key="line")

#: Tasks of entries.
KINDS = {
    "project.run": Kind(0.6, 0.0, 0.0, {"base": Task}),
    "project.late": Kind(0.6, 0.1, 0.0, {"base": Task, **_LATE}),
    "project.retried": Kind(0.4, 0.1, 0.4, {"base": Task, "max_retries": 3, **_LATE}),
    "project.slow": Kind(4.0, 0.0, 0.0, {"base": Task, "time_limit": 2.0, **_LATE}),
    "project.asked": Kind(4.0, 0.0, 0.0, {"base": Task, "soft_time_limit": 2.0, **_LATE}),
    "project.skips": Kind(2.0, 0.1, 0.0, {"base": Task, "once": Once(lease=2.0), **_LATE}),
    "project.waits": Kind(0.5, 0.1, 0.1, {"base": Task, "once": _WAITS, **_LATE}),
    # All calls of this one have one key, so several wait in line for it.
    "project.line": Kind(0.8, 0.1, 0.1, {"base": Task, "once": _IN_LINE, **_LATE}),
    "project.alone": Kind(0.5, 0.1, 0.0, {"base": Task, "once": Once(lease=2.0, on_conflict="raise")}),
}

#: Tasks of entries with a once-lock that take longer than the time between two of their runs.
LONG = {"project.long": Kind(9.0, 0.1, 0.0, {"base": Task, **_LATE})}

#: Tasks that somebody calls, and some entries with a once-lock. A run of another entry that found the lock of one taken
#: would be left out, which no law excuses.
CALLED = {
    "project.queued": Kind(0.5, 0.1, 0.1, {"base": Task, "once": Once(lease=2.0, scope="queue"), **_LATE}),
}

#: Tasks of jobs.
STEPS = {
    "project.step": Kind(1.0, 0.0, 0.0, {"base": PipelineTask, **_LATE}),
    "project.quick_step": Kind(0.1, 0.0, 0.0, {"base": PipelineTask, **_LATE}),
    "project.early_step": Kind(1.0, 0.0, 0.0, {"base": PipelineTask}),
    "project.retried_step": Kind(0.5, 0.15, 0.4, {"base": PipelineTask, "max_retries": 3, **_LATE}),
    "project.locked_step": Kind(0.5, 0.0, 0.0, {"base": PipelineTask, "once": _WAITS, **_LATE}),
}


@dataclass(frozen=True)
class Step:
    """A step of a job."""

    job: str
    stage: int
    number: int
    #: Grows when the step is started again.
    round: int


@dataclass
class Body:
    """One run of a body."""

    process: Process
    #: For the audit.
    record: dict[str, Any]
    step: Step | None
    #: Whether the body has returned.
    has_returned: bool = False
    #: Whether the run has ended.
    is_settled: bool = False
    #: Whether it has ended in any way but a retry.
    is_over: bool = False

    def has_returned_as(self, number: int) -> bool:
        """Whether it is the body of this step of its job and has returned."""
        return self.step is not None and self.step.number == number and self.has_returned


class Bodies:
    """Runs the bodies of all workers, and notes them in the history."""

    def __init__(self, world: World, story: Story) -> None:
        self._world = world
        self._story = story
        #: Bodies whose run has not ended, by their thread.
        self._running: dict[Any, Body] = {}
        #: Bodies of steps.
        self.of_steps: list[Body] = []
        #: Called once with the process of the next body.
        self.at_next_begin: Callable[[Process], None] | None = None
        #: Ids of tasks that a worker was to kill and could not find.
        self.beyond_reach: set[str] = set()
        #: Called with each body that is killed because its task was revoked.
        self.at_kill: Callable[[Body], None] = lambda _body: None

    def register(self, app: Celery) -> None:
        """Give an app all tasks."""
        for name, kind in {**KINDS, **LONG, **CALLED, **STEPS}.items():
            app.task(name=name, bind=True, shared=False, **kind.options)(self._body(kind))

    def settle(self, *, was_limited: bool) -> None:
        """Note that the run of the current thread has ended.

        Parameters:
            was_limited: a time limit ended it just before; then the record has one end or the other.
        """
        body = self._running.pop(getcurrent(), None)
        if body is not None:
            body.record["done"] = body.is_over
            body.record["settled"] = not was_limited
            body.is_settled = True

    def died(self, process: Process) -> None:
        """Note that a process died with all runs in it."""
        for thread, body in list(self._running.items()):
            if body.process is process:
                if not body.is_over:
                    body.record["ended"] = self._story.now
                del self._running[thread]

    def kill(self, process: Process) -> None:
        """Note that all runs in a process are about to be killed because the task of one was revoked."""
        for body in list(self._running.values()):
            if body.process is process and not body.is_over:
                self.at_kill(body)

    def _body(self, kind: Kind) -> Any:
        def body(task: Any, *_args: Any, **_options: Any) -> None:
            self._run(task, kind)

        return body

    def _run(self, task: Any, kind: Kind) -> None:
        body = self._begin(task)
        try:
            self._take_time(task, kind.longest)
            self._draw_end(task, kind)
            body.has_returned = True
        except Retry:
            self._end(body, "again")
            raise
        except Reject:
            # Celery could not publish the retry, or has only lost the broker's reply to it. Then the retry runs.
            self._end(body, "again")
            body.record["finished"] = True
            raise
        except Exception:
            self._end(body, "ill")
            raise
        self._end(body, "well")

    def _begin(self, task: Any) -> Body:
        process = self._world.current
        assert process is not None
        now, request, once = self._story.now, task.request, task.once
        key = None if once is None else once.key
        record = {"kind": "body", "id": request.id, "key": key, "began": now, "ended": now, "done": False}
        record["attempt"] = request.retries
        self._story.records.append(record)
        self._story.counts["bodies"] += 1
        self._story.tell(f"runs {task.name} {request.id[:8]}, attempt {request.retries}")
        header = request.get(HEADER)
        body = Body(process, record, _step_of(header))
        self._running[getcurrent()] = body
        at_begin, self.at_next_begin = self.at_next_begin, None
        if at_begin is not None:
            at_begin(process)
        if header:
            self.of_steps.append(body)
        return body

    @property
    def _random(self) -> Random:
        process = self._world.current
        assert process is not None
        return process.random

    def _take_time(self, task: Any, longest: float) -> None:
        ends = self._world.now_us + int(self._random.uniform(0.01, longest) * MICROS)
        while self._world.now_us < ends:
            if task.once is not None and task.once.lost:
                self._story.tell("has lost its lock")
                return
            self._world.wait(min(_LOOK, (ends - self._world.now_us) / MICROS))

    def _draw_end(self, task: Any, kind: Kind) -> None:
        """Fail or ask for a retry, or return."""
        chance = self._random.random()
        if chance < kind.retries:
            raise task.retry(countdown=self._random.choice((0.2, 1.0, 2.0)))
        if chance < kind.retries + kind.fails:
            raise TaskFailed

    def _end(self, body: Body, end: str) -> None:
        body.record |= {"ended": self._story.now, "end": end}
        body.is_over = end != "again"


def _step_of(header: dict[str, Any] | None) -> Step | None:
    """Return the step that a message has in its header."""
    return Step(header["run"], header["stage"], header["step"], header["round"]) if header else None

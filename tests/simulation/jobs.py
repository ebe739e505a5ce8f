"""Somebody who starts jobs and calls tasks, and what must hold of every job."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import redis
from kombu.exceptions import OperationalError

from redbeat_lite import LockUnavailable, NotResumable, OnceSkipped, Pipeline, PipelineNotFound, PipelineRun
from redbeat_lite.pipeline import State
from redbeat_lite.pipeline.pipeline_keys import RunKeys
from redbeat_lite.pipeline.run_status import LIVE
from tests.simulation.apps import make_app
from tests.simulation.bodies import CALLED, Body
from tests.simulation.pipeline_entries import draw_steps

if TYPE_CHECKING:
    from tests.simulation.scenario import Scenario
    from tests.simulation.world import Process

#: Seconds between two calls, on average.
_PAUSE = 3.0

#: How likely a run is terminated whose step begins, and in how many seconds, at most.
_TERMINATED = 0.08
_WHILE_IT_RUNS = 0.5

#: How likely it is resumed then, and how many seconds later, at most.
_RESUMED = 0.4
_WHILE_KILLED = 0.1

#: Answers after which nobody knows whether a call has changed anything. Kombu raises an AttributeError if it loses its
#: connection while it declares a queue.
FAULTS = (redis.RedisError, OSError, OperationalError, LockUnavailable, AttributeError)

#: Answers that refuse a call.
REFUSALS = (PipelineNotFound, NotResumable, OnceSkipped)


@dataclass
class Job:
    """A pipeline that somebody has started.

    Parameters:
        stages: number of steps of each stage.
        began: epoch ms of the call.
    """

    id: str
    stages: list[int]
    began: int
    #: Whether the call has returned.
    has_started: bool = False
    #: Whether somebody has cancelled it, and perhaps resumed it.
    was_touched: bool = False


class Jobs:
    """Starts, cancels, terminates and resumes pipelines, and calls tasks."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._world = scenario.world
        self._story = scenario.story
        self._app = make_app(scenario.world, scenario.setup)
        scenario.bodies.register(self._app)
        self._random = scenario.world.random_for("jobs")
        self._meets = scenario.world.random_for("who terminates what begins")
        self._meetings = 0
        self._process: Process | None = None
        self.is_done = False
        self._calls = 0
        self._jobs: list[Job] = []

    def run(self) -> None:
        """Call one method after the other until somebody says that it is enough."""
        self._process = self._world.current
        while not self.is_done:
            self._calls += 1
            name = f"job call {self._calls}"
            self._random = self._world.random_for(name)
            self._world.wait(self._random.expovariate(1 / _PAUSE))
            if not self.is_done and self._story.happens(name):
                self._draw_act()()

    def _draw_act(self) -> Callable[[], None]:
        acts = [self._start, self._start, self._start, self._call_task, self._cancel, self._resume]
        return self._random.choice(acts)

    # -- acts --------------------------------------------------------------------------------------

    def _start(self) -> None:
        stages = [self._random.randint(1, 3) for _ in range(self._random.randint(1, 3))]
        job = Job(f"job-{len(self._jobs) + 1}", stages, self._story.now)
        steps = draw_steps(self._random, stages)
        at_once = self._random.choice((None, None, 1, 2))
        deadline = self._random.choice((None, None, None, 10.0))
        revoke_siblings = self._random.random() < 0.5
        pipeline = Pipeline(self._app, steps, revoke_siblings=revoke_siblings, at_once=at_once, deadline=deadline)
        self._jobs.append(job)
        if revoke_siblings:
            self._scenario.kills.want_siblings(job.id)
        if self._call(f"start {job.id} with stages {stages}", lambda: pipeline.start(job.id)):
            job.has_started = True

    def _call_task(self) -> None:
        name = self._random.choice([*CALLED, "project.line"])
        for _ in range(self._random.choice((1, 2, 5))):
            self._call(f"call {name}", self._app.tasks[name].delay)

    def _cancel(self) -> None:
        self._touch("cancel", lambda run: run.cancel())

    def _resume(self) -> None:
        self._touch("resume", lambda run: run.resume())

    def _touch(self, act: str, call: Callable[[PipelineRun], Any]) -> None:
        if self._jobs:
            job = self._random.choice(self._jobs[-3:])
            job.was_touched = True
            self._call(f"{act} {job.id}", lambda: call(PipelineRun(self._app, job.id)))

    # -- while a step begins -----------------------------------------------------------------------

    def meet(self, run_id: str) -> None:
        """Have somebody terminate a run now and then while a step of it runs, and somebody else resume it just then."""
        process = self._process
        if process is None or self.is_done or self._meets.random() >= _TERMINATED:
            return
        self._meetings += 1
        random = self._world.random_for(f"meeting {self._meetings}")
        seconds = random.uniform(0.0, _WHILE_IT_RUNS)
        if self._story.happens(f"terminate {self._meetings}"):
            self._world.after(seconds, lambda: _start(process, lambda: self._terminate(run_id)))
        if random.random() < _RESUMED and self._story.happens(f"resume {self._meetings}"):
            seconds += random.uniform(0.0, _WHILE_KILLED)
            self._world.after(seconds, lambda: _start(process, lambda: self._resume_it(run_id)))

    def _terminate(self, run_id: str) -> None:
        run = self._of_somebody(run_id)
        what = f"terminate {run_id[:8]}"
        self._scenario.kills.terminate(run_id, lambda: self._call(what, lambda: run.cancel(terminate=True)))

    def _resume_it(self, run_id: str) -> None:
        self._call(f"resume {run_id[:8]}", self._of_somebody(run_id).resume)

    def _of_somebody(self, run_id: str) -> PipelineRun:
        """A run, whoever has started it."""
        for job in self._jobs:
            job.was_touched |= job.id == run_id
        return PipelineRun(self._app, run_id)

    def _call(self, act: str, call: Callable[[], Any]) -> bool:
        """Call something; return whether it has certainly been done."""
        self._story.counts[f"job call: {act.split()[0]}"] += 1
        try:
            call()
        except REFUSALS as exc:
            self._story.tell(f"{act} is refused: {type(exc).__name__}")
            return False
        except FAULTS as exc:
            self._story.tell(f"{act} is unanswered: {type(exc).__name__}")
            return False
        except Exception as exc:
            self._story.violate("calls", f"{act} raised {type(exc).__name__}: {exc}")
            return False
        self._story.tell(act)
        return True

    def have_ended(self) -> bool:
        """Whether all jobs that the server knows have ended, by a look into its keys."""
        database = self._scenario.server.database
        keys = [RunKeys.of("redbeat-lite", job.id).run.encode() for job in self._jobs]
        runs: list[Any] = [database.find(key) for key in keys]
        return all(run is None or run[b"state"].decode() not in LIVE for run in runs)

    # -- at the end --------------------------------------------------------------------------------

    def judge(self) -> None:
        """Check what became of all jobs; call it in a process."""
        bodies: dict[str, list[Body]] = defaultdict(list)
        for body in self._scenario.bodies.of_steps:
            assert body.step is not None
            bodies[body.step.job].append(body)
        for job in self._jobs:
            if job.began > self._scenario.lost_data:
                self.judge_one(job, bodies[job.id])

    def judge_one(self, job: Job, bodies: list[Body]) -> None:
        """Check what became of a job, of which these are all bodies."""
        state = self._state(job)
        if state is not None:
            self._story.counts[f"jobs {state.value.lower()}"] += 1
        self._check_stages(job, bodies)
        if state is State.SUCCEEDED:
            self._check_success(job, bodies)
        if self._scenario.setup.is_strict and not job.was_touched:
            self._check_repetitions(job, bodies)

    def _state(self, job: Job) -> State | None:
        """Return the state of a job that exists."""
        try:
            status = PipelineRun(self._app, job.id).status()
        except PipelineNotFound:
            if job.has_started:
                self._story.violate("jobs end", f"{job.id} is not known, though it was started")
            return None
        if not status.ended:
            self._story.violate("jobs end", f"{job.id} has not ended: {status}")
        return status.state

    def _check_stages(self, job: Job, bodies: list[Body]) -> None:
        """No step begins before all steps of the stage before it have succeeded."""
        for body in bodies:
            assert body.step is not None
            for number in self._numbers(job, body.step.stage - 1):
                before = [other for other in bodies if other.has_returned_as(number)]
                if not any(other.record["ended"] <= body.record["began"] for other in before):
                    what = f"step {body.step.number} of {job.id} began, and step {number} before it had not succeeded"
                    self._story.violate("stages", what)

    def _check_success(self, job: Job, bodies: list[Body]) -> None:
        """Of a job that has succeeded, each step has."""
        for number in range(sum(job.stages)):
            if not any(body.has_returned_as(number) for body in bodies):
                self._story.violate("stages", f"{job.id} has succeeded without step {number}")

    def _check_repetitions(self, job: Job, bodies: list[Body]) -> None:
        """Each step succeeds once."""
        for number in range(sum(job.stages)):
            times = sum(body.has_returned_as(number) and body.is_settled for body in bodies)
            if times > 1:
                self._story.violate("stages", f"step {number} of {job.id} has succeeded {times} times")

    @staticmethod
    def _numbers(job: Job, stage: int) -> range:
        """The numbers of the steps of a stage; none before the first one."""
        first = sum(job.stages[: max(stage, 0)])
        return range(first, first + job.stages[stage]) if stage >= 0 else range(0)


def _start(process: Process, call: Callable[[], object]) -> None:
    process.start(call)

"""Pages of pipelines: the list of runs, and one run with its stages and steps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from ..pipeline import RunStatus, State, StepStatus
from ..pipeline.pipeline_run import PipelineRun
from .call import Call, SharedParts
from .http import Response

#: Most steps of a run in its table.
_STEPS = 100

#: Filter of the list -> the states of the runs that it shows.
_STATES = {"running": (State.RUNNING, State.WAITING), "failed": (State.FAILED,)}

#: How many stages before and after the present one are shown.
_AROUND = 5


def runs(call: Call) -> Response:
    """Show the unended runs and the latest ended ones; or one run by its id."""
    if "id" in call.params:
        return _run(call)
    state = call.params.get("state", "")
    states = _STATES.get(state, tuple(State))
    shown = call.read(_brief, states)
    return call.page("pipelines.html", runs=shown, states=_STATES, state=state)


def _run(call: Call) -> Response:
    return call.page("pipeline.html", **call.read(_read, call.id))


def _brief(site: SharedParts, states: tuple[State, ...]) -> Sequence[RunStatus]:
    return PipelineRun.brief(site.app, states)


def _read(site: SharedParts, run_id: str) -> dict[str, Any]:
    """Read a run, and return the data for its page."""
    status = PipelineRun(site.app, run_id).status()
    steps: Sequence[StepStatus] = status.steps
    if len(steps) > _STEPS:
        # Failed steps first, then those that run, then the others.
        steps = sorted(
            steps,
            key=lambda step: (step.state is not State.FAILED, step.state is not State.RUNNING),
        )
    return {"run": status, "stages": _stages(status), "steps": steps[:_STEPS]}


def _stages(run: RunStatus) -> list[tuple[int, int, int]]:
    """Return the stages around the present one: number, count of ended steps, count of steps."""
    stages = []
    for index, group in groupby(run.steps, key=lambda step: step.stage):
        if abs(index - run.stage) <= _AROUND:
            steps = [*group]
            done = sum(step.state is State.SUCCEEDED for step in steps)
            stages.append((index + 1, done, len(steps)))
    return stages

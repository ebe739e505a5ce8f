"""Pages of pipelines: the list of runs, and one run with its stages and steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from ..pipeline import RunStatus, State, StepStatus, progress_line
from ..pipeline.pipeline_run import PipelineRun
from .call import Call, SharedParts
from .http import Response

#: Most steps of a run in its table.
_STEPS = 100

#: Choices of the list -> the states that they show.
_STATES = {"running": (State.RUNNING, State.WAITING), "failed": (State.FAILED,)}

#: A stage with more steps than this has one bar for each state.
_BARS = 40

#: Number of stages before and after the present one with a drawing of their own.
_AROUND = 5

#: Least share of a bar for many steps, so that one failed step among a thousand is visible.
_LEAST_SHARE = 0.15

#: Signs of the states, in the order in which bars for many steps are drawn.
_SIGNS = {
    State.SUCCEEDED: "✓",
    State.FAILED: "✗",
    State.ABORTED: "-",
    State.RUNNING: "▸",
    State.WAITING: "·",
}


class Bar(NamedTuple):
    """A drawn step, or all steps of a stage in one state.

    Parameters:
        start, width: left edge and width of the bar, in percent of the stage.
        filled: done part, in percent of the bar's width.
        state: of the steps.
        text: the sign of the state, and the name or the number of the steps.
    """

    start: float
    width: float
    filled: float
    state: State
    text: str


class Band(NamedTuple):
    """A drawn stage, or several stages that are far from the present one.

    Parameters:
        label: which stages.
        done: how many of their steps have succeeded.
        bars: their steps.
    """

    label: str
    done: str
    bars: list[Bar]


def runs(call: Call) -> Response:
    """Show the runs that have not ended and the latest that have; or the one of an id.

    ``as=json`` returns the same data as the API and the command line.
    """
    if "id" in call.params:
        return _run(call)
    state = call.params.get("state", "")
    states = _STATES.get(state, tuple(State))
    shown = call.read(_brief, states)
    if call.wants_json:
        return call.json([run.as_json() for run in shown])
    return call.page("pipelines.html", runs=shown, states=_STATES, state=state)


def _run(call: Call) -> Response:
    data = call.read(_read, call.id)
    if call.wants_json:
        return call.json(data["run"].as_json())
    return call.page("pipeline.html", **data)


def _brief(site: SharedParts, states: tuple[State, ...]) -> Sequence[RunStatus]:
    return PipelineRun.brief(site.app, states)


def _read(site: SharedParts, run_id: str) -> dict[str, Any]:
    """Read a run and return the data of its page."""
    status = PipelineRun(site.app, run_id).status()
    steps: Sequence[StepStatus] = status.steps
    if len(steps) > _STEPS:
        # Failed steps first, then those that run, then the others.
        steps = sorted(
            steps,
            key=lambda step: (step.state is not State.FAILED, step.state is not State.RUNNING),
        )
    line = progress_line(status)
    return {"run": status, "bands": [*bands(status)], "steps": steps[:_STEPS], "line": line}


def bands(run: RunStatus) -> Iterator[Band]:
    """Yield the stages of a run as they are drawn, those far from the present one together."""
    stages = [[*steps] for _, steps in groupby(run.steps, key=lambda step: step.stage)]
    first = min(max(run.stage - _AROUND, 0), len(stages))
    end = min(run.stage + _AROUND + 1, len(stages))
    if first > 0:
        yield _band(stages, 0, first)
    for stage in range(first, end):
        yield _band(stages, stage, stage + 1)
    if end < len(stages):
        yield _band(stages, end, len(stages))


def _band(stages: Sequence[Sequence[StepStatus]], first: int, end: int) -> Band:
    """Return the band of the stages from ``first`` to the one before ``end``."""
    steps = [step for stage in stages[first:end] for step in stage]
    label = f"Stage {end}" if end == first + 1 else f"Stages {first + 1} to {end}"
    done = sum(step.state is State.SUCCEEDED for step in steps)
    return Band(label, f"{done} of {len(steps)}", [*_bars(steps)])


def _bars(steps: Sequence[StepStatus]) -> Iterator[Bar]:
    """Yield the bars of a stage, one per step or one per state."""
    groups = [[step] for step in steps]
    if len(steps) > _BARS:
        by_state = [[step for step in steps if step.state is state] for state in _SIGNS]
        groups = [group for group in by_state if group]
    shares = [max(len(group), _LEAST_SHARE * len(steps)) for group in groups]
    scale = 100 / sum(shares)
    start = 0.0
    for group, share in zip(groups, shares, strict=True):
        state = group[0].state
        name = group[0].name if len(group) == 1 else f"{len(group)} {state.lower()}"
        filled = sum(map(_percent_done, group)) / len(group)
        text = f"{_SIGNS[state]} {name}"
        yield Bar(round(start, 3), round(share * scale, 3), round(filled, 1), state, text)
        start += share * scale


def _percent_done(step: StepStatus) -> float:
    return step.percent or 0 if step.state is State.RUNNING else 100

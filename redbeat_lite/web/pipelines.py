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

#: Filter of the list -> the states of the runs that it shows.
_STATES = {"running": (State.RUNNING, State.WAITING), "failed": (State.FAILED,)}

#: Most steps of a stage that are drawn as one bar each. More steps are drawn as one bar per state.
_BARS = 40

#: How many stages before and after the present one are drawn as a band each.
_AROUND = 5

#: Least share of the width for one bar, so that one failed step among a thousand is visible.
_LEAST_SHARE = 0.15

#: State -> its sign. Bars for whole states are drawn in this order.
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
        filled: part that is done, in percent of the bar's width.
        state: state of the steps.
        text: sign of the state, with the name of the step or the count of the steps.
    """

    start: float
    width: float
    filled: float
    state: State
    text: str


class Band(NamedTuple):
    """A drawn stage, or several stages that are far from the present one.

    Parameters:
        label: the stages in words.
        done: count of their steps that have succeeded, in words.
        bars: their steps.
    """

    label: str
    done: str
    bars: list[Bar]


def runs(call: Call) -> Response:
    """Show the unended runs and the latest ended ones; or one run by its id.

    With ``as=json``, the response is the JSON that the API and the command line have, too.
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
    """Read a run, and return the data for its page."""
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
    """Yield the bands of a run. Stages that are far from the present one share a band."""
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
    """Return the band of the stages with the indexes from ``first`` to ``end - 1``."""
    steps = [step for stage in stages[first:end] for step in stage]
    label = f"Stage {end}" if end == first + 1 else f"Stages {first + 1} to {end}"
    done = sum(step.state is State.SUCCEEDED for step in steps)
    return Band(label, f"{done} of {len(steps)}", [*_bars(steps)])


def _bars(steps: Sequence[StepStatus]) -> Iterator[Bar]:
    """Yield the bars of a band: one per step, or with many steps one per state."""
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
    """Return which part of a step's bar is filled, in percent."""
    return step.percent or 0 if step.state is State.RUNNING else 100

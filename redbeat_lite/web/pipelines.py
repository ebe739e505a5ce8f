"""Runs of pipelines: which there are, and how one stands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, groupby
from typing import Any

from ..pipeline import RunStatus, State, StepStatus, progress_line
from ..pipeline.run import PipelineRun
from .messages import Response
from .site import Call

#: Steps of a run that are told, one by one.
_STEPS = 100

#: What may be asked for, in place of every run.
_STATES = {"running": (State.RUNNING, State.WAITING), "failed": (State.FAILED,)}

#: Steps of a stage that have a bar each; and stages before and after the present one that are drawn by themselves.
_EACH, _AROUND = 40, 5

#: The least share of a stage that a bar for many steps has: one that failed among a thousand shall be seen.
_LEAST = 0.15

#: From left to right, where those in one state are drawn together.
_SIGNS = dict(zip((State.SUCCEEDED, State.FAILED, State.ABORTED, State.RUNNING, State.WAITING), "✓✗-▸·", strict=True))

#: A step, or all steps of a stage in one state: where it begins, how wide it is and how far it is filled, in %.
Bar = tuple[float, float, float, State, str]


def runs(call: Call) -> Response:
    """Those that have not ended, and then the latest that have; or the one of an id.

    With ``as=json`` in the form of the API and of the command line.
    """
    if "id" in call.given:
        asked = PipelineRun(call.site.app, call.id)
        told = call.site.shared.read(("pipeline", asked.id), partial(_run, asked))
        return call.data(told["run"].as_json()) if call.wants_data else call.page("pipeline.html", **told)
    wanted = call.given.get("state", "")
    ask = partial(PipelineRun.brief, call.site.app, _STATES.get(wanted, tuple(State)))
    found = call.site.shared.read(("pipelines", wanted), ask)
    if call.wants_data:
        return call.data([run.as_json() for run in found])
    return call.page("pipelines.html", runs=found, states=_STATES, wanted=wanted)


def _run(asked: PipelineRun) -> dict[str, Any]:
    found = asked.status()
    steps: Sequence[StepStatus] = found.steps
    if len(steps) > _STEPS:
        steps = sorted(steps, key=lambda step: (step.state is not State.FAILED, step.state is not State.RUNNING))
    return {"run": found, "bands": [*bands(found)], "steps": steps[:_STEPS], "line": progress_line(found)}


def bands(run: RunStatus) -> Iterator[tuple[str, str, list[Bar]]]:
    """The stages from the first to the last, those far from the present one together: which, how much is done, bars."""
    stages = [[*steps] for _, steps in groupby(run.steps, key=lambda step: step.stage)]
    first, end = max(run.stage - _AROUND, 0), min(run.stage + _AROUND + 1, len(stages))
    for at, until in ((0, first), *((at, at + 1) for at in range(first, end)), (end, len(stages))):
        if steps := [*chain(*stages[at:until])]:
            done = sum(step.state is State.SUCCEEDED for step in steps)
            label = f"Stage {until}" if until == at + 1 else f"Stages {at + 1} to {until}"
            yield label, f"{done} of {len(steps)}", [*_bars(steps)]


def _bars(steps: Sequence[StepStatus]) -> Iterator[Bar]:
    alike = ([step for step in steps if step.state is state] for state in _SIGNS)
    parts: Iterable[Sequence[StepStatus]] = alike if len(steps) > _EACH else ([step] for step in steps)
    shares = [(max(len(part), _LEAST * len(steps)), part) for part in parts if part]
    x, scale = 0.0, 100 / sum(share for share, _ in shares)
    for share, part in shares:
        filled = sum(100 if step.state is not State.RUNNING else step.percent or 0 for step in part) / len(part)
        state, words = part[0].state, part[0].name if len(part) == 1 else f"{len(part)} {part[0].state.lower()}"
        yield round(x, 3), round(share * scale, 3), round(filled, 1), state, f"{_SIGNS[state]} {words}"
        x += share * scale

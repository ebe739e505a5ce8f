"""Runs of pipelines: which there are, and how one stands."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from ..pipeline import PipelineRun, State, StepStatus, progress_line
from .messages import Response
from .site import Call
from .stages import bands

#: Steps of a run that are told, one by one.
_STEPS = 100

#: What may be asked for, in place of every run.
_STATES = {
    "running": (State.RUNNING, State.WAITING),
    "failed": (State.FAILED,),
}


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

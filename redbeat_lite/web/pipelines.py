"""Runs of pipelines: which there are, how one stands; going on with one, and ending one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from ..pipeline import PipelineRun, State, StepStatus, progress_line
from .messages import Response
from .rendering import link
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
        asked = _asked(call)
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


def resume(call: Call) -> Response:
    """Go on with one that has ended before its time."""
    return _done(call, did=_asked(call).resume(note=call.given.get("note", "")))


def cancel(call: Call) -> Response:
    """End one before its time."""
    note = call.given.get("note", "")
    return _done(call, did=_asked(call).cancel(terminate="terminate" in call.given, note=note))


def _asked(call: Call) -> PipelineRun:
    return PipelineRun(call.site.app, call.given.get("id", ""))


def _done(call: Call, *, did: bool) -> Response:
    """Lead to the run. Where somebody else was first, it tells by itself how it stands."""
    return Response.leading_to(link("pipelines", id=call.given["id"], did=call.request.path[1:] if did else None))

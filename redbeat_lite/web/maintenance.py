"""Pages for operators: freezes, backfills, locks, quarantine, pipelines, the doctor."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

from .._base.times import MAX_MS, from_ms
from ..once.locks import locks as locks_of
from ..operate.doctor import examine
from ..operate.texts import backfill_status
from ..pipeline import RunStatus, State, StepStatus
from ..pipeline.pipeline_run import PipelineRun
from .actions import BACKFILL_OPTIONS
from .call import Params, SharedParts, View

#: Maximum number of locks, or quarantined entries, on a page.
_SHOWN = 200

#: Maximum number of entries that the doctor examines for a page. They take a tenth of a second.
_EXAMINED = 500

#: Maximum number of steps of a run in its table.
_STEPS = 100

#: Filter of the list -> the states of the runs that it shows.
_STATES = {"running": (State.RUNNING, State.WAITING), "failed": (State.FAILED,)}

#: How many stages before and after the present one are shown.
_AROUND = 5


def freezes(site: SharedParts, params: Params) -> View:
    """Show the freezes that are in force, and a form that makes another freeze."""
    return View("freezes.html", {"freezes": [*site.schedules.freezes]})


def backfills(site: SharedParts, params: Params) -> View:
    """Show all backfills, the newest first, and a form that starts another backfill."""
    stored = [*site.schedules.backfills]
    rows = [(backfill, backfill_status(backfill)) for backfill in reversed(stored)]
    return View("backfills.html", {"backfills": rows, "options": BACKFILL_OPTIONS})


def locks(site: SharedParts, params: Params) -> View:
    """Show the once-locks that expire first, with the tasks that hold them or wait for them."""
    listed = locks_of(site.app).list(_SHOWN + 1)
    return View("locks.html", {"locks": listed[:_SHOWN], "more": len(listed) > _SHOWN})


def quarantine(site: SharedParts, params: Params) -> View:
    """Show the entries in quarantine with their errors."""
    records = site.schedules.quarantined(_SHOWN + 1)
    rows = []
    for name in sorted(records)[:_SHOWN]:
        # The record is shown as Redis has it, so its time may be missing or wrong.
        at = records[name].get("at")
        since = from_ms(at) if isinstance(at, int) and 0 <= at <= MAX_MS else None
        rows.append((name, since, str(records[name].get("error"))))
    return View("quarantine.html", {"entries": rows, "more": len(records) > _SHOWN})


def doctor(site: SharedParts, params: Params) -> View:
    """Show the findings of the doctor, or a button that asks for them."""
    data: dict[str, Any] = {"at": None, "examined": _EXAMINED}
    if "examine" in params:
        data["at"] = datetime.now(UTC)
        data["findings"] = examine(site.app, limit=_EXAMINED)
    return View("doctor.html", data)


def pipelines(site: SharedParts, params: Params) -> View:
    """Show the unended runs and the latest ended ones; or one run by its id."""
    if "id" in params:
        return _pipeline(site, params["id"])
    state = params.get("state", "")
    shown = PipelineRun.brief(site.app, _STATES.get(state, tuple(State)))
    return View("pipelines.html", {"runs": shown, "states": _STATES, "state": state})


def _pipeline(site: SharedParts, run_id: str) -> View:
    """Show one run of a pipeline, with its stages and steps."""
    status = PipelineRun(site.app, run_id).status()
    steps: Sequence[StepStatus] = status.steps
    if len(steps) > _STEPS:
        # Show failed steps first, then running steps, then all others, because False sorts first.
        steps = sorted(
            steps,
            key=lambda step: (step.state is not State.FAILED, step.state is not State.RUNNING),
        )
    data = {"run": status, "stages": _stages(status), "steps": steps[:_STEPS]}
    return View("pipeline.html", data)


def _stages(run: RunStatus) -> list[tuple[int, int, int]]:
    """Return a tuple for each stage around the present one.

    Its parts are the number of the stage, from 1, the count of its succeeded steps, and the count
    of all its steps.
    """
    stages = []
    # The steps are in the order of their stages, which count from 0.
    for index, group in groupby(run.steps, key=lambda step: step.stage):
        if abs(index - run.stage) <= _AROUND:
            steps = [*group]
            done = sum(step.state is State.SUCCEEDED for step in steps)
            stages.append((index + 1, done, len(steps)))
    return stages

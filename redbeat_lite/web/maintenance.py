"""Pages for operators: freezes, backfills, locks, quarantine, pipelines, the doctor."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

from .._base.times import MAX_MS, from_ms
from ..entries.backfill import Backfill
from ..entries.freezes import Freeze
from ..once.locks import LockInfo
from ..once.locks import locks as locks_of
from ..operate.doctor import examine
from ..operate.examination import Finding
from ..operate.texts import backfill_status
from ..pipeline import RunStatus, State, StepStatus
from ..pipeline.pipeline_run import PipelineRun
from .actions import BACKFILL_OPTIONS
from .call import Call, SharedParts
from .http import Response

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


def freezes(call: Call) -> Response:
    """Show the freezes that are in force, and a form for another one."""
    return call.page("freezes.html", freezes=call.read(_freezes))


def _freezes(site: SharedParts) -> list[Freeze]:
    return [*site.schedules.freezes]


def backfills(call: Call) -> Response:
    """Show all backfills, the newest first, and a form for another one."""
    rows = [(backfill, backfill_status(backfill)) for backfill in reversed(call.read(_backfills))]
    return call.page("backfills.html", backfills=rows, options=BACKFILL_OPTIONS)


def _backfills(site: SharedParts) -> list[Backfill]:
    return [*site.schedules.backfills]


def locks(call: Call) -> Response:
    """Show all once-locks, or the one of a key, with their holders and waiters."""
    (key,) = call.texts("key")
    listed = call.read(_locks, key)
    return call.page("locks.html", locks=listed[:_SHOWN], more=len(listed) > _SHOWN)


def _locks(site: SharedParts, key: str) -> Sequence[LockInfo]:
    listing = locks_of(site.app)
    if not key:
        return listing.list(_SHOWN + 1)
    lock = listing.get(key)
    return [] if lock is None else [lock]


def quarantine(call: Call) -> Response:
    """Show the entries in quarantine with their errors."""
    records = call.read(_quarantine)
    rows = []
    for name in sorted(records)[:_SHOWN]:
        # The record is shown as Redis has it, so its time may be missing or wrong.
        at = records[name].get("at")
        since = from_ms(at) if isinstance(at, int) and 0 <= at <= MAX_MS else None
        rows.append((name, since, call.visible_error(str(records[name].get("error")))))
    return call.page("quarantine.html", entries=rows, more=len(records) > _SHOWN)


def _quarantine(site: SharedParts) -> dict[str, dict[str, Any]]:
    return site.schedules.quarantined(_SHOWN + 1)


def doctor(call: Call) -> Response:
    """Show the findings of the doctor, or a button that asks for them."""
    at = None
    findings = None
    if "examine" in call.params:
        at, findings = call.read(_examine)
    return call.page("doctor.html", at=at, findings=findings, examined=_EXAMINED)


def _examine(site: SharedParts) -> tuple[datetime, list[Finding]]:
    return datetime.now(UTC), examine(site.app, limit=_EXAMINED)


def pipelines(call: Call) -> Response:
    """Show the unended runs and the latest ended ones; or one run by its id."""
    if "id" in call.params:
        return _pipeline(call)
    state = call.params.get("state", "")
    states = _STATES.get(state, tuple(State))
    shown = call.read(_pipelines, states)
    return call.page("pipelines.html", runs=shown, states=_STATES, state=state)


def _pipeline(call: Call) -> Response:
    return call.page("pipeline.html", **call.read(_read_pipeline, call.id))


def _pipelines(site: SharedParts, states: tuple[State, ...]) -> Sequence[RunStatus]:
    return PipelineRun.brief(site.app, states)


def _read_pipeline(site: SharedParts, run_id: str) -> dict[str, Any]:
    """Read a run, and return the data for its page."""
    status = PipelineRun(site.app, run_id).status()
    steps: Sequence[StepStatus] = status.steps
    if len(steps) > _STEPS:
        # Failed steps first, then those that run, then the others, because False sorts first.
        steps = sorted(
            steps,
            key=lambda step: (step.state is not State.FAILED, step.state is not State.RUNNING),
        )
    return {"run": status, "stages": _stages(status), "steps": steps[:_STEPS]}


def _stages(run: RunStatus) -> list[tuple[int, int, int]]:
    """Return the stages around the present one: number from 1, succeeded steps, all steps."""
    stages = []
    # The steps are in the order of their stages, which count from 0.
    for index, group in groupby(run.steps, key=lambda step: step.stage):
        if abs(index - run.stage) <= _AROUND:
            steps = [*group]
            done = sum(step.state is State.SUCCEEDED for step in steps)
            stages.append((index + 1, done, len(steps)))
    return stages

"""Status of a run and of its steps, as plain values. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple

from .._base import times
from .._base.errors import CorruptEntry
from .._base.public import public_in
from .definition import Definition, Step, task_id

#: Cache of definitions, because a caller that follows a run reads the same text at each look.
_decode = lru_cache(maxsize=16)(Definition.decode)


@public_in("redbeat_lite.pipeline")
class State(StrEnum):
    """State of a run, or of a step, which is never ``GONE``.

    A ``WAITING`` run waits for its turn among the runs of its entry.
    """

    WAITING = "WAITING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    #: A run that was cancelled, or left out because another run of its entry had not ended; or a
    #: step that did not run to its end because its run had ended.
    ABORTED = "ABORTED"
    #: The record of the run has expired after its end.
    GONE = "GONE"


#: Fields of a run that are read for a status without steps.
BRIEF = ("state", "stage", "sizes", "left", "error", "entry", "created", "ended")

#: States of a run that has not ended.
LIVE = (State.RUNNING, State.WAITING)

#: State by name. For 1,000 steps a lookup is faster than 1,000 calls of ``State``.
_STATES = {str(state): state for state in State}


@public_in("redbeat_lite.pipeline")
class StepStatus(NamedTuple):
    """One step of a run.

    Parameters:
        name: of the step.
        task: registered name of its task.
        stage: number of its stage, from 0.
        state: its state.
        task_id: of its Celery task; known before it is published.
        started_at: its first start since the run was started or resumed.
        ended_at: its end.
        error: why it failed.
        attempt: number of Celery's retry, from 0.
        round: how often it was started again, after its worker had died or the run was resumed.
        worker: the worker that runs or ran it.
        percent, note: its last :meth:`PipelineTask.progress`.
    """

    name: str
    task: str
    stage: int
    state: State
    task_id: str
    started_at: datetime | None = None
    ended_at: datetime | None = None
    error: str | None = None
    attempt: int = 0
    round: int = 0
    worker: str | None = None
    percent: float | None = None
    note: str | None = None

    @property
    def how_far(self) -> str:
        """Its progress for people; empty if it reported none, or has succeeded."""
        if self.percent is None or self.state is State.SUCCEEDED:
            return ""
        return f"{self.percent:.3g} %"


@public_in("redbeat_lite.pipeline")
@dataclass(frozen=True, slots=True)
class RunStatus:
    """Status of a run.

    Parameters:
        id: of the run.
        state: its state.
        stage: number of its current stage, or of its stage at the end, from 0.
        stages: number of stages.
        steps: all steps, in the order of their stages.
        error_step: name of the step that ended the run.
        error: why.
        created_at, ended_at: its start and its end.
        deadline: when it fails if it has not ended; ``None``: it has none, or waits for its turn.
        entry: name of the entry that started it, if one did.
        done, total: number of succeeded steps, and of all steps.
        waits_for: id of the run of its entry for which it waits.
    """

    id: str
    state: State
    stage: int = 0
    stages: int = 0
    steps: tuple[StepStatus, ...] = ()
    error_step: str | None = None
    error: str | None = None
    created_at: datetime | None = None
    ended_at: datetime | None = None
    deadline: datetime | None = None
    entry: str | None = None
    done: int = 0
    total: int = 0
    waits_for: str | None = None

    @property
    def why(self) -> str | None:
        """Why it ended before its time, with the step that ended it; ``None`` without a reason."""
        return ": ".join(filter(None, (self.error_step, self.error))) or None

    @property
    def ended(self) -> bool:
        """Whether no further step will start."""
        return self.state not in LIVE

    @property
    def percent(self) -> int:
        """Its progress. Each step has the same weight, and its own progress counts in part."""
        partial = sum(step.percent or 0 for step in self.steps if step.state is not State.SUCCEEDED)
        return int((100 * self.done + partial) / (self.total or 1))

    def as_json(self) -> dict[str, Any]:
        """Return all of it for ``json.dumps``, with instants in ISO 8601.

        The form is the same on the page and the command line: the fields of this class and of
        :class:`StepStatus`, ``why``, ``percent``, ``ended``, and :func:`progress_line` as
        ``progress``.
        """
        values = {field.name: _plain(getattr(self, field.name)) for field in fields(self)}
        values["steps"] = [
            dict(zip(step._fields, map(_plain, step), strict=True)) for step in self.steps
        ]
        values["why"] = self.why
        values["percent"] = self.percent
        values["ended"] = self.ended
        values["progress"] = progress_line(self)
        return values

    def step(self, name: str) -> StepStatus:
        """Return the step of this name.

        Raises:
            KeyError: there is none.
        """
        for step in self.steps:
            if step.name == name:
                return step
        raise KeyError(name)


@public_in("redbeat_lite.pipeline")
def progress_line(status: RunStatus) -> str:
    """Return one plain line about a run, for a log or a terminal."""
    if status.state is State.GONE:
        return f"{status.id}  GONE"
    parts = [
        status.id,
        f"{status.state:<9}",
        f"stage {status.stage + 1}/{status.stages}",
        f"{status.done}/{status.total} steps",
    ]
    if status.waits_for:
        parts.append(f"waits for {status.waits_for}")
    running = []
    for step in status.steps:
        if step.state is State.RUNNING:
            running.append(f"{step.name} {step.how_far}".strip())
    if running:
        more = f" and {len(running) - 3} more" if len(running) > 3 else ""
        parts.append(f"running: {', '.join(running[:3])}{more}")
    first_line, *_ = (status.error or "").splitlines() or [""]
    if status.error_step is not None:
        parts.append(f"{status.error_step} failed: {first_line[:120]}")
    elif first_line:
        parts.append(first_line[:120])
    return "  ".join(parts)


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


def read(run_id: str, run: Mapping[str, str], steps: str, alive: Mapping[str, bool]) -> RunStatus:
    """Return the status of a run from its record in Redis.

    Parameters:
        run: the hash of the run.
        steps: JSON of ``pipeline/status.lua``.
        alive: whether tasks of an ended run still run, by their ids.

    Raises:
        CorruptEntry: it is no run, or a newer version of this package wrote it.
    """
    try:
        return _read(run_id, run, steps, alive)
    except (
        LookupError,
        ValueError,
        ArithmeticError,
        TypeError,
        AttributeError,
        CorruptEntry,
    ) as exc:
        why = f"{type(exc).__name__}: {exc}"
        raise CorruptEntry(f"the record of pipeline run {run_id!r} cannot be read: {why}") from exc


def _read(
    run_id: str, run: Mapping[str, str], steps_json: str, alive: Mapping[str, bool]
) -> RunStatus:
    """Return the status of a run with its steps.

    Parameters:
        alive: task id -> whether the task still runs.
    """
    definition = _decode(run["definition"])
    recorded = json.loads(steps_json)
    status = brief(run_id, run)
    running = alive if status.ended else None
    steps: list[StepStatus] = []
    for stage, stage_steps in enumerate(definition.stages):
        for step in stage_steps:
            number = len(steps)
            record = recorded.get(str(number), {})
            steps.append(_step(run_id, number, stage, step, record, running))
    error_step = run.get("error_step")
    deadline = None
    if run.get("deadline") and status.state is not State.WAITING:
        deadline = _time(int(run["since"]) + int(run["deadline"]))
    return replace(
        status,
        steps=tuple(steps),
        error_step=None if error_step is None else steps[int(error_step)].name,
        deadline=deadline,
        done=sum(step.state is State.SUCCEEDED for step in steps),
    )


def brief(run_id: str, run: Mapping[str, str]) -> RunStatus:
    """Return a status without steps from the fields ``BRIEF`` of a run.

    Steps that succeeded after the end of the run do not count as done.

    Raises:
        LookupError, ValueError, ArithmeticError: it is no run.
    """
    stage = int(run["stage"])
    sizes = [int(size) for size in run["sizes"].split(",")]
    return RunStatus(
        run_id,
        State(run["state"]),
        stage,
        len(sizes),
        error=run.get("error"),
        created_at=_time(run["created"]),
        ended_at=_time(run.get("ended")),
        entry=run.get("entry") or None,
        done=sum(sizes[: stage + 1]) - int(run["left"]),
        total=sum(sizes),
    )


def _step(
    run_id: str,
    number: int,
    stage: int,
    step: Step,
    record: Mapping[str, Any],
    alive: Mapping[str, bool] | None,
) -> StepStatus:
    """Return the status of one step.

    Parameters:
        record: its stored fields; empty if it was never published.
        alive: task id -> whether the task still runs; ``None`` if the run has not ended.
    """
    round_ = record.get("round", 0)
    # The recorded id is the same as the derived one, and cheaper.
    ident = record.get("task") or task_id(run_id, stage, number, round_)
    state = _STATES[record.get("state", "WAITING")]
    if alive is not None:
        has_died = state is State.RUNNING and not alive.get(ident, True)
        if state is State.WAITING or has_died:
            state = State.ABORTED
    return StepStatus(
        step.name,
        step.task,
        stage,
        state,
        ident,
        _time(record.get("started")),
        _time(record.get("ended")),
        record.get("error"),
        record.get("attempt", 0),
        round_,
        record.get("worker"),
        record.get("percent"),
        record.get("note"),
    )


def _time(raw: str | int | None) -> datetime | None:
    return None if raw is None else times.from_ms(int(raw))

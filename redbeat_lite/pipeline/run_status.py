"""Status of a run and of its steps, as plain values. Nothing in this module asks a server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

from .._base import times
from .._base.json_values import loads
from .._base.public import public_in
from .definition import Ref, Step, decode_cached


@public_in("redbeat_lite.pipeline")
class State(StrEnum):
    """State of a run or of a step. A step is never ``GONE``.

    A ``WAITING`` run waits for its turn among the runs of its entry.
    """

    WAITING = "WAITING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    #: Of a run: it was cancelled, or left out because another run of its entry had not ended. Of a
    #: step: its run ended before the step did.
    ABORTED = "ABORTED"
    #: The record of the run has expired after its end.
    GONE = "GONE"


#: Fields of a run that are read for a status without steps.
BRIEF = ("state", "stage", "ends", "left", "error", "entry", "created", "ended")

#: States of a run that has not ended.
LIVE = (State.RUNNING, State.WAITING)


@public_in("redbeat_lite.pipeline")
class StepStatus(NamedTuple):
    """One step of a run.

    Parameters:
        name: name of the step.
        task: registered name of its task.
        stage: number of its stage, from 0.
        state: state of the step.
        task_id: id of its Celery task; known before the step is published.
        started_at: its first start; if a resume runs it again, its first start after the resume.
        ended_at: end of the step.
        error: why it failed.
        attempt: number of Celery's retry, from 0.
        round: how often it was started again, after its worker had died or the run was resumed.
        worker: the worker that runs it or has run it.
        percent, note: the last values that it reported by :meth:`PipelineTask.progress`.
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
        """Progress of the step for people; empty if it has reported none, or has succeeded."""
        if self.percent is None or self.state is State.SUCCEEDED:
            return ""
        return f"{self.percent:.3g} %"


@public_in("redbeat_lite.pipeline")
@dataclass(frozen=True, slots=True)
class RunStatus:
    """Status of a run.

    Parameters:
        id: id of the run.
        state: state of the run.
        stage: index of its current stage, or of the stage in which it ended, from 0.
        stages: count of its stages.
        steps: all steps, in the order of their stages.
        error_step: name of the step whose failure ended the run.
        error: error of that step.
        created_at, ended_at: its start and its end.
        deadline: when the run fails if it has not ended; ``None`` if it has no deadline, or waits
            for its turn.
        entry: name of the entry that started it, if one did.
        done, total: count of succeeded steps, and of all steps.
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

    @property
    def why(self) -> str | None:
        """Reason for which the run ended before its time, with the failed step; ``None``: none."""
        return ": ".join(filter(None, (self.error_step, self.error))) or None

    @property
    def ended(self) -> bool:
        """Whether no further step will start."""
        return self.state not in LIVE

    @property
    def percent(self) -> int:
        """Progress of the run. Each step has the same weight, and counts in part while it runs."""
        partial = sum(step.percent or 0 for step in self.steps if step.state is not State.SUCCEEDED)
        return int((100 * self.done + partial) / (self.total or 1))

    def as_json(self) -> dict[str, Any]:
        """Return the status for ``json.dumps``, with instants in ISO 8601.

        The page and the command line print the same form: the fields of this class and of
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
    running = []
    for step in status.steps:
        if step.state is State.RUNNING:
            running.append(f"{step.name} {step.how_far}".strip())
    if running:
        more = f" and {len(running) - 3} more" if len(running) > 3 else ""
        parts.append(f"running: {', '.join(running[:3])}{more}")
    # First line of the error; empty if there is no error.
    first_line = "".join((status.error or "").splitlines()[:1])
    if status.error_step is not None:
        parts.append(f"{status.error_step} failed: {first_line[:120]}")
    elif first_line:
        parts.append(first_line[:120])
    return "  ".join(parts)


def _plain(value: Any) -> Any:
    """Return the value as ``json.dumps`` takes it: an instant as a text in ISO 8601."""
    return value.isoformat() if isinstance(value, datetime) else value


def read_status(run_id: str, run: Mapping[str, str], records: Mapping[str, str]) -> RunStatus:
    """Return the status of a run from its record in Redis.

    Parameters:
        run: the fields of the run; empty if its record has expired.
        records: number of a published step -> its JSON.

    Raises:
        LookupError, ValueError, ArithmeticError, TypeError, AttributeError, CorruptEntry: the
            record is no run, or a newer version of this package wrote it.
    """
    if not run:
        return RunStatus(run_id, State.GONE)
    definition = decode_cached(run["definition"])
    status = brief_status(run_id, run)
    steps = []
    for number, step in enumerate(definition.steps):
        record = {"state": State.WAITING, **loads(records.get(str(number), "{}"))}
        # After the end of the run, a waiting step never begins.
        if status.ended and record["state"] == State.WAITING:
            record["state"] = State.ABORTED
        steps.append(_step(run_id, number, step, record))
    error_step = None
    if "error_step" in run:  # The field has the number of the step.
        error_step = steps[int(run["error_step"])].name
    deadline = None
    # The time limit of a waiting run has not begun.
    if run.get("deadline") and status.state is not State.WAITING:
        deadline = _time(int(run["since"]) + int(run["deadline"]))
    return replace(
        status,
        steps=tuple(steps),
        error_step=error_step,
        deadline=deadline,
        # brief_status() does not count steps that succeeded after the end of the run.
        done=sum(step.state is State.SUCCEEDED for step in steps),
    )


def brief_status(run_id: str, run: Mapping[str, str]) -> RunStatus:
    """Return a status without steps from the fields ``BRIEF`` of a run.

    Steps that succeeded after the end of the run do not count as done.

    Raises:
        LookupError, ValueError, ArithmeticError, TypeError, CorruptEntry: it is no run.
    """
    stage = int(run["stage"])
    # Count of the steps up to the end of each stage.
    ends = loads(run["ends"])
    # All steps up to the end of the current stage are done, except for those of the current stage
    # that have not succeeded. "left" is the count of these.
    done = ends[stage] - int(run["left"])
    return RunStatus(
        run_id,
        State(run["state"]),
        stage,
        len(ends),
        error=run.get("error"),
        created_at=_time(run["created"]),
        ended_at=_time(run.get("ended")),
        entry=run.get("entry") or None,
        done=done,
        total=ends[-1],
    )


def _step(run_id: str, number: int, step: Step, record: Mapping[str, Any]) -> StepStatus:
    """Return the status of one step by its record.

    Parameters:
        number: number of the step among all steps, from 0.
    """
    # If a field has its default value, the record lacks it.
    names = ("error", "attempt", "round", "worker", "percent", "note")
    fields = {name: record[name] for name in names if name in record}
    ref = Ref(run_id, number, fields.get("round", 0))
    return StepStatus(
        step.name,
        step.task,
        step.stage,
        State(record["state"]),
        ref.task_id,
        _time(record.get("started")),
        _time(record.get("ended")),
        **fields,
    )


def _time(raw: str | int | None) -> datetime | None:
    return None if raw is None else times.from_ms(int(raw))

"""How a run stands, as plain values. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple

from .. import instants
from ..errors import CorruptEntry
from ..public import public_in
from .definition import Definition, Step, task_id

#: The definitions of the runs that are looked at: whoever follows a run reads the same text at every look.
_decode = lru_cache(maxsize=16)(Definition.decode)


@public_in("redbeat_lite.pipeline")
class State(StrEnum):
    """Of a run, and of a step, which is never ``GONE``. A run is ``WAITING`` for its turn among those of its entry."""

    WAITING = "WAITING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    #: A run that was cancelled, or left out as another one of its entry had not ended. A step
    #: that did not run to its end because its run had ended.
    ABORTED = "ABORTED"
    #: The run ended so long ago that its record is gone.
    GONE = "GONE"


#: What is read of a run where its steps are not.
BRIEF = ("state", "stage", "sizes", "left", "error", "entry", "created", "ended")

#: The states of a run that has not ended.
LIVE = (State.RUNNING, State.WAITING)

#: Looked up faster than ``State`` is called, of which a look at 1,000 steps has as many.
_STATES = {str(state): state for state in State}


@public_in("redbeat_lite.pipeline")
class StepStatus(NamedTuple):
    """One step of a run.

    Parameters:
        name: of the step.
        task: registered name of its task.
        stage: number of its stage, from 0.
        state: how it stands.
        task_id: of its Celery task; known before it is published.
        started_at: when it first began, since the run was resumed.
        ended_at: when it ended.
        error: why it failed.
        attempt: which of Celery's retries it is at, from 0.
        round: how often it was started anew, as its worker had died or the run was resumed.
        worker: where it runs or ran.
        percent, note: what it told of its progress last, by :meth:`PipelineTask.progress`.
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
        """How far it told that it is, for people; empty where it told nothing, or has succeeded."""
        return "" if self.percent is None or self.state is State.SUCCEEDED else f"{self.percent:.3g} %"


@public_in("redbeat_lite.pipeline")
@dataclass(frozen=True, slots=True)
class RunStatus:
    """A run.

    Parameters:
        id: of the run.
        state: how it stands.
        stage: number of the stage it is in, or was in at its end, from 0.
        stages: how many there are.
        steps: all steps, in the order of their stages.
        error_step: name of the step that ended the run.
        error: why.
        created_at, ended_at: when it was started and when it ended.
        deadline: when it fails if it has not ended; ``None``: it has none, or waits for its turn.
        entry: name of the entry that has started it, if one has.
        done, total: how many steps have succeeded, and how many there are.
        waits_for: id of the run of its entry that has the turn for which it waits.
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
        """Why it ended before its time, with the step that ended it; ``None``: nobody said so."""
        return ": ".join(filter(None, (self.error_step, self.error))) or None

    @property
    def ended(self) -> bool:
        """Whether nothing will start any more."""
        return self.state not in LIVE

    @property
    def percent(self) -> int:
        """How far it is: each step has the same weight, and what one tells counts as so much of it."""
        told = sum(each.percent or 0 for each in self.steps if each.state is not State.SUCCEEDED)
        return int((100 * self.done + told) / (self.total or 1))

    def as_json(self) -> dict[str, Any]:
        """All of it as what ``json.dumps`` takes, with instants in ISO 8601; the form is the same wherever it is shown:
        the fields of this and of :class:`StepStatus`, with ``why``, ``percent``, ``ended`` and :func:`progress_line` as
        ``progress``."""
        told = {each.name: _plain(getattr(self, each.name)) for each in fields(self)}
        told["steps"] = [dict(zip(step._fields, map(_plain, step), strict=True)) for step in self.steps]
        told |= {"why": self.why, "percent": self.percent, "ended": self.ended}
        return {**told, "progress": progress_line(self)}

    def step(self, name: str) -> StepStatus:
        """The step of this name.

        Raises:
            KeyError: there is none.
        """
        for step in self.steps:
            if step.name == name:
                return step
        raise KeyError(name)


@public_in("redbeat_lite.pipeline")
def progress_line(status: RunStatus) -> str:
    """One plain line about a run, for a log or a terminal."""
    if status.state is State.GONE:
        return f"{status.id}  GONE"
    parts = [status.id, f"{status.state:<9}", f"stage {status.stage + 1}/{status.stages}"]
    parts.append(f"{status.done}/{status.total} steps")
    if status.waits_for:
        parts.append(f"waits for {status.waits_for}")
    running = [f"{step.name} {step.how_far}".strip() for step in status.steps if step.state is State.RUNNING]
    if running:
        more = f" and {len(running) - 3} more" if len(running) > 3 else ""
        parts.append(f"running: {', '.join(running[:3])}{more}")
    first, *_ = (status.error or "").splitlines() or [""]
    if status.error_step is not None:
        parts.append(f"{status.error_step} failed: {first[:120]}")
    elif first:
        parts.append(first[:120])
    return "  ".join(parts)


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


def read(run_id: str, run: Mapping[str, str], steps: str, alive: Mapping[str, bool]) -> RunStatus:
    """Make a status of what lies in Redis.

    Parameters:
        run: the hash, as text.
        steps: JSON as ``pipeline/status.lua`` gives it.
        alive: for the ids of tasks that should be running although the run has ended, whether they do.

    Raises:
        CorruptEntry: it is no run.
        UnsupportedFormat: a newer version of this package wrote it.
    """
    try:
        return _read(run_id, run, steps, alive)
    except (LookupError, ValueError, ArithmeticError, TypeError, AttributeError, CorruptEntry) as exc:
        why = f"{type(exc).__name__}: {exc}"
        raise CorruptEntry(f"the record of pipeline run {run_id!r} cannot be read: {why}") from exc


def _read(run_id: str, run: Mapping[str, str], recorded: str, alive: Mapping[str, bool]) -> RunStatus:
    definition, steps = _decode(run["definition"]), json.loads(recorded)
    found, error_step, deadline = brief(run_id, run), run.get("error_step"), run.get("deadline")
    placed = [(stage, step) for stage, steps_of in enumerate(definition.stages) for step in steps_of]
    running = alive if found.ended else None
    told = tuple(
        _step(run_id, number, *place, steps.get(str(number), {}), running) for number, place in enumerate(placed)
    )
    return replace(
        found,
        steps=told,
        error_step=placed[int(error_step)][1].name if error_step is not None else None,
        deadline=_time(int(run["since"]) + int(deadline)) if deadline and found.state != State.WAITING else None,
        done=sum(step.state is State.SUCCEEDED for step in told),
    )


def brief(run_id: str, run: Mapping[str, str]) -> RunStatus:
    """A status without steps, of the fields ``BRIEF`` of a run; what succeeded after its end does not count.

    What is no run raises a LookupError, a ValueError or an ArithmeticError.
    """
    stage, sizes = int(run["stage"]), [int(size) for size in run["sizes"].split(",")]
    return RunStatus(
        run_id, State(run["state"]), stage, len(sizes), (), None, run.get("error"), _time(run["created"]),
        _time(run.get("ended")), None, run.get("entry") or None, sum(sizes[: stage + 1]) - int(run["left"]), sum(sizes),
    )  # fmt: skip


def _step(
    run_id: str, number: int, stage: int, step: Step, recorded: Mapping[str, Any], running: Mapping[str, bool] | None
) -> StepStatus:
    """One step; of a run that has ended with what is known of the tasks that may be ``running``."""
    get = recorded.get
    round_, state = get("round", 0), _STATES[get("state", "WAITING")]
    # What is recorded is the same, and cheaper than to make it up.
    ident = get("task") or task_id(run_id, stage, number, round_)
    idle = state is State.WAITING or (state is State.RUNNING and running is not None and not running.get(ident, True))
    return StepStatus(
        step.name, step.task, stage, State.ABORTED if running is not None and idle else state, ident,
        _time(get("started")), _time(get("ended")), get("error"), get("attempt", 0), round_, get("worker"),
        get("percent"), get("note"),
    )  # fmt: skip


def _time(raw: str | int | None) -> datetime | None:
    return None if raw is None else instants.from_ms(int(raw))

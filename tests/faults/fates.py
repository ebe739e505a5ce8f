"""What became of runs, as their bodies know it, and whether the record of runs says the same."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from redbeat_lite.entries.state import EntryState, task_id
from redbeat_lite.instants import to_ms
from redbeat_lite.runs.run import Run
from tests.faults.journal import Body

#: The end of a body for each outcome that tells of one.
_ENDS = {"succeeded": "well", "failed": "ill", "retrying": "again"}

#: What may be said of a run of which nobody tells an end.
_OTHERS = ("expired", "lost", "waiting", "unknown")

#: Of two bodies of an attempt, copies of each other, that end within so many seconds either may be told.
_AT_ONCE = 1.0

#: Seconds in which a busy machine has written what a body came to that has ended, or told of one that was killed.
_WRITTEN = 2.0


class Struck(NamedTuple):
    """What has happened to those who would have told; on the machine's monotonic clock, as bodies are.

    Parameters:
        killed: when which process was, or lost its worker's main process.
        away: when nobody could write anything, from and to.
    """

    killed: Mapping[int, float] = {}
    away: Sequence[tuple[float, float]] = ()

    def cause(self, bodies: Sequence[Body], due: float) -> str:
        """Why nobody tells what became of an attempt with these bodies, or of one without, which was due then: its
        process was ``killed`` in the body or between body and write; the server was ``away``; or its message, or that
        of its retry, was ``in hand`` of somebody who was struck. Empty where there is no reason."""
        for body in bodies:
            if body.end <= self.killed.get(body.pid, 0.0) <= body.end + _WRITTEN:
                return "killed"
            if any(start - _WRITTEN <= body.end <= end for start, end in self.away):
                return "away"
        since = max((body.end for body in bodies), default=due)
        is_sent = all(body.key.endswith(" again") for body in bodies)
        strikes = (*self.killed.values(), *(end for _, end in self.away))
        return "in hand" if is_sent and any(at >= since for at in strikes) else ""


@dataclass
class Fates:
    """What is recorded of entries, beside what their bodies did.

    Parameters:
        outcomes: how many occurrences came to what.
        wrong: runs of which the record says what is not so.
        untold: those of which it says less than was to be known: whoever would have told was killed before.
        causes: why so many are untold, or nobody knows what became of them.
        unexplained: those of which there is no reason why.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    untold: list[str] = field(default_factory=list)
    causes: Counter[str] = field(default_factory=Counter)
    unexplained: list[str] = field(default_factory=list)


def judge_fates(
    states: Mapping[str, EntryState],
    runs: Mapping[str, Sequence[Run]],
    period: int,
    bodies: Iterable[Body],
    struck: Struck,
    ahead: float = 0.0,
) -> Fates:
    """Judge entries that fire every ``period`` milliseconds: each occurrence has one run, which tells its fate.

    Parameters:
        states: of each entry, when the last beat had ended.
        runs: all that is known of each.
        bodies: whose keys are their attempt, and behind it their end.
        ahead: by how many seconds the wall clock is ahead of the monotonic one.
    """
    fates = Fates()
    of_id: dict[str, list[Body]] = defaultdict(list)
    for body in bodies:
        of_id[body.id].append(body)
    for name, state in states.items():
        end = state.nominal or 0
        due = range(end - period * (state.count + state.skipped), end, period)
        told = Counter(at for run in runs[name] for at in _nominals(run, period))
        assert told == Counter(due), (
            f"{name}: not one run of each occurrence: {told - Counter(due)}, {Counter(due) - told}"
        )
        for run in runs[name]:
            fates.outcomes[run.outcome] += run.count
            if run.task_id is None:
                nominals = _nominals(run, period)
                if any(task_id(name, state.generation, at) in of_id for at in nominals):
                    fates.wrong.append(f"{run}, of which some ran")
                continue
            assert run.task_id == task_id(name, state.generation, to_ms(run.scheduled_at))
            did = of_id[run.task_id]
            if not _is_so(run, did):
                fates.wrong.append(f"{run}: {did}")
                continue
            if is_untold := not _is_all(run, did):
                fates.untold.append(f"{run}: {did}")
            if is_untold or run.outcome in ("waiting", "unknown"):
                last = [body for body in did if _attempt(body) == max(map(_attempt, did))]
                cause = struck.cause(last, run.scheduled_at.timestamp() - ahead)
                fates.causes.update([cause] if cause else [])
                fates.unexplained += [] if cause else [f"{run}: {did}"]
    return fates


def _nominals(run: Run, period: int) -> range:
    first, last = to_ms(run.scheduled_at), to_ms(run.until or run.scheduled_at)
    assert run.count == len(range(first, last + 1, period)), run
    return range(first, last + 1, period)


def _is_so(run: Run, bodies: Sequence[Body]) -> bool:
    """Whether nothing is said that no body did, nor what nobody can have said."""
    if run.outcome in _ENDS:
        return f"{run.attempts - 1} {_ENDS[run.outcome]}" in {body.key for body in bodies if body.done}
    return run.outcome in _OTHERS


def _is_all(run: Run, bodies: Sequence[Body]) -> bool:
    """Whether it tells what there was to be known of what the last attempt came to."""
    last = max((_attempt(body) for body in bodies), default=None)
    ended = sorted((body for body in bodies if body.done and _attempt(body) == last), key=lambda body: body.end)
    first = [body.key for body in ended if body.end <= ended[0].end + _AT_ONCE]
    if any(body.key != f"{last} again" for body in ended):
        return f"{run.attempts - 1} {_ENDS.get(run.outcome)}" in first
    if ended or last is None:
        return run.outcome == "expired"  # Nobody took it in time, or nobody its retry.
    # It was killed. Where there is no guard, nobody may be left to say so.
    return run.outcome != "retrying" or run.attempts == last


def _attempt(body: Body) -> int:
    return int(body.key.split()[0])

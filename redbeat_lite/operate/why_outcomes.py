"""Explanation of a recorded run, for ``why``: its outcome in words, and the causes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from ..entries.message import queue_of
from ..entries.run import Run
from ..entries.words import took
from ..policies import Misfire
from .why_case import Case, Explanation, Reason

#: Outcome of a run, or a special case of an outcome -> the verdict without the name of the entry.
#: The placeholders are the nominal time, and the due time of the retry.
_VERDICTS = {
    "waiting": "was sent for {}, and no worker has reported that it began",
    "requeued": "began for {}, and did not end; its message is to come again",
    "running": "runs for {}, and has not ended",
    "retrying": "ran for {} and failed; it waits for its retry{}",
    "retry lost": "ran for {} and failed; no worker has reported its retry{}",
    "retry expired": "ran for {}, and failed; its message expired before its retry{}",
    "succeeded": "ran for {}, and succeeded",
    "failed": "ran for {}, and failed",
    "refused": "did not run for {}: it failed before its body began",
    "expired": "did not run for {}: it was sent, and its message expired before a worker began it",
    "revoked": "did not run to its end for {}: its task was revoked",
    "rejected": "did not run for {}: a worker rejected its message",
    "rejected by task": "ran for {}, and rejected its message",
    "lost": "did not run to its end for {}: the process that ran it died",
    "skipped": "did not run for {}: its misfire policy left it out",
    "calendar": "did not run for {}: its calendar left it out",
    "left out": "did not run for {}: its once-lock was held",
    "turn": "did not run for {}: another run of its pipeline had not ended",
    "no outcome": "ran for {}, and reported no outcome, as with Ignore or replace",
    "no end": "began for {}; how it ended is not recorded",
    "unknown": "was sent for {}; what became of it is not recorded",
}

#: Name of a misfire policy -> words about the missed occurrences that it sends. If the policy sets
#: a grace time, words about that time are shown instead.
_MISFIRES = {
    "skip": "an occurrence may be 5 s late, or a quarter of the time to the next",
    "coalesce": "only the latest of missed occurrences is sent",
    "all": "missed occurrences are sent",
}


def explain_run(case: Case, run: Run, nominal: datetime) -> Explanation:
    """Explain the recorded run of an occurrence.

    Parameters:
        run: record of the run. One record may stand for a range of occurrences that were all left
            out, among them this one.
        nominal: nominal time of the occurrence.
    """
    kind = _verdict_key(case, run, nominal)
    retry = "" if run.retry_at is None else f", due at {case.when(run.retry_at)}"
    verdict = _VERDICTS[kind].format(case.when(nominal), retry)
    return Explanation(verdict, [*_reasons(case, run, nominal, kind)])


def _verdict_key(case: Case, run: Run, nominal: datetime) -> str:
    """Return the key of ``_VERDICTS`` for a run: its outcome, or a special case of it."""
    outcome = run.outcome
    has_begun = run.began_at is not None
    if outcome == "waiting" and has_begun:
        return "requeued"
    if outcome == "rejected" and has_begun:
        return "rejected by task"
    if outcome == "failed" and run.retry_at is not None:
        return "retry expired"  # A retry was planned, and has not begun.
    if outcome == "failed" and not run.attempts and run.error:
        return "refused"  # An attempt counts once the task's body begins, and none has begun.
    if outcome == "skipped" and any(case.calendar_reasons(nominal, nominal)):
        return "calendar"
    # A run is left out because of its pipeline or a once-lock. Only a pipeline records an error.
    if outcome == "left out" and run.error:
        return "turn"
    if outcome == "unknown" and has_begun:
        if run.retry_at is not None:
            return "retry lost"
        # A duration shows that the end of the run was recorded, although without an outcome.
        return "no end" if run.seconds is None else "no outcome"
    return outcome


def _reasons(case: Case, run: Run, nominal: datetime, verdict_key: str) -> Iterator[Reason]:
    """Yield the causes of an outcome, the details of the run, and what has delayed it."""
    is_missed = verdict_key == "skipped"
    if verdict_key == "calendar":
        yield from case.calendar_reasons(nominal, nominal)
    elif verdict_key == "left out":
        yield from _once_reasons(case, run)
    elif verdict_key in ("waiting", "expired", "unknown"):
        yield from _worker_reasons(case)
    elif is_missed and case.entry is not None:
        yield Reason("misfire", _misfire_words(case.entry.misfire))
    facts = ", ".join(_facts(case, run))
    if facts:
        yield Reason(run.outcome, f"It {facts}")
    if run.error:
        yield Reason("error", f"The error: {run.error}")
    # Name what has delayed the run, or kept a missed occurrence from being sent in time.
    if is_missed or run.began_at is not None:
        yield from case.delays(nominal, run.began_at)
    if is_missed:
        # The reason above names the present misfire policy, which may be newer than the occurrence.
        # So also name a change since the occurrence.
        yield from case.changed_since(nominal)


def _facts(case: Case, run: Run) -> Iterator[str]:
    """Yield the recorded details of a run, each in words that follow "It"."""
    if run.until is not None:
        yield f"is one of {run.count} occurrences in a row until {case.when(run.until)}"
    if run.task_id:
        yield f"was sent as task {run.task_id}"
    if run.worker:
        yield f"went to {run.worker}"
    if run.began_at is not None:
        yield f"began at {case.when(run.began_at)}"
    if run.seconds is not None:
        yield f"took {took(run.seconds)}"
    if run.attempts > 1:
        yield f"was attempted {run.attempts} times"


def _worker_reasons(case: Case) -> Iterator[Reason]:
    """Yield whether workers read the queue of the entry, by their reports of the last minute."""
    if case.entry is None:
        return  # The queue is not known any more.
    queue = queue_of(case.entry)
    if queue in case.status.queues:
        sentence = (
            f"By reports of the last minute, a worker with install() takes from queue {queue!r}"
        )
        yield Reason("workers", sentence)
        return
    sentence = (
        f"No worker with install() takes from queue {queue!r} now. "
        f"Start a worker with -Q {queue}, or correct the queue of the entry"
    )
    yield Reason("no worker", sentence)


def _misfire_words(misfire: Misfire) -> str:
    """Return in words which missed occurrences a misfire policy sends."""
    rule = _MISFIRES[misfire.policy]
    if misfire.grace_ms is not None:
        rule = f"an occurrence may be {misfire.grace_ms / 1000:g} s late"
    if misfire.limit is not None:
        rule += f", and the first {misfire.limit} are sent"
    return f"It was missed, and with {misfire.policy!r} {rule}"


def _once_reasons(case: Case, run: Run) -> Iterator[Reason]:
    """Yield that the once-lock kept a run from being sent, and the outcome of the run before it.

    A once-lock lets one task with its key be queued or run at a time.
    """
    sentence = (
        "A task with its key was queued or running. Or such a task had ended in a worker "
        "without install(), and its lock had not expired"
    )
    yield Reason("once-lock", sentence)
    earlier = (other.scheduled_at for other in case.runs if other.scheduled_at < run.scheduled_at)
    before = next(earlier, None)  # The runs are sorted, the newest first.
    if before is not None:
        yield Reason("run before", f"The run before it: {case.with_outcome(before)}")

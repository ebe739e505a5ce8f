"""Explanation of a recorded run, for ``why``: its outcome in words, and the causes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .._base.times import from_ms
from ..entries.words import listed, took
from ..runs.run import BACKFILLED, Run
from .why_case import Case, Explanation, Reason, full

#: Outcome of a run, or a special case of an outcome -> sentence. The placeholders are the name, the
#: nominal time, and the due time of the retry.
_VERDICTS = {
    "waiting": "{} has not run yet for {}: it was sent, and no worker has begun it",
    "requeued": "{} began for {}, and did not end; its message is to come again",
    "unreported": "{} was sent for {}, and no worker has reported that it began",
    "never reported": (
        "{} was sent for {}, and no worker has reported that it began; "
        "its message must have expired"
    ),
    "running": "{} runs for {}, and has not ended",
    "in line": "{} has not begun its work for {}: it waits for its turn",
    "retrying": "{} ran for {} and failed; no worker has reported its retry{}",
    "retry waits": "{} ran for {} and failed; it waits for its retry{}",
    "retry expired": "{} ran for {}, and failed; its message expired before its retry{}",
    "succeeded": "{} ran for {}, and succeeded",
    "failed": "{} ran for {}, and failed",
    "expired": (
        "{} did not run for {}: it was sent, and its message expired before a worker began it"
    ),
    "revoked": "{} did not run to its end for {}: its task was revoked",
    "rejected": "{} did not run for {}: a worker rejected its message",
    "lost": "{} did not run to its end for {}: the process that ran it died",
    "skipped": "{} did not run for {}: its misfire policy left it out",
    "left out": "{} did not run for {}: its once-lock was held",
    "turn": "{} did not run for {}: another run of its pipeline had not ended",
    "refused": "{} did not run for {}: it failed before its body began",
    "rejected by task": "{} ran for {}, and rejected its message",
    "no outcome": "{} ran for {}, and reported no outcome, as with Ignore or replace",
    "no end": "{} began for {}; how it ended is not recorded",
    "unknown": (
        "whether {} ran for {} is not recorded: it was sent, and no worker has reported its outcome"
    ),
}

#: Misfire policy without a grace time (how late an occurrence may be) -> which missed occurrences
#: it sends.
_MISFIRES = {
    "skip": "an occurrence may be 5 s late, or a quarter of the time to the next",
    "coalesce": "only the latest of missed occurrences is sent",
    "all": "missed occurrences are sent",
}


def explain_run(case: Case, run: Run, nominal: int) -> Explanation:
    """Explain the recorded run of an occurrence.

    Parameters:
        run: record of the run. One record may stand for a range of occurrences that were all left
            out, among them this one.
        nominal: nominal time of the occurrence, in epoch ms.
    """
    kind = _verdict_key(case, run)
    retry = "" if run.retry_at is None else f", due at {case.when(run.retry_at)}"
    verdict = _VERDICTS[kind].format(case.name, case.when(nominal), retry)
    reasons = [*_REASONS.get(kind, _attempt_reasons)(case, run, nominal)]
    # The 15th character of a task id, its UUID version, marks runs that a backfill has sent.
    if (run.task_id or "")[14:15] == BACKFILLED:
        reasons.append(Reason("backfill", "It was sent by a backfill."))
    return Explanation(f"{verdict[0].upper()}{verdict[1:]}.", tuple(reasons), from_ms(nominal))


def _verdict_key(case: Case, run: Run) -> str:
    """Return the key of ``_VERDICTS`` for a run: its outcome, or a special case of it.

    Parameters:
        case: the evidence. It says which workers consume the queue (``takers``), and which runs of
            a pipeline wait behind the first one (``line``).
    """
    outcome = run.outcome
    if outcome == "waiting":
        if run.began_at:
            return "requeued"
        # A worker that sends no reports may have run it long ago. So say "waiting" only if the
        # workers of the queue report.
        return "waiting" if case.takers else "unreported"
    # A run is left out by its pipeline or by a once-lock. Only a pipeline records an error then.
    if outcome == "left out" and run.error:
        return "turn"
    if outcome == "running" and run.task_id in case.line[1:]:
        return "in line"  # Its task has begun the pipeline, which waits for the runs before it.
    if outcome == "retrying" and run.retry_at is not None and run.retry_at > case.now:
        return "retry waits"
    if outcome == "failed" and run.retry_at is not None:
        return "retry expired"  # A retry was planned, and none has begun.
    if outcome == "failed" and not run.attempts and run.error:
        return "refused"  # No attempt counts, so the task's body has not begun.
    if outcome == "rejected" and run.began_at is not None:
        return "rejected by task"
    if outcome == "unknown" and run.began_at is not None:
        if run.retry_at is not None:
            return "retrying"
        # A duration shows that the end of the run was recorded, although without an outcome.
        return "no end" if run.seconds is None else "no outcome"
    if outcome == "unknown" and run.source == "schedule":
        return "never reported"  # Only the entry's state shows that the run was sent.
    return outcome


def _attempt_reasons(case: Case, run: Run, nominal: int) -> Iterator[Reason]:
    """Yield when and where a run began, its duration, its error, and what delayed it."""
    facts = _facts(case, run)
    if facts:
        yield Reason(run.outcome, f"It {facts}.", run.began_at)
    if run.error:
        label = "The error"
        # The task may have raised Ignore, whose text is no error.
        if run.outcome == "unknown" and run.retry_at is None:
            label = "It said"
        yield Reason("error", full(f"{label}: {run.error}"), run.began_at)
    elif not facts:
        hint = f": look for task {run.task_id} in the logs of the workers" if run.task_id else ""
        yield Reason(run.outcome, f"Nothing more is recorded of it{hint}.")
    if run.began_at is not None:
        yield from case.delays(from_ms(nominal), run.began_at)


def _facts(case: Case, run: Run) -> str:
    """Return in words where and when a run began, and its duration; empty if nothing is known."""
    facts = []
    if run.worker:
        task = f" as task {run.task_id}" if run.task_id else ""
        facts.append(f"went to {run.worker}{task}")
    if run.began_at:
        facts.append(f"began at {case.when(run.began_at)}")
    if run.seconds is not None:
        facts.append(f"took {took(run.seconds)}")
    if run.attempts > 1:
        facts.append(f"was attempted {run.attempts} times")
    return ", ".join(facts)


def _pipeline_reasons(case: Case, run: Run, nominal: int) -> Iterator[Reason]:
    """Yield which runs of a pipeline come before a run that waits for its turn."""
    before = case.line[: case.line.index(run.task_id or "")]
    sentence = f"Runs of its pipeline do not overlap. Before it: {listed(before)}."
    yield Reason("turn", sentence, run.began_at)


def _worker_reasons(case: Case, run: Run, nominal: int) -> Iterator[Reason]:
    """Yield which workers read the queue by their last reports. Earlier ones are not recorded."""
    queue = f"queue {case.queue!r}"
    log = f"its log has task {run.task_id}."
    if case.takers:
        sentence = f"By reports of the last minute, {queue} is read by {listed(case.takers)}."
        if run.outcome == "unknown":
            sentence += f" If a worker without install() took the message, {log}"
        yield Reason("workers", sentence)
        return
    sentence = (
        f"No worker with install() takes from {queue} now. "
        f"Start a worker with -Q {case.queue}, or correct the queue of the entry."
    )
    if run.outcome != "expired":
        sentence += f" If a worker without install() takes from it, {log}"
    yield Reason("no worker", sentence)


def _misfire_reasons(case: Case, run: Run, nominal: int) -> Iterator[Reason]:
    """Yield why the misfire policy skipped a run, and the causes for which the run was late."""
    sentence = f"{_misfire_words(case)}{_range_words(case, run)}"
    yield Reason("misfire", sentence, run.scheduled_at)
    at = from_ms(nominal)
    unknown = Reason("not recorded", "The cause of the delay is not recorded.")
    yield from [*case.delays(at)] or [unknown]
    # The policy of today is shown. If it was changed since, name that change.
    edit = case.first(at, fields=("misfire",))
    if edit is not None:
        yield case.change_reason(edit, "changed")


def _misfire_words(case: Case) -> str:
    """Return in words which missed occurrences the misfire policy of today sends."""
    if case.entry is None:
        return "It was missed; its policy went with the entry."
    misfire = case.entry.misfire
    rule = _MISFIRES[misfire.policy]
    if misfire.grace_ms is not None:
        rule = f"an occurrence may be {misfire.grace_ms / 1000:g} s late"
    sentence = f"It was missed, and with {misfire.policy!r} {rule}"
    if misfire.limit is not None:
        sentence += f", and the first {misfire.limit} are sent"
    return f"{sentence}."


def _once_reasons(case: Case, run: Run, nominal: int) -> Iterator[Reason]:
    """Yield that the once-lock kept a run from being sent, and when the previous run was."""
    sentence = (
        "A task with its key was queued or running. Or such a task had ended in a worker "
        "without install(), and its lock had not expired."
    )
    yield Reason("once-lock", f"{sentence}{_range_words(case, run)}", run.scheduled_at)
    at = from_ms(nominal)
    # The newest run comes first. A record of several occurrences (a range) was not sent.
    earlier = (other for other in case.runs if other.count == 1 and other.scheduled_at < at)
    before = next(earlier, None)
    if before is not None:
        facts = _facts(case, before)
        sentence = f"The run before it, of {case.when(before.scheduled_at)}"
        if facts:
            sentence += f", {facts}"
        yield Reason("run before", f"{sentence}: {before.outcome}.", before.scheduled_at)


def _range_words(case: Case, run: Run) -> str:
    """Return a sentence about a range of runs, with a space before it; nothing for a single run."""
    if run.until is None or run.count == 1:
        return ""
    first = case.when(run.scheduled_at)
    last = case.when(run.until)
    return f" The same holds for the {run.count} occurrences from {first} to {last}."


#: Key of ``_VERDICTS`` -> function that yields the reasons. Other keys: ``_attempt_reasons``.
_REASONS: dict[str, Callable[[Case, Run, int], Iterator[Reason]]] = {
    "waiting": _worker_reasons,
    "unreported": _worker_reasons,
    "never reported": _worker_reasons,
    "expired": _worker_reasons,
    "skipped": _misfire_reasons,
    "left out": _once_reasons,
    "in line": _pipeline_reasons,
}

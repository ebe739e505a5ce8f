"""What became of a run, in words, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ...entries.words import listed, took
from ...instants import from_ms, to_ms
from ...runs.run import BACKFILLED, Run
from .case import RECORD, Case, Explanation, Reason, full

#: Outcome -> sentence. The placeholders are the name, the nominal time, and when the retry is due.
_VERDICTS = {
    "waiting": "{} has not run yet for {}: it was sent, and no worker has begun it",
    "requeued": "{} began for {}, and did not end; its message is to come again",
    "untold": "{} was sent for {}, and nobody has said that a worker began it",
    "running": "{} runs for {}, and has not ended",
    "in line": "{} has not begun its work for {}: it waits for its turn",
    "retrying": "{} ran for {} and failed; no worker has reported its retry{}",
    "retry waits": "{} ran for {} and failed; it waits for its retry{}",
    "retry expired": "{} did run for {}, and failed; its message expired before its retry{}",
    "succeeded": "{} did run for {}, and succeeded",
    "failed": "{} did run for {}, and failed",
    "expired": "{} did not run for {}: it was sent, and its message expired before a worker began it",
    "revoked": "{} did not run to its end for {}: its task was revoked",
    "rejected": "{} did not run for {}: a worker rejected its message",
    "lost": "{} did not run to its end for {}: the process that ran it died",
    "skipped": "{} did not run for {}: its misfire policy left that out",
    "left out": "{} did not run for {}: its once-lock was held",
    "turn": "{} did not run for {}: another run of its pipeline had not ended",
    "refused": "{} did not run for {}: it failed before its body began",
    "refuses": "{} did run for {}, and rejected its message",
    "no outcome": "{} did run for {}, and reported no outcome, as with Ignore or replace",
    "no end": "{} began for {}; how it ended is not recorded",
    "unknown": "whether {} ran for {} is not recorded: it was sent, and nobody told what became of it",
}
_SOURCES = {"record": RECORD, "schedule": "state of the entry"}


def of_run(case: Case, run: Run, nominal: int) -> Explanation:
    """What became of the run of an occurrence, or of the range in which it lies, by its nominal time in epoch ms."""
    what: str = run.outcome
    if what == "left out" and run.error:  # a held once-lock records no error
        what = "turn"
    elif what == "waiting" and run.began_at:
        what = "requeued"
    elif what == "waiting" and not case.takers:  # one that does not report may have run it long ago
        what = "untold"
    elif what == "running" and run.task_id in case.line[1:]:
        what = "in line"
    elif what == "retrying" and run.retry_at is not None and run.retry_at > case.now:
        what = "retry waits"
    elif what == "failed" and run.retry_at is not None:
        what = "retry expired"
    elif what == "failed" and not run.attempts and run.error:
        what = "refused"
    elif what == "rejected" and run.began_at is not None:
        what = "refuses"
    elif what == "unknown":
        what = _unknown(run)
    retry = "" if run.retry_at is None else f", due at {case.when(run.retry_at)}"
    verdict = _VERDICTS[what].format(case.name, case.when(nominal), retry)
    reasons = [*_REASONS.get(what, _of_attempt)(case, run, nominal)]
    if (run.task_id or "")[14:15] == BACKFILLED:
        reasons.append(Reason("backfill", "It was sent by a backfill.", None, _SOURCES[run.source]))
    return Explanation(f"{verdict[0].upper()}{verdict[1:]}.", tuple(reasons), from_ms(nominal))


def _unknown(run: Run) -> str:
    """Return the key of the verdict on a run whose outcome is unknown."""
    if run.began_at is None:
        return "unknown"
    if run.retry_at is not None:
        return "retrying"
    return "no end" if run.seconds is None else "no outcome"


def _of_attempt(case: Case, run: Run, nominal: int) -> Iterator[Reason]:
    """How it ran: when, where, for how long; and what kept it, if it began late."""
    said = [f"went to {run.worker}"] if run.worker else []
    said += [f"began at {case.when(run.began_at)}"] if run.began_at else []
    said += [f"took {took(run.seconds)}"] if run.seconds is not None else []
    said += [f"was attempted {run.attempts} times"] if run.attempts > 1 else []
    if said:
        yield Reason(run.outcome, f"It {_joined(said)}.", run.began_at, _SOURCES[run.source])
    if run.error:
        what = "It said" if run.outcome == "unknown" and run.retry_at is None else "The error"
        yield Reason("error", full(f"{what}: {run.error}"), run.began_at, _SOURCES[run.source])
    if not said and not run.error:
        yield Reason(run.outcome, "Nothing more is recorded of it.", None, _SOURCES[run.source])
    if run.began_at is not None:
        yield from case.hindrances(from_ms(nominal), run.began_at)


def _joined(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _of_line(case: Case, run: Run, nominal: int) -> Iterator[Reason]:
    before = case.line[: case.line.index(run.task_id or "")]
    are = "is" if len(before) == 1 else "are"
    sentence = f"Runs of its pipeline do not overlap, and {listed(before)} {are} before it."
    yield Reason("turn", sentence, run.began_at, RECORD)


def _of_message(case: Case, run: Run, nominal: int) -> Iterator[Reason]:
    """Who might take the message: of now, as workers are not asked what they did then."""
    queue, takers = case.queue, case.takers
    if takers:
        sentence = f"Of the workers that report, {listed(takers)} {'takes' if len(takers) == 1 else 'take'}"
        yield Reason("workers", f"{sentence} from queue {queue!r} now.", None, "worker reports")
    else:
        sentence = f"No worker reports that it takes from queue {queue!r} now; those without install() do not report."
        yield Reason("no worker", sentence, None, "worker reports")


def _of_misfire(case: Case, run: Run, nominal: int) -> Iterator[Reason]:
    yield Reason("misfire", f"{_policy(case)}{_others(case, run)}", run.scheduled_at, _SOURCES[run.source])
    late = [*case.hindrances(from_ms(nominal))]
    yield from late or [Reason("not recorded", "What made it late is not recorded.", None, RECORD)]
    if (edit := case.first(from_ms(nominal), fields=("misfire",))) is not None:
        yield case.told(edit, "changed")


def _policy(case: Case) -> str:
    """What the policy of today says."""
    misfire = None if case.entry is None else case.entry.misfire
    if misfire is None:
        return "It was missed; its policy went with the entry."
    grace = "" if misfire.grace_ms is None else f"{misfire.grace_ms / 1000:g} s"
    if grace and misfire.policy != "coalesce":
        return f"It was missed, and with {misfire.policy!r} an occurrence may be {grace} late."
    if misfire.policy == "skip":
        return "It was missed, and with 'skip' an occurrence may be 5 s late, or a quarter of the time to the next."
    if misfire.limit is not None:
        return f"Several were missed, and with 'all' the first {misfire.limit} of them are sent."
    if misfire.policy == "all":
        return "It was missed; with 'all', as it is now, it would have been sent."
    bound = f", and no more than {grace} late" if grace else ""
    return f"It was missed, and with {misfire.policy!r} only the latest of missed occurrences is sent{bound}."


def _of_once(case: Case, run: Run, nominal: int) -> Iterator[Reason]:
    sentence = f"It is left out while a task with its key is queued or runs.{_others(case, run)}"
    yield Reason("once-lock", sentence, run.scheduled_at, _SOURCES[run.source])
    before = next((each for each in case.runs if each.count == 1 and to_ms(each.scheduled_at) < nominal), None)
    if before is not None:
        lasted = "" if before.seconds is None else f", and took {took(before.seconds)}"
        began = "" if before.began_at is None else f", began at {case.when(before.began_at)}"
        sentence = f"The run before, of {case.when(before.scheduled_at)}{began}{lasted}: {before.outcome}."
        yield Reason("run before", sentence, before.scheduled_at, _SOURCES[before.source])


def _others(case: Case, run: Run) -> str:
    if run.until is None or run.count == 1:
        return ""
    first, last = case.when(run.scheduled_at), case.when(run.until)
    return f" So were all {run.count} occurrences from {first} to {last}."


_REASONS: dict[str, Callable[[Case, Run, int], Iterator[Reason]]] = {
    "waiting": _of_message,
    "untold": _of_message,
    "expired": _of_message,
    "skipped": _of_misfire,
    "left out": _of_once,
    "in line": _of_line,
}

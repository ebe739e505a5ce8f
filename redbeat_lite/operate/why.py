"""``why``: explains, from recorded evidence and without guesses, why an entry did not run.

If the entry did run, the explanation says so. :func:`explain` asks no server and no clock: its
evidence is a :class:`Case`, which includes the present time.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from typing import NamedTuple

from celery.schedules import BaseSchedule

from .._base.times import from_ms, to_ms
from ..entries.entry import Entry
from ..entries.lifecycle import score, used_up
from ..entries.message import queue_of
from ..entries.run import Run
from ..entries.words import listed, span, took
from ..policies import Misfire
from ..rules import every, last_ms
from ..rules.celery_schedules import AnsweringRule, ForeignRule
from ..rules.clock_changes import first_passing, hazard
from ..rules.occurrences import occurrences
from .why_case import Case, Explanation, Reason

#: Maximum number of occurrences of a minute that are computed.
_MOST = 60

#: How far back, in ms, the previous occurrence is searched. Two occurrences on 29 February may be
#: eight years apart, and few rules have longer gaps.
_LONGEST_GAP = 3000 * 86_400_000

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


class _Around(NamedTuple):
    """Occurrences of a schedule around a span of time.

    Parameters:
        schedule: the schedule.
        before: the last occurrence before the span; ``None``: there is none.
        within: the occurrences in the span, the earliest first; at most ``_MOST``.
        after: the next occurrence after those in ``within``, or after ``before`` if the span has no
            occurrence; ``None``: there is none.
    """

    schedule: BaseSchedule
    before: datetime | None
    within: list[datetime]
    after: datetime | None


def explain(case: Case, instant: datetime | None) -> Explanation:
    """Explain why an entry did not run at an instant, or say that it did.

    Parameters:
        instant: aware instant. With seconds, the run in that second is explained. Without seconds,
            the first run of the minute is explained, and the minute's other runs are named. If the
            clocks of its zone skip the instant, it stands for the end of the skipped time.
            With ``None``, the last run that should have come is explained, and the next run is
            named.
    """
    explanation = _explain_last(case) if instant is None else _explain_at(case, instant)
    error = case.status.refused.errors.get(case.name)
    if error is not None:
        sentence = f"The beat refuses the definition in beat_schedule: {error}"
        explanation.reasons.append(Reason("refused", sentence))
    # The same change may have been yielded as a reason more than once, so drop repeated reasons.
    unique = dict.fromkeys(explanation.reasons)
    return Explanation(
        f"{case.name!r} {explanation.verdict}.",
        # A sentence that ends with the error of a task may have a full stop already.
        [Reason(reason.kind, f"{reason.sentence.rstrip('.')}.") for reason in unique],
        explanation.nominal,
    )


def _explain_at(case: Case, instant: datetime) -> Explanation:
    """Explain the first occurrence in the second or minute of an instant, and name any others."""
    begin, end = _asked_span(instant)
    near = None if case.entry is None else _around(case.entry, begin, end)
    by_rule = [] if near is None else near.within
    # The entry may have had another rule in the past, so prefer the records to the present rule.
    nominals = _recorded_between(case, begin, end, by_rule) or by_rule
    if near is not None and not nominals:
        return _explain_no_occurrence(case, begin, end, near)
    # Without a record, and without a rule that can name past occurrences, explain the instant
    # itself as if it were an occurrence.
    first, *others = nominals or [begin]
    explanation = _explain_occurrence(case, first)
    if others:
        sentence = f"This minute also has {listed(map(case.with_outcome, others))}"
        explanation.reasons.append(Reason("same minute", sentence))
    return explanation


def _recorded_between(
    case: Case, begin: datetime, end: datetime, by_rule: list[datetime]
) -> list[datetime]:
    """Return the nominal times from ``begin`` until ``end`` that are recorded, the earliest first.

    A nominal time is the time of a run by the schedule, without jitter.

    Parameters:
        by_rule: occurrences of the schedule in this time.
    """
    # One record may stand for several occurrences in a row, and has only the first and the last
    # nominal time. The schedule names the nominal times between them.
    recorded = {nominal for nominal in by_rule if case.run_at(nominal) is not None}
    recorded.update(run.scheduled_at for run in case.runs)
    # The state of the entry has the nominal times of the last run and of the next one.
    recorded.update(_known_occurrences(case))
    return sorted(nominal for nominal in recorded if begin <= nominal < end)


def _known_occurrences(case: Case) -> list[datetime]:
    """Return the nominal times that the state of the entry has: of its last run, and of the next.

    A time that is not known is left out.
    """
    last = None if case.entry is None else case.entry.last_run_at
    return [nominal for nominal in (last, case.planned) if nominal is not None]


def _explain_no_occurrence(
    case: Case, begin: datetime, end: datetime, near: _Around
) -> Explanation:
    """Say that a schedule has no occurrence in a span of time, and name the nearest ones."""
    nearest = [nominal for nominal in (near.before, near.after) if nominal is not None]
    reasons = [*case.calendar_reasons(begin, end)]
    for nominal in nearest:
        reasons += _shift_reasons(case, nominal)
    words = " and ".join(map(case.with_outcome, nearest)) or "none"
    sentence = f"Its schedule is {near.schedule!r}; the nearest occurrences: {words}"
    reasons.append(Reason("rule", sentence))
    # After a change of its timing, the present schedule does not show what was due at that time.
    changed = [*case.changed_since(begin)]
    today = " by its schedule of today" if changed else ""
    return Explanation(f"had no occurrence at {case.when(begin)}{today}", [*reasons, *changed])


def _explain_last(case: Case) -> Explanation:
    """Explain the last occurrence that was due by now, and name the next one."""
    last = _last_occurrence(case)
    if case.entry is None:
        explanation = Explanation("does not run: it is not stored", [])
    elif last is None:
        explanation = Explanation("has had no occurrence yet", [])
    else:
        explanation = _explain_occurrence(case, last)
    # The user may ask because of a run that the calendar left out within the last day.
    explanation.reasons += case.calendar_reasons(case.now - timedelta(days=1), case.now)
    # Also name what keeps the entry from being sent now.
    explanation.reasons += case.delays(case.now)
    if case.entry is None or case.entry.next_run_at is None:
        sentence = f"It has no next run, because it is {case.present_state}"
    else:
        due = case.entry.next_run_at
        sentence = f"It is next due at {case.when(due)}"
        freeze = case.status.freeze
        if freeze is not None and due < freeze.until:
            # Nothing is sent before the freeze ends, and then the run is late.
            end = case.when(freeze.until)
            sentence = f"It is next due at {end}, if its misfire policy sends a run so late"
    explanation.reasons.append(Reason("next", sentence))
    return explanation


def _last_occurrence(case: Case) -> datetime | None:
    """Compute, from the schedule and the records, the last occurrence that was due by now.

    It may be the last run, the occurrence that the entry waits for, or an occurrence of the
    schedule that was neither sent nor noted in the state of the entry. Without any of these, it is
    the last recorded run; ``None`` if no run is recorded.
    """
    known = [nominal for nominal in _known_occurrences(case) if nominal <= case.now]
    if case.entry is None or not known:
        # The entry is not stored, so there is no schedule; or it has had no occurrence, so its runs
        # were sent by hand.
        return max((run.scheduled_at for run in case.runs), default=None)
    # _around() finds the last occurrence before a span. An empty span just after now makes it the
    # last occurrence up to now.
    end = case.now + timedelta(milliseconds=1)
    near = _around(case.entry, end, end)
    by_rule = None if near is None else near.before
    # Do not use an occurrence that a bound, such as ``end_at``, excludes. Do not use an occurrence
    # from before a change of the timing either, because the entry had another schedule then.
    if by_rule is None or _bound_words(case, by_rule) or any(case.changed_since(by_rule)):
        return max(known)
    return max(*known, by_rule)


def _explain_occurrence(case: Case, nominal: datetime) -> Explanation:
    """Explain the occurrence of a nominal time."""
    run = case.run_at(nominal)
    if run is None:
        explanation = _explain_without_run(case, nominal)
    else:
        explanation = explain_run(case, run, nominal)
    explanation.nominal = nominal
    explanation.reasons += _shift_reasons(case, nominal)
    return explanation


def _explain_without_run(case: Case, nominal: datetime) -> Explanation:
    """Explain an occurrence of which no run is recorded, by the first cause that applies."""
    when = case.when(nominal)
    reasons = [*case.delays(nominal), *case.changed_since(nominal)]
    bound = _bound_words(case, nominal)
    if nominal > case.now:
        # The occurrence is still to come, unless nothing will send it.
        if case.entry is None:
            bound = "it is not stored"
        if bound:
            return Explanation(f"will not run at {when}: {bound}", reasons)
        return Explanation(f"has not run at {when}: that is still to come", reasons)
    if case.planned is not None and case.planned <= nominal:
        # The entry still waits for this occurrence, or for an earlier one.
        return _explain_waiting(case, when)
    did_not_run = f"did not run at {when}"
    if bound:
        return Explanation(f"{did_not_run}: {bound}", reasons)
    state = case.state_at(nominal, lasting=True)
    if state:
        return Explanation(f"{did_not_run}: it was {state}", reasons)
    # The beat also records runs that were not sent. These have no task.
    sent = [run.scheduled_at for run in case.runs if run.task_id is not None]
    # The oldest records are dropped first, so there is no gap in the records between the oldest and
    # the newest one: an occurrence between them without a record was not sent.
    if sent and sent[-1] < nominal < sent[0]:
        return Explanation(f"{did_not_run}: it was not sent", reasons)
    return Explanation(f"may have run at {when}; that is not recorded any more", reasons)


def _explain_waiting(case: Case, when: str) -> Explanation:
    """Explain why a past occurrence that the entry still waits for has not been sent."""
    not_yet = f"has not run yet for {when}"
    reasons = [*case.delays(case.now)]
    state = case.state_at(case.now)
    if state:
        return Explanation(f"{not_yet}: it is {state}", reasons)
    if case.entry is not None and case.entry.last_error is not None:
        failure = f"The last attempt to publish it failed: {case.entry.last_error}"
        reasons.append(Reason("publish", failure))
    leader = case.status.leader
    if leader is not None:
        detail = leader.why or f"its first due entry is {span(case.status.lag)} late"
        reasons.append(Reason("leader", f"The beat that leads, {leader}: {detail}"))
    return Explanation(f"{not_yet}: it has not been sent", reasons)


def _bound_words(case: Case, nominal: datetime) -> str:
    """Return which bound of the entry excludes an occurrence, in words; empty if none does.

    The bounds are ``start_at``, ``end_at`` and ``max_runs``.
    """
    entry = case.entry
    if entry is None:
        return ""
    if entry.start_at is not None and nominal < entry.start_at:
        return f"its start_at is {case.when(entry.start_at)}"
    if entry.end_at is not None and nominal > entry.end_at:
        return f"its end_at is {case.when(entry.end_at)}"
    last = entry.last_run_at
    if used_up(entry, entry.total_run_count) and last is not None and nominal > last:
        return f"its max_runs of {entry.max_runs} was reached at {case.when(last)}"
    return ""


def _shift_reasons(case: Case, nominal: datetime) -> Iterator[Reason]:
    """Yield the reasons for which an occurrence comes at another time than its nominal time.

    These are a clock change, and jitter.
    """
    entry = case.entry
    if entry is None:
        return
    words = hazard(entry.rule, to_ms(nominal))
    if words is not None:
        yield Reason("clock change", f"Of {case.when(nominal)}: {words}")
    # score() adds the jitter of the occurrence to its nominal time.
    due = score(entry, to_ms(nominal))
    if due is not None and due > to_ms(nominal):
        sentence = f"Jitter puts off {case.when(nominal)} to {case.when(from_ms(due))}"
        yield Reason("jitter", sentence)


def _asked_span(instant: datetime) -> tuple[datetime, datetime]:
    """Return begin and end of the second in which an instant lies; without seconds, of its minute.

    An instant that the clocks skip stands for the end of the skipped time.
    """
    # If the clocks show a local time twice, ``fold=1`` marks the later of the two instants.
    # replace() keeps this mark, so first_passing() does not return the earlier instant.
    begin = first_passing(instant.tzinfo or UTC, instant.replace(microsecond=0, tzinfo=None))
    length = timedelta(seconds=1) if instant.second else timedelta(minutes=1)
    return begin, begin + length


def _around(entry: Entry, begin: datetime, end: datetime) -> _Around | None:
    """Return the occurrences of an entry around the span of time from ``begin`` until ``end``.

    ``None`` if its schedule cannot calculate past occurrences, because it counts each run from the
    previous run, or because it is an interval that has had no run and has no next one.
    """
    rule = entry.rule
    if isinstance(rule, ForeignRule | AnsweringRule):
        return None
    begin_ms = to_ms(begin)
    end_ms = to_ms(end)
    since = begin_ms - _LONGEST_GAP
    if isinstance(rule, every) and not rule.on_grid:
        state = entry.state
        anchor = state.last if state.nominal is None else state.nominal
        if anchor is None:
            return None
        # Such an interval has no fixed grid, and last_ms() counts it from ``since``. So move
        # ``since`` back until it is a whole number of intervals away from an occurrence.
        since -= (since - anchor) % rule.ms
    # last_ms() returns ``since`` if there is no occurrence.
    before = last_ms(rule, since, begin_ms - 1)
    in_span = takewhile(lambda ms: ms < end_ms, occurrences(rule, before))
    within = [*islice(in_span, _MOST)]
    last = within[-1] if within else before
    # If the span has more than _MOST occurrences, ``after`` lies in the span, too.
    after = rule.next_ms(last)
    earlier = None if before == since else from_ms(before)
    later = None if after is None else from_ms(after)
    return _Around(entry.schedule, earlier, [*map(from_ms, within)], later)


# -- The recorded run of an occurrence: its outcome in words, and the causes -----------------------


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

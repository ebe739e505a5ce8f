"""``why``: explains, from recorded evidence and without guesses, why an entry did not run.

If the entry did run, the explanation says so. :func:`explain` is pure: its evidence is a
:class:`Case`, which includes the present time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime

from .._base.times import from_ms, to_ms
from ..entries.entry import Entry
from ..entries.lifecycle import score
from ..entries.words import counted, span
from ..rules import Manual
from .why_case import ABSENT, STORING, TIMING, Case, Explanation, Reason, full
from .why_occurrences import (
    DAY,
    Span,
    around,
    calendar_reasons,
    clock_change_reasons,
    explain_no_occurrence,
    is_fixed,
    is_skipped,
    jitter_reasons,
    known_occurrences,
    last_by_rule,
    next_reasons,
    out_of_bounds,
)
from .why_outcomes import explain_run

#: Maximum number of other runs of a minute that an explanation names.
_MOST_OTHERS = 5

#: States in which an entry certainly sends nothing. ``"frozen"`` is none of them, because the runs
#: that a freeze has held may be sent when the freeze ends.
_IDLE = (ABSENT, "paused", "disabled")


def explain(case: Case, instant: datetime | None) -> Explanation:
    """Explain why an entry did not run at an instant, or say that it did.

    Parameters:
        instant: aware instant. Without seconds it stands for the first run of its minute, and the
            explanation names the others; otherwise it stands for its second. If the clocks of its
            zone skip it, it stands for the end of the skipped time.
            ``None`` stands for the last instant at which the entry should have run, and the
            explanation also names the next run.
    """
    explanation = _explain_last(case) if instant is None else _explain_at(case, instant)
    if case.refused is None:
        return explanation
    refusal = full(f"The beat refuses the definition in beat_schedule: {case.refused}")
    reasons = (*explanation.reasons, Reason("refused", refusal))
    return replace(explanation, reasons=reasons)


def _explain_at(case: Case, instant: datetime) -> Explanation:
    """Explain the first occurrence in the second or minute of an instant, and name the others."""
    asked = Span.of(instant)
    occurrences = _occurrences_in(case, asked)
    if occurrences:
        explanation = _explain_occurrence(case, occurrences[0])
    elif case.entry is None:
        explanation = _explain_removed(case, from_ms(asked.begin))
    else:
        explanation = explain_no_occurrence(case, case.entry, asked)
    reasons = [*explanation.reasons, *_others(case, occurrences[1:])]
    if is_skipped(instant):
        reasons.append(Reason("clock change", f"The clocks skip {instant:%Y-%m-%d %H:%M:%S}."))
    return replace(explanation, reasons=tuple(reasons))


def _explain_last(case: Case) -> Explanation:
    """Explain the last occurrence that was due by now, and name the next one."""
    entry = case.entry
    if entry is None:
        return _explain_removed(case, None)
    last = _last_occurrence(case, entry)
    if last is None:
        explanation = _explain_no_run_yet(case, entry)
        is_next = False
    else:
        explanation = _explain_occurrence(case, last)
        # If the explained occurrence has not been sent yet, it is also the next one.
        is_next = case.is_outstanding(last)
    now = to_ms(case.now)
    # The calendar may have left out occurrences after the last one, or of the last day.
    since = now - DAY if last is None else last + 1
    reasons = [*explanation.reasons, *calendar_reasons(case, entry, Span(since, now))]
    for reason in next_reasons(case, entry):
        if reason not in explanation.reasons and not (is_next and reason.kind == "next"):
            reasons.append(reason)
    return replace(explanation, reasons=tuple(reasons))


def _explain_no_run_yet(case: Case, entry: Entry) -> Explanation:
    """Say that an entry has had no occurrence since it was stored."""
    verdict = f"{case.name} has had no occurrence yet."
    if isinstance(entry.schedule, Manual):
        verdict = f"{case.name} is run by hand only, and no run of it is recorded."
    change = case.last(*STORING)
    reasons = () if change is None else (case.change_reason(change, change.action),)
    return Explanation(verdict, reasons)


def _last_occurrence(case: Case, entry: Entry) -> int | None:
    """Compute, from the schedule and the stored state, the last occurrence that was due by now.

    It is in epoch ms; ``None`` if there is none. It may be the last run, the occurrence that the
    entry waits for, or one by the schedule that was neither sent nor noted in the state. Without
    any of these it is the last run by hand.
    """
    state = entry.known_state
    now = to_ms(case.now)
    known = [ms for ms in known_occurrences(entry) if ms <= now]
    # The state of an entry that has sent and skipped nothing shows that it has had no occurrence.
    is_new = not known and not state.skipped
    by_rule = last_by_rule(entry, now, case.zone)
    if by_rule is not None and not is_new and not state.finished:
        # Before its start and before the last change of its timing, the entry did not have the
        # occurrences of its present schedule.
        change = case.last(*STORING, fields=TIMING)
        since = max(entry.start_ms or 0, 0 if change is None else to_ms(change.at))
        if by_rule >= since:
            known.append(by_rule)
    if not known:
        # Without an occurrence, the only recorded runs are runs by hand.
        known = [to_ms(run.scheduled_at) for run in case.runs if run.count == 1]
    return max(known, default=None)


def _occurrences_in(case: Case, asked: Span) -> list[int]:
    """Return the occurrences in a span of time, in epoch ms: of the schedule, and recorded ones.

    If the occurrences may have moved since, the schedule of today says little about the past. Then
    it counts only if nothing is recorded.
    """
    entry = case.entry
    near = None if entry is None else around(entry, asked, case.zone)
    by_rule = [] if near is None else near.within
    recorded = _recorded_in(case, asked, by_rule)
    is_changed = case.altered(from_ms(asked.begin)) is not None
    may_have_moved = entry is None or is_changed or not is_fixed(entry, case.zone)
    if recorded and may_have_moved:
        return sorted(recorded)
    return sorted(recorded.union(by_rule))


def _recorded_in(case: Case, asked: Span, by_rule: list[int]) -> set[int]:
    """Return the recorded occurrences in a span of time, in epoch ms.

    They are those of recorded runs, and the last and the next occurrence in the entry's state.

    Parameters:
        by_rule: occurrences of the schedule in the span. A record of several occurrences (a range)
            has only the first and the last instant, so these tell which ones lie between.
    """
    recorded = {ms for ms in by_rule if case.run_at(from_ms(ms)) is not None}
    runs = [run for run in case.runs if run.count == 1]
    if case.entry is not None:
        recorded.update(known_occurrences(case.entry))
        if any(calendar_reasons(case, case.entry, asked)):
            # A run that the calendar has left out is explained as no occurrence.
            runs = [run for run in runs if run.outcome != "skipped"]
    recorded.update(to_ms(run.scheduled_at) for run in runs)
    return {ms for ms in recorded if asked.begin <= ms < asked.end}


def _others(case: Case, occurrences: list[int]) -> Iterator[Reason]:
    """Yield a reason that names the occurrences of a minute (epoch ms) that are not explained."""
    others = []
    for ms in occurrences[:_MOST_OTHERS]:
        run = case.run_at(from_ms(ms))
        outcome = "" if run is None else f" {run.outcome}"
        others.append(f"{from_ms(ms).astimezone(case.zone):%H:%M:%S}{outcome}")
    more = len(occurrences) - len(others)
    if more:
        others.append(f"and {more} more")
    if others:
        number = counted(len(occurrences), "more occurrence", "more occurrences")
        yield Reason("same minute", f"This minute has {number}: {', '.join(others)}.")


def _explain_occurrence(case: Case, nominal: int) -> Explanation:
    """Explain an occurrence.

    Parameters:
        nominal: nominal time of the occurrence, in epoch ms.
    """
    at = from_ms(nominal)
    entry = case.entry
    run = case.run_at(at)
    if run is not None:
        explanation = explain_run(case, run, nominal)
    elif entry is None:
        explanation = _explain_removed(case, at)
    else:
        # The last of these functions always returns an explanation, so there is a first one.
        attempts = (explain_by(case, entry, nominal) for explain_by in _EXPLANATIONS)
        explanation = next(filter(None, attempts))
    reasons = [*explanation.reasons]
    if entry is not None:
        reasons += clock_change_reasons(case, entry, nominal)
        reasons += jitter_reasons(case, entry, nominal)
    return Explanation(explanation.verdict, tuple(reasons), at)


def _to_come(case: Case, entry: Entry, nominal: int) -> Explanation | None:
    """Say that an occurrence lies in the future; ``None`` if it does not."""
    if nominal <= to_ms(case.now):
        return None
    verdict = f"{case.name} has not run at {case.when(nominal)}: that is still to come."
    return Explanation(verdict, tuple(next_reasons(case, entry)))


def _outstanding(case: Case, entry: Entry, nominal: int) -> Explanation | None:
    """Explain why a past occurrence that the entry still waits for has not been sent.

    ``None`` if the entry does not wait for it.
    """
    if not case.is_outstanding(nominal):
        return None
    not_yet = f"{case.name} has not run yet for {case.when(nominal)}"
    reasons = [*case.delays(case.now), *_failures(case, entry)]
    states = [hold.state for hold in case.holds_at(case.now) if hold.state]
    if states:
        return Explanation(f"{not_yet}: it is {states[0]}.", tuple(reasons))
    due = score(entry, nominal, case.zone)
    if due is not None and due > to_ms(case.now):
        return Explanation(f"{not_yet}: it is not due yet.", tuple(reasons))
    return Explanation(f"{not_yet}: it has not been sent.", tuple(reasons or [_backlog(case)]))


def _held(case: Case, entry: Entry, nominal: int) -> Explanation | None:
    """Explain that the entry was not stored, paused or disabled at an occurrence, or ``None``."""
    at = from_ms(nominal)
    for hold in case.holds_at(at):
        if hold.state in _IDLE:
            verdict = f"{case.name} did not run at {case.when(nominal)}: it was {hold.state}."
            return Explanation(verdict, hold.reasons)
    return None


def _sent(case: Case, entry: Entry, nominal: int) -> Explanation | None:
    """Say that the state of the entry shows that an occurrence was sent; ``None``: it does not."""
    if entry.known_state.last != nominal:
        return None
    sent = Reason("sent", f"It was sent as task {entry.last_task_id}.")
    verdict = f"{case.name} was sent for {case.when(nominal)}; what became of it is not recorded."
    return Explanation(verdict, (sent, *_record_limits(case, nominal)))


def _unrecorded(case: Case, entry: Entry, nominal: int) -> Explanation:
    """Explain an occurrence that the entry has passed, although no run of it is recorded.

    The oldest records are dropped first. So if runs before and after it are recorded, this one was
    not sent.
    """
    at = from_ms(nominal)
    when = case.when(nominal)
    reasons = (*case.delays(at), *case.changed_since(at), *_record_limits(case, nominal))
    # The newest run comes first. A run without a task was not sent; the beat records such runs.
    sent = [run.scheduled_at for run in case.runs if run.task_id is not None]
    if not sent or not sent[-1] < at < sent[0]:
        verdict = f"Whether {case.name} ran at {when} is not recorded any more."
        return Explanation(verdict, reasons)
    unknown = Reason("not recorded", "The cause is not recorded.")
    return Explanation(
        f"{case.name} did not run at {when}: it was not sent.", reasons or (unknown,)
    )


#: Explanations of an occurrence without a recorded run. The first that is not ``None`` is given.
_EXPLANATIONS: tuple[Callable[[Case, Entry, int], Explanation | None], ...] = (
    out_of_bounds,
    _to_come,
    _outstanding,
    _held,
    _sent,
    _unrecorded,
)


def _failures(case: Case, entry: Entry) -> Iterator[Reason]:
    """Yield that attempts to publish the entry have failed, or that the leader cannot work."""
    state = entry.known_state
    if state.attempts:
        attempts = counted(state.attempts, "attempt", "attempts")
        sentence = full(f"{attempts} to publish it failed, the last one with: {state.error}")
        if entry.due is not None:
            sentence += f" It is tried again at {case.when(entry.due)}."
        yield Reason("publish", sentence)
    leader = case.status.leader
    if leader is not None and leader.failing_for is not None:
        who = f"The leader, pid {leader.pid} on {leader.host},"
        sentence = f"{who} cannot do its work for {leader.failing_for:.0f} s: {leader.why}"
        yield Reason("failing", full(sentence))


def _backlog(case: Case) -> Reason:
    """Say that a beat leads and will send the occurrence, and how late the beat is."""
    status = case.status
    if not status.overdue:
        return Reason("due", "A beat leads, and is about to send it.")
    late = f"the first of those that are due is {span(status.lag)} late"
    return Reason("behind", f"A beat leads, and is behind: {late}.")


def _record_limits(case: Case, nominal: int) -> Iterator[Reason]:
    """Yield how far back each record reaches, if it does not reach an occurrence."""
    at = from_ms(nominal)
    if not case.runs:
        sentence = f"No run of it is recorded; its history is {case.kept}."
        yield Reason("not recorded", sentence)
    elif case.runs[-1].scheduled_at > at:
        oldest = case.runs[-1].scheduled_at
        kept = counted(case.kept, "run is", "runs are")
        sentence = f"{kept} kept; the first that is recorded is of {case.when(oldest)}."
        yield Reason("not recorded", sentence, oldest)
    if case.since is not None and case.since > at:
        sentence = f"Changes before {case.when(case.since)} are not recorded any more."
        yield Reason("not recorded", sentence, case.since)


def _explain_removed(case: Case, instant: datetime | None) -> Explanation:
    """Explain why an entry that is not stored did not run at an instant.

    Parameters:
        instant: the instant; ``None`` stands for now. If the record of changes has no removal of
            the entry, the entry may have removed itself after its last run. Then that run is
            explained in the answer for now.
    """
    # A hold is a period in which something kept the entry from being sent.
    present = tuple(reason for hold in case.holds_at(case.now) for reason in hold.reasons)
    if instant is not None:
        did_not_run = f"{case.name} did not run at {case.when(instant)}"
        for hold in case.holds_at(instant):
            if hold.state:  # It is empty for a period without a leader.
                return Explanation(f"{did_not_run}: it was {hold.state}.", hold.reasons)
        verdict = f"Whether {case.name} ran at {case.when(instant)} is not recorded any more."
        return Explanation(verdict, present)
    is_unrecorded = any(reason.kind == "not recorded" for reason in present)
    if is_unrecorded and case.runs:
        run = case.runs[0]
        last = explain_run(case, run, to_ms(run.until or run.scheduled_at))
        return replace(last, reasons=(*last.reasons, *present))
    return Explanation(f"{case.name} does not run: it is {ABSENT}.", present)

"""``why``: explains, from recorded evidence and without guesses, why an entry did not run.

If the entry did run, the explanation says so. :func:`explain` is pure: its evidence is a
:class:`Case`, which includes the present time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime

from .._base.times import from_ms, to_ms
from ..entries.entry import Entry
from ..entries.lifecycle import due_time
from ..entries.on_calendar import left_out_words
from ..entries.words import counted, span
from ..rules import Manual, Question
from ..runs.run import Run
from ..store.changes import Change
from .why_case import (
    REMOVING,
    STORING,
    TIMING,
    Case,
    Explanation,
    Reason,
    full,
)
from .why_occurrences import (
    MINUTE,
    Around,
    Span,
    around,
    current_outage,
    current_pause,
    explain_no_occurrence,
    explain_outside,
    is_fixed,
    occurrences_in,
    publish_failures,
    skipped,
    stands_in,
    upcoming,
    with_moves,
)
from .why_outcomes import explain_run

#: Maximum number of other runs of a minute that an explanation names.
_MOST_OTHERS = 5


def explain(case: Case, instant: datetime | None, *, to_second: bool = False) -> Explanation:
    """Explain why an entry did not run at an instant, or say that it did.

    Parameters:
        instant: aware instant. Without seconds it stands for the first run of its minute, and the
            explanation names the others; otherwise it stands for its second. If the clocks of its
            zone skip it, it stands for the end of the skipped time.
            ``None`` stands for the last instant at which the entry should have run, and the
            explanation also names the next run.
        to_second: whether an instant without seconds stands for its second, too.
    """
    entry = case.entry
    if instant is not None:
        asked = Span.of(instant, to_second)
        explanation = _explain_span(case, entry, instant, asked)
        others = _other_runs(case, entry, asked, explanation)
        return replace(explanation, reasons=(*explanation.reasons, *others))
    if entry is None:
        return _explain_removed(case, None)
    last = _last_occurrence(case, entry)
    if last is None:
        # Without an occurrence, the only recorded runs are runs by hand. The newest comes first.
        runs_by_hand = (to_ms(run.scheduled_at) for run in case.runs if run.count == 1)
        last = next(runs_by_hand, None)
    is_outstanding = False
    left_out = [*_left_out_since(case, entry, last)]
    if last is None:
        explanation = _explain_no_run_yet(case, entry, left_out)
        reasons = [*explanation.reasons]
    else:
        explanation = _explain_span(case, entry, from_ms(last), Span(last, last + 1))
        nominal = entry.known_state.nominal
        is_paused = entry.known_state.paused
        is_outstanding = nominal is not None and nominal <= last and not is_paused
        reasons = [*explanation.reasons, *left_out]
    for reason in upcoming(case, entry):
        # If the explained occurrence has not been sent yet, it is also the next one.
        is_known = is_outstanding and reason.kind == "next"
        if reason not in explanation.reasons and not is_known:
            reasons.append(reason)
    return replace(explanation, reasons=tuple(reasons))


def _left_out_since(case: Case, entry: Entry, last: int | None) -> Iterator[Reason]:
    """Yield that the calendar has left out runs since the last occurrence.

    Parameters:
        last: the last occurrence, in epoch ms; ``None`` if there was none since the entry was
            stored.
    """
    if last is None:
        change = case.last(None, *STORING)
        if change is None:
            return
        last = to_ms(change.at)
    words = left_out_words(entry, last + 1, to_ms(case.now), case.zone)
    if words is not None:
        yield Reason("calendar", words)


def _explain_no_run_yet(case: Case, entry: Entry, left_out: list[Reason]) -> Explanation:
    """Say that an entry has had no occurrence since it was stored.

    Parameters:
        left_out: that its calendar has left out runs since then; empty if it has not.
    """
    change = case.last(None, *STORING)
    reasons = [*left_out]
    if change is not None:
        reasons.append(case.change_reason(change, change.action))
    if isinstance(entry.schedule, Manual):
        verdict = f"{case.name} is run by hand only, and no run of it is recorded."
    elif left_out:
        verdict = f"{case.name} has not run yet: its calendar has left out all its runs."
    else:
        verdict = f"{case.name} has had no occurrence yet."
    return Explanation(verdict, tuple(reasons))


def _last_occurrence(case: Case, entry: Entry) -> int | None:
    """Compute, from the schedule and the stored state, the last occurrence that was due by now.

    It is in epoch ms; ``None`` if there is none. It may be the last run, the occurrence that the
    entry waits for, or one by the schedule that was neither sent nor noted in the state.
    """
    state = entry.known_state
    now = to_ms(case.now)
    has_no_past = state.last is None and not state.skipped
    is_new = has_no_past and state.nominal is not None and state.nominal > now
    has_not_started = entry.start_ms is not None and entry.start_ms > now
    if state.finished or is_new or has_not_started:
        return state.last
    candidates = [state.last]
    if state.nominal is not None and state.nominal <= now:
        candidates.append(state.nominal)
    until = now if entry.end_ms is None else min(now, entry.end_ms)
    # The occurrence before the next millisecond is the last one up to this one.
    near = around(entry, Span(until + 1, until + 2), case.zone)
    if near is not None and near.before is not None:
        # An occurrence before the last change of the timing is none of the schedule that the entry
        # had then, so leave it out.
        change = case.last(None, *STORING, fields=TIMING)
        if change is None or near.before >= to_ms(change.at):
            candidates.append(near.before)
    return max((ms for ms in candidates if ms is not None), default=None)


def _explain_span(case: Case, entry: Entry | None, instant: datetime, asked: Span) -> Explanation:
    """Explain the occurrence in a span, or say that there is none.

    Parameters:
        instant: instant of the question.
        asked: the second or the minute that the instant stands for.
    """
    near = None if entry is None else around(entry, asked, case.zone)
    if entry is not None and near is not None and skipped(instant):
        # ``asked`` is the end of the skipped time. Its occurrence is either a run that the clock
        # change has moved there, or one that the entry has there on every day.
        is_moved_run = stands_in(case, entry, asked.begin)
        if not is_moved_run:
            near = Around(near.before, None, near.at or near.after)
            return explain_no_occurrence(case, entry, instant, near)
    run = _run_in_span(case, entry, instant, asked, near)
    if run is not None:
        by_calendar = None
        if entry is not None and run.outcome == "skipped":
            by_calendar = left_out_words(entry, asked.begin, asked.end, case.zone)
        # A run that the calendar leaves out is explained below, as no occurrence.
        if by_calendar is None:
            return with_moves(case, explain_run(case, run, to_ms(run.scheduled_at)))
    if entry is None:
        return _explain_removed(case, instant)
    if near is None or near.at is None:
        return explain_no_occurrence(case, entry, instant, near)
    return with_moves(case, _explain_occurrence(case, entry, near.at))


def _explain_occurrence(case: Case, entry: Entry, nominal: int) -> Explanation:
    """Explain an occurrence of the entry's schedule, by its nominal time in epoch ms.

    In this order: its recorded run, the bounds of the entry, the future, or why it has no run.
    """
    at = from_ms(nominal)
    run = case.run_at(at)
    if run is not None:
        return explain_run(case, run, nominal)
    outside = explain_outside(case, entry, nominal)
    if outside is not None:
        return outside
    if nominal > to_ms(case.now):
        verdict = f"{case.name} has not run at {case.when(nominal)}: that is still to come."
        return Explanation(verdict, tuple(upcoming(case, entry)), at)
    return _explain_absence(case, entry, nominal)


def _run_in_span(
    case: Case,
    entry: Entry | None,
    instant: datetime,
    asked: Span,
    near: Around | None,
) -> Run | None:
    """Return the run of the occurrence in a span; if there is none, the first run in the span.

    Parameters:
        near: the occurrences around the span; ``None`` if the schedule does not say them.
    """
    runs = {to_ms(run.scheduled_at): run for run in case.runs if run.count == 1}
    if near is not None and near.at is not None:
        if near.at in runs:
            return runs[near.at]
        if case.run_at(from_ms(near.at)) is not None:
            return None  # It lies in a range of runs. _explain_occurrence() explains that.
        # The occurrence has no run. Unless the occurrences have moved, another run in the span was
        # made by hand, so it is not the run that the user asks about.
        if entry is not None and is_fixed(entry, case.zone) and case.altered(instant) is None:
            return None
    for ms in sorted(runs):
        if asked.begin <= ms < asked.end:
            return runs[ms]
    return None


def _other_runs(
    case: Case,
    entry: Entry | None,
    asked: Span,
    explanation: Explanation,
) -> Iterator[Reason]:
    """Yield the runs of the asked minute that the explanation is not about.

    Recorded runs have their outcomes. If none of the minute is recorded, the occurrences of the
    schedule are named.
    """
    if explanation.nominal is None or asked.end - asked.begin < MINUTE:
        return
    instants = {to_ms(run.scheduled_at) for run in case.runs if run.count == 1}
    if entry is not None:
        instants.update(occurrences_in(entry, asked, case.zone))
    instants.discard(to_ms(explanation.nominal))
    instants = {ms for ms in instants if asked.begin <= ms < asked.end}
    recorded = {ms for ms in instants if case.run_at(from_ms(ms)) is not None}
    others = sorted(recorded or instants)
    if not others:
        return
    times = []
    for ms in others[:_MOST_OTHERS]:
        run = case.run_at(from_ms(ms))
        outcome = "" if run is None else f" {run.outcome}"
        times.append(f"{from_ms(ms).astimezone(case.zone):%H:%M:%S}{outcome}")
    if len(others) > _MOST_OTHERS:
        times.append(f"and {len(others) - _MOST_OTHERS} more")
    number = counted(len(others), "more occurrence", "more occurrences")
    sentence = f"This minute has {number}: {', '.join(times)}."
    yield Reason("same minute", sentence)


def _explain_absence(case: Case, entry: Entry, nominal: int) -> Explanation:
    """Explain why a past occurrence, by its nominal time in epoch ms, has no recorded run."""
    at = from_ms(nominal)
    did_not_run = f"{case.name} did not run at {case.when(nominal)}"
    absent = _absent_at(case, at)
    if absent is not None:
        return Explanation(f"{did_not_run}: it was not stored then.", (absent,), at)
    waits_for = entry.known_state.nominal
    if isinstance(waits_for, Question):
        # A schedule of another library is asked at that instant, and may have no occurrence then.
        waits_for = None
    if waits_for is not None and waits_for <= nominal:
        return _explain_outstanding(case, entry, nominal)
    if case.paused_at(at) is not None:
        return Explanation(f"{did_not_run}: it was paused.", tuple(case.hindrances(at)), at)
    disabled = _disabled_at(case, at)
    if disabled is not None:
        return Explanation(f"{did_not_run}: it was disabled.", (disabled,), at)
    return _explain_unrecorded(case, entry, nominal)


def _explain_removed(case: Case, instant: datetime | None) -> Explanation:
    """Explain why an entry that is not stored did not run at an instant.

    ``None`` as the instant stands for the present.
    """
    reasons = [*_removal(case)]
    is_known = bool(reasons or case.runs)
    if case.refused is not None:
        sentence = f"The beat refuses the one in beat_schedule: {case.refused}"
        reasons.append(Reason("refused", full(sentence)))
    if instant is None:
        return _explain_removed_now(case, tuple(reasons))
    did_not_run = f"{case.name} did not run at {case.when(instant)}"
    if case.quarantine is not None:
        since = reasons[0].at
        if since is not None and since <= instant:
            return Explanation(f"{did_not_run}: it was in quarantine.", tuple(reasons))
    absent = _absent_at(case, instant)
    if absent is not None:
        reasons = [absent, *(reason for reason in reasons if reason != absent)]
    elif is_known:
        verdict = f"Whether {case.name} ran at {case.when(instant)} is not recorded any more."
        return Explanation(verdict, tuple(reasons))
    return Explanation(f"{did_not_run}: it was not stored.", tuple(reasons))


def _removal(case: Case) -> Iterator[Reason]:
    """Yield why an entry is not stored: its quarantine, or the last change that says anything."""
    if case.quarantine is not None:
        at = case.quarantine.get("at")
        since = from_ms(at) if isinstance(at, int) else None
        when = "" if since is None else f" since {case.when(since)}"
        sentence = full(f"In quarantine{when}: {case.quarantine.get('error')}")
        yield Reason("quarantined", sentence, since)
        return
    change = case.last(None, *STORING, *REMOVING)
    if change is None:
        return
    yield case.change_reason(change, change.action)
    if change.action in STORING:
        sentence = (
            "It is not stored any more. Who removed it is not recorded; it may have removed itself."
        )
        yield Reason("not recorded", sentence)


def _explain_removed_now(case: Case, reasons: tuple[Reason, ...]) -> Explanation:
    """Say that an entry does not run, because it is not stored.

    If no removal is recorded, the entry may have removed itself after its last run, so that run is
    explained.
    """
    if case.quarantine is not None:
        return Explanation(f"{case.name} does not run: it is in quarantine.", reasons)
    change = case.last(None, *STORING, *REMOVING)
    if case.runs and (change is None or change.action in STORING):
        run = case.runs[0]
        last = explain_run(case, run, to_ms(run.until or run.scheduled_at))
        return replace(last, reasons=(*last.reasons, *reasons))
    return Explanation(f"{case.name} does not run: it is not stored.", reasons)


def _absent_at(case: Case, at: datetime) -> Reason | None:
    """Return the change that proves that the entry was not stored at an instant."""
    before = case.last(at, *STORING, *REMOVING)
    after = case.first(at, *STORING, *REMOVING)
    if before is not None:
        if before.action in STORING:
            return None
        # The entry is stored now, so it was added again, at an instant that is not recorded.
        was_added_again = after is None and case.entry is not None
        if was_added_again or case.was_sent(before.at, at):
            return None
        return case.change_reason(before, before.action)
    if after is None or after.action in REMOVING:
        return None
    if any(run.scheduled_at <= at for run in case.runs):
        return None  # An earlier entry of this name was stored then.
    return case.change_reason(after, after.action)


def _disabled_at(case: Case, at: datetime) -> Reason | None:
    """Return the change that proves that the entry was disabled at an instant."""
    after = case.first(at, fields=("enabled",))
    if after is None:
        return None
    before = _disabling_change(case, at)
    if before is not None:
        if case.was_sent(before.at, at):
            return None
        _, value_after = _enabled(before)
        if value_after == "false":
            return case.change_reason(before, "disabled")
    value_before, _ = _enabled(after)
    return case.change_reason(after, "disabled") if value_before == "false" else None


def _disabling_change(case: Case, until: datetime | None) -> Change | None:
    """Return the last change until an instant after which the entry may have been disabled.

    That is an edit of ``enabled``, or the change that stored the entry. ``None`` if that edit has
    enabled the entry.
    """
    change = case.last(until, *STORING, fields=("enabled",))
    return None if change is not None and _enabled(change)[0] == "false" else change


def _enabled(change: Change) -> tuple[str | None, str | None]:
    """Return the field ``enabled`` before and after a change; ``None`` if it is not recorded."""
    for field, before, after in change.fields:
        if field == "enabled":
            return before, after
    return None, None


def _explain_outstanding(case: Case, entry: Entry, nominal: int) -> Explanation:
    """Explain why a past occurrence that the entry still waits for has not been sent."""
    state = entry.known_state
    at = from_ms(nominal)
    did_not_run = f"{case.name} did not run at {case.when(nominal)}"
    not_yet = f"{case.name} has not run yet for {case.when(nominal)}"
    if state.paused:
        return Explanation(f"{did_not_run}: it is paused.", (current_pause(case, entry),), at)
    if not entry.enabled:
        reason = Reason("disabled", "The record does not say who disabled it, or when.")
        change = None if case.unrecorded else _disabling_change(case, None)
        if change is not None:
            reason = case.change_reason(change, "disabled")
        return Explanation(f"{did_not_run}: it is disabled.", (reason,), at)
    if case.frozen(case.now):
        return Explanation(f"{not_yet}: it is frozen.", tuple(case.hindrances(case.now)), at)
    due = due_time(entry, state, case.zone)
    if state.nominal == nominal and due is not None and due > to_ms(case.now):
        sentence = f"Its jitter puts it off to {case.when(due)}."
        reason = Reason("jitter", sentence, from_ms(due))
        return Explanation(f"{not_yet}: it is not due yet.", (reason,), at)
    reasons = [*publish_failures(case, entry), *current_outage(case)] or [_backlog(case)]
    return Explanation(f"{not_yet}: it has not been sent.", tuple(reasons), at)


def _backlog(case: Case) -> Reason:
    """Say that a beat leads and will send the occurrence, and how late the beat is."""
    status = case.status
    if not status.overdue:
        return Reason("due", "A beat leads, and is about to send it.")
    late = f"the first of those that are due is {span(status.lag)} late"
    return Reason("behind", f"A beat leads, and is behind: {late}.")


def _explain_unrecorded(case: Case, entry: Entry, nominal: int) -> Explanation:
    """Explain an occurrence that the entry has passed, although no run of it is recorded."""
    at = from_ms(nominal)
    when = case.when(nominal)
    if entry.known_state.last == nominal:
        sent = Reason("sent", f"It was sent as task {entry.last_task_id}.")
        verdict = f"{case.name} was sent for {when}; what became of it is not recorded."
        return Explanation(verdict, (sent, *_record_limits(case, nominal)), at)
    reasons = (
        *case.hindrances(at),
        *case.changed_since(at),
        *_record_limits(case, nominal),
    )
    if not _was_not_sent(case, entry, nominal):
        verdict = f"Whether {case.name} ran at {when} is not recorded any more."
        return Explanation(verdict, reasons, at)
    if not reasons:
        reasons = (Reason("not recorded", "The cause is not recorded."),)
    return Explanation(f"{case.name} did not run at {when}: it was not sent.", reasons, at)


def _was_not_sent(case: Case, entry: Entry, nominal: int) -> bool:
    """Return whether the records prove that an occurrence was not sent.

    They prove it if runs before and after it are recorded. The state of the entry has all runs that
    were sent recently, the newest first. Workers record older runs, and the oldest of these records
    are dropped first. So the record of this run would be there, if it had been sent.
    """
    sent = entry.known_state.sent
    if sent and sent[-1] < nominal < sent[0]:
        return True
    recorded = []
    for run in case.runs:
        if run.task_id is not None and run.count == 1:
            recorded.append(to_ms(run.scheduled_at))
    return any(ms < nominal for ms in recorded) and any(ms > nominal for ms in recorded)


def _record_limits(case: Case, nominal: int) -> Iterator[Reason]:
    """Yield how far back each record reaches, if it does not reach an occurrence."""
    if not case.kept:
        sentence = "None of its runs is recorded: its history is 0."
        yield Reason("not recorded", sentence)
    elif not case.runs:
        yield Reason("not recorded", "No run of it is recorded.")
    elif to_ms(case.runs[-1].scheduled_at) > nominal:
        oldest = case.runs[-1].scheduled_at
        kept = counted(case.kept, "run is", "runs are")
        sentence = f"{kept} kept; the first that is recorded is of {case.when(oldest)}."
        yield Reason("not recorded", sentence, oldest)
    if case.since is None:
        yield Reason("not recorded", "No change is recorded.")
    elif to_ms(case.since) > nominal:
        sentence = f"Changes before {case.when(case.since)} are not recorded any more."
        yield Reason("not recorded", sentence, case.since)

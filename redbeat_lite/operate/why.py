"""``why``: explains, from recorded evidence and without guesses, why an entry did not run.

If the entry did run, the explanation says so. :func:`explain` asks no server and no clock. All
evidence, including the present time, is in a :class:`Case`.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from .._base.times import from_ms, to_ms
from ..entries.lifecycle import score, used_up
from ..entries.message import queue_of
from ..entries.run import Run
from ..entries.words import span
from ..rules import counts_from_run, last_ms
from ..rules.celery_schedules import AnsweringRule, ForeignRule
from ..rules.clock_changes import first_passing, hazard
from .why_case import Case, Explanation

#: How far back to search for the previous occurrence, in ms. Two occurrences on 29 February can be
#: eight years apart, and few rules have longer gaps.
_LONGEST_GAP = 3000 * 86_400_000

#: Outcome of a run -> verdict, without the name of the entry before it. The first placeholder is
#: the nominal time. The second one says why the run was left out.
_VERDICTS = {
    "waiting": "began for {}, and did not end; its message is to come again",
    "running": "runs for {}, and has not ended",
    "retrying": "ran for {}, and failed; it waits for its retry",
    "succeeded": "ran for {}, and succeeded",
    "failed": "ran for {}, and failed",
    "expired": "began for {}, and did not end; its message expired",
    "revoked": "did not run to its end for {}: its task was revoked",
    "rejected": "ran for {}, and rejected its message",
    "lost": "did not run to its end for {}: the process that ran it died",
    "skipped": "did not run for {}: its misfire policy left it out",
    "left out": "did not run for {}: {}",
    "unknown": "ran for {}; its outcome is not known",
}

#: Other verdicts for runs that no worker has begun. An outcome that is missing here has the verdict
#: above.
_NOT_BEGUN = {
    "waiting": "was sent for {}, and no worker has reported that it began",
    "failed": "did not run for {}: it failed before its body began",
    "expired": "did not run for {}: its message expired before a worker began it",
    "rejected": "did not run for {}: a worker rejected its message",
    "unknown": "was sent for {}; what became of it is not recorded",
}

#: For a run that failed and was to be retried at a known time: its outcome -> state of the retry.
_RETRIES = {
    "retrying": "it waits for its retry",
    "failed": "its message expired before its retry",
    "unknown": "no worker has reported its retry",
}

#: Name of a misfire policy -> words about the missed occurrences that the policy sends. If the
#: entry sets a grace time (``grace_ms``), words about that time are shown instead.
_MISFIRES = {
    "skip": "an occurrence may be 5 s late, or a quarter of the time to the next",
    "coalesce": "only the latest of missed occurrences is sent",
    "all": "missed occurrences are sent",
}


def explain(case: Case, instant: datetime | None) -> Explanation:
    """Explain why an entry did not run at an instant, or say that it did.

    Parameters:
        instant: aware instant. With seconds, the run in that second is explained. Without seconds,
            the first run of the minute is explained. An instant that the clocks of its zone skip
            stands for the end of the skipped time. ``None``: the last run that was due is
            explained, and the next run is named.
    """
    explanation = _explain_last(case) if instant is None else _explain_at(case, instant)
    error = case.status.refused.errors.get(case.name)
    if error:
        explanation.causes.append(f"The beat refuses the definition in beat_schedule: {error}")
    # The timeline is about the explained occurrence. If there is none, it is about the instant in
    # question; without such an instant, about the present.
    explanation.timeline = case.timeline(explanation.nominal or instant or case.now)
    explanation.verdict = f"{case.name!r} {explanation.verdict}."
    return explanation


def _explain_at(case: Case, instant: datetime) -> Explanation:
    """Explain the first occurrence in the second or minute of an instant, if there is one."""
    # first_passing() turns a time that the clocks skip into the end of the skipped time.
    # If the clocks show a time twice, ``fold=1`` marks the later of the two instants. replace()
    # keeps this mark, so first_passing() does not return the earlier instant.
    begin = first_passing(instant.tzinfo or UTC, instant.replace(microsecond=0, tzinfo=None))
    end = begin + timedelta(seconds=1 if instant.second else 60)
    nearest = _nearest_occurrences(case, begin)
    # Prefer the records to the present rule, because the entry may have had another rule then.
    for nominals in (case.recorded_nominals, nearest):
        matching = [nominal for nominal in nominals if begin <= nominal < end]
        if matching:
            return _explain_occurrence(case, min(matching))
    # If the timing of the entry has changed since, the present schedule does not show what was due.
    today = " by its schedule of today" if case.has_changed_since(begin) else ""
    explanation = Explanation(f"had no occurrence at {case.when(begin)}{today}")
    explanation.causes += case.calendar_causes(begin, end)
    # The user may miss the run of one of these occurrences, because it comes at another time than
    # the occurrence.
    for nominal in nearest:
        explanation.causes += _shift_causes(case, nominal)
    instants = " and ".join(map(case.when, nearest)) or "none"
    schedule = None if case.entry is None else case.entry.schedule
    explanation.causes.append(f"Its schedule is {schedule!r}; the nearest occurrences: {instants}.")
    return explanation


def _explain_last(case: Case) -> Explanation:
    """Explain the last occurrence that was due by now, and name the next one."""
    last = _last_occurrence(case)
    if case.entry is None:
        explanation = Explanation("does not run: it is not stored")
    elif last is None:
        explanation = Explanation("has had no occurrence yet")
    else:
        explanation = _explain_occurrence(case, last)
    # The user may miss a run that the calendar left out within the last day.
    explanation.causes += case.calendar_causes(case.now - timedelta(days=1), case.now)
    _add_next_run(case, explanation)
    return explanation


def _add_next_run(case: Case, explanation: Explanation) -> None:
    """Add to an explanation when the entry runs next, and a freeze that holds."""
    entry = case.entry
    if entry is None or entry.next_run_at is None:
        explanation.next_run = f"It has no next run, because it is {case.present_state}."
        return
    explanation.next_run = f"It is next due at {case.when(entry.next_run_at)}."
    freeze = case.status.freeze
    if freeze is None:
        return
    end = case.when(freeze.until)
    explanation.causes.append(f"All entries are frozen until {end}.")
    if entry.next_run_at < freeze.until:
        # Nothing is sent before the freeze ends, and the run is late by then.
        policy = "if its misfire policy sends a run so late"
        explanation.next_run = f"It is next due at {end}, {policy}."


def _last_occurrence(case: Case) -> datetime | None:
    """Compute, from the schedule and the records, the last occurrence that was due by now.

    The state of the entry has the last run, and the occurrence that the entry waits for. It does
    not have an occurrence that was missed, so the schedule is asked as well. The latest of these
    counts. If there is none, it is the last run in the records, or ``None``.
    """
    nominals = [nominal for nominal in case.nominals_in_state if nominal <= case.now]
    if not nominals:
        # Either the entry is not stored, so its schedule is not known. Or its schedule has had no
        # occurrence, so any runs were sent by hand.
        return max((run.scheduled_at for run in case.runs), default=None)
    # Ask for one ms after the present, so that an occurrence at the present counts, too. If the
    # schedule is a class of the user, this call returns just the instant that it is given. The
    # condition below drops it, because it is after the present.
    for nominal in _nearest_occurrences(case, case.now + timedelta(milliseconds=1)):
        # An occurrence before a change of the timing does not count, because the entry had another
        # schedule at that time.
        if nominal <= case.now and not case.has_changed_since(nominal):
            nominals.append(nominal)
    return max(nominals)


def _explain_occurrence(case: Case, nominal: datetime) -> Explanation:
    """Explain the occurrence of a nominal time."""
    run = case.run_at(nominal)
    if run is None:
        explanation = _explain_without_run(case, nominal)
    else:
        explanation = Explanation(_verdict(case, run, nominal), [*_causes(case, run)])
    explanation.causes += _shift_causes(case, nominal)
    explanation.nominal = nominal
    return explanation


def _explain_without_run(case: Case, nominal: datetime) -> Explanation:
    """Explain an occurrence without a recorded run, by the first cause that applies."""
    when = case.when(nominal)
    bound = _bound_words(case, nominal)
    if nominal > case.now:
        # A bound may exclude the occurrence. An entry that is not stored has no bounds.
        still = "that is still to come" if case.entry else f"it is {case.present_state}"
        return Explanation(f"has not run at {when}: {bound or still}")
    # The state of the entry says that this run was sent, but the run has no record.
    if case.entry and nominal == case.entry.last_run_at:
        return Explanation(_NOT_BEGUN["unknown"].format(when))
    if case.planned is not None and case.planned <= nominal:
        # The entry still waits for this occurrence, or for an earlier one.
        return _explain_waiting(case, when)
    # The hold is a state of the entry at that time, such as a pause. If it may run later, the
    # misfire policy may have sent the occurrence after the hold, so the hold is no sure cause.
    hold = case.hold_at(nominal, case.changes)
    if bound:
        cause = bound
    elif hold and not hold.may_run_later:
        cause = f"it was {hold.state}"
    elif _lies_between_sent_runs(case, nominal):
        cause = "it was not sent"
    else:
        # It may have been sent late, after the end of a hold, or its record may have been dropped.
        return Explanation(f"may have run at {when}; that is not recorded any more")
    return Explanation(f"did not run at {when}: {cause}")


def _lies_between_sent_runs(case: Case, nominal: datetime) -> bool:
    """Return whether recorded runs before and after an occurrence were sent.

    The oldest records are dropped first. So if the occurrence had been sent, it would be recorded.
    """
    # The beat also records runs that it did not send, and they have no task.
    sent = [run.scheduled_at for run in case.runs if run.task_id]
    return bool(sent) and min(sent) < nominal < max(sent)


def _explain_waiting(case: Case, when: str) -> Explanation:
    """Explain why a past occurrence that the entry still waits for has not been sent."""
    status = case.status
    causes = []
    reason = "it has not been sent"
    if case.present_state != "waiting":  # The entry cannot be sent; it is paused, for example.
        reason = f"it is {case.present_state}"
    elif status.freeze:
        reason = f"it is frozen until {case.when(status.freeze.until)}"
    elif status.leader is None:
        seen = "never" if status.last_tick is None else case.when(status.last_tick)
        causes.append(f"Nobody leads now; the last sign of life of a leader: {seen}.")
    else:
        # ``why`` says why the leader cannot use the server or the broker; empty if it can.
        detail = status.leader.why or f"its first due entry is {span(status.lag)} late"
        causes.append(f"The beat that leads, {status.leader}: {detail}.")
    if case.entry and case.entry.last_error:
        causes.append(f"The last attempt to publish it failed: {case.entry.last_error}")
    return Explanation(f"has not run yet for {when}: {reason}", causes)


def _bound_words(case: Case, nominal: datetime) -> str:
    """Return which bound of the entry excludes an occurrence, in words; empty if none does.

    The bounds are ``start_at``, ``end_at`` and ``max_runs``.
    """
    entry = case.entry
    if entry is None:
        return ""
    if entry.start_at and nominal < entry.start_at:
        return f"its start_at is {case.when(entry.start_at)}"
    if entry.end_at and nominal > entry.end_at:
        return f"its end_at is {case.when(entry.end_at)}"
    last = entry.last_run_at
    if used_up(entry, entry.total_run_count) and last and nominal > last:
        return f"its max_runs of {entry.max_runs} was reached at {case.when(last)}"
    return ""


def _shift_causes(case: Case, nominal: datetime) -> Iterator[str]:
    """Yield the reasons for which an occurrence comes at another time than its nominal time.

    The reasons are a clock change and jitter.
    """
    if case.entry is None:
        return
    ms = to_ms(nominal)
    # hazard() describes the effect of a clock change on the occurrence, if there is any.
    words = hazard(case.entry.rule, ms)
    if words:
        yield f"Of {case.when(nominal)}: {words}."
    # score() adds the jitter of the occurrence to its nominal time.
    due = score(case.entry, ms)
    if due is not None and due > ms:
        yield f"Jitter puts off {case.when(nominal)} to {case.when(from_ms(due))}."


def _nearest_occurrences(case: Case, instant: datetime) -> list[datetime]:
    """Return the last occurrence before an instant, and the first one at it or after it.

    A schedule class of the user counts each run from the previous run, and cannot calculate past
    occurrences. For such a schedule, and for an entry that is not stored, any instant may be an
    occurrence, so the instant itself is returned.
    """
    rule = None if case.entry is None else case.entry.rule
    if rule is None or isinstance(rule, ForeignRule | AnsweringRule):
        return [instant]
    since = to_ms(instant) - _LONGEST_GAP
    if counts_from_run(rule):
        # Such an interval has no fixed grid, and last_ms() counts it from ``since``. So move
        # ``since`` back until it is a whole number of intervals before a known occurrence.
        occurrence = max(case.nominals_in_state, default=instant)
        since -= (since - to_ms(occurrence)) % rule.ms
    last = last_ms(rule, since, to_ms(instant) - 1)
    following = rule.next_ms(last)
    # last_ms() returns ``since`` if no occurrence lies between.
    nearest = [] if last == since else [from_ms(last)]
    if following is not None:
        nearest.append(from_ms(following))
    return nearest


def _verdict(case: Case, run: Run, nominal: datetime) -> str:
    """Return the verdict about a recorded run, without the name of the entry."""
    when = case.when(nominal)
    retry = _RETRIES.get(run.outcome)
    if retry and run.retry_at:
        return f"ran for {when}, and failed; {retry}, due at {case.when(run.retry_at)}"
    verdict = _VERDICTS[run.outcome]
    if not run.attempts:  # No worker has begun it, as far as is known.
        verdict = _NOT_BEGUN.get(run.outcome, verdict)
    # Only the verdict about a run that was left out shows the last argument. If it was a run of a
    # pipeline, its record may have an error that says why. Otherwise another task held its
    # once-lock.
    return verdict.format(when, run.error or "its once-lock was held")


def _causes(case: Case, run: Run) -> Iterator[str]:
    """Yield the causes of the outcome of a recorded run."""
    if run.outcome == "left out" and not run.error:
        yield (
            "A task with its key was queued or running. Or such a task had ended in a worker "
            "without install(), and its lock had not expired."
        )
    if case.entry is None:
        return
    misfire = case.entry.misfire
    queue = queue_of(case.entry)
    if run.outcome == "skipped":
        if misfire.grace_ms is None:
            rule = _MISFIRES[misfire.policy]
        else:
            rule = f"an occurrence may be {misfire.grace_ms / 1000:g} s late"
        if misfire.limit is not None:
            rule += f", and the first {misfire.limit} are sent"
        yield f"It was missed, and with {misfire.policy!r} {rule}."
    elif run.outcome in ("waiting", "expired", "unknown") and queue not in case.status.queues:
        yield (
            f"No worker with install() takes from queue {queue!r} now. "
            f"Start a worker with -Q {queue}, or correct the queue of the entry."
        )

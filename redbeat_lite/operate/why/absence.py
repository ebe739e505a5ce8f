"""Why an occurrence has no run: what stood against it, that there was no entry, and what is not recorded any more."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime

from ...entries.entry import Entry
from ...entries.lifecycle import due_time
from ...entries.words import counted, span
from ...instants import from_ms, to_ms
from ...schedules import Question
from ...storage.changes import Change
from .case import CHANGES, GONE, HERE, RECORD, STATE, Case, Explanation, Reason, full
from .outcomes import of_run
from .upcoming import failures, leaderless, paused_now


def of_absence(case: Case, entry: Entry, nominal: int) -> Explanation:
    """Why an occurrence that is past, by its nominal time in epoch milliseconds, has no run."""
    state, at = entry.known_state, case.when(nominal)
    if (absent := _not_there(case, from_ms(nominal))) is not None:
        return _answer(nominal, f"{case.name} did not run at {at}: it was not stored then.", absent)
    if state.nominal is not None and not isinstance(state.nominal, Question) and state.nominal <= nominal:
        return _outstanding(case, entry, nominal)
    if case.paused_at(from_ms(nominal)) is not None:
        verdict = f"{case.name} did not run at {at}: it was paused."
        return _answer(nominal, verdict, *case.hindrances(from_ms(nominal)))
    if (disabled := _disabled(case, from_ms(nominal))) is not None:
        return _answer(nominal, f"{case.name} did not run at {at}: it was disabled.", disabled)
    return _unrecorded(case, entry, nominal)


def gone(case: Case, instant: datetime | None) -> Explanation:
    """Why an entry that is not stored did not run at an instant, as far as is recorded; ``None`` for now."""
    reasons = []
    if case.quarantine is not None:
        at = case.quarantine.get("at")
        since = from_ms(at) if isinstance(at, int) else None
        when = "" if since is None else f" since {case.when(since)}"
        sentence = full(f"In quarantine{when}: {case.quarantine.get('error')}")
        reasons.append(Reason("quarantined", sentence, since, "quarantine"))
    elif (change := case.last(None, *HERE, *GONE)) is not None:
        reasons.append(case.told(change, change.action))
        if change.action in HERE:
            sentence = "It is not stored any more; who removed it is not recorded, and it may have been done."
            reasons.append(Reason("not recorded", sentence, None, CHANGES))
    known = bool(reasons or case.runs)
    if case.refused is not None:
        sentence = f"The beat refuses the one in beat_schedule: {case.refused}"
        reasons.append(Reason("refused", full(sentence), None, "status"))
    if instant is None:
        return _gone_now(case, reasons)
    at = case.when(instant)
    if case.quarantine is not None and reasons[0].at is not None and reasons[0].at <= instant:
        return Explanation(f"{case.name} did not run at {at}: it was in quarantine.", tuple(reasons))
    absent = _not_there(case, instant)
    if absent is None and known:
        return Explanation(f"Whether {case.name} ran at {at} is not recorded any more.", tuple(reasons))
    told = dict.fromkeys(reasons if absent is None else (absent, *reasons))
    return Explanation(f"{case.name} did not run at {at}: it was not stored.", tuple(told))


def _gone_now(case: Case, reasons: list[Reason]) -> Explanation:
    """That it does not run; of one that nobody has removed, as far as is known, what became of its last run."""
    if case.quarantine is not None:
        return Explanation(f"{case.name} does not run: it is in quarantine.", tuple(reasons))
    if case.runs and case.last(None, *HERE, *GONE) == case.last(None, *HERE):
        last = of_run(case, case.runs[0], to_ms(case.runs[0].until or case.runs[0].scheduled_at))
        return replace(last, reasons=(*last.reasons, *reasons))
    return Explanation(f"{case.name} does not run: it is not stored.", tuple(reasons))


def _answer(nominal: int, verdict: str, *reasons: Reason) -> Explanation:
    return Explanation(verdict, reasons, from_ms(nominal))


def _not_there(case: Case, at: datetime) -> Reason | None:
    """That the entry was not stored at a time, or in quarantine."""
    before, after = case.last(at, *HERE, *GONE), case.first(at, *HERE, *GONE)
    if before is not None and before.action in GONE:
        # It has come back since, and nobody knows when.
        back = (after is None and case.entry is not None) or case.was_sent(before.at, at)
        return None if back else case.told(before, before.action)
    known = any(run.scheduled_at <= at for run in case.runs)  # of an entry of this name that was there before
    if before is None and after is not None and after.action in HERE and not known:
        return case.told(after, after.action)
    return None


def _disabled(case: Case, at: datetime) -> Reason | None:
    """That the entry was disabled at a time, by the edits around it."""
    after, by = case.first(at, fields=("enabled",)), _disabling(case, at)
    if after is None or (by is not None and case.was_sent(by.at, at)):
        return None
    if by is not None and _enabled(by)[1] == "false":
        return case.told(by, "disabled")
    return case.told(after, "disabled") if _enabled(after)[0] == "false" else None


def _disabling(case: Case, until: datetime | None) -> Change | None:
    """The last change by an instant, or of all, that may have disabled the entry, or brought it as it is."""
    found = case.last(until, *HERE, fields=("enabled",))
    return None if found is not None and _enabled(found)[0] == "false" else found


def _enabled(change: Change) -> tuple[str | None, str | None]:
    """What a change made of the field, from what."""
    return next(((before, after) for field, before, after in change.fields if field == "enabled"), (None, None))


def _outstanding(case: Case, entry: Entry, nominal: int) -> Explanation:
    """Why an occurrence that the entry still waits for has not been sent."""
    state, at, now = entry.known_state, case.when(nominal), to_ms(case.now)
    if state.paused:
        return _answer(nominal, f"{case.name} did not run at {at}: it is paused.", paused_now(case, entry))
    if not entry.enabled:
        by = None if case.unrecorded else _disabling(case, None)
        unknown = Reason("disabled", "Who disabled it, and when, is not recorded.", None, STATE)
        reason = unknown if by is None else case.told(by, "disabled")
        return _answer(nominal, f"{case.name} did not run at {at}: it is disabled.", reason)
    if case.frozen(case.now):
        verdict = f"{case.name} has not run yet for {at}: it is frozen."
        return _answer(nominal, verdict, *case.hindrances(case.now))
    due = due_time(entry, state, case.zone)
    if state.nominal == nominal and due is not None and due > now:
        put_off = Reason("jitter", f"Its jitter puts it off to {case.when(due)}.", from_ms(due), STATE)
        return _answer(nominal, f"{case.name} has not run yet for {at}: it is not due yet.", put_off)
    reasons = [*failures(case, entry), *leaderless(case)] or [_behind(case)]
    return _answer(nominal, f"{case.name} has not run yet for {at}: it has not been sent.", *reasons)


def _behind(case: Case) -> Reason:
    status = case.status
    late = f"is behind: the first of those that are due is {span(status.lag)} late"
    sentence = f"A beat leads, and {late if status.overdue else 'is about to send it'}."
    return Reason("behind" if status.overdue else "due", sentence, None, "status")


def _unrecorded(case: Case, entry: Entry, nominal: int) -> Explanation:
    """What is to be said of an occurrence that the entry has left behind, and of which no run is recorded."""
    at, instant = case.when(nominal), from_ms(nominal)
    if entry.known_state.last == nominal:
        sent = Reason("sent", f"It was sent as task {entry.last_task_id}.", None, STATE)
        verdict = f"{case.name} was sent for {at}; what became of it is not recorded."
        return _answer(nominal, verdict, sent, *_not_kept(case, nominal))
    reasons = [*case.hindrances(instant), *case.changed_since(instant), *_not_kept(case, nominal)]
    if _was_not_sent(case, entry, nominal):
        unknown = Reason("not recorded", "What kept it is not recorded.", None, RECORD)
        return _answer(nominal, f"{case.name} did not run at {at}: it was not sent.", *reasons or [unknown])
    return _answer(nominal, f"Whether {case.name} ran at {at} is not recorded any more.", *reasons)


def _was_not_sent(case: Case, entry: Entry, nominal: int) -> bool:
    """Whether a run would be recorded if there had been one.

    The entry remembers all that it has sent for a while. Of what is older only workers have told, if they do, and the
    oldest are dropped first: where they told of one before and of one after, they would have told of it.
    """
    sent = entry.known_state.sent
    if sent and sent[-1] < nominal < sent[0]:
        return True
    told = [to_ms(run.scheduled_at) for run in case.runs if run.task_id is not None and run.count == 1]
    return any(ms < nominal for ms in told) and any(ms > nominal for ms in told)


def _not_kept(case: Case, nominal: int) -> Iterator[Reason]:
    """How far the two records go back."""
    runs, since = case.runs, case.since
    if not case.kept:
        yield Reason("not recorded", "None of its runs is recorded: its history is 0.", None, RECORD)
    elif not runs:
        yield Reason("not recorded", "No run of it is recorded.", None, RECORD)
    elif to_ms(runs[-1].scheduled_at) > nominal:
        first = f"the first that is recorded is of {case.when(runs[-1].scheduled_at)}"
        sentence = f"{counted(case.kept, 'run is', 'runs are')} kept; {first}."
        yield Reason("not recorded", sentence, runs[-1].scheduled_at, RECORD)
    if since is None or to_ms(since) > nominal:
        told = (
            "No change is recorded" if since is None else f"Changes before {case.when(since)} are not recorded any more"
        )
        yield Reason("not recorded", f"{told}.", since, CHANGES)

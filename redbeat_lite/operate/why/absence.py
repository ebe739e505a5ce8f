"""Why nothing is recorded of an occurrence: what stood against it, and what is not recorded any more."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from ...entries.entry import Entry
from ...entries.lifecycle import due_time
from ...entries.words import counted, span
from ...instants import from_ms, to_ms
from ...schedules import Question
from .case import CHANGES, GONE, HERE, RECORD, STATE, Case
from .explanation import Explanation, Reason
from .upcoming import failures, leaderless, paused_now


def of_absence(case: Case, entry: Entry, nominal: int) -> Explanation:
    """Why an occurrence that is past has no run.

    Parameters:
        nominal: its nominal time, epoch milliseconds.
    """
    state, at = entry.known_state, case.when(nominal)
    if (absent := _not_there(case, nominal)) is not None:
        return _answer(nominal, f"{case.name} did not run at {at}: it was not stored then.", absent)
    if state.nominal is not None and not isinstance(state.nominal, Question) and state.nominal <= nominal:
        return _outstanding(case, entry, nominal)
    if (pause := case.paused_at(from_ms(nominal))) is not None:
        reasons = [*case.hindrances(from_ms(nominal))]
        return _answer(nominal, f"{case.name} did not run at {at}: it was paused.", *reasons or [case.told(pause, "")])
    if (disabled := _disabled(case, nominal)) is not None:
        return _answer(nominal, f"{case.name} did not run at {at}: it was disabled.", disabled)
    return _unrecorded(case, entry, nominal)


def _answer(nominal: int, verdict: str, *reasons: Reason, advice: str | None = None) -> Explanation:
    return Explanation(verdict, reasons, advice, from_ms(nominal))


def _not_there(case: Case, nominal: int) -> Reason | None:
    """That the entry was not stored at a time, or in quarantine."""
    at = from_ms(nominal)
    before, after = case.last(at, *HERE, *GONE), case.first(at, *HERE, *GONE)
    if before is not None and before.action in GONE:
        return case.told(before, before.action)
    known = any(run.scheduled_at <= at for run in case.evidence.runs)  # of an entry of this name that was there before
    if before is None and after is not None and after.action in HERE and not known:
        return case.told(after, after.action)
    return None


def _disabled(case: Case, nominal: int) -> Reason | None:
    """That the entry was disabled at a time, by the edits around it."""
    at = from_ms(nominal)
    after = case.edit(at, "enabled")
    if after is None or "false" not in [before for field, before, _ in after.fields if field == "enabled"]:
        return None
    by = next((each for each in case.evidence.changes if each.at <= at and _disables(each.fields)), None)
    return case.told(after if by is None else by, "disabled")


def _disables(fields: tuple[tuple[str, str | None, str | None], ...]) -> bool:
    return any(field == "enabled" and after == "false" for field, _, after in fields)


def _outstanding(case: Case, entry: Entry, nominal: int) -> Explanation:
    """Why an occurrence that the entry still waits for has not been sent."""
    state, at, now = entry.known_state, case.when(nominal), to_ms(case.now)
    if state.paused:
        advice = f"Let it fire again: celery -A ... redbeat resume {quote(entry.name)}."
        return _answer(
            nominal, f"{case.name} did not run at {at}: it is paused.", paused_now(case, entry), advice=advice
        )
    if not entry.enabled:
        by = next((each for each in case.evidence.changes if _disables(each.fields)), None)
        unknown = Reason("disabled", "Who disabled it, and when, is not recorded any more.", None, STATE)
        reason = unknown if by is None else case.told(by, "disabled")
        advice = f"Let it fire again: celery -A ... redbeat edit {quote(entry.name)} --enabled."
        return _answer(nominal, f"{case.name} did not run at {at}: it is disabled.", reason, advice=advice)
    due = due_time(entry, state, case.zone)
    if state.nominal == nominal and due is not None and due > now:
        put_off = Reason("jitter", f"Its jitter puts it off to {case.when(due)}.", from_ms(due), STATE)
        return _answer(nominal, f"{case.name} has not run yet for {at}: it is not due yet.", put_off)
    reasons = [*failures(case, entry), *leaderless(case)] or [_behind(case)]
    return _answer(
        nominal, f"{case.name} has not run yet for {at}: it has not been sent.", *reasons, advice=_mend(reasons)
    )


def _behind(case: Case) -> Reason:
    status = case.evidence.status
    late = f"is behind: the first of those that are due is {span(status.lag)} late"
    sentence = f"A beat leads, and {late if status.overdue else 'is about to send it'}."
    return Reason("behind" if status.overdue else "due", sentence, None, "status")


def _mend(reasons: list[Reason]) -> str | None:
    advice = {
        "publish": "Mend what the error names; it is tried again at least once a minute.",
        "no leader": "Start a beat: celery -A ... beat -S redbeat_lite.Scheduler.",
        "failing": "Look at the log of the beat that leads.",
        "behind": "Look at celery -A ... redbeat status, and at the log of the beat that leads.",
    }
    return advice.get(reasons[0].kind)


def _unrecorded(case: Case, entry: Entry, nominal: int) -> Explanation:
    """What is to be said of an occurrence that the entry has left behind, and of which no run is recorded."""
    at, instant = case.when(nominal), from_ms(nominal)
    if entry.known_state.last == nominal:
        sent = Reason("sent", f"It was sent as task {entry.last_task_id}.", None, STATE)
        verdict = f"{case.name} was sent for {at}; what became of it is not recorded."
        return _answer(nominal, verdict, sent, *_not_kept(case, nominal))
    reasons = [*case.hindrances(instant)]
    if (change := case.altered(instant)) is not None:
        reasons.append(case.told(change, "changed"))
    reasons += _not_kept(case, nominal)
    if any(run.source == "record" and to_ms(run.scheduled_at) < nominal for run in case.evidence.runs):
        # The oldest rows are dropped first: where there is an older one, its own would be there.
        verdict = f"{case.name} did not run at {at}, as far as is recorded: it was neither sent nor skipped."
        unknown = Reason("not recorded", "What kept it is not recorded.", None, RECORD)
        return _answer(nominal, verdict, *reasons or [unknown])
    verdict = f"Whether {case.name} ran at {at} is not recorded any more."
    return _answer(nominal, verdict, *reasons)


def _not_kept(case: Case, nominal: int) -> Iterator[Reason]:
    """How far the two records go back."""
    runs, since = case.evidence.runs, case.evidence.since
    if not case.evidence.kept:
        yield Reason("not recorded", "None of its runs is recorded: its history is 0.", None, RECORD)
    elif not runs:
        yield Reason("not recorded", "No run of it is recorded.", None, RECORD)
    elif to_ms(runs[-1].scheduled_at) > nominal:
        first = f"the first that is recorded is of {case.when(runs[-1].scheduled_at)}"
        sentence = f"{counted(case.evidence.kept, 'run is', 'runs are')} kept; {first}."
        yield Reason("not recorded", sentence, runs[-1].scheduled_at, RECORD)
    if since is None or to_ms(since) > nominal:
        told = (
            "No change is recorded" if since is None else f"Changes before {case.when(since)} are not recorded any more"
        )
        yield Reason("not recorded", f"{told}.", since, CHANGES)

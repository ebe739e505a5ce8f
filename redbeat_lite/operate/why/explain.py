"""From the evidence to the answer: pure, and told the time."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from ...entries.entry import Entry
from ...entries.on_calendar import left_out_words
from ...instants import from_ms, to_ms
from ...runs.run import Run
from ...schedules import Manual
from .absence import gone, of_absence
from .case import HERE, TIMING, Case, Explanation
from .occurrences import Around, Span, around, is_fixed, skipped
from .outcomes import of_run
from .rules import no_occurrence, outside, stands_in, with_moves
from .upcoming import upcoming


def explain(case: Case, instant: datetime | None, *, to_second: bool = False) -> Explanation:
    """Say why an entry did not run at an instant, or that it did.

    Parameters:
        instant: aware. It stands for its minute if it has no seconds, else for its second; one that the clocks of its
            zone skip stands for the end of what they skip. ``None``: the last one at which it should have run, and
            what is with the next.
        to_second: whether an instant without seconds stands for its second, too.
    """
    entry = case.entry
    if instant is not None:
        return _at(case, entry, instant, Span.of(instant, to_second))
    if entry is None:
        return gone(case, None)
    last = _last(case, entry)
    if last is None:
        runs_by_hand = (to_ms(run.scheduled_at) for run in case.runs if run.count == 1)
        last = next(runs_by_hand, None)
    found = _none_yet(case, entry) if last is None else _at(case, entry, from_ms(last), Span(last, last + 1))
    waits = last is not None and (entry.known_state.nominal or last + 1) <= last  # for the one that was told of
    told = [each for each in upcoming(case, entry) if each not in found.reasons and not (waits and each.kind == "next")]
    return replace(found, reasons=(*found.reasons, *told))


def _none_yet(case: Case, entry: Entry) -> Explanation:
    change = case.last(None, *HERE)
    reasons = () if change is None else (case.told(change, change.action),)
    by_hand = isinstance(entry.schedule, Manual)
    verdict = "is run by hand only, and no run of it is recorded" if by_hand else "has had no occurrence yet"
    return Explanation(f"{case.name} {verdict}.", reasons)


def _at(case: Case, entry: Entry | None, instant: datetime, asked: Span) -> Explanation:
    near = None if entry is None else around(entry, asked, case.zone)
    if entry is not None and near is not None and skipped(instant) and not stands_in(case, entry, asked.begin):
        # What runs at the end of what the clocks skip runs there every day.
        return no_occurrence(case, entry, instant, Around(near.before, None, near.at or near.after))
    run = _single(case, entry, instant, asked, near)
    free = entry is not None and left_out_words(entry, asked.begin, asked.end, case.zone) is not None
    if run is not None and not (free and run.outcome == "skipped"):
        return with_moves(case, of_run(case, run, to_ms(run.scheduled_at)))
    if entry is None:
        return gone(case, instant)
    if near is None or near.at is None:
        return no_occurrence(case, entry, instant, near)
    return with_moves(case, _of_occurrence(case, entry, near.at))


def _of_occurrence(case: Case, entry: Entry, nominal: int) -> Explanation:
    at = from_ms(nominal)
    if shared := [run for run in case.runs if run.scheduled_at <= at <= (run.until or run.scheduled_at)]:
        return of_run(case, shared[0], nominal)
    if (bound := outside(case, entry, nominal)) is not None:
        return bound
    if nominal > to_ms(case.now):
        verdict = f"{case.name} has not run at {case.when(nominal)}: that is still to come."
        return Explanation(verdict, tuple(upcoming(case, entry)), at)
    return of_absence(case, entry, nominal)


def _single(case: Case, entry: Entry | None, instant: datetime, asked: Span, near: Around | None) -> Run | None:
    """The run of the occurrence in a span; the first one there where nobody knows which occurrences there were."""
    found = {to_ms(run.scheduled_at): run for run in case.runs if run.count == 1}
    known = entry is not None and is_fixed(entry, case.zone) and case.altered(instant) is None
    if near is not None and near.at is not None and (known or near.at in found):
        return found.get(near.at)
    return next((run for ms, run in sorted(found.items()) if asked.begin <= ms < asked.end), None)


def _last(case: Case, entry: Entry) -> int | None:
    """The last occurrence that should have been: by the rule and by what the entry remembers."""
    state, now = entry.known_state, to_ms(case.now)
    new = state.last is None and not state.skipped and state.nominal is not None and state.nominal > now
    if state.finished or new or (entry.start_ms is not None and entry.start_ms > now):
        return state.last
    until = now if entry.end_ms is None else min(now, entry.end_ms)
    near = around(entry, Span(until + 1, until + 2), case.zone)
    before, change = None if near is None else near.before, case.last(None, *HERE, fields=TIMING)
    if before is not None and change is not None and before < to_ms(change.at):
        before = None  # of a schedule that it did not have then
    waits = None if state.nominal is None or state.nominal > now else state.nominal
    return max((ms for ms in (state.last, before, waits) if ms is not None), default=None)

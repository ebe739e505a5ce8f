"""What the rule of an entry says of a time: that it has no occurrence there, or none yet, or none any more."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime

from ...entries.clock_change_words import hazard
from ...entries.entry import Entry
from ...entries.lifecycle import score, used_up
from ...entries.on_calendar import left_out_words
from ...instants import from_ms, to_ms
from ...schedules import Manual
from ...schedules.clock_changes import ZonedRule, first_passing
from .case import RULE, Case, Explanation, Reason
from .occurrences import Around, Span, around, skipped
from .upcoming import ended


def no_occurrence(case: Case, entry: Entry, instant: datetime, near: Around | None) -> Explanation:
    """That a schedule has none at an instant, with those ``near`` it, and what clock changes and edits have to do with
    it."""
    changed = [*case.changed_since(instant)]
    if near is None:
        known = "schedule" in entry.unstored
        why = "Only its app knows its schedule." if known else "Its schedule counts each run from the one before."
        verdict = f"Whether {case.name} had an occurrence at {case.when(instant)} is not recorded any more."
        return Explanation(verdict, (Reason("rule", why, None, RULE), *changed))
    span = Span.of(instant, to_second=False)
    words = left_out_words(entry, span.begin, span.end, case.zone)
    left_out = [] if words is None else [Reason("calendar", words, None, RULE)]
    reasons = [*left_out, *_clock(case, entry, instant, near), Reason("rule", _nearest(case, entry, near), None, RULE)]
    today = " by its schedule of today" if changed else ""
    at = f"{instant:%Y-%m-%d %H:%M:%S}, which the clocks skip" if skipped(instant) else case.when(instant)
    return Explanation(f"{case.name} had no occurrence at {at}{today}.", (*reasons, *changed))


def _nearest(case: Case, entry: Entry, near: Around) -> str:
    found = [case.when(ms) for ms in (near.before, near.after) if ms is not None]
    if isinstance(entry.schedule, Manual):
        return "It is run by hand only."
    told = f"the nearest {'is' if len(found) == 1 else 'are'} {' and '.join(found)}" if found else "it has none at all"
    return f"Its schedule is {entry.schedule!r}: {told}."


def _clock(case: Case, entry: Entry, instant: datetime, near: Around) -> Iterator[Reason]:
    """What a clock change does there: it skips the time, or brings it a second time."""
    rule = entry.rule(case.zone)
    if not isinstance(rule, ZonedRule):
        return
    local = instant.astimezone(rule.zone)
    first = to_ms(first_passing(rule.zone, local.replace(tzinfo=None, fold=0)))
    again = around(entry, Span(first, first + 1000), case.zone) if local.fold else None
    for ms in (near.after, None if again is None else again.at):
        if ms is not None and (words := hazard(rule, ms)) is not None:
            yield Reason("clock change", f"Of {case.when(ms)}: {words}.", from_ms(ms), RULE)


def outside(case: Case, entry: Entry, nominal: int) -> Explanation | None:
    """That an occurrence of the schedule is none of the entry: it is not between its bounds, or comes after its end."""
    at, state = case.when(nominal), entry.known_state
    why = ""
    if entry.start_ms is not None and nominal < entry.start_ms:
        why = f"its start_at is {case.when(entry.start_ms)}"
    elif entry.end_ms is not None and nominal > entry.end_ms:
        why = f"its end_at is {case.when(entry.end_ms)}"
    elif used_up(entry, entry.total_run_count) and state.last is not None and nominal > state.last:
        why = ended(case, entry)
    if not why:
        return None
    reasons = tuple(case.changed_since(from_ms(nominal)))
    return Explanation(f"{case.name} did not run at {at}: {why}.", reasons, from_ms(nominal))


def stands_in(case: Case, entry: Entry, ms: int) -> bool:
    """Whether the schedule runs at the end of what the clocks skip in place of what they skipped."""
    rule = entry.rule(case.zone)
    return isinstance(rule, ZonedRule) and not rule.walls.running and hazard(rule, ms) is not None


def with_moves(case: Case, found: Explanation) -> Explanation:
    """An answer about an occurrence, with what a clock change or its jitter did to that."""
    entry, moves = case.entry, list[Reason]()
    if entry is None or found.nominal is None:
        return found
    nominal = to_ms(found.nominal)
    if (words := hazard(entry.rule(case.zone), nominal)) is not None:
        moves.append(Reason("clock change", f"Of {case.when(nominal)}: {words}.", found.nominal, RULE))
    due = score(entry, nominal, case.zone)
    if due is not None and due > nominal and all(reason.kind != "jitter" for reason in found.reasons):
        moves.append(Reason("jitter", f"Its jitter put it off to {case.when(due)}.", from_ms(due), RULE))
    return replace(found, reasons=(*found.reasons, *moves))

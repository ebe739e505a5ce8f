"""Past and coming occurrences of an entry, for ``why``, by its schedule, bounds and state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, tzinfo
from typing import NamedTuple

from .._base.times import from_ms, to_ms
from ..entries.change_words import change_words
from ..entries.clock_change_words import hazard
from ..entries.entry import Entry
from ..entries.lifecycle import score, used_up
from ..entries.on_calendar import left_out_words
from ..entries.words import counted
from ..rules import Every, Manual, Question, Rule, last_ms, next_ms
from ..rules.celery_schedules import AnsweringRule, ForeignRule
from ..rules.clock_changes import ZonedRule, first_passing
from .why_case import STORING, Case, Explanation, Reason, full

MINUTE = 60_000  # ms

#: Maximum number of occurrences of a minute that are computed.
_MOST = 60

#: How far back, in ms, the previous occurrence is searched. Few rules are rarer than 29 February.
_LONGEST_GAP = 3000 * 86_400_000


class Span(NamedTuple):
    """Span of time that a question is about, in epoch ms: with ``begin``, without ``end``."""

    begin: int
    end: int

    @classmethod
    def of(cls, instant: datetime, to_second: bool) -> Span:
        """Return the second of an instant, or its minute if it names no second.

        An instant that the clocks skip stands for the end of the skipped time.
        """
        if skipped(instant):
            zone = instant.tzinfo
            assert zone is not None
            begin = to_ms(first_passing(zone, instant.replace(tzinfo=None)))
            return cls(begin, begin + 1000)
        begin = to_ms(instant.replace(microsecond=0))
        return cls(begin, begin + (1000 if instant.second or to_second else MINUTE))


class Around(NamedTuple):
    """Occurrences around a span, in epoch ms; ``None``: there is none.

    Parameters:
        before: the last one before the span.
        at: the first one in the span.
        after: the next one after ``at``, or after the span.
    """

    before: int | None
    at: int | None
    after: int | None


def skipped(instant: datetime) -> bool:
    """Return whether a clock change skips an instant, so that no clock of its zone shows it."""
    shown = instant.astimezone(UTC).astimezone(instant.tzinfo)
    return shown.replace(tzinfo=None) != instant.replace(tzinfo=None)


def around(entry: Entry, span: Span, zone: tzinfo) -> Around | None:
    """Return the occurrences of an entry around a span, by its schedule of today.

    ``None`` for a schedule that counts each run from the run before, because its past cannot be
    calculated. But if the state has an occurrence in the span, that one is returned.

    Parameters:
        zone: time zone for a schedule without a zone.
    """
    state = entry.known_state
    rule = _repeatable_rule(entry, zone)
    if rule is None:
        for ms in (state.last, state.nominal):
            if ms is not None and not isinstance(ms, Question) and span.begin <= ms < span.end:
                return Around(None, ms, None)
        return None
    before: int | None
    first: int | None
    if isinstance(rule, Every) and not rule.on_grid:
        anchor = state.last if state.nominal is None else state.nominal
        if anchor is None:
            return None
        # The first instant from ``span.begin`` on that is whole intervals away from the anchor.
        first = anchor - (anchor - span.begin) // rule.ms * rule.ms
        before = first - rule.ms
    else:
        since = span.begin - _LONGEST_GAP
        last = last_ms(rule, since, span.begin - 1)
        before = None if last == since else last  # last_ms() returns ``since`` for none.
        first = next_ms(rule, span.begin - 1)
    if first is None or first >= span.end:
        return Around(before, None, first)
    return Around(before, first, next_ms(rule, first))


def occurrences_in(entry: Entry, span: Span, zone: tzinfo) -> list[int]:
    """Return the first occurrences of an entry in a span, by its schedule of today."""
    instants: list[int] = []
    near = around(entry, span, zone)
    while near is not None and near.at is not None and len(instants) < _MOST:
        instants.append(near.at)
        near = around(entry, Span(near.at + 1, span.end), zone)
    return instants


def is_fixed(entry: Entry, zone: tzinfo) -> bool:
    """Return whether the schedule alone decides the occurrences.

    Those of an interval move, for example when the entry is resumed.
    """
    rule = _repeatable_rule(entry, zone)
    return rule is not None and (not isinstance(rule, Every) or rule.on_grid)


def _repeatable_rule(entry: Entry, zone: tzinfo) -> Rule | None:
    """Return the rule of an entry if it can calculate past occurrences; ``None`` if it cannot."""
    rule = entry.rule(zone)
    return None if isinstance(rule, ForeignRule | AnsweringRule) else rule


def explain_no_occurrence(
    case: Case,
    entry: Entry,
    instant: datetime,
    near: Around | None,
) -> Explanation:
    """Say that a schedule has no occurrence at an instant, and name the nearest ones."""
    changed = [*case.changed_since(instant)]
    if near is None:
        why = "Its schedule counts each run from the one before."
        if "schedule" in entry.unstored:
            why = "Only its app knows its schedule."
        occurrence = f"{case.name} had an occurrence at {case.when(instant)}"
        verdict = f"Whether {occurrence} is not recorded any more."
        return Explanation(verdict, (Reason("rule", why), *changed))
    reasons = []
    span = Span.of(instant, to_second=False)
    left_out = left_out_words(entry, span.begin, span.end, case.zone)
    if left_out is not None:
        reasons.append(Reason("calendar", left_out))
    reasons += _clock_changes(case, entry, instant, near)
    reasons.append(Reason("rule", _nearest(case, entry, near)))
    at = case.when(instant)
    if skipped(instant):
        at = f"{instant:%Y-%m-%d %H:%M:%S}, which the clocks skip"
    today = " by its schedule of today" if changed else ""
    verdict = f"{case.name} had no occurrence at {at}{today}."
    return Explanation(verdict, (*reasons, *changed))


def _nearest(case: Case, entry: Entry, near: Around) -> str:
    """Return the schedule in words, with the occurrences nearest to the instant."""
    if isinstance(entry.schedule, Manual):
        return "It is run by hand only."
    instants = []
    for ms in (near.before, near.after):
        if ms is not None:
            run = case.run_at(from_ms(ms))
            outcome = "" if run is None else f" ({run.outcome})"
            instants.append(f"{case.when(ms)}{outcome}")
    nearest = "it has none at all"
    if instants:
        verb = "is" if len(instants) == 1 else "are"
        nearest = f"the nearest {verb} {' and '.join(instants)}"
    return f"Its schedule is {entry.schedule!r}: {nearest}."


def _clock_changes(case: Case, entry: Entry, instant: datetime, near: Around) -> Iterator[Reason]:
    """Yield the effects of a clock change that skips an instant or repeats it."""
    rule = entry.rule(case.zone)
    if not isinstance(rule, ZonedRule):
        return
    occurrences = [near.after]
    local = instant.astimezone(rule.zone)
    if local.fold:
        first = to_ms(first_passing(rule.zone, local.replace(tzinfo=None, fold=0)))
        again = around(entry, Span(first, first + 1000), case.zone)
        occurrences.append(None if again is None else again.at)
    for ms in occurrences:
        words = None if ms is None else hazard(rule, ms)
        if ms is not None and words is not None:
            yield Reason("clock change", f"Of {case.when(ms)}: {words}.", from_ms(ms))


def explain_outside(case: Case, entry: Entry, nominal: int) -> Explanation | None:
    """Explain that an occurrence lies outside the bounds of the entry; ``None`` if it does not."""
    state = entry.known_state
    if entry.start_ms is not None and nominal < entry.start_ms:
        why = f"its start_at is {case.when(entry.start_ms)}"
    elif entry.end_ms is not None and nominal > entry.end_ms:
        why = f"its end_at is {case.when(entry.end_ms)}"
    elif used_up(entry, entry.total_run_count) and state.last is not None and nominal > state.last:
        why = _ended(case, entry)
    else:
        return None
    verdict = f"{case.name} did not run at {case.when(nominal)}: {why}."
    reasons = tuple(case.changed_since(from_ms(nominal)))
    return Explanation(verdict, reasons, from_ms(nominal))


def stands_in(case: Case, entry: Entry, ms: int) -> bool:
    """Return whether the schedule moves a run from a skipped time to its end.

    Parameters:
        ms: end of the skipped time, in epoch ms.
    """
    rule = entry.rule(case.zone)
    return isinstance(rule, ZonedRule) and not rule.walls.running and hazard(rule, ms) is not None


def with_moves(case: Case, explanation: Explanation) -> Explanation:
    """Add to an explanation how a clock change or jitter has moved the occurrence."""
    entry = case.entry
    if entry is None or explanation.nominal is None:
        return explanation
    reasons = [*explanation.reasons]
    nominal = to_ms(explanation.nominal)
    words = hazard(entry.rule(case.zone), nominal)
    if words is not None:
        sentence = f"Of {case.when(nominal)}: {words}."
        reasons.append(Reason("clock change", sentence, explanation.nominal))
    due = score(entry, nominal, case.zone)
    if due is not None and due > nominal and all(reason.kind != "jitter" for reason in reasons):
        sentence = f"Its jitter put it off to {case.when(due)}."
        reasons.append(Reason("jitter", sentence, from_ms(due)))
    return replace(explanation, reasons=tuple(reasons))


def upcoming(case: Case, entry: Entry) -> Iterator[Reason]:
    """Yield when the next occurrence comes or why none comes, and the causes that delay it."""
    state = entry.known_state
    if isinstance(entry.schedule, Manual):
        yield Reason("next", "It has no next run, because it is run by hand only.")
    elif state.paused:
        yield current_pause(case, entry)
        yield Reason("next", "It has no next run until it is resumed.")
    elif not entry.enabled:
        yield Reason("next", "It has no next run, because it is disabled.")
    elif state.nominal is None:
        yield Reason("next", f"It has no next run, because {_ended(case, entry)}.")
    elif case.frozen(case.now):
        yield from case.hindrances(case.now)
    else:
        yield _next(case, entry, state.nominal)
        yield from current_outage(case)
    if case.refused is not None:
        sentence = "The beat refuses its definition in beat_schedule, so it keeps the stored one"
        yield Reason("refused", full(f"{sentence}: {case.refused}"))


def current_pause(case: Case, entry: Entry) -> Reason:
    """Return the pause of a paused entry as a reason.

    The change may be an addition, because an entry may be added paused. It may also not be
    recorded.
    """
    change = None if case.unrecorded else case.last(None, "paused", "resumed", *STORING)
    if change is not None and change.action == "paused":
        return case.change_reason(change, "paused")
    note = f": {entry.paused_note}" if entry.paused_note else ""
    if change is not None and change.action in STORING:
        words = change_words(change, case.zone)
        return Reason("paused", full(f"It is paused{note}; it was {words}"), change.at)
    sentence = f"It is paused{note}; who did that, and when, is not recorded."
    return Reason("paused", sentence)


def _ended(case: Case, entry: Entry) -> str:
    """Return in words why an entry is finished."""
    last = entry.known_state.last
    if used_up(entry, entry.total_run_count):
        at = "" if last is None else f", the last at {case.when(last)}"
        return f"it is finished after its max_runs of {entry.max_runs}{at}"
    if entry.end_at is not None:
        return f"it is finished, as its end_at is {case.when(entry.end_at)}"
    return "it is finished, as its schedule has no occurrence any more"


def current_outage(case: Case) -> Iterator[Reason]:
    """Yield that no beat leads now, or that the leader cannot do its work."""
    status = case.status
    leader = status.leader
    if leader is None:
        last = ", and no beat has ever led"
        if status.last_tick is not None:
            last = f"; the last sign of life of a leader was at {case.when(status.last_tick)}"
        yield Reason("no leader", f"Nobody leads now{last}.", status.last_tick)
    elif leader.failing_for is not None:
        who = f"The leader, pid {leader.pid} on {leader.host},"
        sentence = f"{who} cannot do its work for {leader.failing_for:.0f} s: {leader.why}"
        yield Reason("failing", full(sentence))


def publish_failures(case: Case, entry: Entry) -> Iterator[Reason]:
    """Yield that attempts to publish the entry have failed."""
    state = entry.known_state
    if state.attempts:
        attempts = counted(state.attempts, "attempt", "attempts")
        sentence = full(f"{attempts} to publish it failed, the last one with: {state.error}")
        if entry.due is not None:
            sentence += f" It is tried again at {case.when(entry.due)}."
        yield Reason("publish", sentence)


def _next(case: Case, entry: Entry, nominal: int | Question) -> Reason:
    """Return when the next occurrence is due, or when its schedule is asked for one."""
    if isinstance(nominal, Question):
        # A custom schedule does not know its next occurrence in advance.
        sentence = f"Its schedule is asked at {case.when(int(nominal))} whether it is due."
        return Reason("next", sentence)
    due = nominal if entry.due is None else entry.due
    verb = "is due at" if due > to_ms(case.now) else "has been due since"
    sentence = f"The next one {verb} {case.when(due)}"
    if due > nominal:
        sentence += f", its jitter included; the schedule says {case.when(nominal)}"
    return Reason("next", f"{sentence}.")

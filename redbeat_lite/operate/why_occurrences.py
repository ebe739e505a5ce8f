"""Past and coming occurrences of an entry, for ``why``, by its schedule of today."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from itertools import islice, takewhile
from typing import NamedTuple

from .._base.times import from_ms, to_ms
from ..entries.entry import Entry
from ..entries.lifecycle import score, used_up
from ..entries.on_calendar import left_out_words
from ..rules import Every, Manual, Question, Rule, last_ms, next_ms
from ..rules.celery_schedules import AnsweringRule, ForeignRule
from ..rules.clock_changes import first_passing, hazard
from ..rules.occurrences import occurrences
from .why_case import Case, Explanation, Reason

DAY = 86_400_000  # ms

#: Maximum number of occurrences of a minute that are computed.
_MOST = 60

#: How far back, in ms, the previous occurrence is searched. Few rules are rarer than 29 February.
_LONGEST_GAP = 3000 * DAY


class Span(NamedTuple):
    """Span of time that a question is about, in epoch ms: with ``begin``, without ``end``."""

    begin: int
    end: int

    @classmethod
    def of(cls, instant: datetime) -> Span:
        """Return the second of an instant; or its minute, if the instant has no seconds.

        An instant that the clocks skip stands for the end of the skipped time.
        """
        begin = to_ms(instant.replace(microsecond=0))
        if is_skipped(instant):
            assert instant.tzinfo is not None
            begin = to_ms(first_passing(instant.tzinfo, instant.replace(tzinfo=None)))
        return cls(begin, begin + (1000 if instant.second else 60_000))


class Around(NamedTuple):
    """Occurrences around a span of time, in epoch ms.

    Parameters:
        before: the last one before the span; ``None``: there is none.
        within: the first ones in the span.
        after: the next one after these; ``None``: there is none.
    """

    before: int | None
    within: list[int]
    after: int | None


def is_skipped(instant: datetime) -> bool:
    """Return whether a clock change skips an instant, so that no clock of its zone shows it."""
    shown = instant.astimezone(UTC).astimezone(instant.tzinfo)
    return shown.replace(tzinfo=None) != instant.replace(tzinfo=None)


def around(entry: Entry, span: Span, zone: tzinfo) -> Around | None:
    """Return the occurrences of an entry around a span of time.

    ``None`` if its schedule counts each run from the previous run, because then its past cannot be
    calculated.

    Parameters:
        zone: time zone for a schedule without a zone.
    """
    rule = _repeatable_rule(entry, zone)
    if rule is None:
        return None
    since = span.begin - _LONGEST_GAP
    if isinstance(rule, Every) and not rule.on_grid:
        state = entry.known_state
        anchor = state.last if state.nominal is None else state.nominal
        if anchor is None:
            return None
        # last_ms() counts intervals from ``since``, so ``since`` must be whole intervals away from
        # an occurrence.
        since -= (since - anchor) % rule.ms
    # last_ms() returns ``since`` if there is no occurrence.
    before = last_ms(rule, since, span.begin - 1)
    in_span = takewhile(lambda ms: ms < span.end, occurrences(rule, before))
    within = [*islice(in_span, _MOST)]
    # If there are more than _MOST in the span, this is still one of them.
    after = next_ms(rule, within[-1] if within else before)
    return Around(None if before == since else before, within, after)


def last_by_rule(entry: Entry, now: int, zone: tzinfo) -> int | None:
    """Return the last occurrence of an entry up to now, in epoch ms; ``None``: there is none."""
    until = now if entry.end_ms is None else min(now, entry.end_ms)
    # This span is empty. All occurrences up to ``until`` lie before it.
    near = around(entry, Span(until + 1, until + 1), zone)
    return None if near is None else near.before


def known_occurrences(entry: Entry) -> list[int]:
    """Return the last and the next occurrence that the state of an entry has, in epoch ms."""
    state = entry.known_state
    # A question is no occurrence: the schedule of another library is asked at that instant.
    return [
        ms for ms in (state.last, state.nominal) if ms is not None and not isinstance(ms, Question)
    ]


def is_fixed(entry: Entry, zone: tzinfo) -> bool:
    """Return whether the schedule alone decides the occurrences.

    The occurrences of an interval move, for example when the entry is resumed.
    """
    rule = _repeatable_rule(entry, zone)
    return rule is not None and (not isinstance(rule, Every) or rule.on_grid)


def _repeatable_rule(entry: Entry, zone: tzinfo) -> Rule | None:
    """Return the rule of an entry if it can calculate past occurrences; ``None`` if it cannot."""
    rule = entry.rule(zone)
    return None if isinstance(rule, ForeignRule | AnsweringRule) else rule


def explain_no_occurrence(case: Case, entry: Entry, span: Span) -> Explanation:
    """Say that a schedule has no occurrence in a span of time, and name the nearest ones."""
    at = from_ms(span.begin)
    changed = [*case.changed_since(at)]
    near = around(entry, span, case.zone)
    if near is None:
        why = "Its schedule counts each run from the one before."
        if "schedule" in entry.unstored:
            why = "Only its app knows its schedule."
        occurrence = f"{case.name} had an occurrence at {case.when(at)}"
        verdict = f"Whether {occurrence} is not recorded any more."
        return Explanation(verdict, (Reason("rule", why), *changed))
    reasons = [*calendar_reasons(case, entry, span)]
    nearest = [ms for ms in (near.before, near.after) if ms is not None]
    for ms in nearest:
        reasons += clock_change_reasons(case, entry, ms)
    reasons.append(Reason("rule", _nearest(case, entry, nearest)))
    today = " by its schedule of today" if changed else ""
    verdict = f"{case.name} had no occurrence at {case.when(at)}{today}."
    return Explanation(verdict, (*reasons, *changed))


def _nearest(case: Case, entry: Entry, nearest: list[int]) -> str:
    """Return the schedule in words, and the occurrences that are nearest to a question.

    Parameters:
        nearest: the occurrences before and after the instant of the question, in epoch ms.
    """
    if isinstance(entry.schedule, Manual):
        return "It is run by hand only."
    instants = []
    for ms in nearest:
        run = case.run_at(from_ms(ms))
        outcome = "" if run is None else f" ({run.outcome})"
        instants.append(f"{case.when(ms)}{outcome}")
    words = " and ".join(instants) or "none"
    return f"Its schedule is {entry.schedule!r}; the nearest occurrences: {words}."


def calendar_reasons(case: Case, entry: Entry, span: Span) -> Iterator[Reason]:
    """Yield a reason if the calendar leaves out an occurrence in a span of time."""
    words = left_out_words(entry, span.begin, span.end, case.zone)
    if words is not None:
        yield Reason("calendar", words)


def clock_change_reasons(case: Case, entry: Entry, ms: int) -> Iterator[Reason]:
    """Yield the effect of a clock change on an occurrence, if there is one.

    Parameters:
        ms: nominal time of the occurrence, in epoch ms.
    """
    words = hazard(entry.rule(case.zone), ms)
    if words is not None:
        yield Reason("clock change", f"Of {case.when(ms)}: {words}.", from_ms(ms))


def jitter_reasons(case: Case, entry: Entry, ms: int) -> Iterator[Reason]:
    """Yield to which instant jitter puts off an occurrence, if it does.

    Parameters:
        ms: nominal time of the occurrence, in epoch ms.
    """
    due = score(entry, ms, case.zone)
    if due is not None and due > ms:
        yield Reason("jitter", f"Its jitter puts it off to {case.when(due)}.", from_ms(due))


def out_of_bounds(case: Case, entry: Entry, nominal: int) -> Explanation | None:
    """Explain that an occurrence lies outside the bounds of the entry; ``None`` if it does not."""
    last = entry.known_state.last
    if entry.start_ms is not None and nominal < entry.start_ms:
        why = f"its start_at is {case.when(entry.start_ms)}"
    elif entry.end_ms is not None and nominal > entry.end_ms:
        why = f"its end_at is {case.when(entry.end_ms)}"
    elif used_up(entry, entry.total_run_count) and last is not None and nominal > last:
        # The entry has had all its runs (``max_runs``) before this occurrence.
        why = _end_words(case, entry)
    else:
        return None
    verdict = f"{case.name} did not run at {case.when(nominal)}: {why}."
    return Explanation(verdict, tuple(case.changed_since(from_ms(nominal))))


def next_reasons(case: Case, entry: Entry) -> Iterator[Reason]:
    """Yield when the next occurrence comes or why none comes, and the causes that delay it."""
    yield from case.delays(case.now)
    nominal = entry.known_state.nominal
    if isinstance(entry.schedule, Manual):
        yield Reason("next", "It has no next run, because it is run by hand only.")
    elif entry.status in ("paused", "disabled"):
        yield Reason("next", f"It has no next run while it is {entry.status}.")
    elif nominal is None:
        yield Reason("next", f"It has no next run, because {_end_words(case, entry)}.")
    else:
        yield _next(case, entry, nominal)


def _end_words(case: Case, entry: Entry) -> str:
    """Return in words why an entry is finished, so that it has no further occurrence."""
    last = entry.known_state.last
    if used_up(entry, entry.total_run_count):
        at = "" if last is None else f", the last at {case.when(last)}"
        return f"it is finished after its max_runs of {entry.max_runs}{at}"
    if entry.end_at is not None:
        return f"it is finished, as its end_at is {case.when(entry.end_at)}"
    return "it is finished, as its schedule has no occurrence any more"


def _next(case: Case, entry: Entry, nominal: int | Question) -> Reason:
    """Return when the next occurrence is due, or when its schedule is asked for one."""
    if isinstance(nominal, Question):
        # A custom schedule does not know its next occurrence in advance.
        sentence = f"Its schedule is asked at {case.when(int(nominal))} whether it is due."
        return Reason("next", sentence)
    due = nominal if entry.due is None else entry.due
    sentence = f"The next one is due at {case.when(due)}"
    if due > nominal:
        sentence += f", its jitter included; the schedule says {case.when(nominal)}"
    return Reason("next", f"{sentence}.")

"""Which occurrences the rule of an entry has around a time that is past."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from typing import NamedTuple

from ...entries.entry import Entry
from ...instants import to_ms
from ...schedules import Every, Question, Rule, next_ms
from ...schedules.celery_schedules import AnsweringRule, ForeignRule
from ...schedules.clock_changes import first_passing

_DAY = 86_400_000

#: How far back the occurrence before is looked for, step by step, in ms; few rules are rarer than 29 February.
_STEPS = (_DAY, 40 * _DAY, 400 * _DAY, 3000 * _DAY)


class Span(NamedTuple):
    """The time that is asked about, from ``begin`` to before ``end``, in milliseconds since 1970."""

    begin: int
    end: int

    @classmethod
    def of(cls, instant: datetime, to_second: bool) -> Span:
        """What is meant by an instant: all of its minute, or of its second if it has seconds, or is told so.

        One that the clocks skip stands for the end of what they skip.
        """
        if skipped(instant):
            zone = instant.tzinfo
            assert zone is not None
            begin = to_ms(first_passing(zone, instant.replace(tzinfo=None)))
            return cls(begin, begin + 1000)
        begin = to_ms(instant.replace(microsecond=0))
        return cls(begin, begin + (1000 if instant.second or to_second else 60_000))


class Around(NamedTuple):
    """Occurrences, in milliseconds since 1970: the last one before a span, the first one in it, the first after it."""

    before: int | None
    at: int | None
    after: int | None


def skipped(instant: datetime) -> bool:
    """Whether no clock in the zone of an instant ever showed it, because a clock change skipped it."""
    return instant.astimezone(UTC).astimezone(instant.tzinfo).replace(tzinfo=None) != instant.replace(tzinfo=None)


def around(entry: Entry, span: Span, zone: tzinfo) -> Around | None:
    """The occurrences of an entry around a span, by its rule of today; ``None`` where nobody can tell.

    That is so for schedules whose occurrences count from one to the next in their own way, unless one lies in the span
    that the entry remembers. ``zone`` is for those that carry none.
    """
    state, rule = entry.known_state, _known(entry, zone)
    if rule is None:
        known = [ms for ms in (state.last, state.nominal) if ms is not None and not isinstance(ms, Question)]
        at = next((ms for ms in known if span.begin <= ms < span.end), None)
        return None if at is None else Around(None, at, None)
    before: int | None
    first: int | None
    if isinstance(rule, Every) and not rule.on_grid:
        anchor = state.last if state.nominal is None else state.nominal
        if anchor is None:
            return None
        first = anchor - (anchor - span.begin) // rule.ms * rule.ms
        before = first - rule.ms
    else:
        before, first = _previous(rule, span.begin), next_ms(rule, span.begin - 1)
    if first is None or first >= span.end:
        return Around(before, None, first)
    return Around(before, first, next_ms(rule, first))


def is_fixed(entry: Entry, zone: tzinfo) -> bool:
    """Whether a rule has the same occurrences whenever it is asked; an interval moves with each resumption."""
    rule = _known(entry, zone)
    return rule is not None and (not isinstance(rule, Every) or rule.on_grid)


def _known(entry: Entry, zone: tzinfo) -> Rule | None:
    """The rule of an entry, where it has one that tells of the past."""
    rule = entry.rule(zone)
    return None if isinstance(rule, ForeignRule | AnsweringRule) else rule


def _previous(rule: Rule, until: int) -> int | None:
    """The last occurrence before an instant: what follows a moment grows with it, so that a span can be halved."""
    found = (next_ms(rule, until - step) for step in _STEPS)
    latest = next((ms for ms in found if ms is not None and ms < until), None)
    beyond = until
    while latest is not None and latest < beyond:
        middle = (latest + beyond) // 2
        following = next_ms(rule, middle)
        if following is not None and following < until:
            latest = following
        else:
            beyond = middle
    return latest

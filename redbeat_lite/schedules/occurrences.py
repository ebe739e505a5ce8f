"""From a schedule to its occurrences: the one path that the beat and every preview take."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, timedelta, tzinfo
from functools import lru_cache
from itertools import islice, pairwise

from celery.schedules import BaseSchedule, crontab, schedule, solar

from ..errors import InvalidEntry
from ..instants import YEAR, from_ms, to_ms
from .celery_schedules import AnsweringRule, ForeignRule, SolarRule
from .clock_changes import CountedRule
from .cron import Cron, crontab_rule
from .intervals import At, Every, Manual, interval_ms
from .rrules import RecurrenceRule, RRule
from .rule import SAMPLE, InMs, Question, Rule
from .stored_form import coerce_schedule, encode_schedule
from .zones import portable

#: Spans of time in which a gap between two occurrences is sought: a week of ten minutes, and years of days.
_LOOKS = 1010


def rule_of(schedule_: BaseSchedule | float | timedelta, zone: tzinfo) -> Rule:
    """The rule behind a schedule; ``zone`` is for those without one of their own.

    Raises InvalidEntry: not a schedule, or an interval out of bounds.
    """
    found = coerce_schedule(schedule_)
    if isinstance(found, (Cron, RRule)):
        return found.in_zone(zone)
    if isinstance(found, (Every, At, Manual)):
        return found
    if type(found) is crontab:
        return crontab_rule(found, zone)
    if type(found) is schedule:
        ms = interval_ms(found.run_every, exact=False)
        # Of "relative" ones Celery rounds down to the minute, the hour or the day; those of seconds it does not.
        if not found.relative or found.run_every < timedelta(minutes=1):
            return Every(timedelta(milliseconds=ms))
    if type(found) is solar:
        return SolarRule(str(found.event), float(found.lat), float(found.lon))
    kind = AnsweringRule if hasattr(found, "next_after") else ForeignRule
    return kind(found, portable(zone), _identity(found))


def next_ms(rule: Rule, ms: int) -> int | None:
    """The first occurrence strictly later than an instant, both in milliseconds since 1970; None for never again.

    A schedule that does not know it in advance answers with the `Question` to ask it later.
    """
    # Arithmetic is cheaper than remembering what came out of it.
    return rule.next_ms(ms) if isinstance(rule, (Every, At)) else _remembered(rule, ms)


def first_ms(rule: Rule, now_ms: int, start_ms: int | None) -> int | None:
    """The first occurrence of a new entry, in milliseconds since 1970.

    Parameters:
        start_ms: the entry's ``start_at``. An interval counts from it (and its first occurrence is the start itself,
            if that is still to come); any other rule has its first match not earlier than it.

    A one-off has its instant even when that is past, so that an entry that comes late runs rather than vanishes; it has
    none when it lies before the start.
    """
    if isinstance(rule, At):
        return rule.ms if start_ms is None or start_ms <= rule.ms else None
    if start_ms is None:
        return next_ms(rule, now_ms)
    if isinstance(rule, Every) and not rule.on_grid:
        return start_ms if start_ms > now_ms else rule.next_ms(rule.last_ms(start_ms, now_ms))
    return next_ms(rule, max(start_ms - 1, now_ms))


def shortest_gap_ms(rule: Rule, from_ms: int) -> int | None:
    """How close two occurrences of a rule come, in milliseconds; None when there are no two.

    Exact for intervals. For cron a lower bound from the times of day, which no clock change is counted in. For other
    rules the closest among the first occurrences after ``from_ms``.
    """
    if isinstance(rule, Every):
        return rule.ms
    if isinstance(rule, CountedRule):
        return 1000 * rule.walls.shortest_gap
    if isinstance(rule, RecurrenceRule):
        return rule.shortest_gap_ms(from_ms)
    return min((later - earlier for earlier, later in pairwise(islice(_told(rule, from_ms), SAMPLE + 1))), default=None)


def _told(rule: Rule, ms: int | None) -> Iterator[int]:
    """The occurrences later than an instant, as far as they are known in advance."""
    while ms is not None and (ms := next_ms(rule, ms)) is not None and not isinstance(ms, Question):
        yield ms


def gap_over(rule: Rule, from_ms: int, longest: int) -> tuple[int, int] | None:
    """Two occurrences in a row, within a year, that are not less than ``longest`` apart; None where there are none.

    All in milliseconds since 1970. Each look is at the last gap that begins within ``longest`` of the one before, so
    that a year takes few looks; of a rule whose occurrences are close, the first :data:`_LOOKS` spans are looked at.
    """
    if isinstance(rule, Every):
        return (from_ms, from_ms + rule.ms) if rule.ms >= longest else None
    at, until = next_ms(rule, from_ms), from_ms + 1000 * YEAR
    for _ in range(_LOOKS):
        if at is None or isinstance(at, Question) or at >= until:
            return None
        # The first that is not within the span: a gap that ends there began before it by less, or it is too long.
        after = next_ms(rule, at + longest - 1)
        if after is None or isinstance(after, Question):
            return None
        if next_ms(rule, after - longest) == after:
            return _before(rule, at, after), after
        at = after
    return None


def _before(rule: Rule, since: int, until: int) -> int:
    """The last occurrence before ``until``, from one at ``since`` on."""
    while (following := next_ms(rule, since)) is not None and following < until:
        since = following
    return since


@lru_cache(maxsize=16_384)
def _remembered(rule: Rule, ms: int) -> int | None:
    if isinstance(rule, InMs):
        return rule.next_ms(ms)
    try:
        following = rule.next_after(from_ms(ms))
    except OverflowError:
        return None
    if following is None:
        return None
    if (answer := to_ms(following)) <= ms:
        raise InvalidEntry("schedule", f"an occurrence later than {from_ms(ms).isoformat()}", following.astimezone(UTC))
    return answer


def _identity(found: BaseSchedule) -> str | int:
    try:
        return json.dumps(encode_schedule(found), sort_keys=True)
    except (InvalidEntry, TypeError, ValueError):
        return id(found)  # only the object itself is the same

"""Missed occurrences: which of them a policy sends, and the occurrence to wait for after them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice, takewhile
from typing import NamedTuple

from ..policies import Misfire
from .celery_schedules import ForeignRule
from .clock_changes import CountedRule
from .intervals import At, Every
from .occurrences import first_ms, last_ms, next_ms, occurrences
from .rule import Question, Rule

#: Maximum number of occurrences that `all` sends in one plan without a limit. The next round plans
#: the rest.
CHUNK = 500
#: Milliseconds that an occurrence may be late under `skip` without a grace. A standby takes over
#: within 4.5 s of a crash (a lease of 4 s and half a second), so a fail-over skips nothing.
DEFAULT_GRACE_MS = 5000
#: If a clock was set back by at most this, every entry waits for it and repeats no run.
_LITTLE_MS = 60_000
#: Maximum number of missed occurrences of an entry that are counted one by one, if its rule has no
#: arithmetic. A plan with this number has skipped 1,000 occurrences or more.
MOST_COUNTED = 1000


class Range(NamedTuple):
    """Occurrences in a row: the nominal times of the first and the last one, and their number."""

    first: int
    last: int
    number: int


class Plan(NamedTuple):
    """Decision about an entry. All times are nominal times in milliseconds since 1970.

    ``emit`` holds the occurrences to send, oldest first. ``next`` is the occurrence to wait for: it
    is past if the next round has more to do, and None if the entry is finished. ``skipped`` is the
    number of skipped occurrences, and ``ranges`` are these occurrences, oldest first.
    """

    emit: tuple[int, ...]
    next: int | None
    skipped: int
    ranges: tuple[Range, ...] = ()


def plan_misfires(
    rule: Rule,
    nominal: int,
    now: int,
    misfire: Misfire,
    *,
    end: int | None = None,
    runs_left: int | None = None,
    delay: int = 0,
    most_counted: int = MOST_COUNTED,
) -> Plan:
    """Decide about an entry that waits for ``nominal``.

    Each missed occurrence (``nominal`` and those after it that are not later than ``now``) is sent,
    skipped, or left to the next round. The work is bounded, however long the outage. A user's own
    schedule class is asked once, and makes up for one run.

    Parameters:
        nominal, now: milliseconds since 1970.
        end: occurrences later than this do not exist.
        runs_left: maximum number of occurrences that may be sent. If they are used up, nothing is
            next, and the occurrences after them are neither sent nor skipped.
        delay: jitter of this occurrence in milliseconds, by which it is not late.
        most_counted: for a rule without arithmetic; 1 if nobody needs the number.
    """
    now -= delay
    if nominal > now:
        return Plan((), nominal if end is None or nominal <= end else None, 0)
    until = now if end is None else min(now, end)
    if nominal > until or runs_left == 0:
        return Plan((), None, 0)
    if isinstance(rule, ForeignRule) or isinstance(nominal, Question):
        plan = _plan_asking(rule, nominal, until, misfire)
    elif _sends_latest_only(misfire):
        plan = _plan_latest(missed_of(rule, nominal, until, most_counted), now, misfire)
    else:
        plan = _plan_each(rule, nominal, now, until, misfire, runs_left)
    is_used_up = runs_left is not None and len(plan.emit) >= runs_left
    if is_used_up or (end is not None and plan.next is not None and plan.next > end):
        return plan._replace(next=None)
    return plan


def _plan_asking(rule: Rule, nominal: int, now: int, misfire: Misfire) -> Plan:
    """Ask a user's schedule once. The next occurrence counts from the run, as in Celery."""
    if not isinstance(rule, ForeignRule):
        # The class has got a next_after since the question was stored.
        assert isinstance(nominal, Question)
        return Plan((), next_ms(rule, nominal.asked), 0)
    if isinstance(nominal, Question):
        is_due, following = rule.answer(nominal, now)
        return Plan((int(nominal),) if is_due else (), following, 0)
    _, following = rule.answer(Question(now, now), now)
    grace = misfire.grace_ms
    if grace is None and misfire.policy == "skip":
        grace = DEFAULT_GRACE_MS
    if grace is not None and now - nominal > grace:
        return Plan((), following, 1, (Range(nominal, nominal, 1),))
    return Plan((nominal,), following, 0)


def _sends_latest_only(misfire: Misfire) -> bool:
    """Return whether at most the latest occurrence can be sent.

    So it is under the default grace of `skip`, which is less than the gap between two occurrences.
    """
    return misfire.policy == "coalesce" or (misfire.policy == "skip" and misfire.grace is None)


def _plan_latest(missed: Missed, now: int, misfire: Misfire) -> Plan:
    """Plan to send the latest missed occurrence, if it is within the grace, and skip the others."""
    latest = missed.last
    grace = misfire.grace_ms
    if grace is None and misfire.policy == "skip":
        grace = DEFAULT_GRACE_MS
        if missed.following is not None:
            grace = min(grace, (missed.following - latest) // 4)
    if grace is not None and now - latest > grace:
        return Plan((), missed.following, missed.number, (missed.range,))
    earlier = missed.number - 1
    if not earlier:
        return Plan((latest,), missed.following, 0)
    skipped = Range(missed.first, missed.last_but_one, earlier)
    return Plan((latest,), missed.following, earlier, (skipped,))


def _plan_each(
    rule: Rule, nominal: int, now: int, until: int, misfire: Misfire, runs_left: int | None
) -> Plan:
    """Plan to send each missed occurrence within the grace, up to the limit."""
    first: int | None = nominal
    too_late = 0
    ranges: tuple[Range, ...] = ()
    oldest = nominal if misfire.grace_ms is None else now - misfire.grace_ms
    if nominal < oldest:
        late = missed_of(rule, nominal, min(oldest - 1, until))
        first = late.following
        too_late = late.number
        ranges = (late.range,)
    if first is None or first > until:
        return Plan((), first, too_late, ranges)
    limit = misfire.limit
    most = limit or CHUNK
    if runs_left is not None:
        most = min(most, runs_left)
    in_time = tuple(_times(rule, first, until, most + 1))
    emit = in_time[:most]
    if len(in_time) <= most:
        return Plan(emit, next_ms(rule, emit[-1]), too_late, ranges)
    if limit is None or len(emit) == runs_left:
        return Plan(emit, in_time[most], too_late, ranges)
    # Another round would send as many again.
    rest = missed_of(rule, in_time[most], until)
    return Plan(emit, rest.following, too_late + rest.number, (*ranges, rest.range))


def ahead_ms(rule: Rule, nominal: int, now: int) -> int | None:
    """Return the next occurrence in the future, in the phase of ``nominal``.

    A resumption without catching up waits for it, and drops the missed ones. All in milliseconds
    since 1970.
    """
    if nominal > now:
        return nominal
    if isinstance(rule, Every):
        return rule.next_ms(rule.last_ms(nominal, now))
    if isinstance(rule, ForeignRule):
        # A user's schedule may have a phase, too. It is kept, unless the walk would be too long.
        for following in islice(occurrences(rule, nominal), MOST_COUNTED):
            if following > now:
                return following
    return next_ms(rule, now)


def pull_back(
    rule: Rule,
    nominal: int,
    now: int,
    *,
    last: int | None = None,
    start: int | None = None,
) -> int:
    """Return the nominal time to wait for after the clock was set back to ``now``.

    Otherwise an entry would wait until the clock is as far again. An interval keeps its phase, so
    entries that were spread stay spread. All in milliseconds since 1970.

    Parameters:
        last: last nominal time that was sent.
        start: the entry's ``start_at``, before which nothing runs.
    """
    if isinstance(rule, Every) and not rule.on_grid:
        earliest = now + 1 if start is None else max(now + 1, start)
        periods = max(0, (nominal - earliest) // rule.ms)
        following: int | None = nominal - periods * rule.ms
    else:
        following = first_ms(rule, now, start)
    if following is not None and last is not None:
        following = unsent(rule, following, now, last)
    return nominal if following is None else min(nominal, following)


def unsent(rule: Rule, following: int, now: int, last: int) -> int | None:
    """Return ``following``, or the occurrence after ``last`` if ``following`` was sent already.

    A rule that names times of day names times again that were sent, if the clock was set back. The
    entry waits for the first unsent one if the clock gets there within one occurrence, or within a
    minute, because clocks of two beats differ by less. An entry that would wait longer starts over.
    All in milliseconds since 1970.
    """
    if following > last:
        return following
    after = next_ms(rule, last)
    if following == last:
        return after
    names_times = not isinstance(rule, At) and not (isinstance(rule, Every) and not rule.on_grid)
    gap = 0 if after is None else after - last
    is_near = last - now <= max(gap, _LITTLE_MS)
    return after if names_times and is_near else following


class Missed(NamedTuple):
    """Missed occurrences of a rule, one after the other.

    Parameters:
        first, last_but_one, last: nominal times; ``last_but_one`` is ``first`` if there is one.
        number: how many there are; with :data:`MOST_COUNTED` there may be more.
        following: the occurrence after them, if any.
    """

    first: int
    last_but_one: int
    last: int
    number: int
    following: int | None

    @property
    def range(self) -> Range:
        return Range(self.first, self.last, self.number)


def missed_of(rule: Rule, first: int, until: int, most: int = MOST_COUNTED) -> Missed:
    """Return the missed occurrences of ``rule`` from ``first``, which is one, to ``until``.

    A rule with arithmetic counts them, so a year costs no more than a minute. Others are looked at
    one by one, at most ``most`` of them. If there are more, the latest is searched.
    """
    following = next_ms(rule, first)
    if following is None or following > until:
        return Missed(first, first, first, 1, following)
    if isinstance(rule, Every | CountedRule):
        last = last_ms(rule, first, until)
        last_but_one = last_ms(rule, first, last - 1)
        number = 1 + rule.count_ms(first, until)
        return Missed(first, last_but_one, last, number, next_ms(rule, last))
    times = [*_times(rule, first, until, most)]
    last = times[-1]
    last_but_one = times[-2:][0]
    following = next_ms(rule, last)
    if following is not None and following <= until:
        last_but_one = last
        last = last_ms(rule, last, until)
        following = next_ms(rule, until)
    return Missed(first, last_but_one, last, len(times), following)


def _times(rule: Rule, first: int, until: int, most: int) -> Iterator[int]:
    """Yield the occurrences from ``first``, which is one, to ``until``, at most so many."""
    return takewhile(lambda ms: ms <= until, islice(chain([first], occurrences(rule, first)), most))

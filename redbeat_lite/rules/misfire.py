"""Missed occurrences: which of them a policy sends, and the occurrence to wait for after them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from ..policies import Misfire
from .celery_schedules import ForeignRule
from .clock_changes import CountedRule
from .intervals import At, Every
from .occurrences import first_ms, next_ms
from .rule import Question, Rule

#: Most occurrences that `all` sends in one plan without a limit. The next round plans the rest.
CHUNK = 500
#: Milliseconds that an occurrence may be late under `skip` without a grace. A standby takes over
#: within 4.5 s of a crash (a lease of 4 s and half a second), so a fail-over skips nothing.
DEFAULT_GRACE_MS = 5000
#: If a clock was set back by at most this, every entry waits for it and repeats no run.
_LITTLE_MS = 60_000
#: Most occurrences that are looked at one by one in a round, for rules that cannot count them.
WALK = 2000

#: Decides from the occurrences looked at so far whether to look for another one.
WalkOn = Callable[[Sequence[int]], bool]


def by_count(walked: Sequence[int]) -> bool:
    """Look for another occurrence until there are `WALK` of them."""
    return len(walked) < WALK


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
    walk_on: WalkOn = by_count,
) -> Plan:
    """Decide about an entry that waits for ``nominal``.

    Each missed occurrence (``nominal`` and those after it that are not later than ``now``) is sent,
    skipped, or left to the next round. The work is bounded, however long the outage. A `Question`
    that was due several times is asked once, and the occurrence of its answer is not late.

    Parameters:
        nominal, now: milliseconds since 1970.
        end: occurrences later than this do not exist.
        runs_left: most occurrences that may be sent. If they are used up, nothing is next, and the
            occurrences after them are neither sent nor skipped.
        delay: jitter of this occurrence in milliseconds, by which it is not late.
        walk_on: how far to look for missed occurrences one by one, if the rule cannot count them.
            With a limit, the search looks further, until it has as many as the limit allows.
    """
    now -= delay
    if nominal > now:
        return Plan((), nominal if end is None or nominal <= end else None, 0)
    until = now if end is None else min(now, end)
    if nominal > until or runs_left == 0:
        return Plan((), None, 0)
    if isinstance(nominal, Question):
        plan = _plan_question(rule, nominal, until)
    else:
        oldest = nominal if misfire.grace_ms is None else now - misfire.grace_ms
        if misfire.limit is not None:
            walk_on = _with_limit(misfire.limit, oldest, walk_on)
        missed = missed_of(rule, nominal, until, walk_on)
        if _sends_latest_only(misfire):
            plan = _plan_latest(missed, now, misfire)
        else:
            plan = _plan_each(missed, oldest, misfire.limit, runs_left)
    is_used_up = runs_left is not None and len(plan.emit) >= runs_left
    if is_used_up or (end is not None and plan.next is not None and plan.next > end):
        return plan._replace(next=None)
    return plan


def _with_limit(limit: int, oldest: int, walk_on: WalkOn) -> WalkOn:
    """Return ``walk_on``, extended until ``limit`` plus one occurrences within the grace are known.

    The limit holds for a whole outage, so one round plans all occurrences that it allows. The one
    more is the first occurrence that the limit skips.
    """

    def further(walked: Sequence[int]) -> bool:
        in_time = len(walked) - bisect_left(walked, oldest)
        return walk_on(walked) or 0 < in_time <= limit

    return further


def _plan_question(rule: Rule, question: Question, now: int) -> Plan:
    """Ask a question whose time has come. That time is the nominal time of its occurrence."""
    if not isinstance(rule, ForeignRule):  # its class has a next_after by now
        return Plan((), next_ms(rule, question.asked), 0)
    answer = rule.answer(question, now)
    if answer is not question:
        return Plan((), answer, 0)
    # As in Celery, the next occurrence counts from the run and not from its nominal time.
    return Plan((int(question),), next_ms(rule, now), 0)


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
    if missed.unfinished or (grace is not None and now - latest > grace):
        skipped = Range(missed.nominal, latest, missed.number)
        return Plan((), missed.following, missed.number, (skipped,))
    earlier = missed.number - 1
    if not earlier:
        return Plan((latest,), missed.following, 0)
    skipped = Range(missed.nominal, missed.last_before(latest), earlier)
    return Plan((latest,), missed.following, earlier, (skipped,))


def _plan_each(missed: Missed, oldest: int, limit: int | None, runs_left: int | None) -> Plan:
    """Plan to send each missed occurrence since ``oldest``, up to the limit."""
    most = limit or CHUNK
    if runs_left is not None:
        most = min(most, runs_left)
    in_time = tuple(islice(missed.since(oldest), most + 1))
    emit = in_time[:most]
    too_late = missed.count_before(oldest)
    ranges: tuple[Range, ...] = ()
    if too_late:
        ranges = (Range(missed.nominal, missed.last_before(oldest), too_late),)
    rest = missed.number - too_late - len(emit)
    if not rest:
        return Plan(emit, missed.following, too_late, ranges)
    if limit is None or len(emit) == runs_left:
        return Plan(emit, next_ms(missed.rule, emit[-1]), too_late, ranges)
    # Another round would send as many again, so occurrences beyond the walk are skipped uncounted.
    following = next_ms(missed.rule, missed.until) if missed.unfinished else missed.following
    over_limit = Range(in_time[-1], missed.last, rest)
    return Plan(emit, following, too_late + rest, (*ranges, over_limit))


def ahead_ms(rule: Rule, nominal: int, now: int, walk_on: WalkOn = by_count) -> int | None:
    """Return the next occurrence in the future, in the phase of ``nominal``.

    A resumption without catching up waits for it, and drops the missed ones. All in milliseconds
    since 1970.
    """
    if nominal > now:
        return nominal
    if isinstance(nominal, Question):
        return next_ms(rule, now)
    if isinstance(rule, Every):
        return rule.next_ms(rule.last_ms(nominal, now))
    # A foreign schedule may have a phase too. A plan keeps it, unless the walk would be too long.
    upcoming = plan_misfires(rule, nominal, now, Misfire("coalesce"), walk_on=walk_on).next
    return next_ms(rule, now) if upcoming is not None and upcoming <= now else upcoming


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


class _Walked:
    """Occurrences that were looked at one by one, with the methods of a rule that can count."""

    def __init__(self, times: Sequence[int], following: int | None) -> None:
        self._times = times
        self._following = following

    def next_ms(self, ms: int) -> int | None:
        place = bisect_right(self._times, ms)
        return self._times[place] if place < len(self._times) else self._following

    def count_ms(self, after: int, until: int) -> int:
        return bisect_right(self._times, until) - bisect_right(self._times, after)

    def last_ms(self, after: int, until: int) -> int:
        return self._times[bisect_right(self._times, until) - 1]


class Missed(NamedTuple):
    """Missed occurrences of a rule from ``nominal`` to ``until``, both included.

    ``following`` is the occurrence after ``last``. All in milliseconds since 1970.
    """

    rule: Rule
    nominal: int
    until: int
    number: int
    last: int
    following: int | None
    counted: Every | CountedRule | _Walked

    @property
    def unfinished(self) -> bool:
        """Whether further missed occurrences are left to the next round."""
        return self.following is not None and self.following <= self.until

    def count_before(self, floor: int) -> int:
        """Return the number of missed occurrences before ``floor``."""
        if self.nominal >= floor:
            return 0
        return 1 + self.counted.count_ms(self.nominal, min(floor - 1, self.until))

    def last_before(self, floor: int) -> int:
        """Return the last missed occurrence before ``floor``; there must be one."""
        return self.counted.last_ms(self.nominal, min(floor - 1, self.until))

    def since(self, floor: int) -> Iterator[int]:
        """Yield the missed occurrences from ``floor`` on."""
        ms: int | None = self.nominal
        if self.nominal < floor:
            ms = self._next(self.last_before(floor))
        while ms is not None and ms <= self.last:
            yield ms
            ms = self._next(ms)

    def _next(self, ms: int) -> int | None:
        if isinstance(self.counted, _Walked):
            return self.counted.next_ms(ms)
        return next_ms(self.rule, ms)  # remembered, because many entries have the same rule


def missed_of(rule: Rule, nominal: int, until: int, walk_on: WalkOn) -> Missed:
    """Return the missed occurrences of ``rule`` from ``nominal``, which is one, to ``until``.

    A rule with arithmetic counts them, so a year costs no more than a minute. Others are looked at
    one by one, as long as ``walk_on`` allows it; the rest is left to the next round.
    """
    following = _after(rule, nominal, until)
    if isinstance(rule, Every | CountedRule) and following is not None and following <= until:
        last = rule.last_ms(nominal, until)
        number = 1 + rule.count_ms(nominal, until)
        return Missed(rule, nominal, until, number, last, next_ms(rule, last), rule)
    walked = [nominal]
    while following is not None and following <= until and walk_on(walked):
        walked.append(following)
        following = _after(rule, following, until)
    counted = _Walked(walked, following)
    return Missed(rule, nominal, until, len(walked), walked[-1], following, counted)


def _after(rule: Rule, ms: int, until: int) -> int | None:
    """Return the occurrence after ``ms``. A question that is past is asked again from ``until``."""
    following = next_ms(rule, ms)
    if isinstance(following, Question) and following <= until:
        return next_ms(rule, until)
    return following

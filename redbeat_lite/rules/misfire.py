"""Missed occurrences: which of them a policy sends, and the occurrence to wait for after them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice, takewhile
from typing import NamedTuple

from .._base.times import MAX_MS
from ..policies import Misfire
from .celery_schedules import ForeignRule
from .clock_changes import CountedRule
from .intervals import every
from .occurrences import last_ms, occurrences
from .rule import Question, Rule

#: Maximum number of occurrences that the policy `all` sends in one plan, if it has no limit. The
#: next rounds plan the further ones.
CHUNK = 500
#: Milliseconds that an occurrence may be late under the policy `skip`, if it has no grace. A
#: fail-over skips nothing: a standby takes over within 4.5 s of a crash (a lease of 4 s and half a
#: second).
DEFAULT_GRACE_MS = 5000
#: Maximum number of missed occurrences of an entry that are counted one by one, if their number
#: cannot be calculated. A plan with this number has skipped 1,000 occurrences or more.
MOST_COUNTED = 1000


class Range(NamedTuple):
    """Successive occurrences: the nominal times of the first and the last one, and their number.

    A nominal time is the one that the schedule says, before any jitter. If the number is
    :data:`MOST_COUNTED`, there may be more.
    """

    first: int
    last: int
    number: int


class Plan(NamedTuple):
    """Decision about an entry. All times are nominal times in milliseconds since 1970.

    Parameters:
        emit: occurrences to send, oldest first.
        next: occurrence to wait for. It is in the past if the next round has more to do, and None
            if the entry is finished.
        ranges: skipped occurrences, oldest first.
        spare: occurrence that follows the last run that may be sent. The entry waits for it if one
            of the runs in ``emit`` is not sent. None if ``next`` is set, or the schedule ends.
    """

    emit: tuple[int, ...] = ()
    next: int | None = None
    ranges: tuple[Range, ...] = ()
    spare: int | None = None

    @property
    def skipped(self) -> int:
        """Number of skipped occurrences."""
        return sum(skipped.number for skipped in self.ranges)


def plan_misfires(
    rule: Rule,
    nominal: int,
    now: int,
    misfire: Misfire,
    *,
    end: int = MAX_MS,
    runs_left: int | None = None,
    most_counted: int = MOST_COUNTED,
) -> Plan:
    """Decide which of the missed occurrences of an entry to send.

    Each missed occurrence (``nominal`` and those after it that are not later than ``now``) is sent,
    skipped, or left to the next round. The work is bounded, however long the outage. A user's own
    schedule class is asked once, so at most one of its missed runs is sent.

    Parameters:
        nominal: occurrence that the entry waits for, in milliseconds since 1970.
        now: milliseconds since 1970. The caller subtracts the jitter of ``nominal``, because a run
            is not late by its jitter.
        end: occurrences later than this do not exist.
        runs_left: maximum number of occurrences that may be sent. When so many are sent, nothing is
            next, and later occurrences are neither sent nor skipped. The first of them is the
            ``spare`` one.
        most_counted: maximum number of occurrences to count one by one, if their number cannot be
            calculated.
    """
    if nominal > end or runs_left == 0:
        return Plan()
    if nominal > now:
        return Plan(next=nominal)
    until = min(now, end)
    # A user's own schedule class must be asked whether it is due.
    if isinstance(rule, ForeignRule) or isinstance(nominal, Question):
        plan = _plan_asking(rule, nominal, until, misfire)
    elif misfire.policy == "coalesce" or (misfire.policy == "skip" and misfire.grace is None):
        # The default grace of `skip` is less than the gap between two occurrences, so at most the
        # latest one is sent, as with `coalesce`.
        missed, following = range_of(rule, nominal, until, most_counted)
        plan = _plan_latest(rule, missed, following, now, misfire)
    else:
        plan = _plan_each(rule, nominal, now, until, misfire, runs_left)
    # Nothing is next if the entry ends before the next occurrence, or if it has had its last run.
    if plan.next is not None and plan.next > end:
        return plan._replace(next=None)
    if runs_left is not None and len(plan.emit) >= runs_left:
        return plan._replace(next=None, spare=plan.next)
    return plan


def _plan_asking(rule: Rule, nominal: int, now: int, misfire: Misfire) -> Plan:
    """Ask a user's schedule once; its next occurrence counts from the run, as in Celery.

    Parameters:
        nominal: the due occurrence, which the schedule has named; or a `Question`, the instant at
            which to ask the schedule whether a run is due.
    """
    if not isinstance(rule, ForeignRule):
        # The stored nominal time is a question, as the class had no ``next_after`` then. The class
        # has one now, so its rule is no ForeignRule any more, and names its next occurrence.
        assert isinstance(nominal, Question)
        return Plan(next=rule.next_ms(nominal.after))
    if isinstance(nominal, Question):
        # It is time for the question. Send a run if the schedule says that it is due.
        is_due, following = rule.answer(nominal, now)
        emit = (int(nominal),) if is_due else ()
        return Plan(emit, next=following)
    # An occurrence that the schedule has named is due, so do not ask whether it is. The schedule
    # counts from its last run, so ask what follows a run of now.
    _, following = rule.answer(Question(at=now, after=now), now)
    return _plan_latest(rule, Range(nominal, nominal, number=1), following, now, misfire)


def _plan_latest(
    rule: Rule, missed: Range, following: int | None, now: int, misfire: Misfire
) -> Plan:
    """Plan to send the latest missed occurrence, if it is within the grace, and skip the others.

    Parameters:
        following: next occurrence after the missed ones; for a user's own schedule class, a
            ``Question``, which is the instant at which to ask it again.
    """
    grace = misfire.grace_ms
    if grace is None and misfire.policy == "skip":
        grace = DEFAULT_GRACE_MS
        if following is not None and not isinstance(following, Question):
            # If the gap to the next run is short, a delay of over a quarter of it is too long.
            grace = min(grace, (following - missed.last) // 4)
    if grace is not None and now - missed.last > grace:
        # Even the latest one is too late, so skip all of them.
        return Plan(next=following, ranges=(missed,))
    if missed.number == 1:
        return Plan(emit=(missed.last,), next=following)
    last_but_one = last_ms(rule, missed.first, missed.last - 1)
    skipped = Range(missed.first, last_but_one, missed.number - 1)
    return Plan(emit=(missed.last,), next=following, ranges=(skipped,))


def _plan_each(
    rule: Rule, nominal: int, now: int, until: int, misfire: Misfire, runs_left: int | None
) -> Plan:
    """Plan to send each missed occurrence within the grace, up to the limit.

    Parameters:
        until: ``now``, or the end of the entry if that is earlier.
    """
    # First occurrence that is not too late.
    first: int | None = nominal
    too_late: tuple[Range, ...] = ()
    # Earlier occurrences are too late; without a grace, none is.
    oldest = nominal if misfire.grace_ms is None else now - misfire.grace_ms
    # Skip the occurrences that are older than the grace.
    if nominal < oldest:
        late, first = range_of(rule, nominal, min(oldest - 1, until))
        too_late = (late,)
    if first is None or first > until:
        return Plan(next=first, ranges=too_late)
    limit = misfire.limit
    most = limit or CHUNK  # Without a limit, further rounds send more.
    if runs_left is not None:
        most = min(most, runs_left)
    # Search for one more than may be sent, to see whether some are left.
    in_time = tuple(_times(rule, first, until, most + 1))
    emit = in_time[:most]
    if len(in_time) <= most:
        return Plan(emit, next=rule.next_ms(emit[-1]), ranges=too_late)
    if limit is None:
        return Plan(emit, next=in_time[most], ranges=too_late)  # The next round sends further ones.
    # The limit is for one outage, so skip the occurrences beyond it. If they stayed due, the next
    # round would send runs up to the limit again.
    rest, following = range_of(rule, in_time[most], until)
    if len(emit) != runs_left:
        # If the entry has had its last run, the later occurrences do not count as skipped.
        too_late = (*too_late, rest)
    return Plan(emit, next=following, ranges=too_late)


def range_of(
    rule: Rule, first: int, until: int, most: int = MOST_COUNTED
) -> tuple[Range, int | None]:
    """Return the occurrences from ``first`` to ``until`` as a range, and the one after them.

    If the number cannot be calculated, the occurrences are counted one by one, up to ``most``. The
    range still ends with the last occurrence.
    """
    following = rule.next_ms(first)
    if following is None or following > until:
        return Range(first, first, number=1), following
    if isinstance(rule, every | CountedRule):
        number = 1 + rule.count_ms(first, until)  # count_ms() does not count ``first`` itself
    else:
        number = len([*_times(rule, first, until, most)])
    last = last_ms(rule, first, until)
    return Range(first, last, number), rule.next_ms(last)


def _times(rule: Rule, first: int, until: int, most: int) -> Iterator[int]:
    """Yield the occurrence ``first`` and later ones up to ``until``; at most ``most`` in all."""
    return takewhile(lambda ms: ms <= until, islice(chain([first], occurrences(rule, first)), most))

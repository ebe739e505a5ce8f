"""Missed occurrences: every one between the one waited for and now, counted or walked."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from .clock_changes import CountedRule
from .intervals import Every
from .occurrences import next_ms
from .rule import Question, Rule

#: Rules that cannot be counted by arithmetic are walked for at most this many occurrences at a time, if nobody has a
#: bound of his own.
WALK = 2000

#: Told the occurrences that were walked so far, says whether to look for another one.
WalkOn = Callable[[Sequence[int]], bool]


def by_count(walked: Sequence[int]) -> bool:
    """Up to `WALK` of them."""
    return len(walked) < WALK


def missed_of(rule: Rule, nominal: int, until: int, walk_on: WalkOn) -> Missed:
    """The occurrences of ``rule`` from ``nominal``, which is one and not later, to ``until``, both included.

    All in milliseconds since 1970.

    Parameters:
        walk_on: where they have to be walked, whether to go on; what is left is the next round's.
    """
    following = _after(rule, nominal, until)
    walked = [nominal]
    if isinstance(rule, Every | CountedRule) and following is not None and following <= until:
        last = rule.last_ms(nominal, until)
        return Missed(rule, nominal, until, 1 + rule.count_ms(nominal, until), last, next_ms(rule, last), rule)
    while following is not None and following <= until and walk_on(walked):
        walked.append(following)
        following = _after(rule, following, until)
    return Missed(rule, nominal, until, len(walked), walked[-1], following, _Walked(walked, following))


def _after(rule: Rule, ms: int, until: int) -> int | None:
    """What follows an occurrence. A question whose time has passed is none: the schedule is asked from ``until`` on."""
    following = next_ms(rule, ms)
    return next_ms(rule, until) if isinstance(following, Question) and following <= until else following


class _Walked:
    """Occurrences that were looked at one by one, to be counted as those of a rule are that does it by arithmetic."""

    def __init__(self, times: Sequence[int], following: int | None) -> None:
        self._times, self._following = times, following

    def next_ms(self, ms: int) -> int | None:
        place = bisect_right(self._times, ms)
        return self._times[place] if place < len(self._times) else self._following

    def count_ms(self, after: int, until: int) -> int:
        return bisect_right(self._times, until) - bisect_right(self._times, after)

    def last_ms(self, after: int, until: int) -> int:
        return self._times[bisect_right(self._times, until) - 1]


class Missed(NamedTuple):
    """What `missed_of` finds; where it is counted by arithmetic, a year of it costs no more than a minute."""

    rule: Rule
    nominal: int
    until: int
    number: int
    last: int
    following: int | None
    counted: Every | CountedRule | _Walked

    @property
    def unfinished(self) -> bool:
        """Whether there are more up to ``until``, which are left to the next round."""
        return self.following is not None and self.following <= self.until

    def count_before(self, floor: int) -> int:
        return 0 if self.nominal >= floor else 1 + self.counted.count_ms(self.nominal, min(floor - 1, self.until))

    def last_before(self, floor: int) -> int:
        """The latest of those that `count_before` counts; there must be one."""
        return self.counted.last_ms(self.nominal, min(floor - 1, self.until))

    def since(self, floor: int) -> Iterator[int]:
        after = self.counted.next_ms if isinstance(self.counted, _Walked) else partial(next_ms, self.rule)
        ms = self.nominal if self.nominal >= floor else after(self.last_before(floor))
        while ms is not None and ms <= self.last:
            yield ms
            ms = after(ms)

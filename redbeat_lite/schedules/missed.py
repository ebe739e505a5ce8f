"""Missed occurrences: every one between the one waited for and now, counted or walked."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence

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


#: Rules whose occurrences in a span are found by arithmetic.
Countable = Every | CountedRule


def missed_of(rule: Rule, nominal: int, until: int, walk_on: WalkOn) -> Missed:
    """The occurrences of ``rule`` from ``nominal``, which is one and not later, to ``until``, both included.

    All in milliseconds since 1970.

    Parameters:
        walk_on: where they have to be walked, whether to go on; what is left is the next round's.
    """
    following = _after(rule, nominal, until)
    if following is None or following > until:
        return _Walked(rule, (nominal,), following, until)
    if isinstance(rule, Countable):
        return _Counted(rule, nominal, until)
    walked: list[int] = [nominal]
    while following is not None and following <= until and walk_on(walked):
        walked.append(following)
        following = _after(rule, following, until)
    return _Walked(rule, tuple(walked), following, until)


def _after(rule: Rule, ms: int, until: int) -> int | None:
    """What follows an occurrence. A question whose time has passed is none: the schedule is asked from ``until`` on."""
    following = next_ms(rule, ms)
    return next_ms(rule, until) if isinstance(following, Question) and following <= until else following


class _Walked:
    """Missed occurrences that were looked at one by one."""

    def __init__(self, rule: Rule, walked: tuple[int, ...], following: int | None, until: int) -> None:
        self.rule, self.nominal, self.until = rule, walked[0], until
        self._walked, self._following = walked, following
        #: Whether there are more up to ``until``, which are left to the next round.
        self.unfinished = following is not None and following <= until

    def total(self) -> int:
        return len(self._walked)

    def last(self) -> int:
        return self._walked[-1]

    def following(self) -> int | None:
        return self._following

    def count_before(self, floor: int) -> int:
        return bisect_left(self._walked, floor)

    def last_before(self, floor: int) -> int:
        """The latest of those that `count_before` counts; there must be one."""
        return self._walked[self.count_before(floor) - 1]

    def since(self, floor: int) -> Iterator[int]:
        return iter(self._walked[self.count_before(floor) :])


class _Counted:
    """Missed occurrences found by arithmetic: a year of them costs no more than a minute."""

    unfinished = False

    def __init__(self, rule: Countable, nominal: int, until: int) -> None:
        self.rule, self.nominal, self.until = rule, nominal, until

    def total(self) -> int:
        return 1 + self.rule.count_ms(self.nominal, self.until)

    def last(self) -> int:
        return self.rule.last_ms(self.nominal, self.until)

    def following(self) -> int | None:
        return next_ms(self.rule, self.last())

    def count_before(self, floor: int) -> int:
        return 0 if self.nominal >= floor else 1 + self.rule.count_ms(self.nominal, min(floor - 1, self.until))

    def last_before(self, floor: int) -> int:
        only_first = self.count_before(floor) == 1
        return self.nominal if only_first else self.rule.last_ms(self.nominal, min(floor - 1, self.until))

    def since(self, floor: int) -> Iterator[int]:
        ms = self.nominal if self.nominal >= floor else self.rule.first_ms_from(self.nominal, floor)
        while ms is not None and ms <= self.until:
            yield ms
            ms = next_ms(self.rule, ms)


#: The occurrences from ``nominal`` to ``until``.
Missed = _Walked | _Counted

"""Wall-clock rules on real clocks, whose local time can jump.

Clocks that are set back show an hour twice, which is a *fold*. Clocks that are set forward skip an
hour, which is a *gap*.

A *running* rule means "whenever the clock shows this". It runs in both passings of a fold, and does
not run for the times in a gap. A *fixed* rule means "at this time of day". In a fold it runs at the
first passing only. For all its times in a gap it runs once, at the first instant after the gap.

This holds for every jump of local time, also for half an hour and for the day that Samoa skipped.
Vixie cron has both kinds of rules as well, but counts some rules among the other kind.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import pairwise
from typing import Protocol

from .._base.times import EPOCH, MAX_MS, MIN_MS
from .rule import Rule
from .wall_times import WallTimes
from .zones import zone_name

_SECOND = timedelta(seconds=1)
#: Milliseconds from which on every zone has a local time. On the first and the last day of
#: ``datetime`` some zones have none.
FIRST_MS = MIN_MS + 2 * 86_400_000
_LAST_MS = MAX_MS - 2 * 86_400_000
#: Offsets of a zone are compared once in this many seconds. No zone jumps there and back in a day.
_STRIDE = 86_400


class Walls(Hashable, Protocol):
    """Times of a rule on a clock without a zone."""

    @property
    def running(self) -> bool: ...

    def next_wall(self, wall: datetime) -> datetime | None: ...


def offset_at(zone: tzinfo, second: int) -> int:
    """Return the seconds that ``zone`` is ahead of UTC at a second since 1970."""
    local = (EPOCH + second * _SECOND).astimezone(zone)
    return local.utcoffset() // _SECOND  # type: ignore[operator]  # it is aware


def jump_between(zone: tzinfo, before: int, after: int) -> int:
    """Return the first second in ``(before, after]`` that has the offset of ``after``."""
    target = offset_at(zone, after)
    seconds = range(before + 1, after + 1)
    index = bisect_left(seconds, True, key=lambda second: offset_at(zone, second) == target)
    return seconds[index]


def stretches(zone: tzinfo, after: int, until: int) -> Iterator[tuple[int, int, int]]:
    """Split the seconds ``(after, until]`` at the jumps of the clocks.

    Yields ``(after, until, offset)`` for each part.
    """
    start = after
    here = after + 1
    offset = offset_at(zone, here) if after < until else 0
    while here < until:
        there = min(here + _STRIDE, until)
        changed = offset_at(zone, there)
        if changed != offset:
            jump = jump_between(zone, here, there)
            yield start, jump - 1, offset
            start = jump - 1
            offset = changed
        here = there
    if start < until:
        yield start, until, offset


def naive(second: int) -> datetime:
    """Return the wall time of seconds since 1970 to which the offset of a zone was added."""
    return EPOCH.replace(tzinfo=None) + second * _SECOND


def first_passing(zone: tzinfo, wall: datetime) -> datetime:
    """Return the first instant at which the clock shows ``wall``, or the end of its gap."""
    local = wall.replace(tzinfo=zone)
    earlier = local.astimezone(UTC)
    later = local.replace(fold=1).astimezone(UTC)
    if later >= earlier:
        return earlier
    # In a gap, the offset before the jump gives an instant after the jump, and the offset after the
    # jump gives an instant before it (PEP 495).
    return EPOCH + _SECOND * jump_between(zone, _second(later), _second(earlier))


def _second(instant: datetime) -> int:
    return (instant - EPOCH) // _SECOND


def _next_fixed(walls: Walls, zone: tzinfo, second: int) -> int | None:
    """Return the next second in which a matching time passes for the first time.

    The times in a gap pass when it ends.
    """
    wall = walls.next_wall(naive(second + offset_at(zone, second)))
    while wall is not None:
        passing = _second(first_passing(zone, wall))
        # In the second passing of a fold, the next times on the clock have passed already.
        if passing > second:
            return passing
        wall = walls.next_wall(wall)
    return None


def _next_running(walls: Walls, zone: tzinfo, second: int) -> int | None:
    """Return the next second in which the clock shows a matching time.

    Each round assumes that the offset does not change. If it does, the next round begins at the
    jump.
    """
    while True:
        offset = offset_at(zone, second + 1)
        wall = walls.next_wall(naive(second + offset))
        if wall is None:
            return None
        following = _second(wall.replace(tzinfo=UTC)) - offset
        end = min(following, second + _STRIDE)
        if offset_at(zone, end) != offset:
            second = jump_between(zone, second + 1, end) - 1
        elif end == following:
            return following
        else:
            # Offsets differ by less than two days, so no clock shows ``wall`` before this.
            second = max(end, following - 2 * _STRIDE)


@dataclass(frozen=True)
class ZonedRule(Rule):
    """Wall-clock rule in a zone."""

    walls: Walls
    zone: tzinfo = field(hash=False)  # a zone of dateutil has no hash

    def next_ms(self, ms: int) -> int | None:
        if not FIRST_MS <= ms < _LAST_MS:
            return None
        search = _next_running if self.walls.running else _next_fixed
        try:
            second = search(self.walls, self.zone, ms // 1000)
        except (OverflowError, ValueError):  # local time beyond the years 1 to 9999
            return None
        return None if second is None else second * 1000

    @property
    def zone_name(self) -> str:
        return zone_name(self.zone)


@dataclass(frozen=True)
class CountedRule(ZonedRule):
    """Wall-clock rule whose occurrences can be counted without looking at each."""

    walls: WallTimes

    def count_ms(self, after: int, until: int) -> int:
        """Return the number of occurrences in ``(after, until]``, in milliseconds since 1970."""
        first = after // 1000
        last = until // 1000
        count = self._count_running if self.walls.running else self._count_fixed
        return count(first, last) if first < last else 0

    def _count_running(self, after: int, until: int) -> int:
        count = 0
        for start, end, offset in stretches(self.zone, after, until):
            count += self.walls.count(naive(start + offset), naive(end + offset))
        return count

    def _count_fixed(self, after: int, until: int) -> int:
        """Count the matching times that pass for the first time in ``(after, until]``."""
        count = self.walls.count(self._passed(after), self._passed(until))
        # The first part ends at ``after``, so that a jump in the next second is between two parts.
        parts = pairwise(stretches(self.zone, after - 1, until))
        for (_, end, offset), (_, _, following) in parts:
            if following > offset:
                # The times in a gap, and a time at its end, run once.
                in_gap = self.walls.count(naive(end + offset), naive(end + 1 + following))
                count -= max(in_gap - 1, 0)
        return count

    def _passed(self, second: int) -> datetime:
        """Return the latest time that the clock has shown. In a fold, that is not its time now."""
        parts = stretches(self.zone, second - _STRIDE, second)
        return max(naive(end + offset) for _, end, offset in parts)

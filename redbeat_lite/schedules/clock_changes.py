"""Wall-clock rules on real clocks: what happens when local time jumps.

A *running* rule means "whenever the clock shows this": in a fold (the hour that comes twice) it runs in both
passings, in a gap (the hour that never comes) it makes nothing up. A *fixed* rule means "at this time of day": in a
fold it runs at the first passing only, and wall times that a gap swallowed run once, all together, at the first
instant after the gap. Vixie cron knows the two kinds as well; which rule is of which is for this package
to say. All this holds for any jump of local time: politics, half hours, and the day that Samoa skipped.
"""

from __future__ import annotations

from collections.abc import Hashable
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Protocol

from ..instants import EPOCH, MAX_MS, MIN_MS, from_ms
from .rule import ByKey, InMs
from .wall_times import WallTimes, before
from .zones import jump_between, offset_at, stretches, zone_name

_SECOND = timedelta(seconds=1)
#: The first and last day of ``datetime`` have no local time in every zone.
FIRST_MS = MIN_MS + 2 * 86_400_000
_LAST_MS = MAX_MS - 2 * 86_400_000


class Walls(Hashable, Protocol):
    """Naive local times of a rule."""

    @property
    def running(self) -> bool: ...

    def next_wall(self, wall: datetime) -> datetime | None: ...


def _next_fixed(walls: Walls, zone: tzinfo, local: datetime) -> datetime | None:
    wall = walls.next_wall(_last_first_passing(zone, local))
    return None if wall is None else first_passing(zone, wall)


def _last_first_passing(zone: tzinfo, local: datetime) -> datetime:
    """The latest wall time that has been passed for the first time at ``local``, in whole seconds."""
    if local.fold:
        jump = _jump_ahead(zone, local.replace(fold=0))
        if jump is not None:
            # The second passing: the clock had already got as far as the jump.
            return naive(jump + offset_at(zone, jump - 1) - 1)
    return local.replace(tzinfo=None, microsecond=0)


def first_passing(zone: tzinfo, wall: datetime) -> datetime:
    """The first instant at which the clock shows ``wall``, or a later time if a gap swallowed it."""
    earlier, later = _both(zone, wall)
    if later < earlier:  # a gap: with the offset before it a time falls behind it, and the other way round
        return EPOCH + _SECOND * jump_between(zone, _second(later), _second(earlier))
    return earlier


def _next_running(walls: Walls, zone: tzinfo, local: datetime) -> datetime | None:
    instant, shown = local.astimezone(UTC), local.replace(tzinfo=None, microsecond=0)
    ahead = _next_shown(walls, zone, shown, instant)
    if not local.fold and (jump := _jump_ahead(zone, local)) is not None:
        # A fold lies ahead: its second passing shows times not later than now.
        start = naive(jump + offset_at(zone, jump))
        again = _next_shown(walls, zone, before(start), EPOCH + _SECOND * (jump - 1))
        return min((found for found in (ahead, again) if found is not None), default=None)
    return ahead


def _next_shown(walls: Walls, zone: tzinfo, wall: datetime, instant: datetime) -> datetime | None:
    """The first instant later than ``instant`` at which the clock shows a matching time later than ``wall``."""
    found = walls.next_wall(wall)
    while found is not None:
        earlier, later = _both(zone, found)
        if later >= earlier:
            return earlier if earlier > instant else later
        jump = jump_between(zone, _second(later), _second(earlier))
        found = walls.next_wall(before(naive(jump + offset_at(zone, jump))))
    return None


def _both(zone: tzinfo, wall: datetime) -> tuple[datetime, datetime]:
    """The instants of a wall time by the offset before and after a jump (PEP 495); the same away from jumps."""
    return wall.replace(tzinfo=zone).astimezone(UTC), wall.replace(tzinfo=zone, fold=1).astimezone(UTC)


def _jump_ahead(zone: tzinfo, local: datetime) -> int | None:
    """The jump that will make the clock show ``local`` again, if there is one."""
    earlier, later = _both(zone, local.replace(tzinfo=None))
    return jump_between(zone, _second(earlier), _second(later)) if earlier < later else None


def _second(instant: datetime) -> int:
    return (instant - EPOCH) // _SECOND


def naive(second: int) -> datetime:
    """The wall time that a clock shows which is ahead of UTC: its offset added to the seconds since 1970."""
    return EPOCH.replace(tzinfo=None) + second * _SECOND


class ZonedRule(InMs, ByKey):
    """A wall-clock rule in a zone: what the scheduler asks for the next occurrence. Equal by content."""

    __slots__ = ("_hash", "walls", "zone")

    def __init__(self, walls: Walls, zone: tzinfo) -> None:
        self.walls, self.zone = walls, zone
        self._hash = hash((walls, zone_name(zone)))

    def next_ms(self, ms: int) -> int | None:
        if not FIRST_MS <= ms < _LAST_MS:
            return None
        following = _next_running if self.walls.running else _next_fixed
        try:
            found = following(self.walls, self.zone, from_ms(ms).astimezone(self.zone))
        except (OverflowError, ValueError):  # local time beyond the years 1 to 9999
            return None
        return None if found is None else _second(found) * 1000

    def _key(self) -> tuple[object, ...]:
        return self.walls, self.zone_name

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.walls!r}, {self.zone_name!r})"

    @property
    def zone_name(self) -> str:
        return zone_name(self.zone)


class CountedRule(ZonedRule):
    """A wall-clock rule whose occurrences can be counted without walking over them."""

    __slots__ = ()
    walls: WallTimes

    def count_ms(self, after: int, until: int) -> int:
        """How many occurrences lie in ``(after, until]``, in milliseconds."""
        first, last = after // 1000, until // 1000
        count = self._count_running if self.walls.running else self._count_fixed
        return count(first, last) if first < last else 0

    def last_ms(self, after: int, until: int) -> int:
        """The latest of the occurrences that `count_ms` counts; ``after`` where there are none.

        Halves the span until the next occurrence is beyond it: 35 questions for a year.
        """
        latest, beyond = self.next_ms(after), until
        if latest is None or latest > until:
            return after
        while latest < beyond:
            middle = (latest + beyond) // 2
            following = self.next_ms(middle)
            if following is not None and following <= until:
                latest = following
            else:
                beyond = middle
        return latest

    def _count_running(self, after: int, until: int) -> int:
        pieces = stretches(self.zone, after, until)
        return sum(self.walls.count(naive(start + off), naive(end + off)) for start, end, off in pieces)

    def _count_fixed(self, after: int, until: int) -> int:
        local = (EPOCH + after * _SECOND).astimezone(self.zone)
        passed, total = _last_first_passing(self.zone, local), 0
        for start, end, offset in stretches(self.zone, after, until):
            shown = naive(start + offset)  # what this piece's clock would have shown just before it
            if shown > passed:
                made_up = self.walls.count(passed, shown) and not self.walls.count(shown, shown + _SECOND)
                total, passed = total + bool(made_up), shown
            if (reached := naive(end + offset)) > passed:
                total, passed = total + self.walls.count(passed, reached), reached
        return total

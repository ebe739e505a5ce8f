"""The dates of a recurrence: EXDATEs, which leave out what its rule has, and RDATEs, which add to it.

A local EXDATE, or a day, is left out of the times on the wall, before these meet clock changes: what is to run at 2:30
can be left out of a day that has no 2:30. One in UTC, or in another zone, is an instant. Every RDATE is an instant: it
runs once, whatever the clocks do. As in RFC 5545, an EXDATE leaves out an RDATE of the same time, COUNT counts what is
left out, and UNTIL ends no RDATE. A day leaves out no RDATE with a time: so a day's runs are put to another time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, time, tzinfo

from ..instants import from_ms, to_ms
from .clock_changes import first_passing
from .recurrence import Recurrence
from .rrule_text import Date, RuleText
from .zones import wall_at, zone_name, zone_of


@dataclass(frozen=True)
class LeftOut:
    """The times of a recurrence on the wall, but for some of them and those of some days."""

    recurrence: Recurrence
    times: frozenset[datetime]
    days: frozenset[date]

    @property
    def running(self) -> bool:
        return self.recurrence.running

    def has(self, wall: datetime) -> bool:
        """Whether a time is left out."""
        return wall in self.times or wall.date() in self.days

    def next_wall(self, wall: datetime) -> datetime | None:
        found = self.recurrence.next_wall(wall)
        while found is not None and self.has(found):
            # A day can have 86,400 of them.
            after = datetime.combine(found, time.max) if found.date() in self.days else found
            found = self.recurrence.next_wall(after)
        return found

    def walls(self, wall: datetime, steps: int | None = None) -> Iterator[datetime]:
        """As those of the recurrence."""
        return (found for found in self.recurrence.walls(wall, steps) if not self.has(found))


@dataclass(frozen=True)
class Instants:
    """What is left out, and what is added in ascending order, in milliseconds since 1970."""

    left_out: frozenset[int]
    added: tuple[int, ...]


def with_dates(recurrence: Recurrence, parsed: RuleText, zone: tzinfo) -> tuple[Recurrence | LeftOut, Instants]:
    """A recurrence of a zone with the dates of its text; raises InvalidEntry if the zone of a date is unknown here."""
    on_wall = [each for each in parsed.left_out if _is_local(each, zone)]
    walls = LeftOut(
        recurrence,
        frozenset(each.time for each in on_wall if not each.whole_day),
        frozenset(each.time.date() for each in on_wall if each.whole_day),
    )
    left_out = frozenset(_ms(each, zone) for each in parsed.left_out if not _is_local(each, zone))
    times = [each for each in parsed.added if _wall(each, zone) not in walls.times]
    added = {_ms(each, zone) for each in times if not (each.whole_day and walls.has(each.time))} - left_out
    return walls if on_wall else recurrence, Instants(left_out, tuple(sorted(added)))


def _is_local(each: Date, zone: tzinfo) -> bool:
    return each.time.tzinfo is None and (each.zone is None or zone_name(zone_of(each.zone)) == zone_name(zone))


def _ms(each: Date, zone: tzinfo) -> int:
    if each.time.tzinfo is not None:
        return to_ms(each.time)
    return to_ms(first_passing(zone_of(each.zone) if each.zone else zone, each.time))


def _wall(each: Date, zone: tzinfo) -> datetime:
    if _is_local(each, zone):
        return each.time
    return wall_at(zone, from_ms(_ms(each, zone)))

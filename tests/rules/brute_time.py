"""Wall-clock rules the slow way: walk over every instant and look at the clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

MINUTE = timedelta(minutes=1)


def clock(zone: ZoneInfo, start: datetime, end: datetime, step: timedelta = MINUTE) -> list[tuple[datetime, datetime]]:
    """Every ``step`` from ``start`` to ``end``, with what the clock on the wall shows then."""
    instants, instant = [], start
    while instant < end:
        instants.append((instant, instant.astimezone(zone).replace(tzinfo=None)))
        instant += step
    return instants


def running(shown: Iterable[tuple[datetime, datetime]], matches: Callable[[datetime], bool]) -> list[datetime]:
    """Whenever the clock shows a matching time."""
    return [instant for instant, wall in shown if matches(wall)]


def fixed(
    shown: Iterable[tuple[datetime, datetime]], matches: Callable[[datetime], bool], step: timedelta = MINUTE
) -> list[datetime]:
    """When the clock shows a matching time for the first time, or has jumped over one."""
    found, latest = [], None
    for instant, wall in shown:
        if latest is None:
            latest = wall - step
        if wall > latest:
            # Away from jumps one step of the clock passes one time, and there is nothing to walk over.
            jumped = wall - latest != step
            if any(matches(passed) for passed in _between(latest, wall, step)) if jumped else matches(wall):
                found.append(instant)
            latest = wall
    return found


def _between(after: datetime, until: datetime, step: timedelta) -> Iterator[datetime]:
    while after < until:
        after += step
        yield after


@cache
def transitions(zone: ZoneInfo, first_year: int, last_year: int) -> list[datetime]:
    """The hours of these years in which the offset of the zone changes, at most once a day."""

    def offset(instant: datetime) -> timedelta | None:
        return instant.astimezone(zone).utcoffset()

    day, found = datetime(first_year, 1, 1, tzinfo=UTC), []
    while day.year <= last_year:
        if offset(day) != offset(day + timedelta(days=1)):
            hours = (day + timedelta(hours=number) for number in range(1, 25))
            found.append(next(hour for hour in hours if offset(hour) != offset(day)))
        day += timedelta(days=1)
    return found

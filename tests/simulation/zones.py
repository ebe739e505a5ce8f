"""Daily rules in zones with a clock change, and their nominal times by a walk over real time.

The walk knows nothing of the package. It looks at the local clock every five minutes, and all rules
and all clock changes here fall on such minutes.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

_STEP = timedelta(minutes=5)


def _utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[arg-type, misc]  # year, month, day, hour, minute


#: Zones, and an instant at which their clocks change.
CLOCK_CHANGES: tuple[tuple[str, datetime], ...] = (
    ("Europe/Berlin", _utc(2026, 3, 29, 1)),
    ("Europe/Berlin", _utc(2026, 10, 25, 1)),
    ("America/New_York", _utc(2026, 3, 8, 7)),
    ("America/New_York", _utc(2026, 11, 1, 6)),
    # These clocks change by half an hour.
    ("Australia/Lord_Howe", _utc(2026, 4, 4, 15)),
    ("Australia/Lord_Howe", _utc(2026, 10, 3, 15, 30)),
    # These clocks change at midnight.
    ("America/Santiago", _utc(2026, 4, 5, 3)),
    ("America/Santiago", _utc(2026, 9, 6, 4)),
)


class Moment(NamedTuple):
    """One instant of the walk, and what the local clock has done since the one before."""

    instant: datetime
    #: What the clock shows.
    shows: datetime
    #: Wall times that were passed for the first time; several where the clock has jumped ahead.
    passed: tuple[datetime, ...]


@dataclass(frozen=True)
class DailyRule:
    """Times of the day.

    Parameters:
        minutes, hours: when it runs; ``hours`` ``None``: in every hour that the clock shows.
        sundays: whether it runs on Sundays alone.
        step: hours of which every such one counts, where ``hours`` is ``None``.
    """

    minutes: tuple[int, ...]
    hours: tuple[int, ...] | None = None
    sundays: bool = False
    step: int = 1

    @property
    def fields(self) -> tuple[str, str, str]:
        """Minute, hour and day of the week, as a crontab has them."""
        minute = ",".join(map(str, self.minutes))
        hour = f"*/{self.step}" if self.hours is None else ",".join(map(str, self.hours))
        return minute, hour, "0" if self.sundays else "*"

    def has_hour(self, wall: datetime) -> bool:
        """Whether it names the hour of this wall time."""
        return wall.hour % self.step == 0 if self.hours is None else wall.hour in self.hours

    def matches(self, wall: datetime) -> bool:
        """Whether it names this wall time."""
        if self.sundays and wall.isoweekday() != 7:
            return False
        return self.has_hour(wall) and wall.minute in self.minutes

    def nominal_times(self, zone: str, since: datetime, until: datetime) -> list[int]:
        """The instants of this span at which it runs, in epoch ms.

        A rule for every hour runs whenever the clock shows one of its times. A rule for certain hours
        runs once for each of its times that the clock passes or jumps over, and never for a time that
        the clock shows again.
        """
        times: list[int] = []
        while since < until:
            midnight = since.replace(hour=0, minute=0) + timedelta(days=1)
            times += _nominal_times_of_day(self, zone, since, min(midnight, until))
            since = midnight
        return times


@cache
def _nominal_times_of_day(rule: DailyRule, zone: str, since: datetime, until: datetime) -> list[int]:
    """The nominal times of a day in UTC, or of a part of it."""
    info = ZoneInfo(zone)
    offset = _offset(info, since - _STEP)
    if _offset(info, until) == offset:
        instants = _without_change(rule, offset, since, until)
    elif rule.hours is None:
        instants = [moment.instant for moment in walk(zone, since, until) if rule.matches(moment.shows)]
    else:
        instants = [moment.instant for moment in walk(zone, since, until) if any(map(rule.matches, moment.passed))]
    return [round(instant.timestamp() * 1000) for instant in instants]


def _offset(info: ZoneInfo, instant: datetime) -> timedelta:
    offset = instant.astimezone(info).utcoffset()
    assert offset is not None
    return offset


def _without_change(rule: DailyRule, offset: timedelta, since: datetime, until: datetime) -> list[datetime]:
    """The instants at which a rule runs in a span in which the clocks do not change: each wall time comes once."""
    instants = []
    hour = since.replace(minute=0) - timedelta(hours=1)
    while hour <= until:
        # A zone may be off by half an hour.
        shown = (hour + offset).replace(minute=0)
        for minute in rule.minutes if rule.has_hour(shown) else ():
            wall = shown.replace(minute=minute)
            if rule.matches(wall) and since <= wall - offset < until:
                instants.append(wall - offset)
        hour += timedelta(hours=1)
    return instants


#: Rules whose times meet the clock changes, and some that do not.
RULES = (
    DailyRule((30,), (2,)),
    DailyRule((0,), (2,)),
    DailyRule((30,), (1,)),
    DailyRule((0, 20, 40), (2,)),
    DailyRule((15,), (1, 2, 3)),
    DailyRule((0,), (0, 12)),
    DailyRule((30,), (0, 23)),
    DailyRule((30,), (2,), sundays=True),
    DailyRule((0,), (3,)),
    DailyRule((0, 30)),
    DailyRule((15,)),
    DailyRule((0,), step=2),
    DailyRule((10,), step=6),
)


def walk(zone: str, since: datetime, until: datetime) -> list[Moment]:
    """All moments of this span, both instants in UTC."""
    info = ZoneInfo(zone)
    moments = []
    last = (since - _STEP).astimezone(info).replace(tzinfo=None)
    for number in range((until - since) // _STEP):
        instant = since + number * _STEP
        local = instant.astimezone(info)
        shows = local.replace(tzinfo=None, fold=0)
        passed = () if local.fold else _between(last, shows)
        moments.append(Moment(instant, shows, passed))
        last = shows
    return moments


def _between(before: datetime, until: datetime) -> tuple[datetime, ...]:
    """The wall times after the one and up to the other."""
    return tuple(before + number * _STEP for number in range(1, (until - before) // _STEP + 1))

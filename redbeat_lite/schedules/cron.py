"""Cron expressions and Celery's crontab as rules."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import tzinfo
from functools import lru_cache
from typing import Literal

from celery.schedules import ParseException, crontab, crontab_parser

from ..errors import InvalidEntry
from ..public import public
from .clock_changes import CountedRule
from .cron_text import HOUR, Item, parse, runs_every_hour, split
from .spread import SpreadSchedule, is_spread, resolve
from .wall_times import Days, WallTimes
from .zones import is_hashable, portable, zone_of


@public
def cron(expression: str, *, tz: str | tzinfo | None = None, seconds: Literal["first", "last"] = "last") -> Cron:
    """Run when the clock on the wall matches.

    Five fields: minute, hour, day of month, month, day of week; a sixth holds seconds. Numbers, names (``jan``,
    ``fri``), ranges (which wrap: ``22-4``, ``fri-mon``), steps, lists, ``L`` (the last day of the month), ``15W`` (the
    weekday nearest to the 15th), ``fri#2`` (the second Friday), ``L5`` (the last Friday), ``@daily`` and its like. When
    both days are restricted, either is enough.

    ``H`` is one value of its field, which the name of the entry decides: ``H H(0-5) * * *`` is once each night, at a
    minute that few other entries have; ``H/15`` is every fifteen minutes.

    A *fixed* hour (``2``, ``1-5``) runs once per local day across clock changes, a *running* one (``*``, ``*/2``) in
    every real hour. See `redbeat_lite.schedules.clock_changes`.

    Parameters:
        tz: the zone of the wall: an IANA name, an offset, or a ZoneInfo; by default that of the Celery app.
        seconds: where the seconds stand among six fields; croniter's ``second_at_beginning`` is ``"first"``.

    Raises:
        InvalidEntry: the expression is malformed or never matches, or the zone is unknown here.
    """
    return Cron(expression, tz=tz, seconds=seconds)


class Cron(SpreadSchedule):
    """The schedule that `cron` makes."""

    def __init__(
        self, expression: str, *, tz: str | tzinfo | None = None, seconds: Literal["first", "last"] = "last"
    ) -> None:
        if not isinstance(expression, str):
            raise InvalidEntry("schedule", "a cron expression as text", expression, hint='for example "0 3 * * *"')
        self.expression = " ".join(expression.split())
        self.seconds = seconds
        self.spread = is_spread(self.expression)
        self.resolved = None if self.spread else self.expression
        parse(self.resolved or resolve(self.expression, seconds, None), seconds, self.expression)
        self.zone = None if tz is None else zone_of(tz)
        super().__init__()

    @property
    def times(self) -> WallTimes:
        return parse(self._told(), self.seconds, self.expression)

    def in_zone(self, zone: tzinfo) -> CountedRule:
        """The rule with its own zone, or else with ``zone``."""
        return zoned(self.times, portable(zone) if self.zone is None else self.zone)

    def next_ms(self, ms: int) -> int | None:
        return self.in_zone(self.tz).next_ms(ms)

    def _resolve(self, name: str) -> str:
        return resolve(self.expression, self.seconds, name)

    def _key(self) -> tuple[object, ...]:
        return self.expression.lower(), self.tz_name, self.seconds

    def __repr__(self) -> str:
        tz = f", tz={self.tz_name!r}" if self.zone is not None else ""
        seconds = f", seconds={self.seconds!r}" if self.seconds != "last" else ""
        return f"cron({self.expression!r}{tz}{seconds})"


def familiar(schedule: Cron) -> crontab | None:
    """A ``crontab`` with the fields and the zone of a cron schedule, for tools that ask an entry for its rule and know
    only Celery's; ``None`` where Celery has no words for it: seconds, ``L``, ``W``, ``#``."""
    return _familiar(schedule.resolved, schedule.seconds, schedule.zone)


@lru_cache(maxsize=1024)
def _familiar(expression: str, seconds: str, zone: tzinfo | None) -> crontab | None:
    second, minute, hour, day, month, weekday = split(expression, seconds)
    if second != "0" or "#" in weekday:  # Celery takes fri#2 for every Friday
        return None
    try:
        found = crontab(minute, hour, weekday, day, month)
    except (ParseException, ValueError):
        return None
    if zone is not None:
        found.tz = zone
    return found


def zoned(times: WallTimes, zone: tzinfo) -> CountedRule:
    """Return the rule in a zone."""
    if is_hashable(zone):
        return _shared(times, zone)
    return CountedRule(times, zone)


#: Thousands of entries share a few rules.
_shared = lru_cache(maxsize=4096)(CountedRule)


def crontab_rule(schedule: crontab, zone: tzinfo) -> CountedRule:
    """Celery's crontab as a rule: day of month and day of week must *both* match.

    A ``nowfun`` that answers in a named zone sets the zone, which is what it is written for.
    """
    days = Days(
        months=_ascending(schedule.month_of_year),
        month_days=_ascending(schedule.day_of_month),
        weekdays=_ascending(schedule.day_of_week),
    )
    times = WallTimes(
        hours=_ascending(schedule.hour),
        minutes=_ascending(schedule.minute),
        seconds=(0,),
        days=days,
        running=_is_running(schedule),
    )
    return zoned(times, portable(_own_zone(schedule) or zone))


def _ascending(values: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(values))


def _is_running(schedule: crontab) -> bool:
    written = schedule._orig_hour
    if not isinstance(written, str):
        return len(schedule.hour) == HOUR.size
    return runs_every_hour([_celery_item(part) for part in written.split(",")])


def _celery_item(part: str) -> Item:
    step = part.partition("/")[2]
    return Item(tuple(crontab_parser(HOUR.size).parse(part)), int(step) if step else 1)


def _own_zone(schedule: crontab) -> tzinfo | None:
    if schedule.nowfun is None:
        return None
    try:
        now = schedule.nowfun()
        return zone_of(now.tzinfo) if now.tzinfo is not None else None
    except Exception:  # noqa: BLE001  # somebody else's function: without an answer the app's zone holds
        return None

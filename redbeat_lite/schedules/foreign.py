"""Schedules that are known only by Celery's interface, and Celery's rounded intervals."""

from __future__ import annotations

import math
from collections.abc import Hashable
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

from celery.schedules import BaseSchedule
from celery.utils.time import remaining

from .zones import zone_name

#: How often a schedule is asked again before it counts as one that is never due.
_MAX_QUESTIONS = 1000
_SHORTEST = timedelta(milliseconds=50)


class RelativeRule:
    """``schedule(interval, relative=True)``: Celery rounds its end down to whole minutes, hours or days."""

    __slots__ = ("interval", "zone")

    def __init__(self, interval: timedelta, zone: tzinfo) -> None:
        self.interval, self.zone = interval, zone

    def next_after(self, instant: datetime) -> datetime | None:
        try:
            local = instant.astimezone(self.zone)
            rest = remaining(local, self.interval, local, relative=True)
            # Celery before 5.7 can round back to the start, where the clock jumps.
            return instant.astimezone(UTC) + (rest if rest > timedelta(0) else self.interval)
        except (OverflowError, ValueError):
            return None

    def _key(self) -> tuple[timedelta, str]:
        return self.interval, zone_name(self.zone)

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, RelativeRule) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        return f"RelativeRule({self.interval!r}, {zone_name(self.zone)!r})"


class ForeignRule:
    """Any other ``BaseSchedule``, asked through ``is_due`` with a clock that stands where we want it.

    Parameters:
        identity: what makes two such schedules the same; by default only the object itself is.
    """

    def __init__(self, schedule: BaseSchedule, zone: tzinfo, identity: Hashable = None) -> None:
        self.schedule, self.zone = schedule, zone
        self._identity = id(schedule) if identity is None else identity

    def next_after(self, instant: datetime) -> datetime | None:
        last = now = instant.astimezone(UTC)
        try:
            for _ in range(_MAX_QUESTIONS):
                due, wait = self._ask(last, now)
                if due and now > last:
                    return now
                if wait is None or wait == math.inf:
                    return None
                now += max(_SHORTEST, timedelta(seconds=wait))
        except OverflowError:
            return None
        return None

    def _ask(self, last: datetime, now: datetime) -> tuple[bool, float | None]:
        due, wait = self._clock_at(now).is_due(last.astimezone(self.zone))
        return bool(due), wait

    def _clock_at(self, now: datetime) -> Any:
        """A copy that takes ``now`` for the present; made by hand, because ``__reduce__`` may drop what it has."""
        copy = self.schedule.__class__.__new__(self.schedule.__class__)
        local = now.astimezone(self.zone)
        copy.__dict__.update(self.schedule.__dict__, nowfun=lambda: local)
        copy.__dict__.setdefault("tz", self.zone)
        return copy

    def _key(self) -> tuple[type, Hashable, str]:
        return type(self.schedule), self._identity, zone_name(self.zone)

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, ForeignRule) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.schedule!r}, {zone_name(self.zone)!r})"


class AnsweringRule(ForeignRule):
    """Somebody else's schedule that has a ``next_after`` of its own, which knows best.

    It is wrapped because Celery's schedules are equal when their clocks are, which says nothing about when they run.
    """

    def next_after(self, instant: datetime) -> datetime | None:
        answer: datetime | None = self.schedule.next_after(instant)
        return answer

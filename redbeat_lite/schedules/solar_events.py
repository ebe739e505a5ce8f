"""Celery's ``solar`` as a rule: sunrise, dusk and the like, through ephem."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache

from celery.schedules import solar

from ..instants import EPOCH
from .rule import ByKey

_DAY = timedelta(days=1)
#: Beyond the polar circles an event can stay away for half a year; at the poles it comes once a year.
_SEARCH_DAYS = 400
#: Two occurrences of an event are never closer than this, and no numeric noise reaches as far.
_APART = timedelta(hours=1)


class SolarRule(ByKey):
    """The events of one kind at one place.

    Each event belongs to the UTC day it falls on and is computed from the start of that day, to the second: whichever
    instant the search comes from, the same event has the same time. (Asking ephem for "the next event after the last
    one" can return the same sunrise again, a microsecond later.)
    """

    __slots__ = ("place",)

    def __init__(self, schedule: solar) -> None:
        self.place = (str(schedule.event), float(schedule.lat), float(schedule.lon))

    def next_after(self, instant: datetime) -> datetime | None:
        instant = instant.astimezone(UTC)
        today = (instant - EPOCH) // _DAY
        try:
            for day in range(today, today + _SEARCH_DAYS):
                for event in _events(self.place, day):
                    if event > instant:
                        return event
        except OverflowError:
            return None
        return None

    def _key(self) -> tuple[str, float, float]:
        return self.place

    def __repr__(self) -> str:
        return f"SolarRule{self.place!r}"


@lru_cache(maxsize=4096)
def _events(place: tuple[str, float, float], day: int) -> tuple[datetime, ...]:
    """The events on a UTC day, counted from 1970; two where sunrise comes earlier every day."""
    start = EPOCH + day * _DAY
    end, found = start + _DAY, []
    while start < end and (event := _following(place, start)) is not None and event < end:
        found.append(event)
        start = event + _APART
    return tuple(found)


def _following(place: tuple[str, float, float], start: datetime) -> datetime | None:
    schedule = solar(*place)
    ephem, sun = schedule.ephem, schedule.ephem.Sun()
    options = {"use_center": True} if schedule.use_center else {}
    try:
        event = getattr(schedule.cal, schedule.method)(sun, start=ephem.Date(start.replace(tzinfo=None)), **options)
    except ephem.CircumpolarError:
        return None
    found: datetime = (event.datetime().replace(tzinfo=UTC) + timedelta(milliseconds=500)).replace(microsecond=0)
    return found

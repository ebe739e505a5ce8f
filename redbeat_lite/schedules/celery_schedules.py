"""Schedules that are known only by Celery's interface, as its rounded intervals are, and its ``solar``, through ephem.

Celery asks a schedule whether it is due, and it says when to ask again. Most say when they will be due, so that two
questions tell the next occurrence in advance. One that says "in five seconds", or asks a clock of its own, does not: it
is asked again at the time it said, in real time.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from itertools import chain
from typing import Any

from celery.schedules import BaseSchedule, solar

from ..instants import EPOCH, MAX_MS, from_ms, to_ms
from .rule import InMs, Question

#: Questions in advance, before a schedule is taken for one that does not know its next occurrence.
_QUESTIONS = 10
_SHORTEST = timedelta(milliseconds=50)
#: Milliseconds between two questions in real time, at least.
_PATIENCE = 1000


@dataclass(frozen=True)
class _Wrapped:
    """Somebody else's schedule, wrapped because Celery's are equal when their clocks are, which says nothing about when
    they run.

    Parameters:
        identity: what makes two such schedules the same.
    """

    schedule: BaseSchedule = field(compare=False)
    zone: tzinfo = field(hash=False)  # one of dateutil has no hash
    identity: Hashable


class ForeignRule(_Wrapped, InMs):
    """Any other ``BaseSchedule``, asked through ``is_due`` with a clock that stands where we want it."""

    def next_ms(self, ms: int) -> int | None:
        """The next occurrence; a `Question` where the schedule does not tell."""
        last = now = from_ms(ms)
        question: int | None = None
        try:
            for _ in range(_QUESTIONS):
                due, wait = self._ask(last, now)
                if due and now > last:
                    return to_ms(now)
                question = _question(now, wait, ms) if question is None else question
                if wait is None:
                    return None
                now += timedelta(seconds=wait) if wait >= 0.001 else _SHORTEST
        except OverflowError:
            return None
        return question

    def answer(self, question: Question, now: int) -> int | None:
        """What comes of a question at ``now``: ``question`` itself if it is due, else the next one."""
        due, wait = self._ask(from_ms(question.asked), from_ms(now))
        return question if due else _question(from_ms(now), wait, question.asked)

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


def _question(now: datetime, wait: float | None, asked: int) -> Question | None:
    """When to ask again about an occurrence after ``asked``, ``wait`` seconds from ``now``."""
    if wait is None:
        return None
    try:
        at = to_ms(now + timedelta(seconds=wait))
    except OverflowError:  # as of infinity
        return None
    at = max(at, to_ms(now) + _PATIENCE)
    return Question(at, asked) if at <= MAX_MS else None


class AnsweringRule(_Wrapped):
    """A schedule that has a ``next_after`` of its own, which knows best."""

    def next_after(self, instant: datetime) -> datetime | None:
        return self.schedule.next_after(instant)  # type: ignore[no-any-return]


_DAY = timedelta(days=1)
#: Beyond the polar circles an event can stay away for half a year; at the poles it comes once a year.
_SEARCH_DAYS = 400
#: Two occurrences of an event are never closer than this, and no numeric noise reaches as far.
_APART = timedelta(hours=1)


@dataclass(frozen=True)
class SolarRule:
    """The events of one kind at one place.

    Each event belongs to the UTC day it falls on and is computed from the start of that day, to the second: whichever
    instant the search comes from, the same event has the same time. (Asking ephem for "the next event after the last
    one" can return the same sunrise again, a microsecond later.)
    """

    event: str
    lat: float
    lon: float

    def next_after(self, instant: datetime) -> datetime | None:
        instant = instant.astimezone(UTC)
        today = (instant - EPOCH) // _DAY
        try:
            events = chain.from_iterable(_events(self, day) for day in range(today, today + _SEARCH_DAYS))
            return next((event for event in events if event > instant), None)
        except OverflowError:
            return None


@lru_cache(maxsize=4096)
def _events(rule: SolarRule, day: int) -> tuple[datetime, ...]:
    """The events on a UTC day, counted from 1970; two where sunrise comes earlier every day."""
    start = EPOCH + day * _DAY
    end, found = start + _DAY, []
    while start < end and (event := _following(rule, start)) is not None and event < end:
        found.append(event)
        start = event + _APART
    return tuple(found)


def _following(rule: SolarRule, start: datetime) -> datetime | None:
    schedule = solar(rule.event, rule.lat, rule.lon)
    ephem, sun = schedule.ephem, schedule.ephem.Sun()
    options = {"use_center": True} if schedule.use_center else {}
    try:
        event = getattr(schedule.cal, schedule.method)(sun, start=ephem.Date(start.replace(tzinfo=None)), **options)
    except ephem.CircumpolarError:
        return None
    found: datetime = (event.datetime().replace(tzinfo=UTC) + timedelta(milliseconds=500)).replace(microsecond=0)
    return found

"""Celery's own schedules as rules: ``crontab``, ``solar``, and any class that has only ``is_due``.

Celery asks a schedule whether it is due, and the schedule says when to ask again. Most schedules
name the time when they will be due, so two questions give the next occurrence in advance. A
schedule that always says "in five seconds", or that asks a clock of its own, names no occurrence in
advance. It is asked in real time, at each instant for which it wants the next question.
"""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache

from celery.schedules import (
    BaseSchedule,
    ParseException,
    crontab,
    crontab_parser,
    schedule,
    solar,
)

from .._base.errors import InvalidEntry
from .._base.times import EPOCH, MAX_MS, from_ms, to_ms
from .clock_changes import CountedRule, Days, WallTimes
from .cron import SECOND, cron, goes_by_hours, split
from .forms import schedule_identity
from .intervals import every, interval_ms
from .rule import Question, Rule, RuleSchedule
from .zones import portable, zone_of

#: A question is a call of a schedule's ``is_due``. It is asked in advance if the clock of the
#: schedule is set to a later time for it. This is the maximum number of such questions. A schedule
#: that has named no occurrence after them is asked in real time.
_QUESTIONS = 10
#: Step of a schedule's clock between two questions in advance, if the schedule wants to be asked
#: again at once.
_SHORTEST = timedelta(milliseconds=50)
#: Minimum number of milliseconds between two questions in real time.
_PATIENCE = 1000
_DAY = timedelta(days=1)
_DAY_MS = 86_400_000
#: Number of days in which the next event of the sun is searched. At the poles, the sun rises once a
#: year.
_SEARCH_DAYS = 400
#: The search for the next event begins this long after an event. This is longer than the error of
#: the computation, so that the same event is not found again.
_APART = timedelta(hours=1)


def rule_of(schedule_: BaseSchedule, zone: tzinfo) -> Rule:
    """Return the rule of a schedule; ``zone`` is for schedules that have no zone.

    Raises InvalidEntry: an interval is out of bounds.
    """
    if isinstance(schedule_, RuleSchedule):
        return schedule_.in_zone(zone)
    # The class must be Celery's own, because a subclass may run at other times.
    if type(schedule_) is crontab:
        return crontab_rule(schedule_, zone)
    if type(schedule_) is schedule:
        # This also refuses an interval that is out of bounds.
        ms = interval_ms(schedule_.run_every, exact=False)
        # Celery rounds a ``relative`` interval of a minute or more down to full minutes, hours or
        # days. Only Celery knows the result, so the schedule itself is asked (last line below).
        if not schedule_.relative or schedule_.run_every < timedelta(minutes=1):
            return every(timedelta(milliseconds=ms))
    if type(schedule_) is solar:
        return SolarRule(str(schedule_.event), float(schedule_.lat), float(schedule_.lon))
    # An AnsweringRule asks the schedule's ``next_after``, a ForeignRule its ``is_due``.
    kind = AnsweringRule if hasattr(schedule_, "next_after") else ForeignRule
    return kind(schedule_, portable(zone), schedule_identity(schedule_))


def crontab_rule(crontab_: crontab, zone: tzinfo) -> CountedRule:
    """Return the rule of Celery's crontab: day of month and day of week must *both* match.

    Users set ``nowfun`` to give a crontab a zone. So if it returns a time in a named zone, the rule
    is in that zone. In Celery, Sunday is 0; in :class:`Days`, Monday is 0.
    """
    days = Days(
        months=tuple(sorted(crontab_.month_of_year)),
        month_days=tuple(sorted(crontab_.day_of_month)),
        # In each pair, the 0 after the weekday means that every such weekday of a month matches.
        weekdays=tuple(sorted(((day - 1) % 7, 0) for day in crontab_.day_of_week)),
    )
    times = WallTimes(
        hours=tuple(sorted(crontab_.hour)),
        minutes=tuple(sorted(crontab_.minute)),
        seconds=(0,),
        days=days,
        running=_is_running(crontab_),
    )
    return CountedRule(times, portable(_own_zone(crontab_) or zone))


def _is_running(crontab_: crontab) -> bool:
    """Return whether a crontab runs again in an hour that the clocks repeat.

    It does if its hours are an interval (``*/2``), and not if they are a list (``1,3``).
    """
    # Celery keeps the hours as they were written in ``_orig_hour``.
    hours = crontab_._orig_hour
    # A number or a set cannot be written with a step. So count it as an interval only if it has all
    # 24 hours.
    if not isinstance(hours, str):
        return len(crontab_.hour) == 24
    return goes_by_hours(hours, crontab_parser(24).parse)


def _own_zone(crontab_: crontab) -> tzinfo | None:
    """Return the zone in which the ``nowfun`` of a crontab tells the time; ``None`` without one."""
    if crontab_.nowfun is None:
        return None
    try:
        return zone_of(crontab_.nowfun().tzinfo)
    # If the user's function fails, or its time has no named zone, the app's zone is used.
    except Exception:  # noqa: BLE001
        return None


def as_crontab(schedule_: cron) -> crontab | None:
    """Return a ``crontab`` with the fields and the zone of a cron schedule.

    It is for tools that read an entry's schedule and know only Celery's classes. None if Celery has
    no notation for the schedule: seconds, ``L``, ``W``, ``#``.
    """
    texts = split(schedule_.resolved, schedule_.seconds)
    second = texts.pop(SECOND, "0")
    # Without the seconds, five texts are left, in the order of a cron expression.
    minute, hour, day, month, weekday = texts.values()
    if second != "0" or "#" in weekday:  # Celery takes fri#2 for every Friday
        return None
    try:
        twin = crontab(minute, hour, day_of_week=weekday, day_of_month=day, month_of_year=month)
    except (ParseException, ValueError):
        return None
    if schedule_.zone is not None:
        twin.tz = schedule_.zone
    return twin


@dataclass(frozen=True)
class _Wrapped(Rule):
    """Rule of a schedule whose class is not known here. It asks the schedule itself.

    Two such rules are compared by ``identity``, because Celery's schedules compare only their
    ``nowfun``.
    """

    schedule: BaseSchedule = field(compare=False)
    zone: tzinfo = field(hash=False)  # a zone of dateutil has no hash
    identity: Hashable


class AnsweringRule(_Wrapped):
    """Rule of a schedule that has a ``next_after`` of its own."""

    def next_ms(self, ms: int) -> int | None:
        """Return the answer of ``next_after`` in epoch ms; ``None`` if no occurrence follows."""
        try:
            following = self.schedule.next_after(from_ms(ms))
        except OverflowError:
            return None
        if following is None:
            return None
        answer = to_ms(following)
        if answer <= ms:
            # With this answer, the entry would wait for the same occurrence for ever.
            expected = f"an occurrence later than {from_ms(ms).isoformat()}"
            raise InvalidEntry("schedule", expected, following.astimezone(UTC))
        return answer


class ForeignRule(_Wrapped):
    """Rule of a schedule that has only ``is_due``.

    To ask the schedule about an instant, the rule calls ``is_due`` of a copy of the schedule. The
    clock of the copy shows this instant.
    """

    def next_ms(self, ms: int) -> int | None:
        """Return the next occurrence after ``ms``, in epoch ms; ``None`` if there is none.

        A Celery schedule only says whether it is due now, and when to ask it again. So it is first
        asked in advance, as if time passed. For example, it is asked at 12:00 and says "again in 60
        seconds"; it is asked at 12:01 and says that it is due, so the next occurrence is at 12:01.
        If it names no occurrence in this way, the result is a `Question`, which is an integer: the
        instant at which to ask the schedule in real time.
        """
        last = from_ms(ms)
        now = last
        with suppress(OverflowError):  # after the year 9999
            # No time has passed since the last run, so no run is due yet.
            _, wait = self._ask(last, now)
            first_question = _question(now, wait, ms)
            for _ in range(_QUESTIONS - 1):
                if wait is None:  # The schedule does not want to be asked again.
                    return None
                # Move the clock even if the wait is zero, so that the next question is a new one.
                now += timedelta(seconds=wait) if wait >= 0.001 else _SHORTEST
                is_due, wait = self._ask(last, now)
                if is_due:
                    return to_ms(now)
            # No question in advance named an occurrence, so ask the first one in real time.
            return first_question
        return None

    def answer(self, question: Question, now: int) -> tuple[bool, Question | None]:
        """Ask a question at ``now``; return whether a run is due, and the next question."""
        is_due, wait = self._ask(from_ms(question.after), from_ms(now))
        # After a run, the next question is about the first occurrence after that run. Without one,
        # it is about the same occurrence as before.
        after = now if is_due else question.after
        return is_due, _question(from_ms(now), wait, after)

    def _ask(self, last: datetime, now: datetime) -> tuple[bool, float | None]:
        """Return whether a run is due at ``now``, and the seconds until the next question.

        Parameters:
            last: time of the last run.
        """
        # The twin is a copy of the schedule whose clock shows ``now``. It is not made by
        # ``copy.copy``, which would call ``__reduce__`` of Celery's schedules and lose attributes.
        twin = self.schedule.__class__.__new__(self.schedule.__class__)
        local = now.astimezone(self.zone)
        twin.__dict__.update(self.schedule.__dict__, nowfun=lambda: local)
        # Without ``tz``, Celery would take the zone of the app.
        twin.__dict__.setdefault("tz", self.zone)
        is_due, wait = twin.is_due(last.astimezone(self.zone))
        return bool(is_due), wait


def _question(now: datetime, wait: float | None, after: int) -> Question | None:
    """Return the question about the occurrence that follows ``after``.

    The schedule wants to be asked ``wait`` seconds after ``now``. Return ``None`` if it does not
    want to be asked again, or only in the far future.
    """
    if wait is None:
        return None
    try:
        at = to_ms(now + timedelta(seconds=wait))
    except OverflowError:  # ``wait`` may be infinity.
        return None
    # The next question comes at least ``_PATIENCE`` milliseconds later, however short the wait is.
    at = max(at, to_ms(now) + _PATIENCE)
    return Question(at, after) if at <= MAX_MS else None


@dataclass(frozen=True)
class SolarRule(Rule):
    """Rule of Celery's ``solar``: the events of one kind at one place, by ephem.

    The events of a UTC day are computed from the start of that day, to the second. So each search
    finds the same time for an event. Celery itself searches from the last event on, and may find
    the same sunrise again, a microsecond later.
    """

    event: str
    lat: float
    lon: float

    def next_ms(self, ms: int) -> int | None:
        """Return the first event after ``ms``, in epoch ms; ``None`` if the search finds none."""
        today = ms // _DAY_MS
        with suppress(OverflowError):  # after the year 9999
            for day in range(today, today + _SEARCH_DAYS):
                for event in _events(self, day):
                    if event > ms:
                        return event
        return None


@lru_cache(maxsize=4096)
def _events(rule: SolarRule, day: int) -> list[int]:
    """Return the events on a UTC day, in epoch ms.

    A day can have two: if the sun rises a little earlier every day, it can rise just after a
    midnight and just before the next midnight.

    Parameters:
        day: number of the day, counted from 1970-01-01.
    """
    sun = solar(rule.event, rule.lat, rule.lon)
    ephem = sun.ephem
    # ``sun.method`` is the name of ephem's function that finds the event. Celery says for each kind
    # of event whether it is that of the sun's centre, or of its edge.
    search = getattr(sun.cal, sun.method)
    options = {"use_center": True} if sun.use_center else {}
    start = EPOCH + day * _DAY
    end = start + _DAY
    events: list[int] = []
    # Near the poles, the sun does not rise or set on some days; then ephem raises this error.
    with suppress(ephem.CircumpolarError):
        while start < end:
            computed = search(ephem.Sun(), start=ephem.Date(start.replace(tzinfo=None)), **options)
            half_later = computed.datetime().replace(tzinfo=UTC) + timedelta(milliseconds=500)
            event = half_later.replace(microsecond=0)  # rounded to the second
            if event >= end:  # an event of a later day
                break
            events.append(to_ms(event))
            start = event + _APART
    return events

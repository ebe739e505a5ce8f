"""RFC 5545 recurrences as schedules, with the dates that are left out (EXDATE) or added (RDATE).

An EXDATE with a local time, or of a whole day, removes times on the wall, before a clock change
moves them. So it can remove the occurrence at 2:30 from a day on which the clocks skip 2:30. An
EXDATE in UTC or in another zone removes an instant. Each RDATE is an instant too. It runs once,
also if its local time comes twice or not at all.

As in RFC 5545, an EXDATE removes an RDATE of the same time, COUNT counts occurrences that are left
out, and UNTIL does not end RDATEs. An EXDATE of a whole day does not remove an RDATE with a time,
so that the run of a day can be moved.

dateutil says which days of a year the parts of a rule allow. The periods of INTERVAL and the
positions of BYSETPOS are computed here. So a search starts near the time that is asked for, and its
work is bounded. A search by dateutil alone starts at DTSTART, and goes on to the year 9999 if
nothing matches.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import lru_cache
from itertools import islice

from .._base.errors import InvalidEntry
from .._base.fields import INSTANT
from .._base.public import public
from .._base.times import MIN_MS
from .clock_changes import Days, WallTimes, ZonedRule, before
from .rrule_text import BOUNDS, FREQUENCIES, Date, RuleText, parse, unfolded
from .rule import WallSchedule
from .zones import portable, zone_name, zone_of

#: Local start of a rule without a start: midnight of a Monday, the first day of a month and year.
ANCHOR = datetime(2001, 1, 1)
#: Period of a frequency: a number of months, or a length of time.
_PERIODS: dict[str, int | timedelta] = {
    "YEARLY": 12,
    "MONTHLY": 1,
    "WEEKLY": timedelta(weeks=1),
    "DAILY": timedelta(days=1),
    "HOURLY": timedelta(hours=1),
    "MINUTELY": timedelta(minutes=1),
    "SECONDLY": timedelta(seconds=1),
}
#: Maximum number of wall-clock times that one search looks at. A search so long takes half a second
#: at worst.
STEPS = 60_000
#: The calendar repeats after 400 years, so a rule that has not matched for so long never will.
_YEARS = 400


@public
class rrule(WallSchedule):
    """Run by an RFC 5545 recurrence, such as ``"FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=17;BYMINUTE=0"``.

    The text is the rule alone, or the line ``RRULE:…``; lines with ``DTSTART``, ``RDATE`` and
    ``EXDATE`` may stand beside it. Times are wall-clock times. At clock changes, as in `cron`, a
    rule that matches all 24 hours, such as ``FREQ=HOURLY``, goes on by the hours that pass (it is
    *running*). Any other rule, such as ``FREQ=DAILY``, keeps its wall-clock times (it is *fixed*).
    A rule takes from its start whatever it leaves open: its time of day, the phase of an INTERVAL.
    The default start is Monday, 2001-01-01T00:00, on the wall.

    Up to 100 dates are left out (``EXDATE``) or added (``RDATE``): local times, instants (with a
    ``Z`` or another zone's ``TZID``), or whole days (``EXDATE:20261225``). See
    `redbeat_lite.rules.rrules`.

    Parameters:
        tz: the zone of the wall; by default the ``TZID`` of the text, or else the Celery app's.
        start: an aware datetime or its text in ISO 8601, instead of DTSTART. A rule with COUNT
            needs one of them. COUNT is at most 10,000.

    Raises:
        InvalidEntry: the text is no recurrence, matches nothing, has two starts, or takes too long
            to search.
    """

    fields = (("rrule", "text"), ("tz", "tz_name"), ("start", "start"))

    def __init__(
        self,
        text: str,
        *,
        tz: str | tzinfo | None = None,
        start: datetime | str | None = None,
    ) -> None:
        if not isinstance(text, str):
            hint = 'for example "FREQ=DAILY;BYHOUR=9"'
            raise InvalidEntry("schedule", "a recurrence as text", text, hint=hint)
        self.text = unfolded(text)
        self.start = INSTANT.read("start", start, optional=True)
        self.zone = _own_zone(parse(self.text).start, tz)
        super().__init__()
        self._check()

    def in_zone(self, zone: tzinfo) -> RecurrenceRule:
        """Return the recurrence in its own zone, or in ``zone`` if it has none.

        Raises InvalidEntry: the last occurrence of a COUNT is not found within the bounds of a
        search.
        """
        zone = self.zone or portable(zone)
        parsed = parse(self.text)
        # An EXDATE without a zone, or in the zone of the rule, is local: it leaves out a time or a
        # day on the wall. Any other one leaves out an instant.
        walls = set()
        instants = set()
        for exdate in parsed.left_out:
            if not exdate.is_local(zone):
                instants.add(exdate.ms(zone))
            else:
                walls.add(exdate.wall.date() if exdate.whole_day else exdate.wall)
        # An EXDATE removes an RDATE of the same instant, if both are whole days or neither is.
        removed = {(exdate.ms(zone), exdate.whole_day) for exdate in parsed.left_out}
        added = {(rdate.ms(zone), rdate.whole_day) for rdate in parsed.added} - removed
        recurrence = _recurrence(self.text, self._start_in(zone))
        return RecurrenceRule(
            replace(recurrence, left_out=frozenset(walls)),
            zone,
            until=parsed.until_ms,
            left_out=frozenset(instants),
            added=tuple(sorted(ms for ms, _ in added)),
        )

    def _start_in(self, zone: tzinfo) -> datetime:
        """Return the local start in a zone, to the second: ``start``, DTSTART or `ANCHOR`."""
        start: datetime | None = self.start
        if start is None:
            date = parse(self.text).start or Date(ANCHOR, None, whole_day=False)
            start = date.wall.replace(tzinfo=date.zone)
        if start.tzinfo is not None:  # a start without a zone is a local time already
            try:
                start = start.astimezone(zone).replace(tzinfo=None)
            except OverflowError:
                expected = "a start in the years 1 to 9999 of its zone"
                raise InvalidEntry("start", expected, start) from None
        return start.replace(microsecond=0)

    def _check(self) -> None:
        """Refuse a rule with two starts, with a COUNT without a start, or without an occurrence."""
        parsed = parse(self.text)
        if self.start is not None and parsed.start is not None:
            raise InvalidEntry("start", "a start or a DTSTART, not both", self.start)
        if parsed.numbers["COUNT"] and self.start is None and parsed.start is None:
            hint = "COUNT counts from a start: pass start=..., or use max_runs"
            raise InvalidEntry("schedule", "a recurrence with a start", self.text, hint=hint)
        # A rule without a zone of its own is tried in UTC, because the app may not be known yet.
        if self.in_zone(UTC).next_ms(MIN_MS) is None:
            hint = f"the search ends after {STEPS:,} steps, or {_YEARS} years without a match"
            expected = "a recurrence that matches something"
            raise InvalidEntry("schedule", expected, self.text, hint=hint)


def _own_zone(start: Date | None, tz: str | tzinfo | None) -> tzinfo | None:
    """Return the zone of the argument ``tz`` or of DTSTART.

    Two zones with different names are refused, unless DTSTART is in UTC.
    """
    zone = None if tz is None else zone_of(tz)
    if start is None or start.zone is None:
        return zone
    # A DTSTART in UTC is an instant, which goes with every zone.
    if zone is not None and start.zone is not UTC and not start.is_local(zone):
        raise InvalidEntry("tz", f"the zone of DTSTART, {zone_name(start.zone)}", tz)
    return zone or start.zone


@dataclass(frozen=True)
class Recurrence:
    """Wall-clock times of a rule, without a zone.

    Parameters:
        period_length: length of each period, as a number of months or a timedelta. Periods follow
            each other without a gap.
        start: no earlier time matches.
        allowed: times that the BY parts allow. Parts that the rule does not name come from the
            start.
        interval: 3, for example, if only every third period has matching times, counted from the
            period of the start.
        positions: which of the allowed times of a period match, counted from 1 on, or from the end
            by -1, -2 ... (BYSETPOS). If there are none, all allowed times match.
        until: no later time matches.
        left_out: times and days that do not match.
    """

    period_length: int | timedelta
    start: datetime
    allowed: WallTimes
    interval: int
    positions: tuple[int, ...]
    until: datetime
    left_out: frozenset[date] = frozenset()

    @property
    def running(self) -> bool:
        """Whether this is a running rule (see :mod:`redbeat_lite.rules.clock_changes`)."""
        return self.allowed.running

    def next_wall(self, wall: datetime) -> datetime | None:
        """Return the first matching time later than ``wall``; None if the search finds none."""
        return next(self.walls(wall), None)

    def walls(self, wall: datetime) -> Iterator[datetime]:
        """Yield the matching times later than ``wall`` in ascending order.

        The search ends after `STEPS` steps, or 400 years after it begins.
        """
        with suppress(OverflowError, ValueError):  # before the year 1, or after the year 9999
            # The search is for times later than ``latest``, and the start itself may match.
            latest = max(wall, before(self.start))
            last_year = latest.year + _YEARS
            first_period = self._period_number(self.start)
            # _at_positions() takes its steps from the same iterator, so the two loops together
            # make at most STEPS steps.
            steps = iter(range(STEPS))
            for _ in steps:
                allowed = self.allowed.next_wall(latest)
                if allowed is None or allowed > self.until or allowed.year > last_year:
                    return
                # With INTERVAL=3, only each third period counts, from the period of the start on.
                # The remainder is the number of periods until the next one that counts.
                period = self._period_number(allowed)
                periods_to_skip = (first_period - period) % self.interval
                if periods_to_skip:
                    latest = before(self._begin(period + periods_to_skip))
                    continue
                candidates = self._at_positions(period, steps) if self.positions else [allowed]
                for candidate in candidates:
                    is_left_out = not self.left_out.isdisjoint((candidate, candidate.date()))
                    # BYSETPOS gives all times of its period, and some may be before ``latest``.
                    if latest < candidate <= self.until and not is_left_out:
                        yield candidate
                # With BYSETPOS, all times of the period are handled, so go on with the next period.
                # Without it, go on after this one time.
                latest = before(self._begin(period + 1)) if self.positions else allowed
                if allowed.date() in self.left_out:
                    # An EXDATE leaves out the whole day, so go on after it.
                    latest = max(latest, datetime.combine(allowed, time.max))

    def _at_positions(self, period: int, steps: Iterator[int]) -> list[datetime]:
        """Return the times of a period that BYSETPOS chooses; none if the steps run out.

        Parameters:
            steps: the steps that the whole search has left. Each time that is looked at takes one
                of them. The method :meth:`walls` takes them from the same iterator, and ends with
                the last step.
        """
        walls: list[datetime] = []
        latest = before(self._begin(period))
        for _ in steps:
            wall = self.allowed.next_wall(latest)
            if wall is None or self._period_number(wall) != period:
                # The period has ended, so ``walls`` contains all of its times.
                total = len(walls)
                # BYSETPOS counts from 1 on, or from the end of the period by -1, -2 ...
                return [
                    wall
                    for place, wall in enumerate(walls, start=1)
                    if place in self.positions or place - total - 1 in self.positions
                ]
            walls.append(wall)
            latest = wall
        return []

    def _period_number(self, wall: datetime) -> int:
        """Return the number of the period that a time is in, counted from a fixed one on."""
        if isinstance(self.period_length, int):
            # Number of months since the year 0, divided by the months of a period.
            return (12 * wall.year + wall.month - 1) // self.period_length
        # A shorter period has its length as a timedelta, and counts from the first whole week.
        return (wall - self._first_week) // self.period_length

    def _begin(self, period: int) -> datetime:
        """Return the first time of a period."""
        if isinstance(self.period_length, int):
            # ``month`` counts from 0 here.
            year, month = divmod(period * self.period_length, 12)
            return datetime(year, month + 1, 1)
        return self._first_week + period * self.period_length

    @property
    def _first_week(self) -> datetime:
        """Begin of the first whole week; the first day of a datetime (0001-01-01) is a Monday."""
        return datetime(1, 1, 1 + self.allowed.days.week_start)


@dataclass(frozen=True)
class RecurrenceRule(ZonedRule):
    """Recurrence in a zone. Instants are in milliseconds since 1970.

    Parameters:
        until: the last instant that may be an occurrence (UNTIL in UTC).
        left_out: instants that are no occurrences (EXDATE).
        added: further occurrences in ascending order, also after ``until`` (RDATE).
    """

    walls: Recurrence
    until: int
    left_out: frozenset[int]
    added: tuple[int, ...]

    def next_ms(self, ms: int) -> int | None:
        """Return the next occurrence of the rule, or the next RDATE if that comes earlier."""
        following = super().next_ms(ms)
        # An EXDATE removes this instant, so take a later one.
        while following in self.left_out:
            following = super().next_ms(following)
        upcoming = [added for added in self.added if added > ms]
        if following is not None and following <= self.until:
            upcoming.append(following)
        return min(upcoming, default=None)


@lru_cache(maxsize=1024)  # thousands of entries share a few rules
def _recurrence(text: str, start: datetime) -> Recurrence:
    """Return the recurrence of a text from a local start, without its EXDATEs and RDATEs."""
    parsed = parse(text)

    def values(name: str, freq: str, of_start: int) -> tuple[int, ...]:
        """Return the values of a part, such as BYHOUR.

        An HOURLY rule without BYHOUR has all hours, because its periods are shorter than a day. A
        DAILY rule without BYHOUR has the hour of its start.

        Parameters:
            freq: frequency whose period the part divides, such as DAILY for BYHOUR.
            of_start: the value of the start, such as its hour.
        """
        if parsed.numbers[name]:
            return parsed.numbers[name]
        # The frequencies are in the order of their periods, the longest first.
        is_shorter = FREQUENCIES.index(parsed.freq) > FREQUENCIES.index(freq)
        # Hours, minutes and seconds begin with 0; the second one of the bounds is the highest.
        return tuple(range(BOUNDS[name][1] + 1)) if is_shorter else (of_start,)

    hours = values("BYHOUR", "DAILY", start.hour)
    allowed = WallTimes(
        hours=hours,
        minutes=values("BYMINUTE", "HOURLY", start.minute),
        seconds=values("BYSECOND", "MINUTELY", start.second),
        days=_days(parsed, start),
        # At a clock change, a rule for all 24 hours follows the hours that really pass.
        running=len(hours) == 24,
    )
    # INTERVAL and COUNT have one number at most.
    recurrence = Recurrence(
        _PERIODS[parsed.freq],
        start,
        allowed,
        interval=max(parsed.numbers["INTERVAL"], default=1),
        positions=parsed.numbers["BYSETPOS"],
        until=parsed.until_wall,
    )
    count = parsed.numbers["COUNT"]
    if not count:
        return recurrence
    return replace(recurrence, until=_last_of_count(recurrence, count[0], text))


def _last_of_count(recurrence: Recurrence, count: int, text: str) -> datetime:
    """Return the last occurrence that COUNT allows.

    Later searches end there, so they need not count from the start each time.
    """
    walls = [*islice(recurrence.walls(datetime.min), count)]  # noqa: DTZ901
    if not walls:
        # A rule without any occurrence is refused later, by ``rrule``.
        return recurrence.start
    if len(walls) < count:
        hint = "give it a coarser FREQ, or max_runs in place of COUNT"
        bounds = f"{STEPS:,} steps and {_YEARS} years"
        expected = f"a recurrence whose last occurrence is found within {bounds}"
        raise InvalidEntry("schedule", expected, text, hint=hint)
    return walls[-1]


def _days(parsed: RuleText, start: datetime) -> Days:
    """Return the days that a rule allows. Parts that it does not name come from its start."""
    months = parsed.numbers["BYMONTH"]
    month_days = parsed.numbers["BYMONTHDAY"]
    year_days = parsed.numbers["BYYEARDAY"]
    weeks = parsed.numbers["BYWEEKNO"]
    weekdays = parsed.weekdays
    if not (weeks or year_days or month_days or weekdays):
        # The rule names no days, so its start decides them.
        if parsed.freq == "WEEKLY":
            weekdays = ((start.weekday(), 0),)
        if parsed.freq in ("YEARLY", "MONTHLY"):
            month_days = (start.day,)
        if parsed.freq == "YEARLY":
            months = months or (start.month,)
    # In :class:`Days`, the 2 of 2MO counts within a month only if months are named. So name all of
    # them, or 2MO would be the second Monday of the year.
    if parsed.freq == "MONTHLY":
        months = months or tuple(range(1, 13))
    return Days(
        months,
        month_days=month_days,
        weekdays=weekdays,
        year_days=year_days,
        weeks=weeks,
        week_start=parsed.week_start,
    )

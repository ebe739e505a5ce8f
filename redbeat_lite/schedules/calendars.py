"""Calendars: days on which entries do not run.

The days travel in the definition of each entry that names a calendar, with its name and its revision. So whoever has an
entry can plan it, and nobody asks the server or a library for its calendar: not the beat, no preview, no backup. A new
revision is an edit of each of its entries. A day takes nine bytes there, five years of public holidays about 600.

An occurrence is left out if the clocks of its zone show one of the days when it comes.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from functools import lru_cache

from ..errors import ConfigurationError, InvalidEntry
from ..instants import from_ms, to_ms
from ..public import public
from .clock_changes import ZonedRule, first_passing
from .missed import WALK, missed_of
from .rule import Rule

#: Days of one calendar: each is in the definition of each of its entries.
MAX_DAYS = 1000
_DAY = timedelta(days=1)


@public
@dataclass(frozen=True)
class Calendar:
    """Days on which entries do not run.

    Parameters:
        days: a set of dates, at most 1,000.
        until: the last date that it knows of. Entries run on every day after it.

    Read-only: ``name`` and ``revision`` of one that is stored; ``str()`` gives both, ``"de-holidays@3"``.

    Raises:
        InvalidEntry: a day is no date or comes after ``until``, or there are none or too many.
    """

    days: Set[date]
    until: date
    name: str = field(default="", kw_only=True)
    revision: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "days", frozenset(self.days))
        for day in (*self.days, self.until):
            if not isinstance(day, date) or isinstance(day, datetime) or not 1970 <= day.year <= 9000:
                raise InvalidEntry("calendar", "dates of 1970 to 9000", day, hint="such as datetime.date(2026, 12, 25)")
        if not 1 <= len(self.days) <= MAX_DAYS:
            raise InvalidEntry("calendar", f"1 to {MAX_DAYS:,} days", len(self.days))
        if self.until < max(self.days):
            raise InvalidEntry(
                "calendar.until", f"a date not before the last of the days, {max(self.days)}", self.until
            )

    @classmethod
    def of_holidays(cls, place: str, first: int, last: int) -> Calendar:
        """The public holidays of a place, as the library ``holidays`` has them; it is in the extra of that name.

        Parameters:
            place: a country, or a part of one, by its ISO 3166 code: ``"DE"``, ``"DE-BY"``.
            first, last: years; the calendar knows until the end of the last one.

        Raises:
            InvalidEntry: the library has no such place, or no days of these years.
            ConfigurationError: it is not installed.
        """
        try:
            import holidays
        except ImportError as exc:
            words = 'calendars of public holidays need the extra "holidays": pip install redbeat-lite[holidays]'
            raise ConfigurationError(words) from exc
        if not 1970 <= first <= last <= 9000:
            raise InvalidEntry("calendar", "years of 1970 to 9000, the first of them before the last", (first, last))
        country, _, part = place.partition("-")
        try:
            found = holidays.country_holidays(country, subdiv=part or None, years=range(first, last + 1))
        except NotImplementedError as exc:
            raise InvalidEntry("calendar", "a place of the library holidays, such as DE-BY", place) from exc
        return cls({*found}, date(last, 12, 31))

    def __str__(self) -> str:
        return f"{self.name}@{self.revision}"

    def encode(self) -> str:
        """One that is stored, as a text."""
        return f"{self} {self.until} {','.join(f'{day:%Y%m%d}' for day in sorted(self.days))}"

    @classmethod
    def decode(cls, stored: object) -> Calendar:
        """The calendar of what `encode` made; raises InvalidEntry if it is anything else."""
        try:
            return _decoded(str(stored))
        except ValueError as exc:
            raise InvalidEntry("calendar", "a stored calendar", stored, hint=str(exc)[:200]) from exc


@lru_cache(maxsize=256)  # entries by the thousand have few
def _decoded(stored: str) -> Calendar:
    of, until, days = stored.rsplit(" ", 2)
    name, _, revision = of.rpartition("@")
    free = {date.fromisoformat(day) for day in days.split(",")}
    return Calendar(free, date.fromisoformat(until), name=name, revision=int(revision))


class CalendarRule(ZonedRule):
    """A rule by the clock on a wall, without its occurrences on the days of a calendar."""

    __slots__ = ("calendar", "rule")

    def __init__(self, rule: ZonedRule, calendar: Calendar) -> None:
        super().__init__(rule.walls, rule.zone)
        self.rule, self.calendar = rule, calendar

    def next_ms(self, ms: int) -> int | None:
        found = self.rule.next_ms(ms)
        while found is not None and (day := self._day(found)) in self.calendar.days:
            while (day := day + _DAY) in self.calendar.days:
                pass
            found = self.rule.next_ms(max(found, self.begin(day) - 1))
        return found

    def begin(self, day: date) -> int:
        """When a day begins in the zone, in milliseconds since 1970."""
        return to_ms(first_passing(self.zone, datetime.combine(day, time())))

    def left_out(self, after: int, until: int) -> Iterator[tuple[int, int, int]]:
        """What is left out in ``(after, until)``: the first and the last of days in a row, and how many they are.

        Times are milliseconds since 1970. What cannot be counted is walked, and told, for 2,000 of them all.
        """
        first, last = self._day(after), self._day(until)
        days, begin, left = [day for day in self.calendar.days if first <= day <= last], after, iter(range(WALK))
        for day in sorted(days):
            if day - _DAY not in self.calendar.days:
                begin = max(after, self.begin(day) - 1)
            if day != last and day + _DAY in self.calendar.days:
                continue
            found, end = self.rule.next_ms(begin), min(until, self.begin(day + _DAY))
            if found is not None and found < end:
                missed = missed_of(self.rule, found, end - 1, lambda _: next(left, None) is not None)
                yield found, missed.last, missed.number

    def _day(self, ms: int) -> date:
        return from_ms(ms).astimezone(self.zone).date()

    def _key(self) -> tuple[object, ...]:
        return self.rule, self.calendar.days


def without(rule: Rule, calendar: Calendar | str | None) -> Rule:
    """A rule without the days of a calendar that is known by more than its name."""
    return CalendarRule(rule, calendar) if isinstance(rule, ZonedRule) and isinstance(calendar, Calendar) else rule

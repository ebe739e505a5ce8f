"""Calendars: days on which entries do not run.

The definition of an entry that names a calendar contains the name, the revision and the days of
the calendar. So a beat, a preview and a backup plan the entry without asking the server or a
library. A new revision of a calendar edits each entry that names it. A day takes nine bytes of a
definition, and five years of public holidays take about 600.

An occurrence is left out if its local date, in the zone of the rule, is one of these days.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from functools import lru_cache

from .._base.errors import ConfigurationError, InvalidEntry
from .._base.public import public
from .._base.times import from_ms, to_ms
from .clock_changes import ZonedRule, first_passing
from .rule import Rule

#: Maximum number of days of one calendar. Each entry of the calendar stores all of them.
MAX_DAYS = 1000
_DAY = timedelta(days=1)


@public
@dataclass(frozen=True)
class Calendar:
    """Days on which entries do not run.

    Parameters:
        days: a set of dates, at most 1,000.
        until: the last date that the calendar covers. Entries run on every day after it.

    A stored calendar has a ``name`` and a ``revision``, which are read-only; ``str()`` gives both,
    ``"de-holidays@3"``.

    Raises:
        InvalidEntry: a day is no date or comes after ``until``, or the set is empty or too large.
    """

    days: Set[date]
    until: date
    name: str = field(default="", kw_only=True)
    revision: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        """Refuse days that are no dates, too many days, and an ``until`` before the last day."""
        # A frozen dataclass refuses a plain assignment.
        object.__setattr__(self, "days", frozenset(self.days))
        for day in (*self.days, self.until):
            # isinstance() takes a datetime for a date, too, but a day has no time.
            is_date = isinstance(day, date) and not isinstance(day, datetime)
            if not is_date or not 1970 <= day.year <= 9000:
                hint = "such as datetime.date(2026, 12, 25)"
                raise InvalidEntry("calendar", "dates of 1970 to 9000", day, hint=hint)
        if not 1 <= len(self.days) <= MAX_DAYS:
            raise InvalidEntry("calendar", f"1 to {MAX_DAYS:,} days", len(self.days))
        if self.until < max(self.days):
            expected = f"a date not before the last of the days, {max(self.days)}"
            raise InvalidEntry("calendar.until", expected, self.until)

    @classmethod
    def of_holidays(cls, place: str, first: int, last: int) -> Calendar:
        """Make a calendar of the public holidays of a place; needs the extra ``holidays``.

        Parameters:
            place: a country, or a part of one, by its ISO 3166 code: ``"DE"``, ``"DE-BY"``.
            first, last: first and last year; the calendar ends with the last day of ``last``.

        Raises:
            InvalidEntry: the library has no such place, or no holidays in these years.
            ConfigurationError: the library is not installed.
        """
        try:
            import holidays
        except ImportError as exc:
            raise ConfigurationError(
                'calendars of public holidays need the extra "holidays": '
                "pip install 'redbeat-lite[holidays]', or '.[holidays]' in a checkout"
            ) from exc
        if not 1970 <= first <= last <= 9000:
            expected = "years of 1970 to 9000, the first of them before the last"
            raise InvalidEntry("calendar", expected, (first, last))
        country, _, part = place.partition("-")
        years = range(first, last + 1)
        try:
            days = holidays.country_holidays(country, subdiv=part or None, years=years)
        except NotImplementedError as exc:
            expected = "a place of the library holidays, such as DE-BY"
            raise InvalidEntry("calendar", expected, place) from exc
        return cls(set(days), date(last, 12, 31))

    def __str__(self) -> str:
        return f"{self.name}@{self.revision}"

    def encode(self) -> str:
        """Return the calendar as the text that is stored in the definition of an entry.

        It has name and revision, ``until`` and the days: ``de@3 2026-12-31 20261225,20261226``.
        """
        return f"{self} {self.until} {','.join(f'{day:%Y%m%d}' for day in sorted(self.days))}"

    @classmethod
    def decode(cls, stored: object) -> Calendar:
        """Return the calendar of a text from `encode`; raises InvalidEntry for anything else."""
        try:
            return _decoded(str(stored))
        except ValueError as exc:
            hint = str(exc)[:200]
            raise InvalidEntry("calendar", "a stored calendar", stored, hint=hint) from exc


@lru_cache(maxsize=256)  # thousands of entries share a few calendars
def _decoded(stored: str) -> Calendar:
    """Return the calendar of a stored text, such as ``de@3 2026-12-31 20261225,20261226``."""
    title, until, days = stored.rsplit(" ", 2)
    name, _, revision = title.rpartition("@")
    return Calendar(
        {date.fromisoformat(day) for day in days.split(",")},
        date.fromisoformat(until),
        name=name,
        revision=int(revision),
    )


@dataclass(frozen=True)
class CalendarRule(ZonedRule):
    """Wall-clock rule without its occurrences on the days of a calendar."""

    rule: ZonedRule
    days: Set[date]
    # Not compared, so that two revisions of a calendar with the same days make equal rules.
    calendar: Calendar = field(compare=False)

    def next_ms(self, ms: int) -> int | None:
        """Return the next occurrence after ``ms`` that the calendar keeps, in epoch ms."""
        following = self.rule.next_ms(ms)
        while following is not None:
            day = from_ms(following).astimezone(self.zone).date()
            if day not in self.days:
                break
            # ``day`` becomes the first day after the calendar's consecutive days. Search from just
            # before this day, because its first instant may be an occurrence. If clocks are set
            # back over midnight, this instant may be before ``following``. Then go on from
            # ``following``.
            while day in self.days:
                day += _DAY
            following = self.rule.next_ms(max(following, self.begin(day) - 1))
        return following

    def begin(self, day: date) -> int:
        """Return the first instant of a day in the zone, in milliseconds since 1970."""
        return to_ms(first_passing(self.zone, datetime.combine(day, time())))

    def left_out(self, after: int, until: int) -> Iterator[int]:
        """Yield the first occurrence of each block of days that the calendar leaves out.

        A block is a row of consecutive days. Only occurrences in ``(after, until)`` count, and all
        instants are in epoch ms.
        """
        for day in sorted(self.days):
            if day - _DAY in self.days:
                continue  # It is a later day of its block.
            # next_ms() finds only later times, but the first instant of the block counts, too.
            begin = max(after, self.begin(day) - 1)
            while day in self.days:
                day += _DAY
            first = self.rule.next_ms(begin)
            if first is not None and first < min(until, self.begin(day)):
                yield first


def without(rule: Rule, calendar: Calendar | str | None) -> Rule:
    """Return a rule that leaves out the days of a calendar.

    A rule without a zone (an interval) is returned unchanged. So is any rule if only the name of a
    calendar is given, because its days are not known.
    """
    if isinstance(rule, ZonedRule) and isinstance(calendar, Calendar):
        return CalendarRule(rule.walls, rule.zone, rule=rule, days=calendar.days, calendar=calendar)
    return rule

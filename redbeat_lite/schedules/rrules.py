"""RFC 5545 recurrences as schedules."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, tzinfo
from functools import lru_cache, partial
from itertools import islice, pairwise
from typing import Any

from ..errors import InvalidEntry
from ..instants import MAX_MS, aware, from_ms, to_ms
from ..public import public
from .clock_changes import ZonedRule, first_passing
from .recurrence import Parts, Recurrence, TooManySteps
from .rrule_dates import Instants, LeftOut, with_dates
from .rrule_text import RuleText, parse, unfolded
from .rule import SAMPLE, RuleSchedule
from .zones import is_hashable, portable, wall_at, zone_name, zone_of

#: Where a rule without a start counts from: a Monday, the first of a month and of a year, at midnight.
ANCHOR = datetime(2001, 1, 1)  # a wall-clock time
_BEGINNING = datetime.min  # noqa: DTZ901  # a wall-clock time, before any start
#: From here on each zone has a local time.
_FIRST = datetime(1, 1, 3)  # a wall-clock time
#: Days, hours, minutes or seconds that are looked at, at most, to learn when a rule begins or where its COUNT ends:
#: a fifth of a second, or up to a whole one for many positions. A daily rule with the largest COUNT: a thirtieth.
STEPS = 60_000


@public
def rrule(text: str, *, tz: str | tzinfo | None = None, start: datetime | None = None) -> RRule:
    """Run by an RFC 5545 recurrence, such as ``"FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=17;BYMINUTE=0;BYSECOND=0"``.

    The text is the rule alone, or the line ``RRULE:…``; lines with ``DTSTART``, ``RDATE`` and ``EXDATE`` may stand
    beside it. Times are those on the wall, and meet clock changes as those of `cron` do: a rule with hours is *fixed*;
    one that counts hours, minutes or seconds is *running*.
    What a rule leaves open (its time of day, the phase of an INTERVAL) it takes from its start. Without one that is
    Monday, 2001-01-01T00:00, on the wall.

    Up to 100 dates are left out (``EXDATE``) or added (``RDATE``): local times, instants (with a ``Z`` or another
    zone's ``TZID``), or whole days (``EXDATE:20261225``). See `redbeat_lite.schedules.rrule_dates`.

    Parameters:
        tz: the zone of the wall; by default the ``TZID`` of the text, or else that of the Celery app.
        start: an aware datetime, instead of DTSTART. A rule with COUNT needs one of them; COUNT is at most 10,000.

    Raises:
        InvalidEntry: the text is no recurrence, matches nothing, has a start of two kinds, or takes too long to search.
    """
    return RRule(text, tz=tz, start=start)


class RRule(RuleSchedule):
    """The schedule that `rrule` makes."""

    def __init__(self, text: str, *, tz: str | tzinfo | None = None, start: datetime | None = None) -> None:
        if not isinstance(text, str):
            raise InvalidEntry("schedule", "a recurrence as text", text, hint='for example "FREQ=DAILY;BYHOUR=9"')
        self.text = unfolded(text)
        self.start = None if start is None else aware("start", start)
        self.parsed = parse(self.text)
        self.zone = self._zone(tz)
        super().__init__()
        self._check()

    def in_zone(self, zone: tzinfo) -> RecurrenceRule:
        """The rule with its own zone, or else with ``zone``."""
        here = portable(zone) if self.zone is None else self.zone
        start = self.start or self.parsed.start
        if start is not None and start.tzinfo is not None:
            start = wall_at(here, start)
        make = _shared if is_hashable(here) else _zoned
        try:
            return make(self.parsed, (start or ANCHOR).replace(microsecond=0), here)
        except TooManySteps:
            raise self._too_costly() from None

    def next_ms(self, ms: int) -> int | None:
        return self.in_zone(self.tz).next_ms(ms)

    def _zone(self, tz: str | tzinfo | None) -> tzinfo | None:
        inside = self.parsed.zone
        if tz is not None and inside is not None and zone_name(zone_of(tz)) != zone_name(zone_of(inside)):
            raise InvalidEntry("tz", f"the zone of DTSTART, {inside}", tz)
        if tz is None and inside is None and self.parsed.start is not None and self.parsed.start.tzinfo is not None:
            return UTC
        named = inside if tz is None else tz
        return None if named is None else zone_of(named)

    def _check(self) -> None:
        if self.start is not None and self.parsed.start is not None:
            raise InvalidEntry("start", "a start or a DTSTART, not both", self.start)
        if self.parsed.parts.count is not None and self.start is None and self.parsed.start is None:
            hint = "COUNT counts from a start: pass start=..., or use max_runs"
            raise InvalidEntry("schedule", "a recurrence with a start", self.text, hint=hint)
        rule = self.in_zone(self.zone or UTC)
        try:
            something = rule.has_any()
        except TooManySteps:
            raise self._too_costly() from None
        if not something:
            raise InvalidEntry("schedule", "a recurrence that matches something", self.text)

    def _too_costly(self) -> InvalidEntry:
        hint = "give it a coarser FREQ, or max_runs in place of COUNT"
        return InvalidEntry("schedule", f"a recurrence that is found within {STEPS:,} steps", self.text, hint=hint)

    def _key(self) -> tuple[object, ...]:
        return self.text.upper(), self.tz_name, self.start

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(RRule, tz=self.tz_name, start=self.start), (self.text,)  # and not what it was read into

    def __repr__(self) -> str:
        tz = f", tz={self.tz_name!r}" if self.zone is not None else ""
        start = f", start=datetime.fromisoformat({self.start.isoformat()!r})" if self.start is not None else ""
        return f"rrule({self.text!r}{tz}{start})"


class RecurrenceRule(ZonedRule):
    """A recurrence in a zone, which may end at an instant, with what dates leave out of it and add to it."""

    __slots__ = ("_dates", "_until")
    walls: Recurrence | LeftOut

    def __init__(self, walls: Recurrence | LeftOut, zone: tzinfo, until: datetime | None, dates: Instants) -> None:
        super().__init__(walls, zone)
        self._until = MAX_MS if until is None else to_ms(until)
        self._dates = dates

    def next_ms(self, ms: int) -> int | None:
        found = super().next_ms(ms)
        while found in self._dates.left_out:
            found = super().next_ms(found)
        following = bisect_right(self._dates.added, ms)
        upcoming = [*self._dates.added[following : following + 1]]
        if found is not None and found <= self._until:
            upcoming.append(found)
        return min(upcoming, default=None)

    def has_any(self) -> bool:
        """Whether the rule has any occurrence, or the dates add one; TooManySteps if it is not found within `STEPS`."""
        with suppress(OverflowError, ValueError):  # local time beyond the years 1 to 9999
            return bool(self._dates.added) or next(self._from(_FIRST), None) is not None
        return False

    def shortest_gap_ms(self, ms: int) -> int | None:
        """How close the first occurrences after an instant come; None when there are no two."""
        found: list[int] = []
        # One search for all of them, and no more steps than that of a definition: each alone may be a long one.
        with suppress(TooManySteps, OverflowError, ValueError):  # the latter: local time beyond the years 1 to 9999
            found.extend(islice(self._from(wall_at(self.zone, from_ms(ms))), SAMPLE + 1))
        added = self._dates.added[bisect_right(self._dates.added, ms) :]
        # Times that a gap of the clock swallowed are one occurrence.
        every = sorted({*added, *(each for each in found if each <= self._until)})
        return min((later - earlier for earlier, later in pairwise(every)), default=None)

    def _from(self, wall: datetime) -> Iterator[int]:
        found = (to_ms(first_passing(self.zone, each)) for each in self.walls.walls(wall, STEPS))
        return (ms for ms in found if ms not in self._dates.left_out)

    def _key(self) -> tuple[object, ...]:
        return *super()._key(), self._until, self._dates


def _zoned(parsed: RuleText, start: datetime, zone: tzinfo) -> RecurrenceRule:
    walls, dates = with_dates(Recurrence(_without_count(parsed.parts, start), start), parsed, zone)
    return RecurrenceRule(walls, zone, parsed.until, dates)


_shared = lru_cache(maxsize=1024)(_zoned)


@lru_cache(maxsize=1024)
def _without_count(parts: Parts, start: datetime) -> Parts:
    """The same rule, ended by the last of its COUNT occurrences instead: a search need not begin at the start.

    Raises TooManySteps if that is not found within `STEPS`.
    """
    if parts.count is None:
        return parts
    endless = replace(parts, count=None)
    occurrences = islice(Recurrence(endless, start).walls(_BEGINNING, STEPS), parts.count)
    last = deque(occurrences, maxlen=1)
    return replace(endless, until=last[0]) if last else endless

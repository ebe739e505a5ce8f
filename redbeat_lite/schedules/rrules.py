"""RFC 5545 recurrences as schedules, with the dates that are left out (EXDATE) or added (RDATE).

A local EXDATE, or a whole day, is left out of the times on the wall, before a clock change moves
them: an occurrence at 2:30 can be left out of a day on which the clocks skip 2:30. An EXDATE in UTC
or in another zone is an instant. Each RDATE is an instant too. It runs once, also if its local time
comes twice or not at all. As in RFC 5545, an EXDATE removes an RDATE of the same time, COUNT counts
occurrences that are left out, and UNTIL does not end RDATEs. A whole day that is left out does not
remove an RDATE with a time, so that the run of a day can be moved.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from itertools import islice, pairwise

from ..errors import InvalidEntry
from ..instants import MAX_MS, aware, from_ms, to_ms
from ..public import public
from .clock_changes import FIRST_MS, ZonedRule, first_passing
from .recurrence import STEPS, Parts, Recurrence, TooManySteps
from .rrule_text import Date, RuleText, parse, unfolded
from .rule import SAMPLE, RuleSchedule
from .zones import is_hashable, portable, wall_at, zone_name, zone_of

#: Local start of a rule without a start: a Monday, the first of a month and of a year, at midnight.
ANCHOR = datetime(2001, 1, 1)


@public
def rrule(text: str, *, tz: str | tzinfo | None = None, start: datetime | None = None) -> RRule:
    """Run by an RFC 5545 recurrence, such as ``"FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=17;BYMINUTE=0"``.

    The text is the rule alone, or the line ``RRULE:…``; lines with ``DTSTART``, ``RDATE`` and
    ``EXDATE`` may stand beside it. Times are those on the wall, and meet clock changes as those of
    `cron` do: a rule with hours is *fixed*; one that counts hours, minutes or seconds is *running*.
    A rule takes from its start whatever it leaves open: its time of day, the phase of an INTERVAL.
    The default start is Monday, 2001-01-01T00:00, on the wall.

    Up to 100 dates are left out (``EXDATE``) or added (``RDATE``): local times, instants (with a
    ``Z`` or another zone's ``TZID``), or whole days (``EXDATE:20261225``). See
    `redbeat_lite.schedules.rrules`.

    Parameters:
        tz: the zone of the wall; by default the ``TZID`` of the text, or else the Celery app's.
        start: an aware datetime, instead of DTSTART. A rule with COUNT needs one of them. COUNT is
            at most 10,000.

    Raises:
        InvalidEntry: the text is no recurrence, matches nothing, has two starts, or takes too long
            to search.
    """
    return RRule(text, tz=tz, start=start)


class RRule(RuleSchedule):
    """The schedule that `rrule` makes."""

    def __init__(
        self,
        text: str,
        *,
        tz: str | tzinfo | None = None,
        start: datetime | None = None,
    ) -> None:
        if not isinstance(text, str):
            hint = 'for example "FREQ=DAILY;BYHOUR=9"'
            raise InvalidEntry("schedule", "a recurrence as text", text, hint=hint)
        self.text = unfolded(text)
        self.start = None if start is None else aware("start", start)
        self.parsed = parse(self.text)
        self.zone = self._zone(tz)
        super().__init__()
        self._check()

    def in_zone(self, zone: tzinfo) -> RecurrenceRule:
        """Return the rule in its own zone, or in ``zone`` if it has none."""
        zone = portable(zone) if self.zone is None else self.zone
        start = self.start
        if start is None and self.parsed.start is not None:
            start = self.parsed.start.time
        if start is None:
            start = ANCHOR
        if start.tzinfo is not None:
            start = wall_at(zone, start)
        make = _shared if is_hashable(zone) else _zoned
        try:
            return make(self.parsed, start.replace(microsecond=0), zone)
        except TooManySteps:
            hint = "give it a coarser FREQ, or max_runs in place of COUNT"
            expected = f"a recurrence whose last occurrence is found within {STEPS:,} steps"
            raise InvalidEntry("schedule", expected, self.text, hint=hint) from None

    def next_ms(self, ms: int) -> int | None:
        return self.in_zone(self.tz).next_ms(ms)

    def _zone(self, tz: str | tzinfo | None) -> tzinfo | None:
        zone = None if tz is None else zone_of(tz)
        start = self.parsed.start
        if start is None:
            return zone
        if start.tzid is not None:
            own_zone = zone_of(start.tzid)
            if zone is not None and zone_name(zone) != zone_name(own_zone):
                raise InvalidEntry("tz", f"the zone of DTSTART, {start.tzid}", tz)
            return own_zone
        return zone or start.time.tzinfo

    def _check(self) -> None:
        if self.start is not None and self.parsed.start is not None:
            raise InvalidEntry("start", "a start or a DTSTART, not both", self.start)
        if self.parsed.parts.count is not None and self.start is None and self.parsed.start is None:
            hint = "COUNT counts from a start: pass start=..., or use max_runs"
            raise InvalidEntry("schedule", "a recurrence with a start", self.text, hint=hint)
        if self.in_zone(self.zone or UTC).next_ms(FIRST_MS) is None:
            hint = f"the search ends after {STEPS:,} steps, or 400 years without a match"
            expected = "a recurrence that matches something"
            raise InvalidEntry("schedule", expected, self.text, hint=hint)

    def _key(self) -> tuple[object, ...]:
        return self.text.upper(), self.tz_name, self.start

    def __repr__(self) -> str:
        arguments = [repr(self.text)]
        if self.zone is not None:
            arguments.append(f"tz={self.tz_name!r}")
        if self.start is not None:
            arguments.append(f"start=datetime.fromisoformat({self.start.isoformat()!r})")
        return f"rrule({', '.join(arguments)})"


class RecurrenceRule(ZonedRule):
    """A recurrence in a zone. Instants are milliseconds since 1970.

    Parameters:
        until: the last instant that is an occurrence, from an UNTIL in UTC.
        left_out: instants that are no occurrences.
        added: further occurrences in ascending order, which ``until`` does not end.
    """

    __slots__ = ("_added", "_left_out", "_until")
    walls: Recurrence

    def __init__(
        self,
        walls: Recurrence,
        zone: tzinfo,
        until: datetime | None,
        left_out: frozenset[int],
        added: list[int],
    ) -> None:
        super().__init__(walls, zone)
        self._until = MAX_MS if until is None else to_ms(until)
        self._left_out = left_out
        self._added = tuple(added)

    def next_ms(self, ms: int) -> int | None:
        following = super().next_ms(ms)
        while following in self._left_out:
            following = super().next_ms(following)
        upcoming = list(self._added_after(ms)[:1])
        if following is not None and following <= self._until:
            upcoming.append(following)
        return min(upcoming, default=None)

    def shortest_gap_ms(self, ms: int) -> int | None:
        """Return the shortest gap of the first occurrences after an instant; None if there is none.

        The work is that of one search, however long the search for each of them is.
        """
        instants = set(self._added_after(ms))
        # OverflowError and ValueError: local time beyond the years 1 to 9999.
        with suppress(TooManySteps, OverflowError, ValueError):
            for wall in islice(self.walls.walls(wall_at(self.zone, from_ms(ms))), SAMPLE + 1):
                # Times that the clocks skip become one instant.
                instant = to_ms(first_passing(self.zone, wall))
                if instant <= self._until and instant not in self._left_out:
                    instants.add(instant)
        gaps = (later - earlier for earlier, later in pairwise(sorted(instants)))
        return min(gaps, default=None)

    def _added_after(self, ms: int) -> tuple[int, ...]:
        return self._added[bisect_right(self._added, ms) :]

    def _key(self) -> tuple[object, ...]:
        return *super()._key(), self._until, self._left_out, self._added


def _zoned(parsed: RuleText, start: datetime, zone: tzinfo) -> RecurrenceRule:
    """Return a recurrence in a zone; raises InvalidEntry if the zone of a date is unknown here."""
    local = [date for date in parsed.left_out if _is_local(date, zone)]
    walls = Recurrence(
        _without_count(parsed.parts, start),
        start,
        left_out_times=frozenset(date.time for date in local if not date.whole_day),
        left_out_days=frozenset(date.time.date() for date in local if date.whole_day),
    )
    left_out = frozenset(_ms(date, zone) for date in parsed.left_out if date not in local)
    # A day that is left out does not remove a time of it that is added.
    removed = {(_ms(date, zone), date.whole_day) for date in parsed.left_out}
    added = {(_ms(date, zone), date.whole_day) for date in parsed.added} - removed
    return RecurrenceRule(walls, zone, parsed.until, left_out, sorted(ms for ms, _ in added))


#: Thousands of entries share a few rules.
_shared = lru_cache(maxsize=1024)(_zoned)


@lru_cache(maxsize=1024)
def _without_count(parts: Parts, start: datetime) -> Parts:
    """Return the same rule with UNTIL instead of COUNT, so that no search begins at the start.

    Raises TooManySteps if the search for the last occurrence is too long.
    """
    if parts.count is None:
        return parts
    occurrences = Recurrence(parts, start).walls(datetime.min)  # noqa: DTZ901
    last = deque(islice(occurrences, parts.count), maxlen=1)
    return replace(parts, until=last[0] if last else None)


def _is_local(date: Date, zone: tzinfo) -> bool:
    """Return whether a date is a local time of ``zone``."""
    if date.time.tzinfo is not None:
        return False
    return date.tzid is None or zone_name(zone_of(date.tzid)) == zone_name(zone)


def _ms(date: Date, zone: tzinfo) -> int:
    if date.time.tzinfo is not None:
        return to_ms(date.time)
    own_zone = zone_of(date.tzid) if date.tzid else zone
    return to_ms(first_passing(own_zone, date.time))

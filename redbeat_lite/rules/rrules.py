"""RFC 5545 recurrences as schedules, with the dates that are left out (EXDATE) or added (RDATE).

A local EXDATE, or a whole day, is left out of the times on the wall, before a clock change moves
them: an occurrence at 2:30 can be left out of a day on which the clocks skip 2:30. An EXDATE in UTC
or in another zone is an instant. Each RDATE is an instant too. It runs once, also if its local time
comes twice or not at all. As in RFC 5545, an EXDATE removes an RDATE of the same time, COUNT counts
occurrences that are left out, and UNTIL does not end RDATEs. A whole day that is left out does not
remove an RDATE with a time, so that the run of a day can be moved.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from itertools import islice, pairwise
from typing import NamedTuple, NoReturn

from .._base.errors import InvalidEntry
from .._base.public import public
from .._base.text import nearest_hint
from .._base.times import MAX_MS, aware, from_ms, to_ms
from .clock_changes import FIRST_MS, ZonedRule, first_passing
from .recurrence import FREQUENCIES, STEPS, DayParts, Parts, Recurrence, TooManySteps
from .rule import SAMPLE, RuleSchedule
from .zones import is_hashable, portable, wall_at, zone_name, zone_of

#: Local start of a rule without a start: a Monday, the first of a month and of a year, at midnight.
ANCHOR = datetime(2001, 1, 1)


WEEKDAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
#: Most EXDATEs and RDATEs together. Each EXDATE costs a look at the next occurrence.
MAX_DATES = 100
_MAX_LENGTH = 4000
_LINE = re.compile("(DTSTART|RRULE|RDATE|EXDATE)[;:]", re.IGNORECASE)
#: Lowest and highest number of a part, and whether a negative one counts from the end.
_BOUNDS = {
    "INTERVAL": (1, 100_000_000, False),
    # All occurrences of a COUNT are searched for at definition. max_runs of an entry costs nothing.
    "COUNT": (1, 10_000, False),
    "BYMONTH": (1, 12, False),
    "BYMONTHDAY": (1, 31, True),
    "BYYEARDAY": (1, 366, True),
    "BYWEEKNO": (1, 53, True),
    "BYHOUR": (0, 23, False),
    "BYMINUTE": (0, 59, False),
    "BYSECOND": (0, 59, False),
    "BYSETPOS": (1, 366, True),
}
_NAMES = ("FREQ", "UNTIL", "WKST", "BYDAY", *_BOUNDS)
#: Frequencies in which a part is not allowed (RFC 5545, 3.3.10).
_NOT_IN = {
    "BYWEEKNO": FREQUENCIES[1:],
    "BYYEARDAY": ("MONTHLY", "WEEKLY", "DAILY"),
    "BYMONTHDAY": ("WEEKLY",),
}


@public
def rrule(text: str, *, tz: str | tzinfo | None = None, start: datetime | None = None) -> RRule:
    """Run by an RFC 5545 recurrence, such as ``"FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=17;BYMINUTE=0"``.

    The text is the rule alone, or the line ``RRULE:…``; lines with ``DTSTART``, ``RDATE`` and
    ``EXDATE`` may stand beside it. Times are wall-clock times, and clock changes move them as in
    `cron`: a rule with hours is *fixed*; a rule that counts hours, minutes or seconds is *running*.
    A rule takes from its start whatever it leaves open: its time of day, the phase of an INTERVAL.
    The default start is Monday, 2001-01-01T00:00, on the wall.

    Up to 100 dates are left out (``EXDATE``) or added (``RDATE``): local times, instants (with a
    ``Z`` or another zone's ``TZID``), or whole days (``EXDATE:20261225``). See
    `redbeat_lite.rules.rrules`.

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
        """Return the zone of the argument ``tz`` or of DTSTART; they must agree."""
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
        """Raise InvalidEntry if the rule lacks a start that it needs, or never matches."""
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

        All of these occurrences share the steps of one search, so the work is bounded.
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
    # An EXDATE of a whole day does not remove an RDATE on that day.
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


class Date(NamedTuple):
    """DTSTART, RDATE or EXDATE. ``time`` is midnight of a whole day, and aware if it is in UTC."""

    time: datetime
    tzid: str | None
    whole_day: bool


@dataclass(frozen=True)
class RuleText:
    """A recurrence as written. A local UNTIL is in ``parts``; ``until`` is one in UTC."""

    parts: Parts
    until: datetime | None
    start: Date | None
    added: tuple[Date, ...]
    left_out: tuple[Date, ...]


def unfolded(text: str) -> str:
    """Return the text with one line for each property.

    Calendars fold long lines, and people write several properties in one line.
    """
    words = [f"\n{word}" if _LINE.match(word) else word for word in text.split()]
    return "".join(words).lstrip()


@lru_cache(maxsize=1024)
def parse(text: str) -> RuleText:
    """Parse ``FREQ=…;…`` or ``RRULE:…``, with or without lines DTSTART, RDATE and EXDATE.

    Raises InvalidEntry: the text is not what RFC 5545 allows, or has several rules.
    """
    return _Parser(text).parse()


class _Parser:
    """Parser of one recurrence. Its errors show the whole text."""

    def __init__(self, text: str) -> None:
        self.text = text
        #: Parts of the rule by name.
        self.values: dict[str, str] = {}

    def parse(self) -> RuleText:
        if len(self.text) > _MAX_LENGTH:
            expected = f"a recurrence of at most {_MAX_LENGTH} characters"
            raise InvalidEntry("schedule", expected, self.text)
        rule = ""
        dates: dict[str, list[Date]] = {"DTSTART": [], "RDATE": [], "EXDATE": []}
        for line in self.text.split():
            head, colon, value = line.rpartition(":")
            name = head.upper().partition(";")[0]
            if not rule and (not colon or head.upper() == "RRULE"):
                rule = value.upper()
            elif name in dates and not (name == "DTSTART" and dates[name]):
                dates[name] += [self.date(head, item) for item in value.split(",")]
            else:
                hint = "a second rule is another entry"
                raise InvalidEntry("schedule", "one DTSTART and one RRULE", line, hint=hint)
        if not rule:
            self.refuse("an RRULE")
        start = dates["DTSTART"][0] if dates["DTSTART"] else None
        self.check_dates(start, dates["RDATE"], dates["EXDATE"])
        parts, until = self.parts(rule)
        return RuleText(parts, until, start, tuple(dates["RDATE"]), tuple(dates["EXDATE"]))

    def date(self, head: str, value: str) -> Date:
        """Parse one date of a line, whose head may name a zone as ``TZID``."""
        params = [param.partition("=") for param in head.split(";")]
        tzid = next((zone for name, _, zone in params if name.upper() == "TZID"), None)
        time = self.time(value.upper())
        if time.tzinfo is not None and tzid is not None:
            self.refuse(f"{params[0][0].upper()} with a zone or with Z, not with both")
        return Date(time, tzid, whole_day=len(value) == 8)

    def time(self, value: str) -> datetime:
        """Parse ``20260131T090000``, with a Z if it is in UTC, or a date, which is its midnight."""
        match = re.fullmatch(r"(\d{8})(?:T(\d{6}))?(Z?)", value, re.ASCII)
        if match:
            digits = match[1] + (match[2] or "000000")
            with suppress(ValueError):
                time = datetime.strptime(digits, "%Y%m%d%H%M%S")  # noqa: DTZ007
                return time.replace(tzinfo=UTC) if match[3] else time
        expected = "a date and time such as 20260131T090000"
        raise InvalidEntry("schedule", expected, f"{value} in {self.text}")

    def check_dates(self, start: Date | None, added: list[Date], left_out: list[Date]) -> None:
        """Raise InvalidEntry if there are too many dates, or if their forms do not fit together."""
        dates = added + left_out
        if len(dates) > MAX_DATES:
            self.refuse(f"at most {MAX_DATES} dates in RDATE and EXDATE, not {len(dates)}")
        if any(date.whole_day and date.tzid for date in dates):
            self.refuse("dates without TZID, or with a time of day")
        is_of_days = start is not None and start.whole_day
        if not is_of_days and any(date.whole_day for date in added):
            hint = "a date alone goes with a DTSTART that is one"
            self.refuse("an RDATE with a time of day", hint)

    def parts(self, rule: str) -> tuple[Parts, datetime | None]:
        """Parse the parts of a rule, and its UNTIL if that is in UTC."""
        self.split(rule)
        freq = self.values.get("FREQ", "")
        if freq not in FREQUENCIES:
            self.refuse(f"FREQ of {', '.join(FREQUENCIES)}", nearest_hint(freq, FREQUENCIES))
        self.check_together(freq)
        until = self.time(self.values["UNTIL"]) if "UNTIL" in self.values else None
        is_local = until is not None and until.tzinfo is None
        days = DayParts(
            self.numbers("BYMONTH"),
            self.numbers("BYMONTHDAY"),
            self.numbers("BYYEARDAY"),
            self.numbers("BYWEEKNO"),
            self.weekdays(freq),
            self.weekday(self.values.get("WKST", "MO")),
        )
        parts = Parts(
            freq,
            interval=self.number("INTERVAL") or 1,
            count=self.number("COUNT"),
            until=until if is_local else None,
            days=days,
            byhour=self.numbers("BYHOUR"),
            byminute=self.numbers("BYMINUTE"),
            bysecond=self.numbers("BYSECOND"),
            bysetpos=self.numbers("BYSETPOS"),
        )
        return parts, None if is_local else until

    def split(self, rule: str) -> None:
        for part in rule.strip(";").split(";"):
            name, _, value = part.partition("=")
            if name not in _NAMES or not value:
                self.refuse(f"parts NAME=value, not {part!r}", _hint(name, value))
            if name in self.values:
                self.refuse(f"{name} once")
            self.values[name] = value

    def check_together(self, freq: str) -> None:
        """Refuse parts that RFC 5545 does not allow together."""
        if "COUNT" in self.values and "UNTIL" in self.values:
            self.refuse("COUNT or UNTIL, not both")
        for name, frequencies in _NOT_IN.items():
            if name in self.values and freq in frequencies:
                self.refuse(f"no {name} in a {freq} rule", "see RFC 5545, 3.3.10")
        others = [name for name in self.values if name.startswith("BY") and name != "BYSETPOS"]
        if "BYSETPOS" in self.values and not others:
            self.refuse("BYSETPOS together with another BY part")

    def weekdays(self, freq: str) -> tuple[tuple[int, int], ...]:
        """Parse BYDAY."""
        most = 0
        if freq == "MONTHLY" or (freq == "YEARLY" and "BYMONTH" in self.values):
            most = 5
        elif freq == "YEARLY" and "BYWEEKNO" not in self.values:
            most = 53
        weekdays = set()
        for part in self.texts("BYDAY"):
            match = re.fullmatch(r"([+-]?[1-9]\d?)?([A-Z]{2})", part, re.ASCII)
            if match is None:
                self.refuse(f"BYDAY of {', '.join(WEEKDAYS)}, each with a number before it or none")
            nth = int(match[1] or 0)
            if abs(nth) > most:
                without = "YEARLY ones without BYWEEKNO and BYMONTH"
                self.refuse(f"{part} only in MONTHLY rules up to 5, or {without} up to 53")
            weekdays.add((self.weekday(match[2]), nth))
        return tuple(sorted(weekdays))

    def weekday(self, text: str) -> int:
        if text not in WEEKDAYS:
            self.refuse(f"a weekday of {', '.join(WEEKDAYS)}, not {text!r}")
        return WEEKDAYS.index(text)

    def number(self, name: str) -> int | None:
        """Parse a part that is one number."""
        if len(self.texts(name)) > 1:
            self.refuse(f"one number as {name}")
        return next(iter(self.numbers(name)), None)

    def numbers(self, name: str) -> tuple[int, ...]:
        """Parse the numbers of a part, in ascending order."""
        low, high, is_signed = _BOUNDS[name]
        numbers = set()
        for text in self.texts(name):
            number = int(text) if re.fullmatch(r"[+-]?\d{1,9}", text, re.ASCII) else high + 1
            if not low <= (abs(number) if is_signed else number) <= high:
                also = f" or -{high} to -{low}" if is_signed else ""
                hint = "use max_runs" if name == "COUNT" else None
                self.refuse(f"{name} of {low} to {high:,}{also}", hint)
            numbers.add(number)
        return tuple(sorted(numbers))

    def texts(self, name: str) -> list[str]:
        """Return the items of a part, if the rule has it."""
        return self.values[name].split(",") if name in self.values else []

    def refuse(self, expected: str, hint: str | None = None) -> NoReturn:
        raise InvalidEntry("schedule", f"a recurrence with {expected}", self.text, hint=hint)


def _hint(name: str, value: str) -> str | None:
    if name in FREQUENCIES:
        return f"did you mean FREQ={name}?"
    if not value:
        return 'for example "FREQ=DAILY;BYHOUR=9"'
    return nearest_hint(name, _NAMES)

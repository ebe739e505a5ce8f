"""Text of an RFC 5545 recurrence: the lines RRULE, DTSTART, RDATE and EXDATE."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, tzinfo
from functools import lru_cache
from typing import NamedTuple, NoReturn

from .._base.errors import InvalidEntry
from .._base.text import nearest_hint
from .._base.times import MAX_MS, to_ms
from .clock_changes import first_passing
from .zones import zone_name, zone_of

#: Frequencies from the longest period to the shortest.
FREQUENCIES = ("YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY")
WEEKDAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
#: Maximum number of EXDATEs and RDATEs together. A search may look at one more occurrence for each
#: EXDATE.
MAX_DATES = 100
_MAX_LENGTH = 4000
_LINE = re.compile("(DTSTART|RRULE|RDATE|EXDATE)[;:]", re.IGNORECASE)
#: Part of a rule -> its lowest number, its highest number, and whether they may be negative. A
#: negative number counts from the end.
BOUNDS = {
    "INTERVAL": (1, 100_000_000, False),
    # To check a rule, all occurrences up to COUNT are searched, so COUNT is bounded. The entry's
    # max_runs needs no search.
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
_NAMES = ("FREQ", "UNTIL", "WKST", "BYDAY", *BOUNDS)
#: Part of a rule -> frequencies in which it is not allowed (RFC 5545, 3.3.10).
_NOT_IN = {
    "BYWEEKNO": FREQUENCIES[1:],
    "BYYEARDAY": ("MONTHLY", "WEEKLY", "DAILY"),
    "BYMONTHDAY": ("WEEKLY",),
}


class Date(NamedTuple):
    """Value of DTSTART, RDATE or EXDATE.

    Parameters:
        wall: time on the wall. A whole day has its midnight.
        zone: zone of this time, from ``Z`` or ``TZID``; ``None`` for the zone of the rule.
        whole_day: whether the value is a date without a time.
    """

    wall: datetime
    zone: tzinfo | None
    whole_day: bool

    def is_local(self, zone: tzinfo) -> bool:
        """Return whether ``wall`` is a local time of ``zone``."""
        return self.zone is None or zone_name(self.zone) == zone_name(zone)

    def ms(self, zone: tzinfo) -> int:
        """Return the instant in epoch ms; a time without a zone of its own is in ``zone``."""
        return to_ms(first_passing(self.zone or zone, self.wall))


def unfolded(text: str) -> str:
    """Return the text with one line for each property.

    Calendar programs break a long line in two, and people write several properties in one line.
    """
    # A word that begins no property continues a broken line, so join it to the word before.
    words = [f"\n{word}" if _LINE.match(word) else word for word in text.split()]
    return "".join(words).lstrip()


class RuleText:
    """Recurrence as it is written. Errors show the whole text.

    Parameters:
        text: ``FREQ=…;…`` or ``RRULE:…``, with or without lines DTSTART, RDATE and EXDATE.

    Raises:
        InvalidEntry: the text is not what RFC 5545 allows, or has several rules.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        if len(text) > _MAX_LENGTH:
            self.must_have(f"at most {_MAX_LENGTH} characters")
        rule = ""
        dates: dict[str, list[Date]] = {"DTSTART": [], "RDATE": [], "EXDATE": []}
        for line in text.split():
            head, _, value = line.rpartition(":")
            name = head.upper().partition(";")[0]
            if not rule and head.upper() in ("", "RRULE"):
                # A rule may stand alone, without ``RRULE:`` before it.
                rule = value.upper()
            elif name in dates and not (name == "DTSTART" and dates[name]):
                # There may be several lines of RDATE and EXDATE, but only one DTSTART.
                dates[name] += [self.date(head, item) for item in value.split(",")]
            else:
                hint = "a second rule is another entry"
                raise InvalidEntry("schedule", "one DTSTART and one RRULE", line, hint=hint)
        if not rule:
            self.must_have("an RRULE")
        self.start = next(iter(dates["DTSTART"]), None)
        self.added = dates["RDATE"]
        self.left_out = dates["EXDATE"]
        self.check_dates()
        #: Parts of the rule by name.
        self.values = self.split(rule)
        self.freq = self.word("FREQ", FREQUENCIES)
        self.week_start = WEEKDAYS.index(self.word("WKST", WEEKDAYS, "MO"))
        self.check_parts()
        #: Name of a part -> its numbers; no numbers for a part that the text does not have.
        self.numbers = {name: self.numbers_of(name) for name in BOUNDS}
        self.weekdays = self.parse_weekdays()
        #: Last time on the wall, if UNTIL is a local time.
        self.until_wall = datetime.max  # noqa: DTZ901
        #: Last instant, if UNTIL is in UTC.
        self.until_ms = MAX_MS
        if "UNTIL" in self.values:
            until = self.time(self.values["UNTIL"])
            if until.tzinfo is None:
                self.until_wall = until
            else:
                self.until_ms = to_ms(until)

    def date(self, head: str, value: str) -> Date:
        """Parse one date of a line; ``head``, the text before the colon, may have a ``TZID``."""
        time = self.time(value.upper())
        zone = time.tzinfo
        tzid = re.search(";TZID=([^;]+)", head, re.IGNORECASE)
        if tzid:
            if zone is not None:
                name = head.upper().partition(";")[0]
                self.must_have(f"{name} with a zone or with Z, not with both")
            zone = zone_of(tzid[1])
        # A date without a time, such as 20260131, has eight characters.
        return Date(time.replace(tzinfo=None), zone, whole_day=len(value) == 8)

    def time(self, value: str) -> datetime:
        """Parse ``20260131T090000``, with a Z if it is in UTC, or a date, which is its midnight."""
        if re.fullmatch(r"\d{8}(T\d{6}Z?)?", value, re.ASCII):
            with suppress(ValueError):  # such as 30 February
                return datetime.fromisoformat(value)
        expected = "a date and time such as 20260131T090000"
        raise InvalidEntry("schedule", expected, f"{value} in {self.text}")

    def check_dates(self) -> None:
        """Refuse too many dates, and dates whose forms do not fit together."""
        dates = self.added + self.left_out
        if len(dates) > MAX_DATES:
            self.must_have(f"at most {MAX_DATES} dates in RDATE and EXDATE, not {len(dates)}")
        if any(date.whole_day and date.zone for date in dates):
            self.must_have("dates without TZID, or with a time of day")
        is_of_days = self.start is not None and self.start.whole_day
        if not is_of_days and any(date.whole_day for date in self.added):
            hint = "a date alone goes with a DTSTART that is one"
            self.must_have("an RDATE with a time of day", hint)

    def split(self, rule: str) -> dict[str, str]:
        """Return the parts of a rule by name."""
        values: dict[str, str] = {}
        for part in rule.strip(";").split(";"):
            name, _, value = part.partition("=")
            if name not in _NAMES or not value:
                hint = nearest_hint(name, _NAMES)
                self.must_have(f"parts NAME=value such as FREQ=DAILY, not {part!r}", hint)
            if name in values:
                self.must_have(f"{name} once")
            values[name] = value
        return values

    def word(self, name: str, words: Sequence[str], default: str = "") -> str:
        """Return the value of a part, and refuse a value that is none of ``words``."""
        value = self.values.get(name, default)
        if value not in words:
            self.must_have(f"{name} of {', '.join(words)}", nearest_hint(value, words))
        return value

    def check_parts(self) -> None:
        """Refuse parts that do not go together."""
        if "COUNT" in self.values and "UNTIL" in self.values:
            self.must_have("COUNT or UNTIL, not both")
        for name, frequencies in _NOT_IN.items():
            if name in self.values and self.freq in frequencies:
                self.must_have(f"no {name} in a {self.freq} rule", "see RFC 5545, 3.3.10")
        # BYSETPOS picks from the times that the other BY parts give, so it needs one of them.
        by_parts = [name for name in self.values if name.startswith("BY")]
        if by_parts == ["BYSETPOS"]:
            self.must_have("BYSETPOS together with another BY part")

    def parse_weekdays(self) -> tuple[tuple[int, int], ...]:
        """Parse BYDAY into pairs: the weekday (0 is Monday) and its number, or 0 for every one."""
        # RFC 5545 allows numbers such as 2MO only where they count within a month or a year. In any
        # other rule, the highest number is 0.
        highest = 0
        if self.freq == "MONTHLY" or (self.freq == "YEARLY" and "BYMONTH" in self.values):
            highest = 5
        elif self.freq == "YEARLY" and "BYWEEKNO" not in self.values:
            highest = 53
        weekdays = set()
        for item in self.items("BYDAY"):
            match = re.fullmatch(rf"([+-]?[1-9]\d?)?({'|'.join(WEEKDAYS)})", item, re.ASCII)
            if match is None:
                weekday_names = ", ".join(WEEKDAYS)
                self.must_have(f"BYDAY of {weekday_names}, each with a number before it or none")
            nth = int(match[1] or 0)
            if abs(nth) > highest:
                self.must_have(
                    f"{item} only in MONTHLY rules and YEARLY ones with BYMONTH up to 5, "
                    "or YEARLY ones without BYWEEKNO up to 53"
                )
            weekdays.add((WEEKDAYS.index(match[2]), nth))
        return tuple(sorted(weekdays))

    def numbers_of(self, name: str) -> tuple[int, ...]:
        """Parse the numbers of a part, in ascending order."""
        low, high, is_signed = BOUNDS[name]
        numbers = set()
        for item in self.items(name):
            # For a text that is no number, take a number above the bounds, which is refused next.
            number = int(item) if re.fullmatch(r"[+-]?\d{1,9}", item, re.ASCII) else high + 1
            size = abs(number) if is_signed else number
            if not low <= size <= high:
                also = f" or -{high} to -{low}" if is_signed else ""
                hint = "use max_runs" if name == "COUNT" else None
                self.must_have(f"{name} of {low} to {high:,}{also}", hint)
            numbers.add(number)
        if name in ("INTERVAL", "COUNT") and len(numbers) > 1:
            self.must_have(f"one number as {name}")
        return tuple(sorted(numbers))

    def items(self, name: str) -> list[str]:
        """Return the items of a part; none if the rule does not have the part."""
        return self.values[name].split(",") if name in self.values else []

    def must_have(self, expected: str, hint: str | None = None) -> NoReturn:
        """Raise the error for a text that does not have what is expected."""
        raise InvalidEntry("schedule", f"a recurrence with {expected}", self.text, hint=hint)


#: Parses a text. Results are cached, because thousands of entries share a few texts.
parse = lru_cache(maxsize=1024)(RuleText)

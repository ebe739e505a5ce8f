"""The text of an RFC 5545 recurrence, as people and calendars write it."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple, NoReturn

from ..errors import InvalidEntry, meant
from .recurrence import FREQUENCIES, DayParts, Parts

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
            self.refuse(f"FREQ of {', '.join(FREQUENCIES)}", meant(freq, FREQUENCIES))
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
            self.refuse(f"one {name}")
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
    return meant(name, _NAMES)

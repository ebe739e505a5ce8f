"""Reading the text of an RFC 5545 recurrence."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn

from ..errors import InvalidEntry, meant
from .recurrence import FREQUENCIES, Parts

WEEKDAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
#: Counting further than this is done by the entry's max_runs, which needs no look ahead.
MAX_COUNT = 10_000
#: EXDATEs and RDATEs together. One left out costs a look at the next: this many are still less than one long search.
MAX_DATES = 100
_MAX_LENGTH = 4000
_LINE = re.compile("(DTSTART|RRULE|RDATE|EXDATE)[;:]", re.IGNORECASE)
_BOUNDS = {
    "BYMONTH": (1, 12, False),
    "BYMONTHDAY": (1, 31, True),
    "BYYEARDAY": (1, 366, True),
    "BYWEEKNO": (1, 53, True),
    "BYHOUR": (0, 23, False),
    "BYMINUTE": (0, 59, False),
    "BYSECOND": (0, 59, False),
    "BYSETPOS": (1, 366, True),
}
_NAMES = ("FREQ", "INTERVAL", "COUNT", "UNTIL", "WKST", "BYDAY", *_BOUNDS)
#: RFC 5545, 3.3.10: the parts that are numeric or invalid in some frequencies.
_NOT_IN = {"BYWEEKNO": FREQUENCIES[1:], "BYYEARDAY": ("MONTHLY", "WEEKLY", "DAILY"), "BYMONTHDAY": ("WEEKLY",)}


class Date(NamedTuple):
    """A DTSTART, RDATE or EXDATE as it is written."""

    #: Aware where it has a Z, else local.
    time: datetime
    #: The TZID.
    zone: str | None
    #: Whether it is a DATE, without a time of day; `time` is its midnight then.
    whole_day: bool


@dataclass(frozen=True)
class RuleText:
    """A recurrence as text: its parts, and the start if the text has one (naive where it is local time)."""

    parts: Parts
    start: datetime | None
    zone: str | None
    #: UNTIL given in UTC, as RFC 5545 wants it where there is a zone; a local one is in the parts.
    until: datetime | None
    added: tuple[Date, ...] = ()
    left_out: tuple[Date, ...] = ()


def unfolded(text: str) -> str:
    """The text with one line for each property: what calendars have folded, or words apart, is put together."""
    return "".join(f"\n{word}" if _LINE.match(word) else word for word in text.split()).lstrip()


@lru_cache(maxsize=1024)
def parse(text: str) -> RuleText:
    """The recurrence of ``FREQ=…;…``, or of a line ``RRULE:…``, with lines DTSTART, RDATE and EXDATE or without.

    Raises InvalidEntry: anything RFC 5545 does not allow, and sets of several rules.
    """
    return _Reader(text).read()


class _Reader:
    """Reads one recurrence, whose text it shows in its errors."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.given: dict[str, str] = {}

    def read(self) -> RuleText:
        if len(self.text) > _MAX_LENGTH:
            raise InvalidEntry("schedule", f"a recurrence of at most {_MAX_LENGTH} characters", self.text)
        rule: str | None = None
        start: Date | None = None
        dates: dict[str, tuple[Date, ...]] = {"RDATE": (), "EXDATE": ()}
        for line in self.text.split():
            name, colon, value = line.rpartition(":")
            kind = name.upper().partition(";")[0]
            if name.upper() in ("", "RRULE") and rule is None and bool(colon) == bool(name):
                rule = value.upper()
            elif kind == "DTSTART" and start is None:
                start = self._date(value, name)
            elif kind in dates:
                dates[kind] += tuple(self._date(each, name) for each in value.split(","))
            else:
                raise InvalidEntry("schedule", "one DTSTART and one RRULE", line, hint="a second rule is another entry")
        if not rule:
            self.refuse("an RRULE")
        added, left_out = dates["RDATE"], dates["EXDATE"]
        self._check_dates(added, left_out, start)
        parts, until = self._parts(rule)
        return RuleText(parts, start and start.time, start and start.zone, until, added, left_out)

    def _check_dates(self, added: tuple[Date, ...], left_out: tuple[Date, ...], start: Date | None) -> None:
        every = added + left_out
        if len(every) > MAX_DATES:
            self.refuse(f"at most {MAX_DATES} dates in RDATE and EXDATE, not {len(every)}")
        if any(each.whole_day and each.zone for each in every):
            self.refuse("dates without TZID, or with a time of day")
        if any(each.whole_day for each in added) and not (start and start.whole_day):
            self.refuse("an RDATE with a time of day", "a date alone goes with a DTSTART that is one")

    def _date(self, value: str, name: str) -> Date:
        zone = next((param[5:] for param in name.split(";")[1:] if param[:5].upper() == "TZID="), None)
        found = self._date_time(value.upper())
        if found.tzinfo is not None and zone is not None:
            self.refuse(f"{name.upper().partition(';')[0]} with a zone or with Z, not with both")
        return Date(found, zone, whole_day=len(value) == 8)

    def _date_time(self, value: str) -> datetime:
        """``20260131T090000``, with Z for UTC; a date alone is its midnight."""
        match = re.fullmatch(r"(\d{8})(?:T(\d{6}))?(Z?)", value, re.ASCII)
        if match:
            with suppress(ValueError):
                instant = datetime.strptime(match[1] + (match[2] or "000000"), "%Y%m%d%H%M%S")  # noqa: DTZ007
                return instant.replace(tzinfo=UTC) if match[3] else instant
        raise InvalidEntry("schedule", "a date and time such as 20260131T090000", f"{value} in {self.text}")

    def _parts(self, rule: str) -> tuple[Parts, datetime | None]:
        """The parts of a rule, and its UNTIL if that is an instant."""
        self._split(rule)
        freq = self.given.get("FREQ", "")
        if freq not in FREQUENCIES:
            self.refuse(f"FREQ of {', '.join(FREQUENCIES)}", meant(freq, FREQUENCIES))
        self._check(freq)
        until = self._date_time(self.given["UNTIL"]) if "UNTIL" in self.given else None
        local = until if until is not None and until.tzinfo is None else None
        parts = Parts(
            freq,
            interval=self._positive("INTERVAL", 100_000_000) or 1,
            count=self._positive("COUNT", MAX_COUNT),
            until=local,
            wkst=self._weekday(self.given.get("WKST", "MO")),
            byday=self._by_day(freq),
            **{name.lower(): self._numbers(name) for name in _BOUNDS},
        )
        return parts, None if local is not None else until

    def _split(self, rule: str) -> None:
        for part in rule.strip(";").split(";"):
            name, _, value = part.partition("=")
            if name not in _NAMES or not value:
                self.refuse(f"parts NAME=value, not {part!r}", _near(name, value))
            if name in self.given:
                self.refuse(f"{name} once")
            self.given[name] = value

    def _check(self, freq: str) -> None:
        if "COUNT" in self.given and "UNTIL" in self.given:
            self.refuse("COUNT or UNTIL, not both")
        for name, frequencies in _NOT_IN.items():
            if name in self.given and freq in frequencies:
                self.refuse(f"no {name} in a {freq} rule", "see RFC 5545, 3.3.10")
        if "BYSETPOS" in self.given and not any(name[:2] == "BY" and name != "BYSETPOS" for name in self.given):
            self.refuse("BYSETPOS together with another BY part")

    def _by_day(self, freq: str) -> frozenset[tuple[int, int]]:
        found = set()
        for part in self.given["BYDAY"].split(",") if "BYDAY" in self.given else ():
            match = re.fullmatch(r"([+-]?\d{1,2})?([A-Z]{2})", part, re.ASCII)
            nth = int(match[1] or 0) if match else 0
            if match is None or abs(nth) > 53 or (match[1] and nth == 0):
                self.refuse(f"BYDAY of {', '.join(WEEKDAYS)}, each with a number before it or none")
            if nth and (freq not in ("YEARLY", "MONTHLY") or "BYWEEKNO" in self.given):
                self.refuse(f"{part} only in MONTHLY rules, or YEARLY ones without BYWEEKNO")
            found.add((self._weekday(match[2]), nth))
        return frozenset(found)

    def _weekday(self, text: str) -> int:
        if text not in WEEKDAYS:
            self.refuse(f"a weekday of {', '.join(WEEKDAYS)}, not {text!r}")
        return WEEKDAYS.index(text)

    def _numbers(self, name: str) -> Any:
        if name not in self.given:
            return frozenset()
        low, high, negative = _BOUNDS[name]
        found = set()
        for part in self.given[name].split(","):
            number = int(part) if re.fullmatch(r"[+-]?\d{1,4}", part, re.ASCII) else None
            if number is None or not low <= (abs(number) if negative else number) <= high:
                also = f" or -{high} to -{low}" if negative else ""
                self.refuse(f"{name} of {low} to {high}{also}")
            found.add(number)
        return frozenset(found)

    def _positive(self, name: str, most: int) -> int | None:
        if name not in self.given:
            return None
        text = self.given[name]
        if not re.fullmatch(r"\d{1,9}", text, re.ASCII) or not 1 <= int(text) <= most:
            hint = "use max_runs" if name == "COUNT" else None
            self.refuse(f"{name} of 1 to {most:,}", hint)
        return int(text)

    def refuse(self, expected: str, hint: str | None = None) -> NoReturn:
        raise InvalidEntry("schedule", f"a recurrence with {expected}", self.text, hint=hint)


def _near(name: str, value: str) -> str | None:
    if name in FREQUENCIES:
        return f"did you mean FREQ={name}?"
    if not value:
        return 'for example "FREQ=DAILY;BYHOUR=9"'
    return meant(name, _NAMES)

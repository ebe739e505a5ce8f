"""Reading the text of an RFC 5545 recurrence."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, NoReturn

from ..errors import InvalidEntry
from .recurrence import FREQUENCIES, Parts

WEEKDAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
#: Counting further than this is done by the entry's max_runs, which needs no look ahead.
MAX_COUNT = 10_000
_MAX_LENGTH = 500
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


@dataclass(frozen=True)
class RuleText:
    """A recurrence as text: its parts, and the start if the text has one (naive where it is local time)."""

    parts: Parts
    start: datetime | None
    zone: str | None
    #: UNTIL given in UTC, as RFC 5545 wants it where there is a zone; a local one is in the parts.
    until: datetime | None


@lru_cache(maxsize=1024)
def parse(text: str) -> RuleText:
    """The recurrence of ``FREQ=…;…``, or of the lines ``DTSTART:…`` and ``RRULE:…``.

    Raises:
        InvalidEntry: anything RFC 5545 does not allow, and sets of several rules or dates.
    """
    if len(text) > _MAX_LENGTH:
        raise InvalidEntry("schedule", f"a recurrence of at most {_MAX_LENGTH} characters", text)
    start, zone, rule = None, None, None
    for line in text.upper().split():
        name, colon, value = line.rpartition(":")
        if name in ("", "RRULE") and rule is None and bool(colon) == bool(name):
            rule = value
        elif name.partition(";")[0] == "DTSTART" and start is None:
            # Names of zones, unlike everything else, have upper and lower case.
            original = text[text.upper().index(name) :][: len(name)]
            start, zone = _start(value, original, text)
        else:
            hint = "an EXDATE or a second rule is another entry, or a condition in the task"
            raise InvalidEntry("schedule", "one DTSTART and one RRULE", line, hint=hint)
    if not rule:
        _refuse(text, "an RRULE", None)
    return _Reader(text, rule).read(start, zone)


def _start(value: str, name: str, text: str) -> tuple[datetime, str | None]:
    params = name.split(";")[1:]
    zone = next((param[5:] for param in params if param[:5].upper() == "TZID="), None)
    instant = _date_time(value, text)
    if instant.tzinfo is not None and zone is not None:
        _refuse(text, "a DTSTART with a zone or with Z, not with both", None)
    return instant, zone


def _date_time(value: str, text: str) -> datetime:
    """``20260131T090000``, with Z for UTC; a date alone is its midnight."""
    match = re.fullmatch(r"(\d{8})(?:T(\d{6}))?(Z?)", value, re.ASCII)
    if match:
        try:
            instant = datetime.strptime(match[1] + (match[2] or "000000"), "%Y%m%d%H%M%S")  # noqa: DTZ007
            return instant.replace(tzinfo=UTC) if match[3] else instant
        except ValueError:
            pass
    raise InvalidEntry("schedule", "a date and time such as 20260131T090000", f"{value} in {text}")


class _Reader:
    """Reads the parts of one rule, whose text it shows in its errors."""

    def __init__(self, text: str, rule: str) -> None:
        self.text = text
        self.given = self._split(rule)

    def read(self, start: datetime | None, zone: str | None) -> RuleText:
        freq = self.given.get("FREQ", "")
        if freq not in FREQUENCIES:
            near = get_close_matches(freq, FREQUENCIES, n=1)
            self.refuse(f"FREQ of {', '.join(FREQUENCIES)}", f"did you mean {near[0]}?" if near else None)
        self._check(freq)
        until = _date_time(self.given["UNTIL"], self.text) if "UNTIL" in self.given else None
        local = until if until is not None and until.tzinfo is None else None
        parts = Parts(
            freq,
            interval=self._positive("INTERVAL", 100_000_000) or 1,
            count=self._positive("COUNT", MAX_COUNT),
            until=local,
            wkst=self._weekday(self.given["WKST"]) if "WKST" in self.given else 0,
            byday=self._by_day(freq),
            **{name.lower(): self._numbers(name) for name in _BOUNDS},
        )
        return RuleText(parts, start, zone, None if local is not None else until)

    def _split(self, rule: str) -> dict[str, str]:
        given: dict[str, str] = {}
        for part in rule.strip(";").split(";"):
            name, _, value = part.partition("=")
            if name not in _NAMES or not value:
                self.refuse(f"parts NAME=value, not {part!r}", _near(name))
            if name in given:
                self.refuse(f"{name} once", None)
            given[name] = value
        return given

    def _check(self, freq: str) -> None:
        if "COUNT" in self.given and "UNTIL" in self.given:
            self.refuse("COUNT or UNTIL, not both", None)
        for name, frequencies in _NOT_IN.items():
            if name in self.given and freq in frequencies:
                self.refuse(f"no {name} in a {freq} rule", "see RFC 5545, 3.3.10")
        if "BYSETPOS" in self.given and not any(name[:2] == "BY" and name != "BYSETPOS" for name in self.given):
            self.refuse("BYSETPOS together with another BY part", None)

    def _by_day(self, freq: str) -> tuple[tuple[int, int], ...]:
        found = set()
        for part in self.given["BYDAY"].split(",") if "BYDAY" in self.given else ():
            match = re.fullmatch(r"([+-]?\d{1,2})?([A-Z]{2})", part, re.ASCII)
            nth = int(match[1] or 0) if match else 0
            if match is None or abs(nth) > 53 or (match[1] and nth == 0):
                self.refuse(f"BYDAY of {', '.join(WEEKDAYS)}, each with a number before it or none", None)
            if nth and (freq not in ("YEARLY", "MONTHLY") or "BYWEEKNO" in self.given):
                self.refuse(f"{part} only in MONTHLY rules, or YEARLY ones without BYWEEKNO", None)
            found.add((self._weekday(match[2]), nth))
        return tuple(sorted(found))

    def _weekday(self, text: str) -> int:
        if text not in WEEKDAYS:
            self.refuse(f"a weekday of {', '.join(WEEKDAYS)}, not {text!r}", None)
        return WEEKDAYS.index(text)

    def _numbers(self, name: str) -> Any:
        if name not in self.given:
            return ()
        low, high, negative = _BOUNDS[name]
        found = set()
        for part in self.given[name].split(","):
            number = int(part) if re.fullmatch(r"[+-]?\d{1,4}", part, re.ASCII) else None
            if number is None or not low <= (abs(number) if negative else number) <= high:
                also = f" or -{high} to -{low}" if negative else ""
                self.refuse(f"{name} of {low} to {high}{also}", None)
            found.add(number)
        return tuple(sorted(found))

    def _positive(self, name: str, most: int) -> int | None:
        if name not in self.given:
            return None
        text = self.given[name]
        if not re.fullmatch(r"\d{1,9}", text, re.ASCII) or not 1 <= int(text) <= most:
            hint = "use max_runs" if name == "COUNT" else None
            self.refuse(f"{name} of 1 to {most:,}", hint)
        return int(text)

    def refuse(self, expected: str, hint: str | None) -> NoReturn:
        _refuse(self.text, expected, hint)


def _near(name: str) -> str | None:
    if name in FREQUENCIES:
        return f"did you mean FREQ={name}?"
    near = get_close_matches(name, _NAMES, n=1)
    return f"did you mean {near[0]}?" if near else None


def _refuse(text: str, expected: str, hint: str | None) -> NoReturn:
    raise InvalidEntry("schedule", f"a recurrence with {expected}", text, hint=hint)

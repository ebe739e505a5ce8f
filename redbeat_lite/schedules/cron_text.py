"""Reading a cron expression: five or six fields of text to the numbers they name.

croniter parses: what its dialect accepts is accepted here, but for years and what is drawn by lot. Where it takes a
range for something else than most crons do, it is not given the range: ``5-5`` is one value, where croniter has the
whole cycle, and a step keeps its stride where a range wraps (``50-10/20`` is 50 and 10). Whole names (``monday``),
``5L`` and ``5,6#3`` are taken too. The page about time has the table.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn

from croniter import CroniterError, croniter

from ..durations import seconds_of
from ..errors import InvalidEntry, meant
from .wall_times import Days, WallTimes

MONTHS = [
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
]
WEEKDAYS = ["sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday"]
ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_NAMES = {name[:3] for name in MONTHS + WEEKDAYS}
#: Longer text is no rule that a person wrote.
MAX_LENGTH = 500


@dataclass(frozen=True)
class Field:
    """One column of an expression: its place for croniter, its bounds, and the words it knows."""

    name: str
    column: int
    low: int
    high: int
    words: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        return self.high - self.low + 1


SECOND = Field("seconds", 5, 0, 59)
MINUTE = Field("minutes", 0, 0, 59)
HOUR = Field("hours", 1, 0, 23)
DAY = Field("day of month", 2, 1, 31)
MONTH = Field("month", 3, 1, 12, tuple(MONTHS))
WEEKDAY = Field("day of week", 4, 0, 6, tuple(WEEKDAYS))


class Item(NamedTuple):
    """One part of a comma list, expanded."""

    values: tuple[int, ...]
    step: int


@lru_cache(maxsize=2048)
def parse(expression: str, seconds: str = "last", written: str | None = None) -> WallTimes:
    """The wall-clock times that an expression names.

    Parameters:
        expression: five fields (minute, hour, day of month, month, day of week), six with seconds, or ``@daily``
            and its like.
        seconds: whether the seconds are the ``"first"`` or the ``"last"`` of six fields.
        written: what the expression was before each ``H`` was resolved; errors show it.

    Raises:
        InvalidEntry: the expression is malformed, or matches no day at all.
    """
    texts = split(expression, seconds)
    parser = Parser(written or expression)
    second, minute, hour, day, month, weekday = texts
    times = WallTimes(
        # In the order in which people write and read them: the first that is wrong is the one to name.
        minutes=parser.numbers(minute, MINUTE),
        hours=parser.numbers(hour, HOUR),
        seconds=parser.numbers(second, SECOND),
        days=Days(
            months=parser.numbers(month, MONTH),
            either=_restricted(day) and _restricted(weekday),
            **parser.days(day),
            **parser.weekdays(weekday),
        ),
        running=runs_every_hour(parser.items(hour, HOUR)),
    )
    if times.next_wall(datetime(2000, 1, 1)) is None:  # as of 30 February
        hint = "to run by hand only, write manual()"
        raise InvalidEntry("schedule", "an expression that matches some day", parser.expression, hint=hint)
    return times


def runs_every_hour(items: list[Item]) -> bool:
    """Whether an hour field runs through real hours: it means all 24, or steps over more than one hour."""
    if len({hour for item in items for hour in item.values}) == HOUR.size:
        return True
    return any(item.step > 1 and len(item.values) > 1 for item in items)


def split(expression: str, seconds: str) -> list[str]:
    """The fields in lower case, seconds first: ``"0"`` where an expression has none.

    Raises InvalidEntry if there are not as many as there should be.
    """
    if seconds not in ("first", "last"):
        raise InvalidEntry("seconds", '"first" or "last"', seconds)
    if len(expression) > MAX_LENGTH:
        raise InvalidEntry("schedule", f"a cron expression of at most {MAX_LENGTH} characters", expression)
    lowered = expression.strip().lower()
    if lowered.startswith("@"):
        lowered = _alias(lowered, expression)
    texts = lowered.split()
    if len(texts) == 5:
        return ["0", *texts]
    if len(texts) == 6:
        return texts if seconds == "first" else [texts[5], *texts[:5]]
    hint = "there is no field for the year: use end_at or at(...)" if len(texts) == 7 else _example(texts)
    raise InvalidEntry("schedule", "a cron expression of five or six fields", expression, hint=hint)


def _alias(lowered: str, expression: str) -> str:
    if lowered in ALIASES:
        return ALIASES[lowered]
    if lowered.startswith("@every"):
        hint: str | None = _as_interval(lowered.removeprefix("@every"))
    elif lowered == "@reboot":
        hint = "a schedule has no start of its own: send the task when your program starts"
    else:
        hint = meant(lowered, ALIASES) or f"there are {', '.join(ALIASES)}"
    raise InvalidEntry("schedule", "a cron expression", expression, hint=hint)


def _example(texts: list[str]) -> str:
    text = " ".join(texts)
    if f"@{text}" in ALIASES:
        return f"did you mean @{text}?"
    if 0 < len(texts) < 5 and all(re.fullmatch(r"[\d*/,?-]+", each, re.ASCII) for each in texts):
        with suppress(InvalidEntry):
            parse(whole := " ".join(texts + ["*"] * (5 - len(texts))))
            return f"did you mean {whole!r}?"
    is_length = seconds_of(text) or re.search(r"\d ?(?:[smhdw]|ms|(?:sec|min|hour|day|week)[a-z]*)\b", text)
    return _as_interval(text) if is_length else 'for example "0 3 * * *"'


def _as_interval(text: str) -> str:
    return f'write every("{text.strip()}")' if seconds_of(text) else 'an interval is written every("5m")'


def _restricted(text: str) -> bool:
    return text not in ("*", "?", "*/1")


class Parser:
    """Reads the fields of one expression, which it names in its errors."""

    def __init__(self, expression: str) -> None:
        self.expression = expression

    def numbers(self, text: str, field: Field) -> tuple[int, ...]:
        return tuple(sorted({value for item in self.items(text, field) for value in item.values}))

    def items(self, text: str, field: Field) -> list[Item]:
        return [self.item(part, field) for part in text.split(",")]

    def days(self, text: str) -> dict[str, Any]:
        """The day-of-month field: numbers, ``L`` for the last day, ``15W`` for the weekday nearest to the 15th."""
        if nearest := re.fullmatch(r"(\d{1,2})w|w(\d{1,2})", text, re.ASCII):
            return {"nearest_weekday": self.number(nearest[1] or nearest[2], DAY)}
        parts = ["*" if text == "?" else part for part in text.split(",")]
        if any(part in ("lw", "wl") for part in parts):
            last = "FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1"
            self.refuse(DAY, text, f'the last weekday of the month is rrule("{last};BYHOUR=...")')
        if before := next(filter(None, (re.fullmatch(r"l-(\d{1,2})", part, re.ASCII) for part in parts)), None):
            day = f"FREQ=MONTHLY;BYMONTHDAY=-{int(before[1]) + 1}"
            self.refuse(DAY, text, f'{before[1]} days before the last one is rrule("{day};BYHOUR=...")')
        if "w" in text:
            self.refuse(DAY, text, "W stands alone, with one day: 15W")
        plain = [re.sub(r"-l(?=/|$)", "-31", part) for part in parts if part != "l"]
        numbers = {value for part in plain for value in self.item(part, DAY).values}
        return {"month_days": tuple(sorted(numbers)), "last_day": "l" in parts}

    def weekdays(self, text: str) -> dict[str, Any]:
        """The day-of-week field: 0 to 7 or names, ``fri#2`` for the second Friday, ``L5`` or ``5L`` for the last."""
        plain: set[int] = set()
        nth: set[tuple[int, int]] = set()
        for part in ["*"] if text == "?" else text.split(","):
            if last := re.fullmatch(r"l([0-7]|[a-z]{3,9})|([0-7]|[a-z]{3,9})l", part):
                nth.add((self.number(last[1] or last[2], WEEKDAY), -1))
            elif "#" in part:
                days, _, count = part.partition("#")
                if not re.fullmatch("[1-5]", count):
                    self.refuse(WEEKDAY, part, "the number after # is 1 to 5")
                nth.update((day, int(count)) for day in self.item(days, WEEKDAY).values)
            else:
                plain.update(self.item(part, WEEKDAY).values)
        return {"weekdays": tuple(sorted(plain)), "nth_weekdays": tuple(sorted(nth))}

    def item(self, part: str, field: Field) -> Item:
        """``*``, ``5``, ``1-5``, ``22-4`` (which wraps), each with an optional ``/step``; ``5/15`` runs to the end."""
        spec, slash, stride = part.partition("/")
        low, dash, high = spec.partition("-")
        step = int(stride) if re.fullmatch(r"\d+", stride, re.ASCII) else 1
        if stride and not dash and spec != "*":
            high, dash = str(field.high), "-"
        if dash:
            first, last = self.end(low, part, field), self.end(high, part, field)
            if field is WEEKDAY and first == 7:
                first, last = 0, last % 7
            self.values(f"*{slash}{stride}", part, field)  # so that a step is refused here as it is elsewhere
            return Item(_ranging(first, last, step, field), step)
        return Item(self.values(part, part, field), step)

    def end(self, text: str, part: str, field: Field) -> int:
        """The number of one end of a range. Sunday may close one as 7: ``5-7`` is Friday to Sunday."""
        if field is WEEKDAY and text.isdecimal() and int(text) == 7:
            return 7
        found = self.values(text, part, field)
        if "-" in text or len(found) != 1:
            self.refuse(field, part, _hint(part, field))
        return found[0]

    def number(self, text: str, field: Field) -> int:
        """One number, or a name."""
        return self.end(text, text, field) % (7 if field is WEEKDAY else 60)

    def values(self, text: str, part: str, field: Field) -> tuple[int, ...]:
        """What croniter makes of a part of a field; ``part`` is how it was written."""
        found = _expanded(_shortened(text, field), field.column)
        if found is None:
            self.refuse(field, part, _hint(part, field))
        return tuple(range(field.low, field.high + 1)) if found == ("*",) else found

    def refuse(self, field: Field, text: str, hint: str | None = None) -> NoReturn:
        wanted = f"{field.low} to {7 if field is WEEKDAY else field.high}{_words(field)}"
        place = f'in "{self.expression}"'
        raise InvalidEntry("schedule", f"{field.name} of {wanted}", text, hint=f"{place}; {hint}" if hint else place)


@lru_cache(maxsize=4096)
def _expanded(text: str, column: int) -> tuple[Any, ...] | None:
    """The values that croniter finds in one column; ``None`` if it refuses the text."""
    if not re.fullmatch(r"[a-z\d*/-]+", text, re.ASCII):
        return None
    # croniter would pick a random value for h and r. It drops an l beside a number, and from 6.2 on
    # a w, so that 1-15w would be 1-15.
    if not _NAMES.issuperset(re.findall("[a-z]+", text)):
        return None
    columns = ["*"] * max(column + 1, 5)
    columns[column] = text
    try:
        return tuple(croniter.expand(" ".join(columns))[0][column])
    except CroniterError:
        return None


def _ranging(first: int, last: int, step: int, field: Field) -> tuple[int, ...]:
    places = range(first - field.low, last - field.low + 1 + (field.size if first > last else 0), step)
    return tuple(sorted({field.low + place % field.size for place in places}))


def _shortened(text: str, field: Field) -> str:
    """With the first three letters of each name, all that croniter knows."""
    return re.sub("[a-z]{4,}", lambda found: found[0][:3] if found[0] in field.words else found[0], text)


def _words(field: Field) -> str:
    return f" or {field.words[0][:3]} to {field.words[-1][:3]}" if field.words else ""


def _hint(text: str, field: Field) -> str | None:
    if re.match(r"-\d", text):
        return "there are no negative values"
    if "/" in text and not re.fullmatch(r"0*[1-9]\d*", text.partition("/")[2], re.ASCII):
        return "a step is a number from 1 on"
    if re.search(r"(?<![a-z])[lw](?![a-z])", text):
        return "write L or 15W as the day of month, L5 or 5L as the day of week, without a range or a step"
    if re.match(r"r(\W|$)", text):
        return "R would be another time in each process; H in its place goes by the entry's name"
    known = [*field.words, *(word[:3] for word in field.words)]
    return meant(next((word for word in re.findall("[a-z]+", text) if word not in known), text), known)

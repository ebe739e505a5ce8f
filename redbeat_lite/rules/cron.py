"""Cron expressions as schedules.

The dialect is croniter's, without a field for the year, and without random values. Two kinds of
ranges have the meaning of most crons instead of croniter's. ``5-5`` is one value and not the whole
cycle. A step keeps its stride if a range wraps, so ``50-10/20`` is 50 and 10. Whole names
(``monday``), ``5L`` and ``5,6#3`` are accepted too. The page about time has the table.

``H`` is a value that the name of the entry decides, as the name of a job does in Jenkins. ``H`` is
one value of its field, ``H(0-5)`` is one value of a range, which may wrap, and ``H/15`` and
``H(0-29)/10`` are every so many values from a first one on. A day of the month without a range is
one that every month has.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, tzinfo
from functools import cached_property, lru_cache
from typing import Any, Literal, NoReturn

from celery.schedules import BaseSchedule
from croniter import croniter

from .._base.errors import InvalidEntry
from .._base.public import public
from .._base.text import nearest_hint
from .._base.times import seconds_of
from .clock_changes import CountedRule, Days, WallTimes
from .rule import SpreadSchedule, draw
from .zones import portable, zone_of

MONTHS = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
WEEKDAYS = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")
ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
#: Maximum number of characters of an expression. A person writes no longer one.
MAX_LENGTH = 500
#: A value or ``*``, with the end of a range and a step.
_ITEM = re.compile(r"(\*|[a-z\d]+)(?:-([a-z\d]+))?(?:/(\d+))?", re.ASCII)
#: H with a range and a step.
_H_ITEM = re.compile(r"h(?:\((\w+)-(\w+)\))?(?:/(\d+))?", re.ASCII)
_HAS_H = re.compile(r"(^|[\s,])h", re.IGNORECASE)
#: Year in which the days that a rule matches are counted. It has 365 days.
_SAMPLE_YEAR = 2027
#: Hint for two forms of other crons: the last weekday, and some days before the last one.
_AS_RECURRENCE = (
    'LW is rrule("FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1;BYHOUR=..."), '
    'L-3 is rrule("FREQ=MONTHLY;BYMONTHDAY=-4;BYHOUR=...")'
)


@public
def cron(
    expression: str,
    *,
    tz: str | tzinfo | None = None,
    seconds: Literal["first", "last"] = "last",
) -> Cron:
    """Run when the clock on the wall matches.

    Five fields: minute, hour, day of month, month, day of week; a sixth holds seconds. Numbers,
    names (``jan``, ``fri``), ranges (which wrap: ``22-4``, ``fri-mon``), steps, lists, ``L`` (the
    last day of the month), ``15W`` (the weekday nearest to the 15th), ``fri#2`` (the second
    Friday), ``L5`` (the last Friday), ``@daily`` and its like. When both days are restricted,
    either is enough.

    ``H`` is one value of its field, which the name of the entry decides: ``H H(0-5) * * *`` is once
    each night, at a minute that few other entries have; ``H/15`` is every fifteen minutes.

    A *fixed* hour (``2``, ``1-5``) runs once per local day across clock changes, a *running* one
    (``*``, ``*/2``) in every real hour. See `redbeat_lite.rules.clock_changes`.

    Parameters:
        tz: the zone of the wall: an IANA name, an offset, or a ZoneInfo; default: the Celery app's.
        seconds: the place of the seconds among six fields; croniter's ``second_at_beginning`` is
            ``"first"``.

    Raises:
        InvalidEntry: the expression is malformed or never matches, or the zone is unknown here.
    """
    return Cron(expression, tz=tz, seconds=seconds)


class Cron(SpreadSchedule):
    """The schedule that `cron` makes."""

    def __init__(
        self,
        expression: str,
        *,
        tz: str | tzinfo | None = None,
        seconds: Literal["first", "last"] = "last",
    ) -> None:
        if not isinstance(expression, str):
            hint = 'for example "0 3 * * *"'
            raise InvalidEntry("schedule", "a cron expression as text", expression, hint=hint)
        self.expression = " ".join(expression.split())
        self.seconds = seconds
        self.spread = _HAS_H.search(self.expression) is not None
        self.resolved = None if self.spread else self.expression
        # Parse with every value that H can have, so that an error in another field is found now.
        checked = self.resolved or resolve(self.expression, seconds, None)
        parse(checked, seconds, self.expression)
        self.zone = None if tz is None else zone_of(tz)
        super().__init__()

    @property
    def times(self) -> WallTimes:
        return parse(self._require_resolved(), self.seconds, self.expression)

    def in_zone(self, zone: tzinfo) -> CountedRule:
        return CountedRule(self.times, self.zone or portable(zone))

    def _resolve(self, name: str) -> str:
        return resolve(self.expression, self.seconds, name)

    def __repr__(self) -> str:
        arguments = [repr(self.expression)]
        if self.zone is not None:
            arguments.append(f"tz={self.tz_name!r}")
        if self.seconds != "last":
            arguments.append(f"seconds={self.seconds!r}")
        return f"cron({', '.join(arguments)})"


@dataclass(frozen=True)
class Field:
    """One column of an expression: its bounds, and the names of its values.

    An error of a field shows the wrong part; `_shown_in` adds the expression.
    """

    name: str
    column: int
    low: int
    high: int
    words: tuple[str, ...] = ()

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Numbers by name, whole or its first three letters."""
        numbers = {word: self.low + index for index, word in enumerate(self.words)}
        return numbers | {word[:3]: number for word, number in numbers.items()}

    def cycle(self, first: int, last: int) -> list[int]:
        """Return the values from ``first`` to ``last``, also beyond the end of the field."""
        size = self.high - self.low + 1
        if first > last:
            last += size
        return [self.low + (value - self.low) % size for value in range(first, last + 1)]

    def values(self, text: str) -> tuple[int, ...]:
        """Return the values of a comma list in ascending order."""
        return tuple(sorted({value for item in text.split(",") for value in self.item(item)}))

    def item(self, item: str) -> Iterable[int]:
        """Expand ``*``, ``5``, ``1-5`` or ``22-4`` (which wraps), each with or without ``/step``.

        ``5/15`` goes on to the end of the field.
        """
        match = _ITEM.fullmatch(item)
        step = int(match[3] or 1) if match else 0
        if match is None or step == 0 or (match[1] == "*" and match[2]):
            self.refuse(item, _hint(item, self))
        first = self.low
        last = self.high
        if match[1] != "*":
            first = self.number(match[1], item)
            if match[2] or not match[3]:
                last = self.number(match[2] or match[1], item)
        # A range from Sunday as 7, such as 7-2, begins at 0.
        if self is WEEKDAY and first == 7:
            first = 0
            last %= 7
        # croniter reads 5-5 as the whole cycle, and gives a range that wraps a new stride.
        if first >= last:
            return self.cycle(first, last)[::step]
        # Let croniter expand it as minutes, which may have the values of every field. It answers
        # "*" for all 60.
        values: list[Any] = croniter.expand(f"{first}-{last}/{step} * * * *")[0][0]
        return range(60) if values == ["*"] else values

    def number(self, text: str, part: str) -> int:
        """Return the number of a value. Sunday may be 7, so that ``5-7`` is Friday to Sunday."""
        outside = -1  # no field has this number, so it is refused below
        number = int(text) if text.isdecimal() else self.numbers.get(text, outside)
        highest = 7 if self is WEEKDAY else self.high
        if not self.low <= number <= highest:
            self.refuse(part, _hint(part, self))
        return number

    def refuse(self, part: str, hint: str | None) -> NoReturn:
        expected = f"{self.name} of {self.low} to {7 if self is WEEKDAY else self.high}"
        if self.words:
            expected += f" or {self.words[0][:3]} to {self.words[-1][:3]}"
        raise InvalidEntry("schedule", expected, part, hint=hint)


SECOND = Field("seconds", 5, 0, 59)
MINUTE = Field("minutes", 0, 0, 59)
HOUR = Field("hours", 1, 0, 23)
DAY = Field("day of month", 2, 1, 31)
MONTH = Field("month", 3, 1, 12, MONTHS)
WEEKDAY = Field("day of week", 4, 0, 6, WEEKDAYS)
_FIELDS = (SECOND, MINUTE, HOUR, DAY, MONTH, WEEKDAY)


@contextmanager
def _shown_in(expression: str) -> Iterator[None]:
    """Add the whole expression to the error of a field."""
    try:
        yield
    except InvalidEntry as exc:
        hint = "; ".join(filter(None, (f'in "{expression}"', exc.hint)))
        raise InvalidEntry(exc.field, exc.expected, exc.value, hint=hint) from None


@lru_cache(maxsize=2048)
def parse(expression: str, seconds: str = "last", written: str | None = None) -> WallTimes:
    """Return the wall-clock times that an expression names.

    Parameters:
        expression: five fields (minute, hour, day of month, month, day of week), six with seconds,
            or ``@daily`` and its like, without ``H``.
        seconds: the place of the seconds among six fields, ``"first"`` or ``"last"``.
        written: the expression with ``H``, which errors show.

    Raises:
        InvalidEntry: the expression is malformed, or matches no day at all.
    """
    shown = written or expression
    second, minute, hour, day, month, weekday = split(expression, seconds)
    with _shown_in(shown):
        times = WallTimes(
            # People read the minutes first, so errors name the first wrong field in this order.
            minutes=MINUTE.values(minute),
            hours=HOUR.values(hour),
            seconds=SECOND.values(second),
            days=_days(day, month, weekday),
            running=goes_by_hours(hour, HOUR.values),
        )
    if times.next_wall(datetime(2000, 1, 1)) is None:  # such as 30 February
        expected = "an expression that matches some day"
        hint = "to run by hand only, write manual()"
        raise InvalidEntry("schedule", expected, shown, hint=hint)
    return times


def goes_by_hours(text: str, values: Callable[[str], Collection[int]]) -> bool:
    """Return whether an hour field is an interval, and not a list of fixed hours.

    All 24 hours are an interval, and so is a step that names more than one hour: ``*/6``, but not
    ``20/6``. At a clock change, an interval follows the hours that pass; a fixed hour runs once.

    Parameters:
        values: returns the hours of a field, or of one item of it.
    """
    if len(values(text)) == 24:
        return True
    steps = [item for item in text.split(",") if int(item.partition("/")[2] or 1) > 1]
    return any(len(values(item)) > 1 for item in steps)


def split(expression: str, seconds: str) -> list[str]:
    """Return the six fields in lower case, seconds first: ``"0"`` if an expression has none.

    Raises InvalidEntry if there are not five or six.
    """
    if seconds not in ("first", "last"):
        raise InvalidEntry("seconds", '"first" or "last"', seconds)
    if len(expression) > MAX_LENGTH:
        expected = f"a cron expression of at most {MAX_LENGTH} characters"
        raise InvalidEntry("schedule", expected, expression)
    lowered = expression.strip().lower()
    texts = ALIASES.get(lowered, lowered).split()
    if len(texts) == 5:
        return ["0", *texts]
    if len(texts) != 6:
        expected = "a cron expression of five or six fields"
        raise InvalidEntry("schedule", expected, expression, hint=_length_hint(lowered))
    return texts if seconds == "first" else [texts[5], *texts[:5]]


def _length_hint(text: str) -> str:
    """Return what to write instead of an expression with too few or too many fields."""
    interval = text.removeprefix("@every").strip()
    if seconds_of(interval):
        return f'write every("{interval}")'
    if "every" in text:
        return 'an interval is written every("5m")'
    if len(text.split()) == 7:
        return "there is no field for the year: use end_at or at(...)"
    near = nearest_hint(f"@{text.removeprefix('@')}", ALIASES)
    return near or f'for example "0 3 * * *"; the short forms are {", ".join(ALIASES)}'


def _days(day: str, month: str, weekday: str) -> Days:
    """Return the days that the three day fields of an expression choose."""
    nearest = re.fullmatch(r"(\d{1,2})w|w(\d{1,2})", day, re.ASCII)
    nearest_weekday = 0
    if nearest:
        number = nearest[1] or nearest[2]
        nearest_weekday = DAY.number(number, number)
    return Days(
        MONTH.values(month),
        month_days=() if nearest else _month_days(day),
        nearest_weekday=nearest_weekday,
        weekdays=_weekdays(weekday),
        either=_is_restricted(day) and _is_restricted(weekday),
    )


def _month_days(text: str) -> tuple[int, ...]:
    """Return the numbers of the day-of-month field, in which ``L`` is the last day."""
    parts = ["*" if text == "?" else part for part in text.split(",")]
    # LW and L-3 are known from other crons. The error says how to write them as an rrule.
    if re.search(r"(^|,)(lw|wl|l-\d{1,2})(,|$)", text, re.ASCII):
        DAY.refuse(text, _AS_RECURRENCE)
    if "w" in text:
        DAY.refuse(text, "W stands alone, with one day: 15W")
    # As the end of a range, as in 20-L, the last day is the 31st.
    plain = [re.sub(r"-l(?=/|$)", "-31", part) for part in parts if part != "l"]
    last_day = (-1,) if "l" in parts else ()
    return last_day + (DAY.values(",".join(plain)) if plain else ())


def _weekdays(text: str) -> tuple[tuple[int, int], ...]:
    """Return the day-of-week field as pairs of a weekday and its number in the month.

    The field has 0 to 7 or names, ``fri#2`` for the second Friday, ``L5`` or ``5L`` for the last
    Friday. In a pair, Monday is 0. Number -1 is the last one, and number 0 is every one.
    """
    weekdays: set[tuple[int, int]] = set()
    for part in ["*"] if text == "?" else text.split(","):
        last = re.fullmatch(r"l([0-7]|[a-z]{3,9})|([0-7]|[a-z]{3,9})l", part)
        days, hash_sign, nth = part.partition("#")
        if last:
            days = last[1] or last[2]
            nth = "-1"
        elif hash_sign and not re.fullmatch("[1-5]", nth):
            WEEKDAY.refuse(part, "the number after # is 1 to 5")
        # Sunday is 0 here, and 6 in a pair.
        weekdays.update(((number - 1) % 7, int(nth or 0)) for number in WEEKDAY.item(days))
    return tuple(sorted(weekdays))


def _is_restricted(text: str) -> bool:
    return text not in ("*", "?", "*/1")


def _hint(text: str, field: Field) -> str | None:
    """Return what is wrong with an item of a field, or the name that it may mean."""
    if re.match(r"-\d", text):
        return "there are no negative values"
    if "/" in text and not re.fullmatch(r"0*[1-9]\d*", text.partition("/")[2], re.ASCII):
        return "a step is a number from 1 on"
    if re.search(r"(?<![a-z])[lw](?![a-z])", text):
        last = "write L or 15W as the day of month, L5 or 5L as the day of week"
        return f"{last}, without a range or a step"
    if re.match(r"r(\W|$)", text):
        return "R would be another time in each process; H in its place goes by the entry's name"
    unknown = [word for word in re.findall("[a-z]+", text) if word not in field.numbers]
    return nearest_hint(unknown[0] if unknown else text, field.numbers)


@lru_cache(maxsize=2048)
def resolve(expression: str, seconds: str, name: str | None) -> str:
    """Return a cron expression with a value in place of each ``H``.

    Parameters:
        name: of the entry; None for all values that each ``H`` may have.

    Raises:
        InvalidEntry: an ``H`` is malformed, or there are not five or six fields.
    """
    texts = split(expression, seconds)
    with _shown_in(expression):
        for index, field in enumerate(_FIELDS):
            parts = [_resolve_item(part, field, name) for part in texts[index].split(",")]
            texts[index] = ",".join(parts)
    # split() puts the seconds first. Put the fields back into the order of the expression.
    if len(expression.split()) == 5:
        return " ".join(texts[1:])
    if seconds == "last":
        texts = [*texts[1:], texts[0]]
    return " ".join(texts)


def _resolve_item(part: str, field: Field, name: str | None) -> str:
    """Replace an ``H`` item by the values that the name of the entry draws.

    Parameters:
        name: name of the entry; ``None``: check the item, and allow every value.
    """
    if not part.startswith("h"):
        return part
    match = _H_ITEM.fullmatch(part)
    if match is None:
        field.refuse(part, "H is written H, H/15, H(0-29) or H(0-29)/10")
    first = field.low
    last = 28 if field is DAY else field.high  # no month has fewer days
    if match[1]:
        first = field.number(match[1], part)
        last = field.number(match[2], part)
    # A range of weekdays may name Sunday twice, as 0 and as 7.
    values = list(dict.fromkeys(field.cycle(first, last)))
    # Without a step, H is one of all the values: a step over the whole range leaves one.
    step = min(int(match[3] or len(values)), len(values))
    if step == 0:
        field.refuse(part, "a step is a number from 1 on")
    if name is None:
        step = 1
    else:
        # The name draws the first value, and the step gives those after it. croniter's own digest
        # would draw the same value in all fields.
        values = values[draw(f"{field.column}:{name}", step) :: step]
    return str(values[0]) if len(values) == 1 else f"{values[0]}-{values[-1]}/{step}"


def either_day_words(schedule: BaseSchedule) -> str | None:
    """Return a warning if a cron rule restricts both day fields; else ``None``.

    It says how often the rule runs, and what to write if both fields have to match.
    """
    if not isinstance(schedule, Cron) or not schedule.resolved:
        return None
    days = schedule.times.days
    if not days.either:
        return None
    return (
        f"{schedule.expression!r} restricts day of month and day of week, and runs if either "
        f"matches, on about {len(days.of(_SAMPLE_YEAR))} days a year; to run only if both match, "
        "use Celery's crontab; to run on the first Monday, write 'MON#1'"
    )


def every_second_words(schedule: BaseSchedule) -> str | None:
    """Return a warning if a cron rule runs every second, but its first field looks like seconds."""
    if not isinstance(schedule, Cron) or schedule.seconds == "first":
        return None
    minutes, *others = schedule.expression.split()
    # A rule for every second whose first field is not ``*`` was perhaps written seconds first.
    if len(others) < 5 or others[-1] != "*" or minutes == "*":
        return None
    return (
        f"{schedule.expression!r} runs 60 times in each minute that matches, because its last "
        "field holds the seconds; "
        'if its first field is to hold them, add seconds="first" (--cron-seconds first)'
    )

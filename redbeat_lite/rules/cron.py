"""Cron expressions as schedules.

The dialect is croniter's, without a field for the year, and without random values. Two kinds of
ranges have the meaning of most crons instead of croniter's. ``5-5`` is one value and not the whole
cycle. A step keeps its stride if a range wraps, so ``50-10/20`` is 50 and 10. Whole names
(``monday``), ``5L`` and ``5,6#3`` are accepted too. The page about time has the table.

``H`` is a value that the name of the entry decides, as the name of a job does in Jenkins. ``H`` is
one value of its field, and ``H(0-5)`` is one value of a range, which may wrap. ``H/15`` is
every 15th value of its field, and ``H(0-29)/10`` every 10th value of a range, from a first value on
that the name decides. As day of the month, ``H`` without a range is one of the days 1 to 28, which
every month has.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime, tzinfo
from functools import cached_property, lru_cache
from typing import Any, Literal, NoReturn

from celery.schedules import BaseSchedule
from croniter import croniter

from .._base.errors import InvalidEntry
from .._base.public import public
from .._base.text import nearest_hint
from .clock_changes import CountedRule, Days, WallTimes, dates_of
from .rule import SpreadSchedule, WallSchedule, draw
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
#: Maximum number of characters of an expression. Nobody writes a longer one by hand.
MAX_LENGTH = 500
#: ``*``, or a value with or without the end of a range; a step may follow.
_ITEM = re.compile(r"(?:\*|([a-z\d]+)(?:-([a-z\d]+))?)(?:/0*([1-9]\d*))?", re.ASCII)
#: ``h``, ``h/15``, ``h(0-29)`` or ``h(0-29)/10``.
_H_ITEM = re.compile(r"h(?:\((\w+)-(\w+)\))?(?:/0*([1-9]\d*))?", re.ASCII)
_HAS_H = re.compile(r"(^|[\s,])h", re.IGNORECASE)
#: Texts of a day field that allow every day.
_ANY_DAY = {"*", "?", "*/1"}
#: Year for which a warning counts the days that a rule matches. It has 365 days.
_SAMPLE_YEAR = 2027


@public
class cron(SpreadSchedule, WallSchedule):
    """Run when the clock on the wall matches.

    Five fields: minute, hour, day of month, month, day of week; a sixth holds seconds. Numbers,
    names (``jan``, ``fri``), ranges (which wrap: ``22-4``, ``fri-mon``), steps, lists, ``L`` (the
    last day of the month), ``15W`` (the weekday nearest to the 15th), ``fri#2`` (the second
    Friday), ``L5`` (the last Friday), ``@daily`` and similar names. If day of month and day of week
    are both restricted, it is enough that one of them matches.

    ``H`` is one value of its field, which the name of the entry decides: ``H H(0-5) * * *`` is once
    each night, at a minute that few other entries have; ``H/15`` is every fifteen minutes.

    If the hours are *fixed* (``2``, ``1-5``), each of them runs once per local day, also if a clock
    change skips or repeats it. If they are *running* (``*``, ``*/2``), the rule follows the hours
    that really pass. See `redbeat_lite.rules.clock_changes`.

    Parameters:
        tz: the zone of the wall: an IANA name, an offset, or a ZoneInfo; default: the Celery app's.
        seconds: whether the seconds are the first or the last of six fields; croniter's
            ``second_at_beginning`` is ``"first"``.

    Raises:
        InvalidEntry: the expression is malformed or never matches, or the zone is unknown here.
    """

    fields = (("cron", "expression"), ("tz", "tz_name"), ("seconds", "seconds"))

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
        if seconds not in ("first", "last"):
            raise InvalidEntry("seconds", '"first" or "last"', seconds)
        self.expression = " ".join(expression.split())
        self.seconds = seconds
        self.spread = _HAS_H.search(self.expression) is not None
        # An expression without H needs no name of an entry to be resolved.
        self.resolved = None if self.spread else self.expression
        # This only refuses a wrong expression.
        _check(self.expression, seconds)
        self.zone = None if tz is None else zone_of(tz)
        super().__init__()

    @property
    def times(self) -> WallTimes:
        return parse(self._require_resolved(), self.seconds)

    def in_zone(self, zone: tzinfo) -> CountedRule:
        return CountedRule(self.times, self.zone or portable(zone))

    def _resolve(self, name: str) -> str:
        return resolve(self.expression, self.seconds, name)


@dataclass(frozen=True)
class Field:
    """Field of an expression: its bounds, and the names of its values.

    An error of a field shows the wrong part; `_check` adds the expression.

    Parameters:
        column: number of the field from 0 on, with the seconds last. It is a part of the text that
            decides the value of ``H``, so that a name leads to another value in each field.
        more: notations of this field alone, for the hint of an error.
    """

    name: str
    column: int
    low: int
    high: int
    words: tuple[str, ...] = ()
    more: str = ""

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Name of a value, whole or cut to three letters -> its number."""
        numbers = {}
        for number, word in enumerate(self.words, self.low):
            numbers[word] = number
            numbers[word[:3]] = number
        return numbers

    def cycle(self, first: int, last: int) -> list[int]:
        """Return the values from ``first`` to ``last``; after the highest comes the lowest.

        A Sunday that is written as 7 becomes 0.
        """
        size = self.high - self.low + 1
        if first > last:
            # Let the range end beyond the highest value. The remainder brings the values back.
            last += size
        return [self.low + (value - self.low) % size for value in range(first, last + 1)]

    def values(self, text: str) -> tuple[int, ...]:
        """Return the values of a comma list in ascending order."""
        return tuple(sorted({value for item in text.split(",") for value in self.item(item)}))

    def item(self, item: str) -> list[int]:
        """Expand ``*``, ``5``, ``1-5`` or ``22-4`` (which wraps), each with or without ``/step``.

        ``5/15`` goes on to the end of the field. As the end of a range, Sunday stays 7.
        """
        match = _ITEM.fullmatch(item)
        if match is None:
            self.refuse(item)
        first_text, last_text, step_text = match.groups()
        step = int(step_text or 1)
        first = self.low
        last = self.high
        if first_text:
            first = self.number(first_text, item)
            # ``5`` alone ends at 5, but ``5/15`` goes on to the end of the field.
            if last_text or not step_text:
                last = self.number(last_text or first_text, item)
        # croniter reads 5-5 as the whole cycle. In a range that wraps, as 50-10/20, it starts to
        # count the step again from 0. So these two kinds of ranges are expanded here.
        if first >= last:
            return self.cycle(first, last)[::step]
        # croniter expands every other range. It gets the range in the field of the minutes, whose
        # values 0 to 59 include those of every field. If all 60 match, it answers "*".
        values: list[Any] = croniter.expand(f"{first}-{last}/{step} * * * *")[0][0]
        return [*range(60)] if values == ["*"] else values

    def number(self, text: str, part: str) -> int:
        """Return the number of a value, such as 5 for ``fri``.

        Sunday may be 7, so that ``5-7`` is Friday to Sunday. An error about the value shows
        ``part``, the text that contains it.
        """
        outside = -1  # no field has this number, so it is refused below
        number = int(text) if text.isdecimal() else self.numbers.get(text, outside)
        highest = 7 if self is WEEKDAY else self.high
        if not self.low <= number <= highest:
            self.refuse(part)
        return number

    def refuse(self, part: str) -> NoReturn:
        """Raise the error about a wrong part, with the name that it may mean or what to write."""
        expected = f"{self.name} of {self.low} to {7 if self is WEEKDAY else self.high}"
        if self.words:
            expected += f" or {self.words[0][:3]} to {self.words[-1][:3]}"
        hint: str | None = None
        # A number can only be out of bounds. The error has the bounds already, so it needs no hint.
        if not part.isdecimal():
            unknown = [word for word in re.findall("[a-z]+", part) if word not in self.numbers]
            near = nearest_hint(unknown[0], self.numbers) if unknown else None
            hint = near or f"write *, 5, 1-5, */15, 5/15, H, H/15, H(0-29) or H(0-29)/10{self.more}"
        raise InvalidEntry("schedule", expected, part, hint=hint)


MINUTE = Field("minutes", 0, 0, 59)
HOUR = Field("hours", 1, 0, 23)
DAY = Field(
    "day of month",
    2,
    1,
    31,
    more=', and alone L or 15W; LW is rrule("FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1;'
    'BYHOUR=..."), L-3 is rrule("FREQ=MONTHLY;BYMONTHDAY=-4;BYHOUR=...")',
)
MONTH = Field("month", 3, 1, 12, MONTHS)
WEEKDAY = Field("day of week", 4, 0, 6, WEEKDAYS, ", and alone fri#1 to fri#5, L5, 5L or friL")
SECOND = Field("seconds", 5, 0, 59)


@lru_cache(maxsize=2048)  # thousands of entries share a few expressions
def _check(expression: str, seconds: str) -> None:
    """Raise InvalidEntry if an expression is malformed, or matches no day."""
    if len(expression) > MAX_LENGTH:
        expected = f"a cron expression of at most {MAX_LENGTH} characters"
        raise InvalidEntry("schedule", expected, expression)
    try:
        # The name of the entry is not known here (None), so each H stands for all of its values.
        # This is enough to find the errors of the fields.
        times = parse(resolve(expression, seconds, None), seconds)
    except InvalidEntry as exc:
        if exc.value == expression:  # The error shows the whole expression already.
            raise
        hint = "; ".join(filter(None, (f'in "{expression}"', exc.hint)))
        raise InvalidEntry(exc.field, exc.expected, exc.value, hint=hint) from None
    if times.next_wall(datetime(2000, 1, 1)) is None:  # such as 30 February
        expected = "an expression that matches some day"
        hint = "to run by hand only, write manual()"
        raise InvalidEntry("schedule", expected, expression, hint=hint)


@lru_cache(maxsize=2048)
def parse(expression: str, seconds: str = "last") -> WallTimes:
    """Return the wall-clock times that an expression names.

    Parameters:
        expression: five fields (minute, hour, day of month, month, day of week), six with seconds,
            or a name such as ``@daily``; without ``H``.
        seconds: the place of the seconds among six fields, ``"first"`` or ``"last"``.

    Raises:
        InvalidEntry: the expression is malformed.
    """
    texts = split(expression, seconds)
    hours = texts[HOUR]
    return WallTimes(
        # Read the fields in this order, so that an error is about the first wrong one that people
        # see. They see the minutes first.
        minutes=MINUTE.values(texts[MINUTE]),
        hours=HOUR.values(hours),
        seconds=SECOND.values(texts.get(SECOND, "0")),
        days=_days(texts[DAY], texts[MONTH], texts[WEEKDAY]),
        running=goes_by_hours(hours, HOUR.values),
    )


def goes_by_hours(text: str, values: Callable[[str], Collection[int]]) -> bool:
    """Return whether an hour field is an interval, and not a list of fixed hours.

    All 24 hours are an interval, and so is a step that names more than one hour: ``*/6``, but not
    ``20/6``. At a clock change, an interval follows the hours that pass; a fixed hour runs once.

    Parameters:
        values: function that returns the hours of a whole field, or of one item of it.
    """
    if len(values(text)) == 24:
        return True
    # An item without a step has the step 1.
    items_with_step = [item for item in text.split(",") if int(item.partition("/")[2] or 1) > 1]
    # A step such as ``20/6`` names only one hour, and makes no interval.
    return any(len(values(item)) > 1 for item in items_with_step)


def split(expression: str, seconds: str) -> dict[Field, str]:
    """Return the texts of the five or six fields in lower case, in the order of the expression.

    Parameters:
        seconds: the place of the seconds among six fields, ``"first"`` or ``"last"``.

    Raises InvalidEntry if there are not five or six fields.
    """
    lowered = expression.lower()
    texts = ALIASES.get(lowered, lowered).split()
    fields = [MINUTE, HOUR, DAY, MONTH, WEEKDAY]
    if len(texts) == 6:
        fields.insert(0 if seconds == "first" else 5, SECOND)
    if len(texts) != len(fields):
        expected = "a cron expression of five or six fields"
        hint = (
            f'for example "0 3 * * *", or {", ".join(ALIASES)}; an interval is every("5m"), and in '
            "place of a year write end_at or at(...)"
        )
        raise InvalidEntry("schedule", expected, expression, hint=hint)
    return dict(zip(fields, texts, strict=True))


def _days(day: str, month: str, weekday: str) -> Days:
    """Return the days that the three day fields of an expression choose."""
    # The weekday nearest to a day of the month: ``15W`` or ``W15``.
    nearest = re.fullmatch(r"(\d{1,2})w|w(\d{1,2})", day, re.ASCII)
    nearest_weekday = 0
    if nearest:
        number = nearest[1] or nearest[2]
        # The second argument is the text that an error shows.
        nearest_weekday = DAY.number(number, number)
    return Days(
        MONTH.values(month),
        month_days=() if nearest else _month_days(day),
        nearest_weekday=nearest_weekday,
        weekdays=_weekdays(weekday),
        # If both day fields restrict the days, one of them is enough.
        either=_ANY_DAY.isdisjoint((day, weekday)),
    )


def _month_days(text: str) -> tuple[int, ...]:
    """Return the numbers of the day-of-month field. Number -1 is the last day, written ``L``."""
    month_days: set[int] = set()
    for part in ["*"] if text == "?" else text.split(","):
        if part == "l":
            month_days.add(-1)
        else:
            # As the end of a range, as in 20-L, the last day is the 31st.
            month_days.update(DAY.item(re.sub(r"-l(?=/|$)", "-31", part)))
    return tuple(sorted(month_days))


def _weekdays(text: str) -> tuple[tuple[int, int], ...]:
    """Return the day-of-week field as pairs of a weekday and its number in the month.

    The field has 0 to 7 or names, ``fri#2`` for the second Friday, ``L5`` or ``5L`` for the last
    Friday. In a pair, Monday is 0. Number -1 is the last such weekday of a month, and number 0
    stands for every one.
    """
    weekdays: set[tuple[int, int]] = set()
    for part in ["*"] if text == "?" else text.split(","):
        last = re.fullmatch(r"l([0-7]|[a-z]{3,9})|([0-7]|[a-z]{3,9})l", part)
        days, hash_sign, nth = part.partition("#")
        if last:
            days = last[1] or last[2]
            nth = "-1"
        elif hash_sign and not re.fullmatch("[1-5]", nth):
            WEEKDAY.refuse(part)
        # WEEKDAY.item() gives 0 or 7 for Sunday; in a pair, it is 6.
        weekdays.update(((number - 1) % 7, int(nth or 0)) for number in WEEKDAY.item(days))
    return tuple(sorted(weekdays))


@lru_cache(maxsize=2048)
def resolve(expression: str, seconds: str, name: str | None) -> str:
    """Return a cron expression with a value in place of each ``H``.

    Parameters:
        name: name of the entry; ``None`` for all values that each ``H`` may have.

    Raises:
        InvalidEntry: an ``H`` is malformed, or there are not five or six fields.
    """
    resolved = []
    for field, text in split(expression, seconds).items():
        items = [_resolve_item(item, field, name) for item in text.split(",")]
        resolved.append(",".join(items))
    return " ".join(resolved)


def _resolve_item(item: str, field: Field, name: str | None) -> str:
    """Replace an item with ``H`` by the values that the name of the entry decides.

    Parameters:
        name: name of the entry; ``None`` for all values that the ``H`` may have.
    """
    if not item.startswith("h"):
        return item
    match = _H_ITEM.fullmatch(item)
    if match is None:
        field.refuse(item)
    # 1, 5 and 2 for ``h(1-5)/2``; a text is ``None`` if the item has no range or no step.
    first_text, last_text, step_text = match.groups()
    first = field.low
    last = 28 if field is DAY else field.high  # no month has fewer days
    if first_text:
        first = field.number(first_text, item)
        last = field.number(last_text, item)
    # Without a name, return all values that the H may have.
    if name is None:
        return f"{first}-{last}"
    # A range of weekdays may contain Sunday twice, as 0 and as 7. ``cycle`` makes both 0, so remove
    # the repetition.
    values = list(dict.fromkeys(field.cycle(first, last)))
    # A step as long as the whole range leaves one value. So H has one value if it has no step, or a
    # longer one.
    step = min(int(step_text or len(values)), len(values))
    # The name decides the first value, which is one of the first ``step`` values of the range. The
    # number of the field makes the first values of two fields independent.
    drawn = values[draw(f"{field.column}:{name}", step) :: step]
    # Return one value, or a range with a step, such as ``7-52/15``.
    return str(drawn[0]) if len(drawn) == 1 else f"{drawn[0]}-{drawn[-1]}/{step}"


def either_day_words(schedule: BaseSchedule) -> str | None:
    """Return a warning if a cron rule restricts both day fields; else ``None``.

    It says how often the rule runs, and what to write if both fields have to match.
    """
    # An expression with H has no days before the name of an entry decides them.
    if not isinstance(schedule, cron) or schedule.resolved is None:
        return None
    days = schedule.times.days
    if not days.either:
        return None
    number = len(dates_of(days, _SAMPLE_YEAR))
    return (
        f"{schedule.expression!r} restricts day of month and day of week, and runs if either "
        f"matches, on about {number} days a year; to run only if both match, "
        "use Celery's crontab; to run on the first Monday, write 'MON#1'"
    )


def every_second_words(schedule: BaseSchedule) -> str | None:
    """Return a warning if a cron rule runs every second, but its first field looks like seconds."""
    if not isinstance(schedule, cron) or schedule.seconds == "first":
        return None
    minutes, *others = schedule.expression.split()
    # Six fields with ``*`` as the last one run every second. If the first field is not ``*``, the
    # user perhaps wrote the seconds there.
    if len(others) < 5 or others[-1] != "*" or minutes == "*":
        return None
    return (
        f"{schedule.expression!r} runs 60 times in each minute that matches, because its last "
        "field holds the seconds; "
        'if its first field is to hold them, add seconds="first" (--cron-seconds first)'
    )

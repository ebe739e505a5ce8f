"""Cron in UTC against three others: a matcher that tries each minute, croniter, and Celery."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from celery.schedules import crontab, schedule, solar
from croniter import CroniterBadDateError, croniter
from hypothesis import given
from hypothesis import strategies as st

from redbeat_lite._base.errors import InvalidEntry
from redbeat_lite.rules import cron, decode_schedule, encode_schedule, rule_of
from redbeat_lite.rules.cron import DAY, HOUR, MINUTE, MONTH, SECOND, WEEKDAY, Field
from tests.support.cases import together
from tests.support.examples import examples

REAL = json.loads((Path(__file__).parent.parent / "data" / "real_schedules.json").read_text())
NAMES = {
    "month": ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
    "weekday": ["sun", "mon", "tue", "wed", "thu", "fri", "sat"],
}
BOUNDS = {"second": (0, 59), "minute": (0, 59), "hour": (0, 23), "day": (1, 31), "month": (1, 12), "weekday": (0, 6)}
Values = tuple[str, frozenset[int]]
#: A text and the numbers it means.
STAR: Values = ("*", frozenset())


@st.composite
def items(draw: st.DrawFn, name: str, *, wrap: bool) -> Values:
    low, high = BOUNDS[name]
    first, last = draw(st.integers(low, high)), draw(st.integers(low, high))
    if not wrap:
        if first == last:  # croniter reads 5-5 as the whole cycle
            return str(first), frozenset({first})
        first, last = min(first, last), max(first, last)
    step = draw(st.integers(1, high - low + 1))
    cycle = list(range(low, high + 1))
    whole = cycle[cycle.index(first) :] + cycle[: cycle.index(first)]
    span = whole[: (last - first) % len(cycle) + 1]

    def word(number: int) -> str:
        names = NAMES.get(name)
        return draw(st.sampled_from([str(number), names[number - low].title()])) if names else str(number)

    return draw(
        st.sampled_from(
            [
                (word(first), frozenset({first})),
                (f"{word(first)}-{word(last)}", frozenset(span)),
                (f"{word(first)}-{word(last)}/{step}", frozenset(span[::step])),
                (f"*/{step}", frozenset(cycle[::step])),
                (f"{first}/{step}", frozenset(range(first, high + 1, step))),
            ]
        )
    )


@st.composite
def fields(draw: st.DrawFn, name: str, *, wrap: bool = True) -> Values:
    if draw(st.booleans()):
        return STAR
    parts = draw(st.lists(items(name, wrap=wrap), min_size=1, max_size=3))
    return ",".join(text for text, _ in parts), frozenset().union(*(numbers for _, numbers in parts))


@st.composite
def expressions(draw: st.DrawFn, *, wrap: bool = True) -> list[Values]:
    return [draw(fields(name, wrap=wrap)) for name in ("minute", "hour", "day", "month", "weekday")]


instants = st.datetimes(datetime(1971, 1, 1), datetime(2105, 1, 1), timezones=st.just(UTC))


def matches(parts: list[Values], wall: datetime) -> bool:
    (_, minute), (_, hour) = parts[:2]
    # A field that means everything is left out.
    if (minute and wall.minute not in minute) or (hour and wall.hour not in hour):
        return False
    return matches_day(parts, wall)


def matches_day(parts: list[Values], wall: datetime) -> bool:
    (on_day, day), (_, month), (on_weekday, weekday) = parts[2:]
    if month and wall.month not in month:
        return False
    by_day, by_weekday = wall.day in day, wall.isoweekday() % 7 in weekday
    # "*/1" is written like a restriction and is none.
    open_day, open_weekday = on_day in ("*", "*/1"), on_weekday in ("*", "*/1")
    if open_day or open_weekday:
        return (open_day or by_day) and (open_weekday or by_weekday)
    return by_day or by_weekday


@examples(40)
@given(expressions(), instants)
def test_agrees_with_a_matcher_that_tries_each_minute_of_the_days_that_match(
    parts: list[Values], instant: datetime
) -> None:
    text = " ".join(part for part, _ in parts)
    found = try_cron(text, instant)
    if found is None:
        return
    assert found > instant
    assert found.second == found.microsecond == 0
    assert matches(parts, found)
    minute = instant.replace(second=0, microsecond=0) + timedelta(minutes=1)
    for _ in range(1500):
        if minute >= found:
            break
        if not matches_day(parts, minute):
            minute = minute.replace(hour=0, minute=0) + timedelta(days=1)
            continue
        assert not matches(parts, minute), f"{text} skipped {minute}"
        minute += timedelta(minutes=1)


@examples(25)
@given(expressions(wrap=False), st.none() | fields("second", wrap=False), instants)
def test_agrees_with_croniter(parts: list[Values], second: Values | None, instant: datetime) -> None:
    text = " ".join(part for part, _ in [*parts, *([second] if second else [])])
    if parts[2][0] != "*" and parts[4][0] != "*" and ("*" in parts[2][0] or "*" in parts[4][0]):
        return  # croniter has a rule of its own where a restricted day of either kind has a star in it
    if any(
        text_ != "*" and len(numbers) > high - low
        for (text_, numbers), (low, high) in zip(parts, list(BOUNDS.values())[1:], strict=True)
    ):
        return  # and where a list happens to name everything
    found = try_cron(text, instant)
    walk = croniter(text, instant, max_years_between_matches=50)
    if found is None:
        with pytest.raises(CroniterBadDateError):
            walk.get_next(datetime)
        return
    for _ in range(4):
        assert found == walk.get_next(datetime), text
        found = cron(text, tz="UTC").next_after(found) or datetime.max.replace(tzinfo=UTC)


def try_cron(text: str, instant: datetime) -> datetime | None:
    """The next occurrence, None for an expression that is refused because it matches no day."""
    try:
        rule = cron(text, tz="UTC")
    except InvalidEntry as refused:
        if "matches some day" not in refused.expected:
            raise
        return None
    return rule.next_after(instant)


@together(
    "text",
    [
        *("0 0 l * *", "0 0 l 2 *", "0 12 1,l * *", "0 0 20-l * *", "0 9 15W * *", "0 9 W1 * *", "0 9 31w * *"),
        *("0 0 * * 5#3,L5", "0 0 * * mon#1", "0 0 * * tue#5", "0 0 * * L0", "0 0 ? * fri", "0 0 1 * ?"),
        *("@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@yearly", "@annually", "*/10 */5 1 1 * */20"),
    ],
)
def test_agrees_with_croniter_on_what_is_more_than_numbers(text: str) -> None:
    instant = datetime(2026, 1, 5, 7, 30, tzinfo=UTC)
    walk, rule = croniter(text, instant), cron(text, tz="UTC")
    for _ in range(60):
        expected = walk.get_next(datetime)
        found = rule.next_after(instant)
        assert found == expected
        instant = expected


def test_seconds_may_come_first() -> None:
    text, instant = "*/20 30 4 * * *", datetime(2026, 1, 5, tzinfo=UTC)
    walk = croniter(text, instant, second_at_beginning=True)
    rule = cron(text, tz="UTC", seconds="first")
    for _ in range(10):
        instant = rule.next_after(instant) or instant
        assert instant == walk.get_next(datetime)


@examples(25)
@given(expressions(), instants)
def test_crontab_agrees_with_celery(parts: list[Values], instant: datetime) -> None:
    if any("/" in text and "*" not in text and "-" not in text for text, _ in parts):
        parts = [("*", frozenset()) if "/" in text and "*/" not in text else (text, ns) for text, ns in parts]
    minute, hour, day, month, weekday = (text for text, _ in parts)
    try:
        theirs = crontab(minute, hour, weekday, day, month, nowfun=lambda: instant)
    except ValueError:
        return  # never matches, or 5/15, which Celery does not know
    theirs.__dict__["tz"] = UTC
    expected = celerys_answer(theirs, instant)
    ours = rule_of(crontab(minute, hour, weekday, day, month), UTC)
    assert ours.next_after(instant) == expected


def celerys_answer(theirs: crontab, instant: datetime) -> datetime:
    whole = instant.replace(microsecond=0)
    theirs.nowfun = lambda: whole
    return whole + theirs.remaining_estimate(whole)


def real(kind: str) -> list[Any]:
    return [row for row in REAL if row["kind"] == kind]


def build(row: dict[str, Any]) -> Any:
    if row["kind"] == "crontab":
        return crontab(**row["fields"])
    return solar(*row["solar"]) if row["kind"] == "solar" else schedule(row["seconds"])


def test_every_real_crontab_fires_when_celery_says() -> None:
    starts = [datetime(2026, 2, 27, 23, 59, 30, tzinfo=UTC), datetime(2027, 12, 31, 12, tzinfo=UTC)]
    for row in real("crontab"):
        rule, theirs = rule_of(build(row), UTC), build(row)
        theirs.__dict__["tz"] = UTC
        for start in starts:
            instant = start
            for _ in range(5):
                expected = celerys_answer(theirs, instant)
                assert rule.next_after(instant) == expected, row
                instant = expected


def test_every_real_schedule_survives_the_store() -> None:
    for row in (row for row in REAL if row["kind"] != "other"):
        written = build(row)
        stored = json.loads(json.dumps(encode_schedule(written)))
        read = decode_schedule(stored)
        assert type(read) is type(written)
        assert read == written, row
        assert encode_schedule(read) == stored
        instant = datetime(2026, 5, 5, 5, 5, tzinfo=UTC)
        assert rule_of(read, UTC).next_after(instant) == rule_of(written, UTC).next_after(instant)


def test_every_real_interval_has_its_period() -> None:
    for row in real("interval"):
        instant = datetime(2026, 5, 5, tzinfo=UTC)
        assert rule_of(build(row), UTC).next_after(instant) == instant + timedelta(seconds=row["seconds"])


@pytest.mark.parametrize("field", [SECOND, MINUTE, HOUR, DAY, MONTH, WEEKDAY], ids=lambda field: field.name)
@pytest.mark.parametrize("each", [pytest.param(7, id="some"), pytest.param(1, id="all", marks=pytest.mark.soak)])
def test_a_range_with_a_step_is_what_counting_gives(field: Field, each: int) -> None:
    """Also where croniter takes it for something else: ``5-5``, and those that wrap."""
    everything = [*range(field.low, field.high + 1)]
    ranges = [*product(everything, everything, (1, 2, 7, 90))]
    # Where they are few enough, all of them.
    for first, last, step in ranges[:: each if len(ranges) > 4000 else 1]:
        twice = everything + everything
        begin = first - field.low
        counted = twice[begin : twice.index(last, begin) + 1 : step]
        assert field.values(f"{first}-{last}/{step}") == tuple(sorted(counted))

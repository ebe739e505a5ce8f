"""Cron rules against a clock that is looked at minute by minute."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise
from typing import NamedTuple
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redbeat_lite._base.times import from_ms, to_ms
from redbeat_lite.rules import Rule, cron, rule_of
from redbeat_lite.rules.clock_changes import CountedRule
from redbeat_lite.rules.occurrences import last_ms
from tests.rules import brute_time
from tests.support.cases import together
from tests.support.examples import examples

ZONES = [
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "Pacific/Chatham",
    "Antarctica/Troll",
    "Africa/Casablanca",
]
#: Jumps at midnight, into the day before, out of a winter time that is the exception; and none at all.
ODD_ZONES = ["America/Havana", "Asia/Beirut", "Atlantic/Azores", "Europe/Dublin", "UTC"]
MORE_ZONES = [
    *("Africa/Cairo", "Africa/El_Aaiun", "America/Asuncion", "America/Nuuk", "America/Santiago", "America/Sao_Paulo"),
    *("America/St_Johns", "Asia/Gaza", "Asia/Jerusalem", "Asia/Kathmandu", "Asia/Kolkata", "Asia/Tehran"),
    *("Australia/Adelaide", "Australia/Eucla", "Europe/Chisinau", "Pacific/Norfolk", "Pacific/Easter"),
]
ALL_ZONES = ZONES + ODD_ZONES + MORE_ZONES
#: Those of the ordinary run, and the others in the soak: one jumps as most do, one by half an hour, one by two hours,
#: one for a month, one at midnight, and one never.
_FEW = ("Europe/Berlin", "Australia/Lord_Howe", "Antarctica/Troll", "Africa/Casablanca", "America/Havana", "UTC")
EVERYWHERE = [
    *(pytest.param([zone], id=zone) for zone in _FEW),
    pytest.param([zone for zone in ALL_ZONES if zone not in _FEW], id="the others", marks=pytest.mark.soak),
]
#: (minutes, hours, hours as text, whether the rule runs through the hours)
ALL_HOURS = frozenset(range(24))
HOURS = {
    "*": (ALL_HOURS, True),
    "*/1": (ALL_HOURS, True),
    "0-23": (ALL_HOURS, True),
    "*/2": (frozenset(range(0, 24, 2)), True),
    "1-23/2": (frozenset(range(1, 24, 2)), True),
    "1,*/6": (frozenset({0, 1, 6, 12, 18}), True),
    "22-4/2": (frozenset({22, 0, 2, 4}), True),
    "*/24": (frozenset({0}), False),
    "0": (frozenset({0}), False),
    "1": (frozenset({1}), False),
    "2": (frozenset({2}), False),
    "3": (frozenset({3}), False),
    "1,2,3": (frozenset({1, 2, 3}), False),
    "1-5": (frozenset({1, 2, 3, 4, 5}), False),
    "22-4": (frozenset({22, 23, 0, 1, 2, 3, 4}), False),
}
MINUTES = {
    "*": frozenset(range(60)),
    "0": frozenset({0}),
    "30": frozenset({30}),
    "5,59": frozenset({5, 59}),
    "*/15": frozenset({0, 15, 30, 45}),
}


class Span(NamedTuple):
    """Which clock changes are looked at, and how much time on either side of them."""

    first_year: int
    last_year: int
    around: timedelta


@pytest.fixture(
    params=[
        pytest.param(Span(2027, 2027, timedelta(hours=12)), id="a year"),
        pytest.param(Span(2026, 2028, timedelta(days=2)), id="three years", marks=pytest.mark.soak),
    ]
)
def span(request: pytest.FixtureRequest) -> Span:
    return request.param  # type: ignore[no-any-return]  # as the parameters above are


@cache
def windows(zone: str, span: Span) -> list[list[tuple[datetime, datetime]]]:
    """The time around each change of offset, minute by minute."""
    changes = brute_time.transitions(ZoneInfo(zone), span.first_year, span.last_year)
    years = span.last_year - span.first_year + 1
    assert len(changes) in (2 * years, 2 * years + 1), "two changes a year"
    return [brute_time.clock(ZoneInfo(zone), change - span.around, change + span.around) for change in changes]


def walked(rule: Rule, start: datetime, end: datetime) -> list[datetime]:
    found, instant = [], rule.next_after(start - timedelta(seconds=1))
    while instant is not None and instant < end:
        found.append(instant)
        instant = rule.next_after(instant)
    return found


@pytest.mark.parametrize("zone", ZONES)
def test_agrees_with_the_clock_minute_by_minute_around_every_transition(zone: str, span: Span) -> None:
    for column, (hours, (of_hours, runs)) in enumerate(HOURS.items()):
        # Each zone with a third of the hours, each of the hours with a third of the zones; in the soak, all with all.
        if span.first_year == span.last_year and (ZONES.index(zone) + column) % 3:
            continue
        simulate = brute_time.running if runs else brute_time.fixed
        for minutes, of_minutes in MINUTES.items():
            found = rule(zone, f"{minutes} {hours} * * *")
            for shown in windows(zone, span):
                expected = simulate(shown, lambda wall, m=of_minutes, h=of_hours: wall.minute in m and wall.hour in h)
                start, end = shown[0][0], shown[-1][0]
                assert walked(found, start, end + brute_time.MINUTE) == expected, (hours, minutes, start)
                # To the end, and into the hour that a clock set back shows again.
                for until in (end, start + span.around + timedelta(minutes=20)):
                    counted = found.count_ms(to_ms(start) - 1, to_ms(until))
                    assert counted == bisect_right(expected, until), (hours, minutes, start, until)


@together("zone", ZONES)
def test_weekday_jobs_agree_with_the_clock_around_every_transition(zone: str, span: Span) -> None:
    sunday_nights = rule_of(cron("*/20 0-3 * * sun", tz=zone), UTC)
    for shown in windows(zone, span):
        expected = brute_time.fixed(
            shown, lambda wall: wall.isoweekday() == 7 and wall.hour < 4 and wall.minute % 20 == 0
        )
        assert walked(sunday_nights, shown[0][0], shown[-1][0] + brute_time.MINUTE) == expected


@pytest.mark.parametrize("zones", EVERYWHERE)
def test_a_year_has_one_daily_run_per_local_day_and_one_hourly_run_per_real_hour(zones: list[str]) -> None:
    for zone in zones:
        check_a_year(zone)


def check_a_year(zone: str) -> None:
    start, end = datetime(2027, 1, 1, 12, tzinfo=UTC), datetime(2028, 1, 1, 12, tzinfo=UTC)
    days = Counter(i.astimezone(ZoneInfo(zone)).date() for i in walked(rule(zone, "30 2 * * *"), start, end))
    assert set(days.values()) == {1}
    assert len(days) == 365
    hourly = walked(rule(zone, "0 * * * *"), start, end)
    gaps = Counter(later - earlier for earlier, later in pairwise(hourly))
    if zone == "Australia/Lord_Howe":
        # Its clock jumps by half an hour, so that twice a year it takes an hour and a half to the next full hour.
        assert gaps.pop(timedelta(minutes=90)) == 2
    assert set(gaps) == {timedelta(hours=1)}


@pytest.mark.parametrize("zones", EVERYWHERE)
def test_a_year_agrees_with_the_clock_at_every_quarter_of_an_hour(zones: list[str]) -> None:
    for zone in zones:
        check_quarters(zone)


def check_quarters(zone: str) -> None:
    quarter = timedelta(minutes=15)
    start, end = datetime(2026, 6, 1, 12, tzinfo=UTC), datetime(2027, 6, 1, 12, tzinfo=UTC)
    shown = brute_time.clock(ZoneInfo(zone), start, end, quarter)
    nightly = brute_time.fixed(shown, lambda wall: wall.hour in (0, 1, 2, 3) and wall.minute == 30, quarter)
    assert walked(rule(zone, "30 0-3 * * *"), start, end) == nightly
    midnight = brute_time.fixed(shown, lambda wall: wall.hour == wall.minute == 0 and wall.isoweekday() == 7, quarter)
    assert walked(rule(zone, "0 0 * * sun"), start, end) == midnight
    running = brute_time.running(shown, lambda wall: wall.hour % 2 == 0 and wall.minute == 45)
    assert walked(rule(zone, "45 */2 * * *"), start, end) == running


def changes_of(zone: str) -> list[datetime]:
    """The changes of its offset in 2027; where there are none, some instant."""
    return brute_time.transitions(ZoneInfo(zone), 2027, 2027) or [datetime(2027, 3, 1, tzinfo=UTC)]


@examples(40)
@given(
    zone=st.sampled_from(ALL_ZONES),
    hours=st.sampled_from(sorted(HOURS)),
    minutes=st.sampled_from(sorted(MINUTES)),
    # Anywhere, or some seconds before one of the changes.
    begin=st.datetimes(datetime(1970, 1, 3), datetime(2099, 12, 31), timezones=st.just(UTC)) | st.integers(0, 5),
    before=st.integers(0, 200_000),
    span=st.timedeltas(timedelta(0), timedelta(days=20)),
)
def test_counting_equals_walking(
    zone: str, hours: str, minutes: str, begin: datetime | int, before: int, span: timedelta
) -> None:
    counted = rule(zone, f"{minutes} {hours} * * *")
    changes = changes_of(zone)
    start = begin if isinstance(begin, datetime) else changes[begin % len(changes)] - timedelta(seconds=before)
    if minutes == "*":
        span /= 20  # a day is as many steps as 20 are of the others
    # Counting knows milliseconds and rounds up to them; the walk must not end within one.
    after, until = to_ms(start), to_ms(start + span)
    found = walked_after(counted, from_ms(after), from_ms(until))
    assert counted.count_ms(after, until) == len(found)
    if found:
        first, last = to_ms(found[0]), to_ms(found[-1])
        assert last_ms(counted, after, until) == last_ms(counted, after, last) == last
        assert counted.count_ms(after, last) == len(found)
        assert last_ms(counted, after, first - 1) == after


@examples(60)
@given(
    zone=st.sampled_from(ALL_ZONES),
    hours=st.sampled_from(sorted(HOURS)),
    minutes=st.sampled_from(sorted(MINUTES)),
    change=st.integers(0, 5),
    seconds=st.integers(-200_000, 200_000),
    ahead=st.integers(0, 200_000),
)
def test_the_answer_does_not_depend_on_the_path_there(
    zone: str, hours: str, minutes: str, change: int, seconds: int, ahead: int
) -> None:
    changes = changes_of(zone)
    instant = changes[change % len(changes)] + timedelta(seconds=seconds, microseconds=seconds % 7)
    found = rule(zone, f"{minutes} {hours} * * *").next_after(instant)
    assert found is not None
    assert found > instant
    between = min(instant + timedelta(seconds=ahead), found - timedelta(microseconds=1))
    assert cron(f"{minutes} {hours} * * *", tz=zone).next_after(max(between, instant)) == found


def walked_after(of: Rule, start: datetime, end: datetime) -> list[datetime]:
    found, instant = [], of.next_after(start)
    while instant is not None and instant <= end:
        found.append(instant)
        instant = of.next_after(instant)
    return found


def rule(zone: str, expression: str) -> CountedRule:
    found = rule_of(cron(expression, tz=zone), UTC)
    assert isinstance(found, CountedRule)
    return found

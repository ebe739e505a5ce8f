"""Cron rules in every zone there is, at any jump of its clock since 1973."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo, available_timezones

from hypothesis import given
from hypothesis import strategies as st

from redbeat_lite.rules import cron, rule_of
from redbeat_lite.rules.clock_changes import CountedRule, jump_between, offset_at, stretches
from redbeat_lite.rules.zones import portable, zone_name, zone_of
from tests.rules import brute_time
from tests.support.cases import together
from tests.support.examples import examples

ZONES = sorted(zone for zone in available_timezones() if "/" in zone and not zone.startswith(("Etc", "SystemV")))
DAY = timedelta(days=1)


@examples(25)
@given(
    zone=st.sampled_from(ZONES),
    year=st.integers(1973, 2037),
    which=st.integers(0, 3),
    hours=st.sets(st.integers(0, 23), min_size=1, max_size=4),
    minutes=st.sets(st.integers(0, 59), min_size=1, max_size=4),
    every_hour=st.booleans(),
)
def test_agrees_with_the_clock_minute_by_minute(
    zone: str, year: int, which: int, hours: set[int], minutes: set[int], every_hour: bool
) -> None:
    found = ZoneInfo(zone)
    changes = brute_time.transitions(found, year, year) or [datetime(year, 6, 1, tzinfo=UTC)]
    change = changes[which % len(changes)]
    shown = brute_time.clock(found, change - DAY, change + DAY)
    simulate = brute_time.running if every_hour else brute_time.fixed
    expected = simulate(shown, lambda wall: wall.minute in minutes and (every_hour or wall.hour in hours))
    text = f"{','.join(map(str, minutes))} {'*' if every_hour else ','.join(map(str, hours))} * * *"
    rule = rule_of(cron(text, tz=zone), UTC)
    assert isinstance(rule, CountedRule)
    begin, end = shown[0][0] - timedelta(seconds=1), shown[-1][0]
    walked, instant = [], rule.next_after(begin)
    while instant is not None and instant <= end:
        walked.append(instant)
        instant = rule.next_after(instant)
    assert walked == expected
    assert rule.count_ms(int(begin.timestamp()) * 1000, int(end.timestamp()) * 1000) == len(expected)


@examples(25)
@given(st.sampled_from(ZONES), st.integers(-(2**31), 2**32), st.integers(0, 86_400 * 400))
def test_stretches_cover_every_second_once_with_its_offset(zone: str, after: int, length: int) -> None:
    found = ZoneInfo(zone)
    covered = after
    for start, end, offset in stretches(found, after, after + length):
        assert start == covered
        assert start < end
        assert offset_at(found, start + 1) == offset_at(found, end) == offset
        covered = end
    assert covered == after + length


def test_a_jump_is_found_to_the_second() -> None:
    jump = int(datetime(2026, 3, 29, 1, tzinfo=UTC).timestamp())
    assert jump_between(ZoneInfo("Europe/Berlin"), jump - 80_000, jump + 70_000) == jump


class Named(tzinfo):
    """What pytz looks like."""

    zone = "Europe/Berlin"

    def utcoffset(self, dt: datetime | None) -> timedelta:
        return timedelta(minutes=53)


class Nameless(tzinfo):
    def utcoffset(self, dt: datetime | None) -> timedelta:
        return timedelta(hours=1)

    def dst(self, dt: datetime | None) -> timedelta:
        return timedelta(0)


@together(
    ("zone", "name"),
    [
        ("Europe/Berlin", "Europe/Berlin"),
        ("Europe/Kiev", "Europe/Kiev"),
        ("UTC", "UTC"),
        (UTC, "UTC"),
        ("+05:30", "+05:30"),
        ("-00:30", "-00:30"),
        (timezone(timedelta(hours=-3, minutes=-30)), "-03:30"),
        (ZoneInfo("Asia/Tokyo"), "Asia/Tokyo"),
        (Named(), "Europe/Berlin"),
    ],
)
def test_a_zone_is_known_by_the_name_it_was_given(zone: str | tzinfo, name: str) -> None:
    found = zone_of(zone)
    assert zone_name(found) == name
    assert zone_of(zone_name(found)).utcoffset(datetime(2026, 1, 1)) == found.utcoffset(datetime(2026, 1, 1))


def test_a_zone_of_the_app_without_a_name_works_all_the_same() -> None:
    rule = rule_of(cron("0 9 * * *"), Nameless())
    assert rule.next_after(datetime(2026, 1, 1, tzinfo=UTC)) == datetime(2026, 1, 1, 8, tzinfo=UTC)
    assert portable(Named()) == ZoneInfo("Europe/Berlin")

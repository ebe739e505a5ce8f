"""Calendars: against brute force over countries, years and clock changes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from redbeat_lite import Calendar, ConfigurationError, InvalidEntry
from redbeat_lite._base.times import from_ms, to_ms
from redbeat_lite.rules import Rule, cron, rrule, rule_of
from redbeat_lite.rules.calendars import MAX_DAYS, CalendarRule, without
from redbeat_lite.rules.misfire import range_of
from tests.support.cases import together

BERLIN = ZoneInfo("Europe/Berlin")
FIRST = 2024

#: Countries, with a zone of each; most change their clocks, some at midnight, Lord Howe by half an hour.
PLACES = {
    "DE-BY": "Europe/Berlin",
    "AT": "Europe/Vienna",
    "FR": "Europe/Paris",
    "GB-ENG": "Europe/London",
    "IE": "Europe/Dublin",
    "ES-MD": "Europe/Madrid",
    "IT": "Europe/Rome",
    "PL": "Europe/Warsaw",
    "SE": "Europe/Stockholm",
    "PT": "Atlantic/Azores",
    "US-CA": "America/Los_Angeles",
    "CA-QC": "America/Toronto",
    "MX": "America/Mexico_City",
    "BR": "America/Sao_Paulo",
    "CL": "America/Santiago",
    "EG": "Africa/Cairo",
    "IL": "Asia/Jerusalem",
    "IN": "Asia/Kolkata",
    "JP": "Asia/Tokyo",
    "AU-NSW": "Australia/Lord_Howe",
    "NZ": "Pacific/Auckland",
}


def walked(rule: Rule, after: int, until: int) -> Iterator[int]:
    while (after := rule.next_ms(after)) is not None and after < until:  # type: ignore[attr-defined]
        yield after


@pytest.fixture(
    params=[pytest.param(2025, id="two years"), pytest.param(2028, id="five years", marks=pytest.mark.soak)]
)
def last(request: pytest.FixtureRequest) -> int:
    """The last year that is looked at."""
    return int(request.param)


def span(zone: ZoneInfo, last: int) -> tuple[int, int]:
    return to_ms(datetime(FIRST, 1, 1, tzinfo=zone)) - 1, to_ms(datetime(last + 1, 1, 1, tzinfo=zone))


def weekends() -> Calendar:
    days = (date(2026, 1, 1) + timedelta(days=day) for day in range(365))
    return Calendar({day for day in days if day.weekday() > 4}, date(2026, 12, 31), name="weekends", revision=1)


def holidays_of(place: str, last: int) -> set[date]:
    holidays = pytest.importorskip("holidays")
    country, _, part = place.partition("-")
    return {*holidays.country_holidays(country, subdiv=part or None, years=range(FIRST, last + 1))}


@together("place", PLACES)
def test_no_day_is_wrong_in_years(place: str, last: int) -> None:
    free = holidays_of(place, last)
    zone, calendar = ZoneInfo(PLACES[place]), Calendar.of_holidays(place, FIRST, last)
    begin, end = span(zone, last)
    every = (
        date(FIRST, 1, 1) + timedelta(days=day) for day in range((date(last, 12, 31) - date(FIRST, 1, 1)).days + 1)
    )
    expected = [to_ms(datetime(day.year, day.month, day.day, 9, 10, tzinfo=zone)) for day in every if day not in free]
    for schedule in (cron("10 9 * * *"), rrule("FREQ=DAILY;BYHOUR=9;BYMINUTE=10")):
        assert [*walked(without(rule_of(schedule, zone), calendar), begin, end)] == expected


def test_no_run_is_wrong_around_the_hours_in_which_clocks_jump(last: int) -> None:
    """Whatever a rule makes of them; in Egypt that is at midnight."""
    for place in ("DE-BY", "EG") if last == 2025 else PLACES:
        free = holidays_of(place, last)
        zone, calendar = ZoneInfo(PLACES[place]), Calendar.of_holidays(place, FIRST, last)
        begin, end = span(zone, last)
        for text in ("*/30 0-3,23 * * *", "30 */3 * * *"):
            base = rule_of(cron(text), zone)
            kept = [ms for ms in walked(base, begin, end) if from_ms(ms).astimezone(zone).date() not in free]
            assert [*walked(without(base, calendar), begin, end)] == kept, (place, text)


def test_a_rule_runs_on_every_day_after_the_end_of_its_calendar() -> None:
    rule = without(rule_of(cron("0 9 * * *"), BERLIN), weekends())
    found = [from_ms(ms).date().weekday() for ms in walked(rule, to_ms(datetime(2027, 1, 1, tzinfo=UTC)), 1800 * 10**9)]
    assert {*found} == {*range(7)}


def test_what_is_left_out_is_told_once_for_days_in_a_row() -> None:
    rule = without(rule_of(cron("*/10 * * * *"), BERLIN), weekends())
    assert isinstance(rule, CalendarRule)
    friday, monday = datetime(2026, 3, 27, 23, 50, tzinfo=BERLIN), datetime(2026, 3, 30, tzinfo=BERLIN)
    assert rule.next_after(friday) == monday
    saturday = datetime(2026, 3, 28, tzinfo=BERLIN)
    assert [*rule.left_out(to_ms(friday), to_ms(monday))] == [to_ms(saturday)]
    assert [*rule.left_out(to_ms(saturday), to_ms(monday))] == [to_ms(saturday) + 600_000]
    assert [*rule.left_out(to_ms(friday), to_ms(saturday))] == []
    assert [*rule.left_out(to_ms(monday), to_ms(monday) + 86_400_000)] == []
    firsts = [*rule.left_out(to_ms(friday), to_ms(monday) + 7 * 86_400_000)]
    assert firsts == [to_ms(saturday), to_ms(datetime(2026, 4, 4, tzinfo=BERLIN))]


def years(zone: ZoneInfo) -> tuple[Calendar, int, int]:
    """A calendar of as many days in a row as one can have, with the instants between which they lie."""
    days = [date(2026, 1, 1) + timedelta(days=day) for day in range(MAX_DAYS)]
    calendar = Calendar({*days}, days[-1], name="years", revision=1)
    begin, end = (datetime(2026, 1, 1, tzinfo=zone), datetime(2028, 9, 27, tzinfo=zone))
    return calendar, to_ms(begin), to_ms(end)


@pytest.mark.parametrize("schedule", [cron("* * * * * *"), rrule("FREQ=SECONDLY")], ids=repr)
def test_years_in_a_row_are_passed_over_by_a_few_questions(schedule: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A day has 86,400 of them: whoever looked at each would stand still for minutes, and the beat with him."""
    calendar, begin, end = years(BERLIN)
    base = rule_of(schedule, BERLIN)
    rule, asked, ask = without(base, calendar), [0], type(base).next_ms

    def asking(self: Any, ms: int) -> int | None:
        asked[0] += 1
        return ask(self, ms)

    monkeypatch.setattr(type(base), "next_ms", asking)
    assert isinstance(rule, CalendarRule)
    assert rule.next_ms(begin - 1000) == end
    assert asked[0] == 2
    assert [*rule.left_out(begin - 1000, end)] == [begin]
    assert asked[0] == 3


def test_what_was_missed_holds_nothing_that_is_left_out() -> None:
    rule = without(rule_of(cron("0 9 * * *"), BERLIN), weekends())
    friday = to_ms(datetime(2026, 3, 27, 9, tzinfo=BERLIN))
    (first, last, number), _ = range_of(rule, friday, friday + 4 * 86_400_000)
    days = [from_ms(ms).astimezone(BERLIN).day for ms in (first, last)]
    assert (days, number) == ([27, 31], 3)


def test_a_rule_with_a_calendar_is_another_rule() -> None:
    base, one = rule_of(cron("0 9 * * *"), BERLIN), weekends()
    assert base != without(base, one)
    assert without(base, one) != base
    assert without(base, one) == without(base, Calendar(one.days, date(2027, 1, 1), name="other", revision=9))
    assert without(base, one) != without(base, Calendar({date(2026, 1, 1)}, date(2027, 1, 1)))
    assert without(base, "weekends") is base


def test_the_stored_form_is_read_back() -> None:
    one = Calendar({date(2026, 12, 25), date(2026, 1, 1)}, date(2026, 12, 31), name="closed", revision=3)
    assert one.encode() == "closed@3 2026-12-31 20260101,20261225"
    spaced = Calendar(one.days, one.until, name="a b@c", revision=1)
    assert Calendar.decode(spaced.encode()) == spaced
    assert Calendar.decode(one.encode()) == one
    assert Calendar.decode(one.encode()) is Calendar.decode(one.encode())
    for broken in (None, 5, [], {}, "", "closed@3", "closed@3 2026-12-31 ", one.encode().replace("@", " ")):
        with pytest.raises(InvalidEntry, match="calendar"):
            Calendar.decode(broken)


@together(
    ("days", "until", "words"),
    [
        (set(), date(2026, 1, 1), "1 to 1,000 days, got 0"),
        ({date(2026, 1, 1) + timedelta(days=day) for day in range(MAX_DAYS + 1)}, date(2030, 1, 1), "got 1001"),
        ({date(2026, 1, 2)}, date(2026, 1, 1), "not before the last of the days, 2026-01-02"),
        ({"2026-01-01"}, date(2026, 1, 1), "expected dates of 1970 to 9000, got '2026-01-01'"),
        ({datetime(2026, 1, 1)}, date(2026, 1, 1), "expected dates"),
        ({date(2026, 1, 1)}, None, "expected dates of 1970 to 9000, got None"),
        ({date(2026, 1, 1)}, date.max, "expected dates of 1970 to 9000"),
        ({date.min}, date(2026, 1, 1), "expected dates of 1970 to 9000"),
    ],
)
def test_what_is_no_calendar_is_refused(days: Any, until: Any, words: str) -> None:
    with pytest.raises(InvalidEntry) as refused:
        Calendar(days, until)
    assert words in str(refused.value)


def test_a_place_that_is_not_known_is_refused() -> None:
    pytest.importorskip("holidays")
    with pytest.raises(InvalidEntry, match="expected a place of the library holidays, such as DE-BY, got 'XX'"):
        Calendar.of_holidays("XX", 2026, 2026)
    for years in ((2027, 2026), (1, 2026), (2026, 10**9)):
        with pytest.raises(InvalidEntry, match="calendar: expected years of 1970 to 9000, the first of them before"):
            Calendar.of_holidays("DE", *years)


def test_without_the_library_it_is_told_which_extra_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "holidays", None)
    with pytest.raises(ConfigurationError, match=r"redbeat-lite\[holidays\]"):
        Calendar.of_holidays("DE", 2026, 2026)

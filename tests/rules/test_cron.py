"""Cron expressions: what they mean, and what is refused."""

from __future__ import annotations

import copy
import pickle
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery.schedules import crontab

from redbeat_lite._base.errors import InvalidEntry
from redbeat_lite.rules import cron, rule_of
from tests.support.cases import together
from tests.support.rules import occurrences

BERLIN = ZoneInfo("Europe/Berlin")


def local(expression: str, zone: str, start: datetime, count: int) -> list[str]:
    found = occurrences(cron(expression, tz=zone), start, count)
    return [instant.astimezone(ZoneInfo(zone)).isoformat(" ", "minutes") for instant in found]


def test_the_zone_is_that_of_the_entry_whatever_that_of_the_app() -> None:
    nine = cron("0 9 * * *", tz="Asia/Tokyo")
    for app_zone in (UTC, BERLIN, ZoneInfo("America/New_York")):
        assert rule_of(nine, app_zone).next_after(datetime(2026, 5, 5, tzinfo=UTC)) == datetime(2026, 5, 6, tzinfo=UTC)
    without = rule_of(cron("0 9 * * *"), BERLIN)
    assert without.next_after(datetime(2026, 5, 5, tzinfo=UTC)) == datetime(2026, 5, 5, 7, tzinfo=UTC)


@together(
    ("expression", "found"),
    [
        ("30 2 * * *", ["2026-03-28 02:30+01:00", "2026-03-29 03:00+02:00", "2026-03-30 02:30+02:00"]),
        ("*/15 2 * * *", ["2026-03-28 02:30+01:00", "2026-03-28 02:45+01:00", "2026-03-29 03:00+02:00"]),
        ("0 2,3 * * *", ["2026-03-28 03:00+01:00", "2026-03-29 03:00+02:00", "2026-03-30 02:00+02:00"]),
        ("30 2 * * sun", ["2026-03-29 03:00+02:00", "2026-04-05 02:30+02:00", "2026-04-12 02:30+02:00"]),
    ],
)
def test_a_fixed_time_that_a_gap_swallows_runs_once_after_it(expression: str, found: list[str]) -> None:
    assert local(expression, "Europe/Berlin", datetime(2026, 3, 28, 1, 29, tzinfo=UTC), 3) == found


def test_a_running_rule_makes_nothing_up_in_a_gap() -> None:
    start = datetime(2026, 3, 28, 23, tzinfo=UTC)
    assert local("0 */2 * * *", "Europe/Berlin", start, 2) == ["2026-03-29 04:00+02:00", "2026-03-29 06:00+02:00"]
    assert local("30 * * * *", "Europe/Berlin", start, 3)[1:] == ["2026-03-29 01:30+01:00", "2026-03-29 03:30+02:00"]


def test_a_fixed_time_runs_at_the_first_passing_of_a_fold() -> None:
    start = datetime(2026, 10, 24, 12, tzinfo=UTC)
    assert local("30 2 * * *", "Europe/Berlin", start, 2) == ["2026-10-25 02:30+02:00", "2026-10-26 02:30+01:00"]
    second_passing = datetime(2026, 10, 25, 1, 10, tzinfo=UTC)
    assert local("30 2 * * *", "Europe/Berlin", second_passing, 1) == ["2026-10-26 02:30+01:00"]


def test_a_running_rule_runs_in_both_passings_of_a_fold() -> None:
    start = datetime(2026, 10, 24, 23, 45, tzinfo=UTC)
    found = local("*/30 * * * *", "Europe/Berlin", start, 5)
    assert found[:4] == [f"2026-10-25 02:{at}" for at in ("00+02:00", "30+02:00", "00+01:00", "30+01:00")]


def test_jumps_of_half_an_hour_and_of_two_hours() -> None:
    assert local("15 2 * * *", "Australia/Lord_Howe", datetime(2026, 10, 3, 12, tzinfo=UTC), 1) == [
        "2026-10-04 02:30+11:00"
    ]
    assert local("30 1 * * *", "Antarctica/Troll", datetime(2026, 3, 28, 12, tzinfo=UTC), 1) == [
        "2026-03-29 03:00+02:00"
    ]
    assert local("0 0 * * *", "Africa/Cairo", datetime(2026, 4, 23, 12, tzinfo=UTC), 1) == ["2026-04-24 01:00+03:00"]


def test_a_gap_across_midnight_runs_what_it_swallowed_on_the_next_day() -> None:
    # Greenland goes from 23:00 on Saturday to 0:00 on Sunday.
    assert local("30 23 * * sat", "America/Nuuk", datetime(2026, 3, 28, 12, tzinfo=UTC), 1) == [
        "2026-03-29 00:00-01:00"
    ]


def test_the_day_that_samoa_skipped() -> None:
    start = datetime(2011, 12, 29, 12, tzinfo=UTC)
    # 30 December did not happen: its daily run is made up for as soon as there is a clock again.
    assert local("0 9 * * *", "Pacific/Apia", start, 3) == [
        "2011-12-29 09:00-10:00",
        "2011-12-31 00:00+14:00",
        "2011-12-31 09:00+14:00",
    ]
    assert local("0 * * * *", "Pacific/Apia", datetime(2011, 12, 30, 8, 30, tzinfo=UTC), 3) == [
        "2011-12-29 23:00-10:00",
        "2011-12-31 00:00+14:00",
        "2011-12-31 01:00+14:00",
    ]


@together(
    ("expression", "start", "found"),
    [
        ("0 0 29 2 *", "2026-01-01", "2028-02-29"),
        ("0 0 29 2 *", "2096-03-01", "2104-02-29"),
        ("0 0 l 2 *", "2099-12-31", "2100-02-28"),
        ("0 0 1 1 *", "2026-12-31", "2027-01-01"),
        ("0 0 31 * *", "2026-01-31", "2026-03-31"),
        ("0 0 19 1 *", "2038-01-18", "2038-01-19"),
        ("0 0 7 2 *", "2106-02-06", "2106-02-07"),
        ("0 0 * * fri#5", "2026-02-01", "2026-05-29"),
        ("0 0 31w * *", "2026-05-01", "2026-05-29"),
        ("0 0 1w * *", "2026-07-31", "2026-08-03"),
        ("0 0 * * 5l", "2026-02-01", "2026-02-27"),
        ("0 0 * * L5", "2026-02-01", "2026-02-27"),
        ("0 0 * * friL", "2026-02-01", "2026-02-27"),
        ("0 0 * * 7", "2026-02-01", "2026-02-08"),
        ("0 0 * * 5-7", "2026-02-02", "2026-02-06"),
    ],
)
def test_dates_at_the_edges_of_the_calendar(expression: str, start: str, found: str) -> None:
    after = datetime.fromisoformat(start).replace(tzinfo=UTC)
    assert cron(expression, tz="UTC").next_after(after) == datetime.fromisoformat(found).replace(tzinfo=UTC)


def test_a_leap_day_on_a_weekday_is_found_across_a_year_without_one() -> None:
    # Celery's crontab wants both. From 2088 the next Sunday the 29th is in 2128: 2100 is no leap year.
    rule = rule_of(crontab(0, 0, day_of_month=29, month_of_year=2, day_of_week=0), UTC)
    assert rule.next_after(datetime(2088, 3, 1, tzinfo=UTC)) == datetime(2128, 2, 29, tzinfo=UTC)


def test_every_second_goes_on_past_2_to_the_31() -> None:
    every_second = cron("* * * * * *", tz="Europe/Berlin")
    last = datetime(2038, 1, 19, 3, 14, 7, tzinfo=UTC)
    assert every_second.next_after(last) == last + timedelta(seconds=1)


def test_the_end_of_time_is_never_and_no_error() -> None:
    nightly = cron("0 0 * * *", tz="Asia/Tokyo")
    assert nightly.next_after(datetime.max.replace(tzinfo=UTC)) is None
    assert nightly.next_after(datetime(9999, 12, 31, 22, tzinfo=UTC)) is None


@together(
    ("left", "right"),
    [
        ("0 22-4 * * *", "0 22,23,0,1,2,3,4 * * *"),
        ("0 0 * * fri-mon", "0 0 * * 0,1,5,6"),
        ("0 0 28-2 * *", "0 0 28,29,30,31,1,2 * *"),
        ("0 0 * nov-feb *", "0 0 * 1,2,11,12 *"),
        ("0 0 1 */3 *", "0 0 1 1,4,7,10 *"),
        ("50-10/10 * * * *", "50,0,10 * * * *"),
        ("0 5-5 * * *", "0 5 * * *"),
        ("0 0 * * 7-7", "0 0 * * 0"),
        ("50-10/20 * * * *", "10,50 * * * *"),
        ("59/15 * * * *", "59 * * * *"),
        ("*/90 * * * *", "0 * * * *"),
        ("*/1000000000 * * * *", "0 * * * *"),
        ("1/1000000000 * * * *", "1 * * * *"),
        ("10-40/1000000000 * * * *", "10 * * * *"),
        ("0 0 1,15/100 * *", "0 0 1,15 * *"),
        ("0 0 w15 * *", "0 0 15w * *"),
        ("0 0 27-L,L * *", "0 0 27-31,L * *"),
        ("0 0 * * L5,mon", "0 0 * * mon,5L"),
        ("0 */48 * * *", "0 0 * * *"),
        ("0 5 * * 07", "0 5 * * 0"),
        ("0 5 * * 4-07", "0 5 * * 0,4,5,6"),
        ("0 0 * * 0-7", "0 0 * * *"),
        ("0 0 * * 7", "0 0 * * sunday"),
        ("0 0 */1 * mon", "0 0 * * mon"),
        ("0 0 ? * MON", "0 0 * * mon"),
        ("10/20 0 * * *", "10,30,50 0 * * *"),
        ("@daily", "0 0 * * *"),
        ("  0   0 * * *\t", "0 0 * * *"),
    ],
)
def test_two_spellings_of_one_rule(left: str, right: str) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    assert occurrences(cron(left, tz="UTC"), start, 60) == occurrences(cron(right, tz="UTC"), start, 60)


@together(
    ("expression", "words"),
    [
        ("", "five or six fields"),
        ("* * *", 'for example "0 3 * * *"'),
        ("every day", 'an interval is every("5m")'),
        ("daily", "@daily"),
        ("5m", 'an interval is every("5m")'),
        ("60", 'an interval is every("5m")'),
        ("every 5 minutes", 'an interval is every("5m")'),
        ("0 9 * * mon-fry", "did you mean 'friday'?"),
        ("0 9 LW * *", 'rrule("FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1;BYHOUR=...")'),
        ("0 9 1,L-3 * *", 'L-3 is rrule("FREQ=MONTHLY;BYMONTHDAY=-4;BYHOUR=...")'),
        ("* * * * * * *", "end_at"),
        ("60 * * * *", "minutes of 0 to 59, got '60' (in \"60 * * * *\")"),
        ("* 24 * * *", "hours of 0 to 23"),
        ("a b c d e", "minutes of 0 to 59, got 'a'"),
        ("* * 0 * *", "day of month of 1 to 31"),
        ("* * 32 * *", "1 to 31"),
        ("* * * 13 *", "month of 1 to 12 or jan to dec"),
        ("* * * * 8", "day of week of 0 to 7 or sun to sat"),
        ("* * * * * 60", "seconds of 0 to 59"),
        ("* * * sept *", "did you mean 'sep"),
        ("* * * * tusday", "did you mean 'tuesday'?"),
        ("* * * fri *", "month"),
        ("*/0 * * * *", "write *, 5, 1-5, */15, 5/15"),
        ("*/-5 * * * *", "write *, 5, 1-5, */15, 5/15"),
        ("22-4/0 * * * *", "write *, 5, 1-5, */15, 5/15"),
        ("5/x * * * *", "write *, 5, 1-5, */15, 5/15"),
        ("* 22-4/ * * *", "write *, 5, 1-5, */15, 5/15"),
        ("5-5/x * * * *", "write *, 5, 1-5, */15, 5/15"),
        ("* * * * sat/x", "write *, 5, 1-5, */15, 5/15"),
        ("-5 * * * *", "write *, 5, 1-5, */15"),
        ("5- * * * *", "minutes"),
        ("1,,2 * * * *", "minutes"),
        ("1.5 * * * *", "minutes"),
        ("*5 * * * *", "minutes"),
        ("٣ * * * *", "minutes"),
        ("? * * * *", "minutes"),
        ("l * * * *", "minutes"),
        ("r * * * *", "H(0-29)/10"),
        ("0 0 l5 * *", "day of month of 1 to 31"),
        ("0 0 * * l", "alone fri#1 to fri#5, L5, 5L or friL"),
        ("0 9 1-15W * *", "day of month of 1 to 31, got '1-15w' (in \"0 9 1-15W * *\"; write *, 5"),
        ("0 9 15W-20 * *", "and alone L or 15W"),
        ("0 9 1-W15 * *", "and alone L or 15W"),
        ("0 9 5W/2 * *", "and alone L or 15W"),
        ("0 9 W5/2 * *", "and alone L or 15W"),
        ("0 9 1-LW * *", "and alone L or 15W"),
        ("0 9 L/2 * *", "and alone L or 15W"),
        ("0 9 L1-5 * *", "and alone L or 15W"),
        ("0 9 * * L1-5", "day of week of 0 to 7 or sun to sat, got 'l1-5' (in \"0 9 * * L1-5\"; write *, 5"),
        ("0 9 * * 1-L5", "alone fri#1 to fri#5, L5, 5L or friL"),
        ("0 9 * * 1-5L", "alone fri#1 to fri#5"),
        ("0 9 * * L5/2", "alone fri#1 to fri#5"),
        ("0 9 * * 5L/2", "alone fri#1 to fri#5"),
        ("0 9 * * mon-friL", "did you mean 'fri'?"),
        ("0 9 * * L5#2", "alone fri#1 to fri#5"),
        ("0 9 * * 1-5W", "day of week of 0 to 7"),
        ("0 9 1 1-5L *", "month of 1 to 12"),
        ("0 9-17W * * *", "hours of 0 to 23"),
        ("0-30L * * * *", "minutes of 0 to 59"),
        ("0 0 * * mon#6", "fri#1 to fri#5"),
        ("0 0 * * mon#", "fri#1 to fri#5"),
        ("0 0 1,15w * *", "and alone L or 15W"),
        ("0 0 32w * *", "1 to 31"),
        ("0 0 30 2 *", "matches some day"),
        ("0 0 31 4,6,9,11 *", "matches some day"),
        ("@reboot", "@yearly, @annually"),
        ("@every 5m", 'an interval is every("5m")'),
        ("@every day", 'an interval is every("5m")'),
        ("@dayly", "@daily"),
        ("0 0 * * * " + "*," * 300, "at most 500 characters"),
        (5, "as text"),
        (None, "as text"),
    ],
)
def test_a_malformed_expression_is_refused_with_what_would_have_been_right(expression: Any, words: str) -> None:
    with pytest.raises(InvalidEntry) as refused:
        cron(expression)
    assert refused.value.field == "schedule"
    assert words in str(refused.value)


def test_an_error_about_the_whole_expression_shows_it_once() -> None:
    with pytest.raises(InvalidEntry) as refused:
        cron("1 2 3")
    assert str(refused.value).count("1 2 3") == 1


@together(
    ("tz", "words"),
    [
        ("Europe/Berln", "did you mean Europe/Berlin"),
        ("europe/berlin", "did you mean Europe/Berlin?"),
        ("UTC+1", 'an offset is written "+01:00"'),
        ("PST", 'for example "Europe/Berlin"'),
        ("Berlin", "Europe/Berlin"),
        ("Europe", "the name of a time zone"),
        ("", "the name of a time zone"),
        ("../../etc/passwd", "the name of a time zone"),
        ("/usr/share/zoneinfo/UTC", "the name of a time zone"),
        ("localtime", "the name of a time zone"),
        ("right/UTC", "the name of a time zone"),
        ("UTC\0", "the name of a time zone"),
        ("+25:00", "the name of a time zone"),
        ("x" * 5000, "the name of a time zone"),
        (2, "the name of a time zone"),
    ],
)
def test_an_unknown_zone_is_refused_at_definition(tz: Any, words: str) -> None:
    with pytest.raises(InvalidEntry) as refused:
        cron("0 0 * * *", tz=tz)
    assert refused.value.field == "tz"
    assert words in str(refused.value)


def test_seconds_stand_first_or_last() -> None:
    with pytest.raises(InvalidEntry) as refused:
        cron("0 0 * * * *", seconds="middle")  # type: ignore[arg-type]
    assert refused.value.field == "seconds"


@together("tz", ["Europe/Berlin", BERLIN, "+05:30", timezone(timedelta(hours=-3)), UTC, None])
def test_a_cron_is_a_value(tz: Any) -> None:
    one, other = cron("0 3 * * mon", tz=tz), cron("0  3 * * MON", tz=tz)
    assert one == other
    assert hash(one) == hash(other)
    assert one != cron("0 3 * * mon", tz="Asia/Tokyo")
    assert one != cron("0 4 * * mon", tz=tz)
    for twin in (pickle.loads(pickle.dumps(one)), copy.copy(one), copy.deepcopy(one)):
        assert twin == one
        assert rule_of(twin, UTC) == rule_of(one, UTC)


def test_the_repr_is_how_it_is_written() -> None:
    assert repr(cron("0 3 * * *", tz=BERLIN)) == "cron('0 3 * * *', tz='Europe/Berlin')"
    assert repr(cron("0 0 3 * * *", seconds="first")) == "cron('0 0 3 * * *', seconds='first')"
    assert repr(cron("@daily")) == "cron('@daily')"

"""EXDATE and RDATE against dateutil's sets, and by brute force across clock changes."""

from __future__ import annotations

import copy
import pickle
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from dateutil.rrule import rruleset, rrulestr
from hypothesis import assume, example, given
from hypothesis import strategies as st

from redbeat_lite._base.errors import InvalidEntry
from redbeat_lite._base.times import to_ms
from redbeat_lite.rules import decode_schedule, encode_schedule, rrule, rule_of, shortest_gap_ms
from redbeat_lite.rules.clock_changes import hazard
from redbeat_lite.rules.rrule_text import MAX_DATES
from tests.support.cases import together
from tests.support.examples import examples
from tests.support.rules import occurrences

BERLIN = ZoneInfo("Europe/Berlin")
#: One that never changes its clocks, so that dateutil and this package mean the same by every local time.
TOKYO = ZoneInfo("Asia/Tokyo")
START = datetime(2026, 1, 31, 10, 20, 30)
#: The days on which Berlin's clocks jump, in 2026.
FORWARD, BACK = datetime(2026, 3, 29), datetime(2026, 10, 25)

RULES = (
    "FREQ=DAILY",
    "FREQ=DAILY;COUNT=9",
    "FREQ=DAILY;UNTIL=20260214T102030Z",
    "FREQ=HOURLY;INTERVAL=5",
    "FREQ=WEEKLY;BYDAY=SA,SU,WE;BYHOUR=9,10;BYMINUTE=20",
    "FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1",
)


def walls(text: str, after: str, count: int, zone: ZoneInfo = BERLIN) -> list[str]:
    """The next occurrences on the wall."""
    since = datetime.fromisoformat(after).replace(tzinfo=zone)
    found = occurrences(rule_of(rrule(text), zone), since, count)
    return [each.astimezone(zone).strftime("%d %H:%M%z").removesuffix("00") for each in found]


def text_of(name: str, dates: list[tuple[datetime, str]]) -> list[str]:
    """Lines of local times, of instants in UTC, and of local times of another zone."""
    lines = {"": "", "UTC": "", "Asia/Tokyo": ";TZID=Asia/Tokyo", "Asia/Kolkata": ";TZID=Asia/Kolkata"}
    shown = {zone: [] for zone in lines}  # type: dict[str, list[str]]
    for local, zone in dates:
        instant = local.replace(tzinfo=TOKYO).astimezone(ZoneInfo(zone or "Asia/Tokyo"))
        shown[zone].append(f"{instant:%Y%m%dT%H%M%S}{'Z' if zone == 'UTC' else ''}")
    return [f"{name}{lines[zone]}:{','.join(found)}" for zone, found in shown.items() if found]


@st.composite
def dates(draw: st.DrawFn, among: list[datetime]) -> list[tuple[datetime, str]]:
    """Such as are occurrences, most of them, in one way or another to write them."""
    apart = st.integers(0, 40 * 24).map(lambda hours: START + timedelta(hours=hours))
    when = st.one_of(st.sampled_from(among), st.sampled_from(among), apart)
    return draw(st.lists(st.tuples(when, st.sampled_from(["", "UTC", "Asia/Tokyo", "Asia/Kolkata"])), max_size=6))


def their_set(text: str, added: list[datetime], left_out: list[datetime]) -> rruleset:
    found = rruleset()
    found.rrule(rrulestr(text, dtstart=START.replace(tzinfo=TOKYO)))
    for each in added:
        found.rdate(each.replace(tzinfo=TOKYO))
    for each in left_out:
        found.exdate(each.replace(tzinfo=TOKYO))
    return found


@examples(60)
@given(st.data(), st.sampled_from(RULES))
def test_agrees_with_the_sets_of_dateutil(data: st.DataObject, text: str) -> None:
    start = START.replace(tzinfo=TOKYO)
    among = [each.replace(tzinfo=None) for each in islice(rrulestr(text, dtstart=start), 12)]
    added, left_out = data.draw(dates(among)), data.draw(dates(among))
    expected = [*islice(their_set(text, [each for each, _ in added], [each for each, _ in left_out]), 15)]
    begun = f"DTSTART;TZID=Asia/Tokyo:{START:%Y%m%dT%H%M%S}"
    whole = "\n".join([begun, f"RRULE:{text}", *text_of("RDATE", added), *text_of("EXDATE", left_out)])
    if not expected:
        with pytest.raises(InvalidEntry, match="matches something"):
            rrule(whole)
        return
    rule, begin = rule_of(rrule(whole), UTC), start - timedelta(seconds=1)
    assert occurrences(rule, begin, 15) == expected
    for at in range(0, len(expected), 4):
        assert occurrences(rule, expected[at], 15 - at - 1) == expected[at + 1 :]
    gaps = [(later - earlier) / timedelta(milliseconds=1) for earlier, later in pairwise(expected)]
    assert shortest_gap_ms(rule, to_ms(begin)) == min(gaps, default=None) or len(expected) == 15


@examples(25)
@given(st.sets(st.integers(0, 9), max_size=4), st.sampled_from([FORWARD, BACK]), st.booleans())
@example({4, 5}, BACK, True)
def test_whole_days_are_those_of_the_wall(days: set[int], change: datetime, hourly: bool) -> None:
    begin = change - timedelta(days=5)
    left_out = {(begin + timedelta(days=day)).date() for day in days}
    plain = "RRULE:FREQ=HOURLY;BYMINUTE=30" if hourly else "RRULE:FREQ=DAILY;BYHOUR=2,9;BYMINUTE=30"
    text = f"{plain}\nEXDATE:{','.join(f'{day:%Y%m%d}' for day in left_out)}" if left_out else plain
    since, until = begin.replace(tzinfo=BERLIN), (begin + timedelta(days=10)).replace(tzinfo=BERLIN)
    every = [each for each in occurrences(rule_of(rrule(plain), BERLIN), since, 260) if each < until]
    expected = [each for each in every if each.astimezone(BERLIN).date() not in left_out]
    assume(expected)
    assert occurrences(rule_of(rrule(text), BERLIN), since, len(expected)) == expected


def test_a_local_time_is_left_out_of_those_that_a_clock_change_moves() -> None:
    nightly = "FREQ=DAILY;BYHOUR=2;BYMINUTE=0,30"
    assert walls(f"{nightly}\nEXDATE:20260329T023000", "2026-03-29", 2) == ["29 03:00+02", "30 02:00+02"]
    both = f"{nightly}\nEXDATE:20260329T020000,20260329T023000"
    assert walls(both, "2026-03-29", 1) == ["30 02:00+02"]
    # An instant is what it has become.
    assert walls(f"{nightly}\nEXDATE:20260329T010000Z", "2026-03-29", 1) == ["30 02:00+02"]


def test_of_a_time_that_comes_twice_one_or_both_can_be_left_out() -> None:
    hourly = "FREQ=HOURLY;BYMINUTE=30"
    assert walls(f"{hourly}\nEXDATE:20261025T023000", "2026-10-25 01:00", 2) == ["25 01:30+02", "25 03:30+01"]
    second = f"{hourly}\nEXDATE:20261025T013000Z"
    assert walls(second, "2026-10-25 02:00", 2) == ["25 02:30+02", "25 03:30+01"]


def test_what_is_added_runs_once_whatever_the_clocks_do() -> None:
    hourly = "FREQ=HOURLY"
    assert walls(f"{hourly}\nRDATE:20260329T023000", "2026-03-29 01:00", 2) == ["29 03:00+02", "29 04:00+02"]
    assert walls(f"{hourly}\nRDATE:20261025T023000", "2026-10-25 02:00", 3) == [
        "25 02:30+02",
        "25 02:00+01",
        "25 03:00+01",
    ]
    added = "FREQ=DAILY;BYHOUR=9\nRDATE;TZID=Asia/Tokyo:20260330T013000\nEXDATE:20260329"
    assert walls(added, "2026-03-28 12:00", 2) == ["29 18:30+02", "30 09:00+02"]


def test_what_is_added_in_the_second_passing_is_told_as_that() -> None:
    rule = rule_of(rrule("FREQ=DAILY;BYHOUR=9\nRDATE:20261025T003000Z,20261025T013000Z", tz=BERLIN), UTC)
    first, second = occurrences(rule, datetime(2026, 10, 25, tzinfo=UTC), 2)
    assert hazard(rule, to_ms(first)) == "02:30 comes twice; it runs the first time"
    assert hazard(rule, to_ms(second)) == "02:30 comes twice; this is the second time"


def test_a_day_that_is_left_out_can_have_a_run_at_another_time() -> None:
    moved = "FREQ=DAILY;BYHOUR=9\nEXDATE:20261224\nRDATE:20261224T120000,20261223T190000Z"
    assert walls(moved, "2026-12-23 21:00", 2) == ["24 12:00+01", "25 09:00+01"]
    assert walls(f"{moved}\nEXDATE:20261224T120000", "2026-12-23 12:00", 2) == ["23 20:00+01", "25 09:00+01"]


def test_a_day_is_a_date_of_a_rule_of_days() -> None:
    text = "DTSTART;VALUE=DATE:20260105\nRRULE:FREQ=WEEKLY\nRDATE;VALUE=DATE:20260107,20260108"
    text += "\nEXDATE;VALUE=DATE:20260112,20260108"
    assert walls(text, "2026-01-04", 3) == ["05 00:00+01", "07 00:00+01", "19 00:00+01"]


def test_a_day_that_is_left_out_is_passed_over_at_once() -> None:
    """Its 86,400 occurrences would use up the steps of the search."""
    days = [datetime(2026, 1, 1) + timedelta(days=day) for day in range(MAX_DATES)]
    text = f"DTSTART:20251231T000000\nRRULE:FREQ=SECONDLY\nEXDATE:{','.join(f'{day:%Y%m%d}' for day in days)}"
    last = datetime(2025, 12, 31, 23, 59, 59, tzinfo=UTC)
    assert rule_of(rrule(text), UTC).next_after(last) == days[-1].replace(tzinfo=UTC) + timedelta(days=1)


def test_lines_that_a_calendar_has_folded_are_read() -> None:
    folded = "DTSTART;TZID=Europe/Be\r\n rlin:20260101T090000\r\nRRULE:FREQ=DAILY\r\nEXDATE:2026010\r\n 2T090000\r\n"
    flat = "DTSTART;TZID=Europe/Berlin:20260101T090000\nRRULE:FREQ=DAILY\nEXDATE:20260102T090000"
    assert rrule(folded) == rrule(flat)
    assert rrule(folded).text == flat


@together(
    ("lines", "words"),
    [
        ("EXDATE:20261301T000000", "a date and time such as 20260131T090000"),
        ("EXDATE:", "a date and time such as 20260131T090000"),
        ("RDATE;VALUE=PERIOD:20260101T090000Z/PT1H", "got '20260101T090000Z/PT1H in"),
        ("EXDATE;TZID=Europe/Berlin:20260101T090000Z", "with EXDATE with a zone or with Z, not with both"),
        ("EXDATE;TZID=Europe/Brlin:20260101T090000", "did you mean Europe/Berlin"),
        ("EXDATE;TZID=Europe/Berlin:20260101", "dates without TZID, or with a time of day"),
        ("RDATE:20260101", "an RDATE with a time of day"),
        ("EXDATE:" + ",".join(["20260101"] * (MAX_DATES + 1)), "at most 100 dates in RDATE and EXDATE, not 101"),
        ("EXRULE:FREQ=DAILY", "one DTSTART and one RRULE"),
        ("DTSTART:20260101T000000\nDTSTART:20260102T000000", "one DTSTART and one RRULE"),
    ],
)
def test_malformed_dates_are_refused(lines: str, words: str) -> None:
    with pytest.raises(InvalidEntry) as refused:
        rrule(f"RRULE:FREQ=DAILY\n{lines}")
    assert words in str(refused.value)


def test_a_rule_of_which_all_is_left_out_is_refused() -> None:
    start = "DTSTART:20260101T090000\nRRULE:FREQ=DAILY;COUNT=2"
    for lines in ("EXDATE:20260101,20260102", "EXDATE:20260101T090000Z,20260102T090000Z"):
        with pytest.raises(InvalidEntry, match="matches something"):
            rrule(f"{start}\n{lines}", tz="UTC")
    # What is added is enough.
    assert rrule(f"{start}\nEXDATE:20260101,20260102\nRDATE:20260103T090000", tz="UTC")


def test_dates_are_part_of_the_value_and_of_the_stored_form() -> None:
    text = "RRULE:FREQ=DAILY;BYHOUR=9\nRDATE:20260101T120000\nEXDATE;TZID=Asia/Tokyo:20260102T090000"
    one = rrule(text, tz=BERLIN)
    for other in (text.replace("T12", "T13"), text.replace("2T09", "3T09"), text.partition("\n")[0]):
        assert rrule(other, tz=BERLIN) != one
        assert rule_of(rrule(other, tz=BERLIN), UTC) != rule_of(one, UTC)
    stored: Any = encode_schedule(one)
    assert stored == {"rrule": text, "tz": "Europe/Berlin"}
    for twin in (decode_schedule(stored), pickle.loads(pickle.dumps(one)), copy.deepcopy(one), eval(repr(one))):
        assert twin == one
        assert rule_of(twin, UTC) == rule_of(one, UTC)

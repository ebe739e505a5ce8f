"""RFC 5545 recurrences against dateutil, and across clock changes."""

from __future__ import annotations

import copy
import json
import pickle
import time
from datetime import UTC, date, datetime, timedelta
from itertools import islice, pairwise
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from dateutil.rrule import rrulestr
from hypothesis import example, given
from hypothesis import strategies as st

from redbeat_lite._base.errors import InvalidEntry
from redbeat_lite._base.times import to_ms
from redbeat_lite.rules import clock_changes, decode_schedule, rrule, rule_of, shortest_gap_ms
from redbeat_lite.rules.clock_changes import Days, WallTimes
from redbeat_lite.rules.rrules import STEPS
from tests.support.cases import together
from tests.support.examples import examples
from tests.support.rules import occurrences

BERLIN = ZoneInfo("Europe/Berlin")
START = datetime(2026, 1, 31, 10, 20, 30, tzinfo=UTC)
WEEKDAYS = ["MO", "TU", "WE", "TH", "FR", "SA", "SU"]


def numbers(low: int, high: int, *, negative: bool = False) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    signed = st.one_of(number, number.map(lambda n: -n)) if negative else number
    return st.sets(signed, min_size=1, max_size=3).map(lambda found: ",".join(map(str, sorted(found))))


@st.composite
def texts(draw: st.DrawFn) -> str:
    """Rules that dateutil reads as RFC 5545 does, and whose next occurrence it finds in bounded time."""
    freq = draw(st.sampled_from(["YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY"]))
    parts: dict[str, Any] = {"FREQ": freq, "INTERVAL": draw(st.sampled_from([1, 1, 2, 3, 7]))}
    if draw(st.booleans()):
        parts["WKST"] = draw(st.sampled_from(WEEKDAYS))
    if draw(st.booleans()):
        parts["BYMONTH"] = draw(numbers(1, 12))
    days = draw(st.sampled_from(["", "BYMONTHDAY", "BYDAY", "NTH", "BYWEEKNO"]))
    if days == "BYMONTHDAY" and freq != "WEEKLY":
        parts["BYMONTHDAY"] = draw(numbers(1, 28, negative=True))
    elif days == "NTH" and freq in ("YEARLY", "MONTHLY"):
        nth = st.builds("{}{}".format, st.sampled_from([1, 2, 4, -1, -3]), st.sampled_from(WEEKDAYS))
        parts["BYDAY"] = ",".join(sorted(draw(st.sets(nth, min_size=1, max_size=3))))
    elif days == "BYWEEKNO" and freq == "YEARLY":
        parts["BYWEEKNO"] = draw(numbers(1, 51))
        parts.pop("BYMONTH", None)
    elif days:
        parts["BYDAY"] = ",".join(sorted(draw(st.sets(st.sampled_from(WEEKDAYS), min_size=1, max_size=3))))
    if freq != "MINUTELY":
        for name, high in (("BYHOUR", 23), ("BYMINUTE", 59), ("BYSECOND", 59)):
            if draw(st.booleans()) and (freq != "HOURLY" or name != "BYHOUR"):
                parts[name] = draw(numbers(0, high))
    # dateutil takes the first week from the start on, and not from its Monday.
    if freq not in ("WEEKLY", "MINUTELY") and any(name[:2] == "BY" for name in parts) and draw(st.booleans()):
        parts["BYSETPOS"] = draw(numbers(1, 3, negative=True))
    return ";".join(f"{name}={value}" for name, value in parts.items())


@examples(25)
@given(texts(), st.integers(0, 10**8))
@example("FREQ=WEEKLY;INTERVAL=2;WKST=SU;BYDAY=SU,MO", 0)
def test_agrees_with_dateutil(text: str, later: int) -> None:
    start = START + timedelta(seconds=later)
    start = start.replace(day=min(start.day, 28))  # a February without a 31st is another test
    try:
        rule = rule_of(rrule(text, tz="UTC", start=start), UTC)
    except InvalidEntry as refused:
        if "matches something" not in refused.expected:
            raise
        return  # dateutil would look for it until the year 9999
    expected = list(islice(rrulestr(text, dtstart=start), 12))
    assert occurrences(rule, start - timedelta(seconds=1), 12) == expected
    # The same from the middle: the search does not begin at the start.
    assert occurrences(rule, expected[5], 6) == expected[6:]


#: A step looks at one time. A running rule is searched again from two days before its next time.
LOOKS = STEPS + 1000


class Looks:
    """Counts the times and the years that searches look at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._times = 0
        self._years: set[tuple[Days, int]] = set()
        next_wall, dates_of = WallTimes.next_wall, clock_changes.dates_of

        def counted(times: WallTimes, wall: datetime) -> datetime | None:
            self._times += 1
            assert self._times <= 2 * LOOKS, "a search goes on beyond its steps"
            return next_wall(times, wall)

        def noted(days: Days, year: int) -> tuple[date, ...]:
            self._years.add((days, year))
            return dates_of(days, year)

        monkeypatch.setattr(WallTimes, "next_wall", counted)
        monkeypatch.setattr(clock_changes, "dates_of", noted)

    def taken(self) -> tuple[int, int]:
        """Return how many times and years there were since the last call."""
        taken = self._times, len(self._years)
        self._times = 0
        self._years.clear()
        return taken


@st.composite
def any_texts(draw: st.DrawFn) -> str:
    """Rules of any kind, most of all such as seldom match what they run through."""
    freq = draw(st.sampled_from(["YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY"]))
    parts: dict[str, Any] = {"FREQ": freq}
    parts["INTERVAL"] = draw(st.sampled_from([1, 1, 7, 59, 601, 3607, 86_399, 100_000_000]))
    if draw(st.booleans()):
        parts["COUNT"] = draw(st.sampled_from([1, 100, 2000, 10_000]))
    bounds = {"BYMONTH": 12, "BYMONTHDAY": 31, "BYYEARDAY": 366, "BYWEEKNO": 53}
    for name, high in {**bounds, "BYHOUR": 23, "BYMINUTE": 59, "BYSECOND": 59, "BYSETPOS": 366}.items():
        if draw(st.integers(0, 3)) == 0:
            parts[name] = draw(numbers(1, high, negative=name not in ("BYMONTH", "BYHOUR", "BYMINUTE", "BYSECOND")))
    if draw(st.integers(0, 3)) == 0:
        parts["BYDAY"] = ",".join(sorted(draw(st.sets(st.sampled_from(WEEKDAYS), min_size=1, max_size=3))))
    start = draw(st.sampled_from(["00010101T000000", "10000101T000001", "19000101T000001", "20260131T102030"]))
    return f"DTSTART:{start} RRULE:" + ";".join(f"{name}={value}" for name, value in parts.items())


@examples(3)
@given(any_texts(), st.integers(-(10**13), 10**13))
@example("DTSTART:10000101T000001 RRULE:FREQ=SECONDLY;INTERVAL=3607;COUNT=10000;BYMINUTE=0;BYSECOND=0", 0)
@example("DTSTART:19000101T000001 RRULE:FREQ=SECONDLY;INTERVAL=601;BYMINUTE=0;BYSECOND=0", 0)
@example("DTSTART:19000101T000001 RRULE:FREQ=YEARLY;INTERVAL=601;BYWEEKNO=17", 0)
@example("DTSTART:20260105T000001 RRULE:FREQ=DAILY;INTERVAL=7;BYDAY=TU", 0)
@example("DTSTART:20260105T000001 RRULE:FREQ=MINUTELY;BYMONTH=2;BYMONTHDAY=30", 0)
def test_every_search_is_bounded(text: str, instant: int) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        looks = Looks(monkeypatch)
        try:
            rule = rule_of(decode_schedule({"rrule": text}), UTC)
        except InvalidEntry:
            rule = None
        # There were at most two searches from the start: for the last of a COUNT, and for any occurrence.
        _, years = looks.taken()
        assert years <= 500
        if rule is not None:
            rule.next_ms(instant)
            times, years = looks.taken()
            assert times <= LOOKS
            assert years <= 500


def recorded_rules() -> list[dict[str, Any]]:
    """Rules of RFC 5545 and random ones, with their next occurrences by another implementation.

    ``next`` has lists of an instant and the three occurrences after it, in seconds since 1970; null after the last one.
    """
    found: list[dict[str, Any]] = json.loads((Path(__file__).parent.parent / "data" / "rrules.json").read_text())
    return found


def test_reproduces_what_another_implementation_has_found() -> None:
    recorded = recorded_rules()
    assert len(recorded) > 250
    for each in recorded:
        start = datetime.fromisoformat(each["start"]) if "start" in each else None
        if "refused" in each:
            with pytest.raises(InvalidEntry):
                rrule(each["rule"], tz=each["tz"], start=start)
            continue
        rule = rule_of(rrule(each["rule"], tz=each["tz"], start=start), UTC)
        for instant, *expected in each["next"]:
            ms: int | None = 1000 * instant
            found = []
            while ms is not None and len(found) < len(expected):
                ms = rule.next_ms(ms)
                found.append(None if ms is None else ms // 1000)
            assert found == expected, each


@together(
    "text",
    [
        "FREQ=DAILY;COUNT=10000",
        "FREQ=DAILY;INTERVAL=3;BYHOUR=9,17;COUNT=10000",
        "FREQ=WEEKLY;BYDAY=MO,TU,WE,TH,FR;COUNT=10000",
        "FREQ=HOURLY;BYHOUR=9,10,11,12,13,14,15,16,17;BYDAY=MO,TU,WE,TH,FR;COUNT=10000",
        "FREQ=MINUTELY;INTERVAL=5;BYHOUR=9,10;COUNT=10000",
        "FREQ=SECONDLY;COUNT=10000",
        "FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1;COUNT=1000",
        "FREQ=YEARLY;BYDAY=20MO;COUNT=100",
    ],
)
def test_a_rule_that_somebody_would_write_is_within_its_steps(text: str) -> None:
    rule = rule_of(rrule(text, tz="UTC", start=START), UTC)
    assert rule.next_after(START) is not None


def test_a_count_that_takes_too_long_to_find_is_refused_with_a_way_out() -> None:
    text = "FREQ=SECONDLY;INTERVAL=3607;COUNT=10000;BYMINUTE=0;BYSECOND=0"
    with pytest.raises(InvalidEntry, match=r"found within 60,000 steps.*max_runs") as refused:
        rrule(text, start=START)
    assert refused.value.field == "schedule"
    assert text in str(refused.value)


def test_a_jitter_is_held_against_the_closest_of_the_first_occurrences() -> None:
    T = to_ms(START)
    assert shortest_gap_ms(rule_of(rrule("FREQ=DAILY;BYHOUR=9,17", tz="UTC"), UTC), T) == 8 * 3_600_000
    assert shortest_gap_ms(rule_of(rrule("FREQ=DAILY;COUNT=1", tz="UTC", start=START), UTC), T - 1) is None
    ending = rrule("FREQ=DAILY;UNTIL=20260202T000000Z", start=START)
    assert shortest_gap_ms(rule_of(ending, UTC), T - 1) == 86_400_000
    assert shortest_gap_ms(rule_of(ending, UTC), T) is None
    # 2:00 and 2:30 are one occurrence on the day without them.
    nightly = rule_of(rrule("FREQ=DAILY;BYHOUR=2;BYMINUTE=0,30", tz=BERLIN), UTC)
    assert shortest_gap_ms(nightly, to_ms(datetime(2026, 3, 28, tzinfo=UTC))) == 1_800_000


def test_a_start_long_ago_costs_nothing() -> None:
    rule = rule_of(rrule("FREQ=SECONDLY;INTERVAL=7", tz="UTC", start=datetime(1970, 1, 1, tzinfo=UTC)), UTC)
    begun = time.thread_time()
    found = rule.next_after(datetime(2026, 1, 1, tzinfo=UTC))
    assert time.thread_time() - begun < 0.1
    assert found is not None
    assert found.timestamp() % 7 == 0
    assert found - datetime(2026, 1, 1, tzinfo=UTC) <= timedelta(seconds=7)


def test_count_and_until_end_a_rule() -> None:
    start = datetime(2026, 1, 1, 9, tzinfo=UTC)
    counted = rule_of(rrule("FREQ=DAILY;COUNT=3", start=start), UTC)
    days = [start + timedelta(days=day) for day in range(3)]
    assert occurrences(counted, start - timedelta(days=9), 9) == days
    assert occurrences(counted, days[1], 9) == days[2:]
    for until in ("20260103T090000Z", "20260103T090000", "20260104T085959Z"):
        ended = rule_of(rrule(f"FREQ=DAILY;UNTIL={until}", start=start), UTC)
        assert occurrences(ended, start - timedelta(days=9), 9) == days
    # In Berlin it is 10 o'clock; an UNTIL in UTC stays in UTC.
    berlin = rule_of(rrule("FREQ=DAILY;UNTIL=20260103T090000Z", start=start), BERLIN)
    assert occurrences(berlin, start - timedelta(days=9), 9) == days


def test_a_rule_without_a_start_counts_from_a_monday_the_first_at_midnight() -> None:
    after = datetime(2026, 5, 5, 5, tzinfo=UTC)
    assert rrule("FREQ=WEEKLY", tz="UTC").next_after(after) == datetime(2026, 5, 11, tzinfo=UTC)
    assert rrule("FREQ=MONTHLY", tz="UTC").next_after(after) == datetime(2026, 6, 1, tzinfo=UTC)
    assert rrule("FREQ=YEARLY", tz="UTC").next_after(after) == datetime(2027, 1, 1, tzinfo=UTC)


def test_the_start_may_be_in_the_text() -> None:
    found = datetime(2026, 5, 5, 7, tzinfo=UTC)
    for text in (
        "DTSTART;TZID=Europe/Berlin:20260101T090000\nRRULE:FREQ=DAILY",
        "DTSTART:20260101T070000Z RRULE:FREQ=DAILY",
        "dtstart;tzid=Europe/Berlin:20260101T090000\nrrule:freq=daily",
    ):
        assert rule_of(rrule(text), ZoneInfo("Asia/Tokyo")).next_after(found - timedelta(hours=1)) == found
    assert rrule("DTSTART:20260101T090000\nRRULE:FREQ=DAILY", tz=BERLIN).next_after(found - timedelta(hours=1)) == found


def test_a_start_in_utc_is_an_instant_that_goes_with_any_zone() -> None:
    daily = rrule("DTSTART:20260101T080000Z RRULE:FREQ=DAILY", tz=BERLIN)
    assert occurrences(daily, datetime(2026, 7, 1, tzinfo=UTC), 1) == [datetime(2026, 7, 1, 7, tzinfo=UTC)]


def test_times_of_day_meet_clock_changes_as_those_of_cron_do() -> None:
    nightly = rule_of(rrule("FREQ=DAILY;BYHOUR=2;BYMINUTE=0,30", tz=BERLIN), UTC)
    in_gap = occurrences(nightly, datetime(2026, 3, 29, tzinfo=UTC), 2)
    walls = [i.astimezone(BERLIN).isoformat(" ", "minutes") for i in in_gap]
    assert walls == ["2026-03-29 03:00+02:00", "2026-03-30 02:00+02:00"]
    in_fold = occurrences(nightly, datetime(2026, 10, 24, 22, tzinfo=UTC), 3)
    assert [i.astimezone(BERLIN).isoformat(" ", "minutes") for i in in_fold] == [
        "2026-10-25 02:00+02:00",
        "2026-10-25 02:30+02:00",
        "2026-10-26 02:00+01:00",
    ]
    hourly = occurrences(rule_of(rrule("FREQ=HOURLY", tz=BERLIN), UTC), datetime(2026, 10, 24, 22, tzinfo=UTC), 6)
    assert {later - earlier for earlier, later in pairwise(hourly)} == {timedelta(hours=1)}


@together(
    ("text", "words"),
    [
        ("", "an RRULE"),
        ("DAILY", "parts NAME=value"),
        ("FREQ=DAYLY", "did you mean 'DAILY'?"),
        ("INTERVAL=2", "FREQ of YEARLY"),
        ("FREQ=DAILY;BYHUOR=9", "did you mean 'BYHOUR'?"),
        ("every day", "parts NAME=value such as FREQ=DAILY"),
        ("FREQ=DAILY;BYHOUR=24", "BYHOUR of 0 to 23"),
        ("FREQ=DAILY;BYHOUR=", "parts NAME=value"),
        ("FREQ=DAILY;BYHOUR=9;BYHOUR=10", "BYHOUR once"),
        ("FREQ=DAILY;INTERVAL=0", "INTERVAL of 1 to"),
        ("FREQ=DAILY;INTERVAL=-1", "INTERVAL of 1 to"),
        ("FREQ=DAILY;COUNT=3", "pass start=..."),
        ("FREQ=DAILY;COUNT=99999", "use max_runs"),
        ("FREQ=DAILY;COUNT=3;UNTIL=20270101", "COUNT or UNTIL"),
        ("FREQ=DAILY;UNTIL=20261301", "a date and time such as"),
        ("FREQ=DAILY;UNTIL=2026-01-01", "a date and time such as"),
        ("FREQ=WEEKLY;BYDAY=2MO", "2MO only in MONTHLY"),
        ("FREQ=WEEKLY;BYDAY=XX", "BYDAY of MO"),
        ("FREQ=WEEKLY;WKST=XX", "WKST of MO"),
        ("FREQ=MONTHLY;BYDAY=20MO", "20MO only in MONTHLY rules and YEARLY ones with BYMONTH up to 5"),
        ("FREQ=DAILY;INTERVAL=2,3", "one number as INTERVAL"),
        ("FREQ=MONTHLY;BYDAY=0MO", "BYDAY of MO"),
        ("FREQ=WEEKLY;BYMONTHDAY=1", "no BYMONTHDAY in a WEEKLY rule"),
        ("FREQ=MONTHLY;BYWEEKNO=1", "no BYWEEKNO in a MONTHLY rule"),
        ("FREQ=MONTHLY;BYMONTHDAY=0", "BYMONTHDAY of 1 to 31 or -31 to -1"),
        ("FREQ=MONTHLY;BYSETPOS=1", "BYSETPOS together with"),
        ("FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30", "matches something"),
        ("RRULE:FREQ=DAILY\nRRULE:FREQ=WEEKLY", "another entry"),
        ("DTSTART;TZID=Europe/Berlin:20260101T000000Z\nRRULE:FREQ=DAILY", "not with both"),
        ("DTSTART;TZID=Europe/Brlin:20260101T000000\nRRULE:FREQ=DAILY", "did you mean Europe/Berlin"),
        ("FREQ=DAILY;" + "X" * 4000, "at most 4000 characters"),
        (5, "as text"),
    ],
)
def test_a_malformed_recurrence_is_refused(text: Any, words: str) -> None:
    with pytest.raises(InvalidEntry) as refused:
        rrule(text)
    assert words in str(refused.value)


def test_two_starts_two_zones_and_naive_starts_are_refused() -> None:
    with pytest.raises(InvalidEntry, match="a start or a DTSTART"):
        rrule("DTSTART:20260101T000000Z\nRRULE:FREQ=DAILY", start=START)
    with pytest.raises(InvalidEntry, match="the zone of DTSTART"):
        rrule("DTSTART;TZID=Europe/Berlin:20260101T000000\nRRULE:FREQ=DAILY", tz="Asia/Tokyo")
    with pytest.raises(InvalidEntry, match=r"start: expected an instant such as .*add tzinfo"):
        rrule("FREQ=DAILY", start=datetime(2026, 1, 1))


def test_a_recurrence_is_a_value() -> None:
    one = rrule("FREQ=DAILY;BYHOUR=9", tz="Europe/Berlin", start=START)
    assert one == rrule("freq=daily;byhour=9", tz=BERLIN, start=START)
    assert one != rrule("FREQ=DAILY;BYHOUR=9", tz="Europe/Berlin")
    assert one != rrule("FREQ=DAILY;BYHOUR=9", start=START)
    for twin in (pickle.loads(pickle.dumps(one)), copy.deepcopy(one)):
        assert twin == one
        assert hash(twin) == hash(one)
    assert repr(rrule("FREQ=DAILY", tz="UTC")) == "rrule('FREQ=DAILY', tz='UTC')"
    names = {"rrule": rrule, "datetime": datetime}
    assert eval(repr(one), names) == one

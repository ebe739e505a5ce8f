"""Stable spread: ``H`` in cron and ``spread`` of an interval go by the entry's name, the same in every process."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections import Counter
from copy import copy
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redbeat_lite import Entry, InvalidEntry, cron, every
from redbeat_lite._base.times import to_ms
from redbeat_lite.rules import decode_schedule, encode_schedule, first_ms, rule_of
from redbeat_lite.rules.celery_schedules import as_crontab
from redbeat_lite.rules.cron import parse
from tests.support.cases import together
from tests.support.examples import examples
from tests.support.rules import pull_back

NAMES = [f"tenant:{number}" for number in range(10_000)]
START = to_ms(datetime(2026, 5, 4, tzinfo=UTC))
HOUR, DAY = 3_600_000, 86_400_000
#: What the name "nightly" stands for.
PINNED = "16 3 16 1 2\n16 3-21/6 * * * 33\n2192553\n"


def of(name: str, schedule: cron | every) -> Any:
    """The schedule as the entry of this name has it."""
    return Entry(name, "t", schedule).schedule


@cache
def first_runs(schedule: cron | every) -> list[int]:
    """The first run of each of ten thousand entries, in milliseconds from a midnight on."""
    found = [first_ms(rule_of(Entry(name, "t", schedule).schedule, UTC), START - 1, None) for name in NAMES]
    return [ms - START for ms in found if ms is not None]


def resolved(expression: str, name: str = "nightly") -> str:
    return str(of(name, cron(expression)).resolved)


class TestEvenness:
    def test_daily_entries_use_nearly_all_minutes_of_the_day_and_none_much_more_than_others(self) -> None:
        minutes = Counter(ms // 60_000 for ms in first_runs(cron("H H * * *")))
        assert sum(minutes.values()) == len(NAMES)
        assert len(minutes) >= 1400
        assert max(minutes.values()) <= 3 * len(NAMES) / 1440

    @together("schedule", [cron("H * * * *"), every(3600, spread=True)], ids=repr)
    def test_hourly_entries_use_each_minute_of_the_hour_about_as_much(self, schedule: cron | every) -> None:
        minutes = Counter(ms // 60_000 for ms in first_runs(schedule))
        assert set(minutes) == set(range(60))
        assert max(minutes.values()) <= 1.3 * len(NAMES) / 60

    def test_one_field_tells_nothing_of_another(self) -> None:
        of_one_minute = Counter(ms // HOUR for ms in first_runs(cron("H H * * *")) if ms // 60_000 % 60 == 17)
        assert len(of_one_minute) == 24

    @together(
        ("schedule", "gap"),
        [
            (cron("H H * * *"), DAY),
            (cron("H H(22-4) * * *"), DAY),
            (cron("H * * * *"), HOUR),
            (cron("H/15 * * * *"), HOUR // 4),
            (cron("* * * * * H"), 60_000),
            (every(3600, spread=True), HOUR),
            (every(timedelta(days=7), spread=True), 7 * DAY),
            (every(0.25, spread=True), 250),
        ],
        ids=str,
    )
    def test_the_gaps_of_each_entry_are_equal(self, schedule: cron | every, gap: int) -> None:
        for name in NAMES[:200]:
            rule, runs = rule_of(Entry(name, "t", schedule).schedule, UTC), [START]
            for _ in range(6):
                following = rule.next_ms(runs[-1])
                assert following is not None
                runs.append(following)
            assert {right - left for left, right in pairwise(runs[1:])} == {gap}


class TestSameness:
    def test_what_a_name_decides_is_the_same_in_another_process_and_release(self) -> None:
        code = (
            "from redbeat_lite import Entry, cron, every\n"
            "for schedule in (cron('H H(0-5) H H(jan-mar) H'), cron('H H/6 * * * H'), every(3600, spread=True)):\n"
            "    print(Entry('nightly', 't', schedule).schedule.resolved)"
        )
        seeded = {"PYTHONHASHSEED": "1"}
        other = subprocess.run([sys.executable, "-c", code], env=seeded, capture_output=True, text=True, check=True)
        assert other.stdout == PINNED, "an upgrade must not move what is spread"
        spread = (cron("H H(0-5) H H(jan-mar) H"), cron("H H/6 * * * H"), every(3600, spread=True))
        assert "".join(f"{of('nightly', each).resolved}\n" for each in spread) == PINNED

    @together("schedule", [cron("H H(0-5) * * *"), every(3600, spread=True)], ids=repr)
    def test_two_are_the_same_when_they_are_written_the_same(self, schedule: cron | every) -> None:
        one, other = of("one", schedule), of("other", schedule)
        assert one.resolved != other.resolved
        assert one == other == schedule
        assert hash(one) == hash(schedule)
        assert repr(one) == repr(schedule)
        assert one != every(3600, align=True)
        assert one != every(3600)
        assert one not in (cron("H H(0-6) * * *"), cron("H H(0-5) * * *", tz="Asia/Tokyo"), cron(resolved("H H * * *")))

    @together("schedule", [cron("H H(0-5) * * *"), every(3600, spread=True)], ids=repr)
    def test_an_entry_made_from_anothers_schedule_has_a_time_of_its_own(self, schedule: cron | every) -> None:
        one = Entry("one", "t", schedule)
        assert Entry("other", "t", one.schedule).schedule.resolved == of("other", schedule).resolved
        assert one.replace(description="x").schedule.resolved == one.schedule.resolved
        for twin in (copy(one.schedule), pickle.loads(pickle.dumps(one)).schedule):
            assert twin.resolved == one.schedule.resolved
            assert Entry("other", "t", twin).schedule.resolved == of("other", schedule).resolved

    def test_a_crontab_for_other_tools_is_that_of_the_entry(self) -> None:
        one, other = (of(name, cron("H 4 * * *")) for name in ("one", "other"))
        for each in (one, other):
            told = as_crontab(each)
            assert told is not None
            assert (told.minute, told.hour) == ({*each.times.minutes}, {4})
        assert one.times != other.times


class TestForm:
    @together(
        ("schedule", "written"),
        [
            (cron("H H(0-5) * * *", tz="Asia/Tokyo"), {"cron": "H H(0-5) * * *", "tz": "Asia/Tokyo"}),
            (cron("H 0 3 * * *", seconds="first"), {"cron": "H 0 3 * * *", "seconds": "first"}),
            (every(3600, spread=True), {"every": "1h", "spread": True}),
        ],
        ids=str,
    )
    def test_the_times_follow_from_the_form_and_the_name(self, schedule: Any, written: dict[str, Any]) -> None:
        assert encode_schedule(schedule) == written
        assert decode_schedule(written) == schedule
        own = of("nightly", schedule)
        assert encode_schedule(own) == written
        stored = Entry("nightly", "t", decode_schedule(written))
        assert stored.schedule.resolved == own.resolved
        assert stored.replace(description="x").schedule.resolved == own.resolved
        assert stored == Entry("nightly", "t", schedule)

    @together(
        "form",
        [
            {"cron": "H * * * *", "resolved": "7 * * * *"},
            {"every": "1m", "spread": True, "resolved": 7},
            {"every": "1m", "spread": 7},
            {"at": "2026-01-01T00:00:00+00:00", "resolved": 7},
        ],
    )
    def test_other_fields_are_refused(self, form: dict[str, Any]) -> None:
        with pytest.raises(InvalidEntry):
            decode_schedule(form)


class TestDialect:
    @together(
        ("expression", "every_one"),
        [
            ("H 3 * * *", {f"{n} 3 * * *" for n in range(60)}),
            ("h(50-4) 3 * * *", {f"{n} 3 * * *" for n in (*range(50, 60), *range(5))}),
            ("0 H(2-2) * * *", {"0 2 * * *"}),
            ("0 3 H * *", {f"0 3 {n} * *" for n in range(1, 29)}),
            ("0 3 H(29-31) * *", {f"0 3 {n} * *" for n in (29, 30, 31)}),
            ("0 3 1 H(oct-march) *", {f"0 3 1 {n} *" for n in (10, 11, 12, 1, 2, 3)}),
            ("0 3 * * H", {f"0 3 * * {n}" for n in range(7)}),
            ("0 3 * * H(fri-7)", {f"0 3 * * {n}" for n in (5, 6, 0)}),
            ("0 3 * * H(0-7)", {f"0 3 * * {n}" for n in range(7)}),
            ("0 3 * * H(7-1)", {f"0 3 * * {n}" for n in range(2)}),
            ("H/15 * * * *", {f"{n}-{n + 45}/15 * * * *" for n in range(15)}),
            ("H/1 * * * *", {"0-59/1 * * * *"}),
            ("H/60 * * * *", {f"{n} * * * *" for n in range(60)}),
            ("H/100 * * * *", {f"{n} * * * *" for n in range(60)}),
            ("0 3 H/1000000000 * *", {f"0 3 {n} * *" for n in range(1, 29)}),
            ("H(0-9)/11 * * * *", {f"{n} * * * *" for n in range(10)}),
            ("H(0-29)/10 * * * *", {f"{n}-{n + 20}/10 * * * *" for n in range(10)}),
            ("H(10-30)/20 * * * *", {"10-30/20 * * * *", *(f"{n} * * * *" for n in range(11, 30))}),
            ("0 H(22-4)/3 * * *", {"0 22-4/3 * * *", "0 23-2/3 * * *", "0 0-3/3 * * *"}),
            ("H(0-9),H(30-39),59 * * * *", {f"{n},{n + 30},59 * * * *" for n in range(10)}),
            ("0 3 * * * H(0-3)", {f"0 3 * * * {n}" for n in range(4)}),
        ],
    )
    def test_it_is_one_of_those_that_are_meant_and_each_of_them_for_some_name(
        self, expression: str, every_one: set[str]
    ) -> None:
        assert {resolved(expression, name) for name in NAMES[:600]} == every_one

    def test_a_range_may_have_values_that_never_match_beside_others(self) -> None:
        assert cron("0 3 H(30-31) H(feb-mar) *")
        with pytest.raises(InvalidEntry, match="matches some day"):
            cron("0 3 H(30-31) H(feb-feb) *")

    def test_the_field_of_the_seconds_is_the_same_wherever_it_stands(self) -> None:
        first, last = cron("H 0 3 * * *", seconds="first"), cron("0 3 * * * H")
        assert of("nightly", first).times == of("nightly", last).times

    def test_hours_that_step_are_running_and_one_hour_is_fixed(self) -> None:
        assert of("nightly", cron("0 H/2 * * *")).times.running
        assert not of("nightly", cron("0 H(0-5) * * *")).times.running
        assert parse(resolved("0 H/2 * * *")) == of("nightly", cron("0 H/2 * * *")).times

    @together(
        ("expression", "words"),
        [
            ("H(5) * * * *", r"minutes of 0 to 59, got 'h\(5\)' .*write .*H, H/15, H\(0-29\) or H\(0-29\)/10"),
            ("H() * * * *", "write .*H, H/15"),
            ("H(1-5,7) * * * *", "write .*H, H/15"),
            ("H-5 * * * *", "write .*H, H/15"),
            ("HH * * * *", "write .*H, H/15"),
            ("H/0 * * * *", "minutes of 0 to 59, got 'h/0' .*write .*H/15"),
            ("H(1-15)W * * * *", "write .*H, H/15"),
            ("H(0-60) * * * *", r"minutes of 0 to 59, got 'h\(0-60\)'"),
            ("0 0 * H(foo-3) *", "month of 1 to 12"),
            ("0 0 * * H#2", "day of week"),
            ("0 0 * * LH", "day of week"),
            ("5-H * * * *", "minutes"),
            ("*/H * * * *", "minutes"),
            ("H 99 * * *", r"hours of 0 to 23, got '99' \(in \"H 99 \* \* \*\"\)"),
            ("H H 30 H(2-2) *", r"matches some day, got 'H H 30 H\(2-2\) \*'"),
            ("R * * * *", "write .*H, H/15"),
            ("R(0-5)/2 * * * *", "write .*H, H/15"),
            ("H * * *", "five or six fields"),
            (",H" * 250 + " * * * *", "at most 500 characters"),
        ],
    )
    def test_anything_else_is_refused_with_its_field(self, expression: str, words: str) -> None:
        with pytest.raises(InvalidEntry, match=words) as refused:
            cron(expression)
        assert refused.value.field == "schedule"

    @together("wrong", [600, 0, "yes", None, timedelta(minutes=5)], ids=repr)
    def test_an_interval_is_spread_over_the_whole_of_it(self, wrong: Any) -> None:
        with pytest.raises(InvalidEntry, match=r"spread: expected True or False.*H H") as refused:
            every(60, spread=wrong)
        assert (refused.value.field, refused.value.value) == ("spread", wrong)

    def test_an_interval_is_not_both_aligned_and_spread(self) -> None:
        with pytest.raises(InvalidEntry, match="not beside align"):
            every(60, align=True, spread=True)

    @together("schedule", [cron("H 3 * * *"), every(60, spread=True)], ids=repr)
    def test_one_that_no_entry_has_can_be_shown_and_not_walked(self, schedule: Any) -> None:
        for walk in (
            lambda: rule_of(schedule, UTC).next_after(datetime(2026, 1, 1, tzinfo=UTC)),
            lambda: schedule.next_after(datetime(2026, 1, 1, tzinfo=UTC)),
            lambda: rule_of(schedule, UTC).next_ms(START),
        ):
            with pytest.raises(InvalidEntry, match=r"the schedule of an entry, got .* goes by the entry's name"):
                walk()
        assert repr(schedule) in ("cron('H 3 * * *')", "every('1m', spread=True)")


@examples(40)
@given(
    st.text(min_size=1, max_size=20).filter(str.isprintable),
    st.integers(50, 10**8),
    st.integers(-(10**13), 10**13),
    st.integers(0, 10**9),
)
def test_a_spread_interval_counts_as_an_aligned_one_does_but_later(name: str, ms: int, after: int, span: int) -> None:
    interval = timedelta(milliseconds=ms)
    spread, aligned = of(name, every(interval, spread=True)), every(interval, align=True)
    late = spread.resolved
    assert 0 <= late < ms
    assert spread.next_ms(after) == aligned.next_ms(after - late) + late
    assert spread.count_ms(after, after + span) == aligned.count_ms(after - late, after + span - late)
    if spread.count_ms(after, after + span):
        assert spread.last_ms(after, after + span) == aligned.last_ms(after - late, after + span - late) + late


@examples(40)
@given(st.integers(0, 10**7), st.integers(-60_000, 60_000), st.none() | st.integers(0, 10))
def test_a_clock_that_is_set_back_repeats_what_it_would_of_an_aligned_one(
    ahead: int, back: int, sent: int | None
) -> None:
    spread, aligned = of("nightly", every(10, spread=True)), every(10, align=True)
    late, now = spread.resolved, START + ahead
    nominal = (now + back) // 10_000 * 10_000
    last = None if sent is None else nominal - 10_000 * sent
    found = pull_back(spread, nominal + late, now + late, last=None if last is None else last + late)
    assert found == pull_back(aligned, nominal, now, last=last) + late


def test_a_spread_interval_had_its_occurrences_whenever_it_is_asked() -> None:
    assert rule_of(Entry("nightly", "t", every(60, spread=True)).schedule, UTC).on_grid
    assert not rule_of(Entry("nightly", "t", every(60)).schedule, UTC).on_grid


def test_a_start_puts_off_a_spread_interval_and_does_not_move_it() -> None:
    plain, put_off = Entry("one", "t", every(3600, spread=True)), START + 40 * 60_000
    started = Entry("one", "t", every(3600, spread=True), start_at=datetime(2026, 5, 4, 0, 40, tzinfo=UTC))
    assert first_ms(rule_of(started.schedule, UTC), START, started.start_ms) == rule_of(plain.schedule, UTC).next_ms(
        put_off - 1
    )

"""Intervals and one-offs."""

from __future__ import annotations

import copy
import pickle
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery.schedules import schedule
from hypothesis import given
from hypothesis import strategies as st

from redbeat_lite._base.errors import InvalidEntry
from redbeat_lite._base.times import MAX_MS, MIN_MS, from_ms, to_ms
from redbeat_lite.rules import at, every, first_ms
from tests.support.cases import together
from tests.support.examples import examples

T = datetime(2026, 1, 1, 0, 0, 3, 500_000, tzinfo=UTC)


def test_an_interval_counts_from_the_occurrence_before_it() -> None:
    assert every(10).next_after(T) == T + timedelta(seconds=10)
    assert every(timedelta(minutes=1)).next_after(T.astimezone(ZoneInfo("Asia/Tokyo"))) == T + timedelta(minutes=1)


def test_a_thousand_runs_of_a_second_do_not_drift() -> None:
    start = ms = to_ms(T)
    for _ in range(1000):
        following = every(1).next_ms(ms)
        assert following is not None
        ms = following
    assert ms == start + 1_000_000


@together("interval", [0.05, 0.07, 0.1, 0.3, 1 / 8, 2.675])
def test_intervals_below_and_beside_a_second_are_exact(interval: float) -> None:
    start = ms = to_ms(T)
    for _ in range(100):
        ms = every(interval).next_ms(ms) or 0
    assert ms - start == round(interval * 1000) * 100


@together("seconds", [0.05, 10, 45, 3600, 86_400])
def test_an_aligned_interval_lands_on_its_multiples(seconds: float) -> None:
    rule = every(seconds, align=True)
    ms = [to_ms(T)]
    while len(ms) < 20:
        ms.append(rule.next_ms(ms[-1]) or 0)
    assert all(instant % round(seconds * 1000) == 0 for instant in ms[1:])
    assert {later - earlier for earlier, later in pairwise(ms[1:])} == {round(seconds * 1000)}
    assert 0 < ms[1] - ms[0] <= seconds * 1000


def test_an_aligned_interval_is_strictly_later_to_the_microsecond() -> None:
    rule, full = every(10, align=True), datetime(2026, 1, 1, 0, 0, 10, tzinfo=UTC)
    assert rule.next_after(full) == full + timedelta(seconds=10)
    assert rule.next_after(full - timedelta(microseconds=1)) == full
    assert rule.next_after(full + timedelta(microseconds=1)) == full + timedelta(seconds=10)


def test_an_aligned_interval_counts_its_multiples() -> None:
    rule = every(10, align=True)
    assert rule.count_ms(5_000, 24_000) == 2
    assert rule.count_ms(24_000, 5_000) == 0
    assert rule.last_ms(5_000, 24_000) == 20_000
    assert rule.last_ms(21_000, 24_000) == 21_000
    assert every(10).count_ms(5_000, 24_000) == 1
    assert every(10).last_ms(5_000, 24_000) == 15_000


def test_an_interval_that_leaves_the_calendar_is_never() -> None:
    assert every(10).next_after(datetime.max.replace(tzinfo=UTC)) is None
    assert every(10).next_ms(MAX_MS) is None
    assert every(10, align=True).next_ms(MAX_MS) is None


def test_a_one_off_has_one_occurrence() -> None:
    instant = datetime(2026, 1, 1, 12, tzinfo=UTC)
    once = at(instant)
    assert once.next_after(instant - timedelta(microseconds=1)) == instant
    assert once.next_after(instant) is None
    assert once.next_ms(to_ms(instant) - 1) == to_ms(instant)
    assert once.next_ms(to_ms(instant)) is None


def test_an_instant_may_be_text() -> None:
    assert at("2026-01-01T13:00+01:00") == at(datetime(2026, 1, 1, 12, tzinfo=UTC))


def test_a_one_off_is_never_before_the_instant_that_was_meant() -> None:
    assert at(datetime(2026, 1, 1, microsecond=1, tzinfo=UTC)).instant == datetime(
        2026, 1, 1, microsecond=1000, tzinfo=UTC
    )


@together(
    ("interval", "words"),
    [
        (0, "at least 0.05"),
        (-5, "at least 0.05"),
        (0.049, "at least 0.05"),
        (timedelta(0), "at least 0.05"),
        (timedelta(days=-1), "at least 0.05"),
        (1 / 3, "did you mean 0.333?"),
        (timedelta(seconds=1, microseconds=1), "did you mean 1?"),
        (float("inf"), "inf"),
        (float("nan"), "nan"),
        (1e300, "at most 100 years"),
        (-1e308, "at least 0.05"),
        (10**400, "at most 100 years"),
        (timedelta.max, "at most 100 years"),
        (True, "True"),
        ("10x", "'10x'"),
        ("-5m", "'-5m'"),
        (None, "None"),
    ],
)
def test_a_malformed_interval_is_refused(interval: Any, words: str) -> None:
    with pytest.raises(InvalidEntry) as refused:
        every(interval)
    assert refused.value.field == "schedule"
    assert words in str(refused.value)


def test_a_naive_instant_is_refused() -> None:
    with pytest.raises(InvalidEntry, match=r"schedule: expected an instant such as .*add tzinfo"):
        at(datetime(2026, 1, 1))
    with pytest.raises(InvalidEntry, match=r"schedule: expected an instant such as .*add the offset"):
        at("2026-01-01")
    with pytest.raises(InvalidEntry, match="schedule: expected an instant such as"):
        at("tomorrow")
    with pytest.raises(InvalidEntry, match="align"):
        every(5, align="yes")  # type: ignore[arg-type]


@together(
    ("one", "other", "different"),
    [
        (every(10), every(timedelta(seconds=10)), every(11)),
        (every(10, align=True), every(10.0, align=True), every(10)),
        (every(10, spread=True).of("job"), every(10.0, spread=True).of("job"), every(10, align=True)),
        (at(T), at(T.astimezone(ZoneInfo("Asia/Tokyo"))), at(T + timedelta(seconds=1))),
    ],
)
def test_schedules_are_values(one: Any, other: Any, different: Any) -> None:
    assert one == other
    assert hash(one) == hash(other)
    assert one != different
    assert {one: 1}[other] == 1
    for twin in (pickle.loads(pickle.dumps(one)), copy.copy(one), copy.deepcopy(one)):
        assert twin == one
        assert twin.next_after(T - timedelta(days=1)) == one.next_after(T - timedelta(days=1))


def test_an_interval_is_not_the_same_as_what_it_only_resembles() -> None:
    assert every(10, align=True) != schedule(10)
    assert every(10) != timedelta(seconds=10)
    assert every(10) != at(T)


def test_the_repr_is_how_it_is_written() -> None:
    assert repr(every(10)) == "every('10s')"
    assert repr(every(0.25, align=True)) == "every('250ms', align=True)"
    assert eval(repr(at(T)), {"at": at, "datetime": datetime}) == at(T)


START, NOW = to_ms(T), to_ms(T) + 25_000


@together(
    ("rule", "now", "start", "first"),
    [
        (every(10), NOW, None, NOW + 10_000),
        (every(10), NOW, START, START + 30_000),
        (every(10), START, START, START + 10_000),
        (every(10), START - 1, START, START),
        (every(10), START - 10**9, START, START),
        (every(10, align=True), NOW, None, START + 26_500),
        (every(10, align=True), START - 10**6, START, START + 6500),
        (at(T), NOW, None, START),
        (at(T), NOW, START, START),
        (at(T), START - 1, START + 1, None),
    ],
)
def test_the_first_occurrence_of_a_new_entry(rule: Any, now: int, start: int | None, first: int | None) -> None:
    assert first_ms(rule, now, start) == first


@examples(40)
@given(st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC)))
def test_a_stored_instant_is_never_before_the_real_one(instant: datetime) -> None:
    late = from_ms(to_ms(instant)) - instant
    assert timedelta(0) <= late < timedelta(milliseconds=1)


@examples(40)
@given(st.integers(MIN_MS, MAX_MS))
def test_milliseconds_survive_the_way_to_a_datetime_and_back(ms: int) -> None:
    assert to_ms(from_ms(ms)) == ms


def test_naive_instants_are_refused_everywhere() -> None:
    naive = datetime(2026, 1, 1)
    with pytest.raises(InvalidEntry, match="instant"):
        to_ms(naive)
    with pytest.raises(InvalidEntry, match="end_at: expected an aware datetime"):
        to_ms(naive, "end_at")

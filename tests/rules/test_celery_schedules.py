"""Celery's own schedules, those of others, and ours under a plain Celery beat."""

from __future__ import annotations

import copy
import pickle
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import pairwise
from typing import Any
from unittest import mock
from zoneinfo import ZoneInfo

import pytest
from celery.schedules import BaseSchedule, crontab, schedule, solar
from hypothesis import given, settings
from hypothesis import strategies as st

from redbeat_lite._base.errors import InvalidEntry
from redbeat_lite._base.times import to_ms
from redbeat_lite.rules import (
    Question,
    at,
    coerce_schedule,
    cron,
    every,
    rrule,
    rule_of,
    shortest_gap_ms,
)
from tests.support.cases import together
from tests.support.rules import occurrences

BERLIN = ZoneInfo("Europe/Berlin")
T = datetime(2026, 5, 5, 5, 5, 5, tzinfo=UTC)
HOUR = timedelta(hours=1)


@together("value", [30, 30.0, timedelta(seconds=30), schedule(30), schedule(30, relative=True), every(30)])
def test_numbers_timedeltas_and_intervals_are_one_rule(value: Any) -> None:
    assert rule_of(coerce_schedule(value), BERLIN).next_after(T) == T + timedelta(seconds=30)


def test_a_fraction_of_a_millisecond_in_a_config_is_rounded() -> None:
    assert rule_of(schedule(timedelta(microseconds=333_333)), UTC).next_after(T) == T + timedelta(milliseconds=333)


@together("value", [0, -1, schedule(0), schedule(timedelta.max), float("nan")])
def test_an_interval_out_of_bounds_is_refused(value: Any) -> None:
    with pytest.raises(InvalidEntry, match="schedule"):
        rule_of(coerce_schedule(value), UTC)


@together(
    ("value", "hint"),
    [
        ("0 3 * * *", 'write cron("0 3 * * *")'),
        ("@daily", 'write cron("@daily")'),
        ("5x", 'for example "5m" or cron("0 3 * * *")'),
        ("every day", 'for example "5m" or cron("0 3 * * *")'),
        ("every day at three sharp", 'for example "5m" or cron("0 3 * * *")'),
        ("@dayly", 'for example "5m" or cron("0 3 * * *")'),
        (None, None),
        (True, None),
        ([1], None),
    ],
)
def test_what_is_no_schedule_is_refused(value: Any, hint: str | None) -> None:
    with pytest.raises(InvalidEntry, match='"1h30m", or a schedule') as refused:
        coerce_schedule(value)
    assert refused.value.hint == hint


def test_a_rounded_interval_ends_on_the_full_unit_of_the_zone() -> None:
    # Celery: 5:05:05 and two hours, rounded down to the hour.
    assert occurrences(rule_of(schedule(7200, relative=True), UTC), T, 2) == [
        datetime(2026, 5, 5, 7, tzinfo=UTC),
        datetime(2026, 5, 5, 9, tzinfo=UTC),
    ]
    midnights = rule_of(schedule(timedelta(days=1), relative=True), BERLIN)
    daily = occurrences(midnights, datetime(2026, 10, 24, tzinfo=UTC), 3)
    assert [instant.astimezone(BERLIN).hour for instant in daily] == [0, 0, 0]


def test_a_crontab_has_the_zone_of_the_app_and_wants_both_days() -> None:
    rule = rule_of(crontab(0, 9, day_of_month="1-7", day_of_week="mon"), BERLIN)
    assert occurrences(rule, T, 2) == [datetime(2026, 6, 1, 7, tzinfo=UTC), datetime(2026, 7, 6, 7, tzinfo=UTC)]


def test_a_crontab_may_carry_a_zone_in_its_nowfun() -> None:
    tokyo = crontab(0, 9, nowfun=lambda: datetime.now(ZoneInfo("Asia/Tokyo")))
    assert rule_of(tokyo, BERLIN).next_after(T) == datetime(2026, 5, 6, tzinfo=UTC)

    def broken() -> datetime:
        raise RuntimeError

    assert rule_of(crontab(0, 9, nowfun=broken), BERLIN) == rule_of(crontab(0, 9), BERLIN)


@together(
    ("hour", "runs"),
    [
        ("*", True),
        ("*/2", True),
        (set(range(24)), True),
        ("0-23", True),
        ("*/24", False),
        ([0, 1, 2], False),
        ("1-3", False),
    ],
)
def test_a_crontab_runs_in_both_passings_of_a_fold_when_its_hours_are_running(hour: Any, runs: bool) -> None:
    start, end = datetime(2026, 10, 24, 20, tzinfo=UTC), datetime(2026, 10, 25, 4, tzinfo=UTC)
    found = [i for i in occurrences(rule_of(crontab(30, hour), BERLIN), start, 12) if i < end]
    walls = [instant.astimezone(BERLIN).replace(tzinfo=None) for instant in found]
    assert (len(set(walls)) < len(walls)) == runs


def test_sunsets_come_once_a_day_when_celery_says() -> None:
    sunset = solar("sunset", 52.52, 13.4)
    found = occurrences(rule_of(sunset, UTC), T, 366)
    assert all(abs(later - earlier - 24 * HOUR) < timedelta(minutes=5) for earlier, later in pairwise(found))
    sunset.nowfun = lambda: T
    sunset.__dict__["tz"] = UTC
    assert abs(T + sunset.remaining_estimate(T) - found[0]) <= timedelta(seconds=1)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["sunrise", "sunset", "solar_noon", "dawn_civil", "dusk_astronomical"]),
    st.integers(-80, 80),
    st.integers(-180, 180),
    st.datetimes(datetime(2000, 1, 1), datetime(2060, 1, 1), timezones=st.just(UTC)),
)
def test_an_event_of_the_sun_has_one_time_wherever_the_search_begins(
    event: str, lat: int, lon: int, instant: datetime
) -> None:
    rule = rule_of(solar(event, lat, lon), UTC)
    found = rule.next_after(instant)
    assert found is not None
    assert found > instant
    for before in (timedelta(seconds=1), (found - instant) / 2, found - instant):
        assert rule.next_after(found - before) == found
    following = rule.next_after(found)
    assert following is None or following - found > 12 * HOUR


def test_a_sun_that_does_not_rise_for_weeks_is_waited_for() -> None:
    midwinter = datetime(2026, 12, 1, tzinfo=UTC)
    found = rule_of(solar("sunrise", 70.0, 25.0), UTC).next_after(midwinter)
    assert found is not None
    assert found.month == 1


class Offset(schedule):  # type: ignore[misc]
    """An interval from a fixed second of the day on, as one of the real projects has it."""

    def __init__(self, run_every: float, offset: float) -> None:
        super().__init__(run_every)
        self.offset = timedelta(seconds=offset)

    def remaining_estimate(self, last_run_at: datetime) -> timedelta:
        into = (last_run_at - datetime(2020, 1, 1, tzinfo=UTC) - self.offset) % self.run_every
        return last_run_at - into + self.run_every - self.now()


def test_a_subclass_is_asked_and_not_flattened() -> None:
    assert occurrences(rule_of(Offset(1800, 900), UTC), T, 2) == [
        datetime(2026, 5, 5, 5, 15, tzinfo=UTC),
        datetime(2026, 5, 5, 5, 45, tzinfo=UTC),
    ]


class InTokyo(crontab):  # type: ignore[misc]
    """What django-celery-beat does to give a crontab its zone."""

    def is_due(self, last_run_at: datetime) -> Any:
        now = self.nowfun
        self.nowfun = lambda: now().astimezone(ZoneInfo("Asia/Tokyo"))
        self.tz = ZoneInfo("Asia/Tokyo")
        rest = self.remaining_estimate(last_run_at).total_seconds()
        return rest <= 0, max(rest, 0)


def test_a_crontab_of_another_package_decides_about_its_zone() -> None:
    assert rule_of(InTokyo(0, 9), BERLIN).next_after(T) == datetime(2026, 5, 6, tzinfo=UTC)


class Answer(BaseSchedule):  # type: ignore[misc]
    """Always says the same."""

    def __init__(self, *answer: Any) -> None:
        super().__init__()
        self.answer = answer

    def is_due(self, last_run_at: datetime) -> Any:
        return self.answer


@together(
    ("answer", "found"),
    [
        ((True, 5), T + timedelta(seconds=5)),
        ((True, 0), T + timedelta(milliseconds=50)),
        ((True, -7), T + timedelta(milliseconds=50)),
        ((False, 60), T + timedelta(seconds=60)),
        ((False, 0), T + timedelta(seconds=1)),
        ((False, float("inf")), None),
        ((False, None), None),
        ((False, 1e12), None),
    ],
)
def test_odd_answers_neither_hang_nor_go_back(answer: Any, found: datetime | None) -> None:
    assert rule_of(Answer(*answer), UTC).next_after(T) == found


@together(("wait", "at"), [(60, 60_000), (5.5, 5500), (0, 1000), (-7, 1000)])
def test_a_schedule_that_never_says_when_it_is_due_is_to_be_asked_again(wait: float, at: int) -> None:
    rule, now = rule_of(Answer(False, wait), UTC), to_ms(T)
    question = rule.next_ms(now)
    assert isinstance(question, Question)
    assert (question, question.after) == (now + at, now)
    assert shortest_gap_ms(rule, now) is None
    for twin in (copy.copy(question), pickle.loads(pickle.dumps(question))):
        assert (type(twin), twin, twin.after) == (Question, question, now)


def test_a_schedule_that_says_when_it_is_due_is_no_question() -> None:
    for schedule_ in (Offset(1800, 900), InTokyo(0, 9), Answer(True, 5)):
        assert type(rule_of(schedule_, BERLIN).next_ms(to_ms(T))) is int


def test_a_schedule_that_raises_says_so() -> None:
    with pytest.raises(NotImplementedError):
        rule_of(BaseSchedule(), UTC).next_after(T)


class Hourly(BaseSchedule):  # type: ignore[misc]
    """A rule of its own, which needs no questions."""

    def next_after(self, instant: datetime) -> datetime | None:
        return instant + HOUR


def test_a_schedule_that_answers_our_question_is_taken_at_its_word() -> None:
    assert rule_of(Hourly(), UTC).next_ms(0) == 3_600_000


def test_a_rule_that_goes_back_is_an_error_and_no_loop() -> None:
    class Backwards(Hourly):
        def next_after(self, instant: datetime) -> datetime | None:
            return instant - HOUR

    with pytest.raises(InvalidEntry, match="later than 1970"):
        rule_of(Backwards(), UTC).next_ms(0)


def test_rules_are_shared_by_entries_that_say_the_same() -> None:
    for one, other in [
        (crontab(0, 9), crontab(minute={0}, hour=[9])),
        (cron("0 9 * * *"), cron("0 9 * * *")),
        (solar("sunset", 1, 2), solar("sunset", 1.0, 2.0)),
        (schedule(3600, relative=True), schedule(HOUR, relative=True)),
        (rrule("FREQ=DAILY"), rrule("freq=daily")),
    ]:
        assert rule_of(one, BERLIN) == rule_of(other, BERLIN)
        assert hash(rule_of(one, BERLIN)) == hash(rule_of(other, BERLIN))
        assert rule_of(one, BERLIN) is not None
    assert rule_of(crontab(0, 9), BERLIN) != rule_of(crontab(0, 9), UTC)
    assert rule_of(Offset(60, 1), UTC) != rule_of(Offset(60, 1), UTC), "unknown insides may differ"


def celery_beat(found: BaseSchedule, start: datetime, hours: int, zone: tzinfo = UTC) -> list[datetime]:
    """What a beat that looks once a second would send."""
    found.__dict__["tz"] = zone
    sent, last = [], start
    for second in range(hours * 3600):
        now = start + timedelta(seconds=second)
        found.nowfun = lambda now=now: now.astimezone(zone)
        due, wait = found.is_due(last)
        assert wait > 0
        if due:
            sent.append(now)
            last = now
    return sent


@together(
    "found",
    [every(1800), every(1800, align=True), cron("*/20 * * * *"), cron("0 6 * * *", tz="UTC"), rrule("FREQ=HOURLY")],
)
def test_a_plain_celery_beat_sends_the_same(found: Any) -> None:
    start = datetime(2026, 5, 5, 4, 59, 59, tzinfo=UTC)
    assert celery_beat(found, start, 2) == [
        i for i in occurrences(rule_of(found, UTC), start, 9) if i < start + 2 * HOUR
    ]


def test_a_plain_celery_beat_sends_a_one_off_once() -> None:
    start = datetime(2026, 5, 5, tzinfo=UTC)
    assert celery_beat(at(start + HOUR), start, 2) == [start + HOUR]


@together(
    ("found", "seconds"),
    [
        (every(10), 10),
        (cron("* * * * *"), 60),
        (cron("*/7 * * * *"), 4 * 60),
        (cron("0,59 3 * * *"), 59 * 60),
        (cron("0,59 3,4 * * *"), 60),
        (cron("0 9,17 * * *"), 8 * 3600),
        (cron("0 9 1 * *"), 28 * 86_400),
        (cron("0 23,0 * * *"), 3600),
        (cron("* * * * * */10"), 10),
        (crontab("*/15"), 15 * 60),
        (rrule("FREQ=DAILY;BYHOUR=9,12"), 3 * 3600),
        (at(T), None),
    ],
)
def test_the_shortest_gap_bounds_the_jitter(found: Any, seconds: int | None) -> None:
    expected = None if seconds is None else seconds * 1000
    assert shortest_gap_ms(rule_of(found, UTC), 1_767_225_600_000) == expected


@together("before", [1, 20, 40, 49])
def test_a_relative_interval_keeps_its_round_time_however_late_it_is_asked(before: int) -> None:
    rule = rule_of(schedule(60, relative=True), UTC)
    assert rule.next_ms(1_795_681_200_000 - before) == 1_795_681_200_000


@together("rule", [cron("1 2 * * *"), at(datetime(2030, 1, 1, tzinfo=UTC)), rrule("FREQ=DAILY"), every(5)])
def test_a_schedule_leaves_the_answer_to_what_equals_anything(rule: BaseSchedule) -> None:
    assert rule == mock.ANY
    assert rule != timedelta(seconds=5)
    assert rule != schedule(5)
    assert rule != 5


def test_a_rule_goes_into_a_pickle_also_once_it_was_asked() -> None:
    rule = rule_of(cron("1 2 * * *", tz="UTC"), UTC)
    rule.next_ms(0)
    assert pickle.loads(pickle.dumps(rule)) == rule

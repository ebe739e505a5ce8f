"""Misfires: which missed occurrences are sent."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery.schedules import BaseSchedule, schedule

from redbeat_lite import Entry
from redbeat_lite._base.errors import InvalidEntry
from redbeat_lite._base.times import to_ms
from redbeat_lite.entries.lifecycle import ahead
from redbeat_lite.entries.state import EntryState
from redbeat_lite.policies import MisfirePolicy
from redbeat_lite.rules import at, cron, every, rrule, rule_of
from redbeat_lite.rules.misfire import CHUNK, MOST_COUNTED, Misfire, Plan, Range, plan_misfires
from tests.support.cases import together
from tests.support.rules import UTC_APP, pull_back

T = to_ms(datetime(2026, 1, 1, tzinfo=UTC))
MINUTE = 60_000
HOURLY = rule_of(cron("0 * * * *"), UTC)
YEAR = 365 * 86_400_000


def minutes(*numbers: int) -> tuple[int, ...]:
    return tuple(T + number * MINUTE for number in numbers)


@together(
    ("misfire", "emitted"),
    [
        ("coalesce", minutes(9)),
        ("skip", ()),
        ("all", minutes(*range(10))),
        (Misfire("all", limit=3), minutes(0, 1, 2)),
        (Misfire("all", limit=10), minutes(*range(10))),
        (Misfire("all", limit=50), minutes(*range(10))),
        (Misfire("all", grace=180), minutes(7, 8, 9)),
        (Misfire("all", grace=180, limit=2), minutes(7, 8)),
        (Misfire("skip", grace=180), minutes(7, 8, 9)),
        (Misfire("coalesce", grace=30), minutes(9)),
        (Misfire("coalesce", grace=29), ()),
    ],
)
def test_ten_missed_periods_give_one_none_or_each(misfire: str | Misfire, emitted: tuple[int, ...]) -> None:
    now = T + 9 * MINUTE + MINUTE // 2
    done = plan_misfires(every(60), T, now, Misfire.of(misfire))
    skipped = [each for each in minutes(*range(10)) if each not in emitted]
    assert (done.emit, done.next, done.skipped) == (emitted, T + 10 * MINUTE, len(skipped))
    assert [ms for each in done.ranges for ms in range(each.first, each.last + 1, MINUTE)] == skipped
    assert sum(each.number for each in done.ranges) == len(skipped)


@together("policy", ["coalesce", "skip", "all"])
@together("late", [0, 1, 200])
def test_an_occurrence_on_time_is_sent_under_every_policy(policy: str, late: int) -> None:
    assert plan_misfires(every(1), T, T + late, Misfire(policy)) == Plan((T,), T + 1000)


def test_skip_forgives_a_fail_over_of_an_hourly_entry_and_nothing_longer() -> None:
    assert plan_misfires(HOURLY, T, T + 4500, Misfire("skip")).emit == (T,)
    assert plan_misfires(HOURLY, T, T + 5001, Misfire("skip")) == Plan((), T + 3_600_000, (Range(T, T, 1),))


@together("policy", ["coalesce", "skip", "all"])
def test_a_grace_of_nothing_is_a_second(policy: MisfirePolicy) -> None:
    misfire = Misfire(policy, grace=0)
    assert plan_misfires(HOURLY, T, T + 1000, misfire).emit == (T,)
    assert plan_misfires(HOURLY, T, T + 1001, misfire).emit == ()


def test_skip_forgives_a_quarter_of_a_short_interval() -> None:
    assert plan_misfires(every(4), T, T + 1000, Misfire("skip")).emit == (T,)
    assert plan_misfires(every(4), T, T + 1001, Misfire("skip")).emit == ()


@together("rule", [HOURLY, every(3600), every(3600, align=True), rule_of(rrule("FREQ=HOURLY"), UTC)])
def test_one_that_is_skipped_is_a_range_of_one(rule: Any) -> None:
    hour = 60 * MINUTE
    assert plan_misfires(rule, T, T + hour, Misfire()) == Plan((T + hour,), T + 2 * hour, (Range(T, T, 1),))
    done = plan_misfires(rule, T, T + 4 * hour, Misfire("all", grace=3 * 3600, limit=3))
    assert done.ranges == (Range(T, T, 1), Range(T + 4 * hour, T + 4 * hour, 1))


def test_what_all_has_no_room_for_is_left_to_the_next_round() -> None:
    now = T + 1200 * MINUTE
    first = plan_misfires(every(60), T, now, Misfire("all"))
    assert first == Plan(minutes(*range(CHUNK)), T + CHUNK * MINUTE)
    second = plan_misfires(every(60), first.next or 0, now, Misfire("all"))
    third = plan_misfires(every(60), second.next or 0, now, Misfire("all"))
    assert len(first.emit + second.emit + third.emit) == 1201
    assert third.next == now + MINUTE


def test_a_one_off_that_comes_late_is_sent_and_finished() -> None:
    once = at(datetime(2026, 1, 1, tzinfo=UTC))
    assert plan_misfires(once, T, T + YEAR, Misfire()) == Plan((T,), None)
    assert plan_misfires(once, T, T + 5001, Misfire("skip")) == Plan((), None, (Range(T, T, 1),))


def test_the_last_run_finishes_the_entry_and_what_would_follow_is_not_skipped() -> None:
    now = T + 9 * MINUTE
    used_up = Plan(minutes(0, 1, 2, 3), None, spare=T + 4 * MINUTE)
    assert plan_misfires(every(60), T, now, Misfire("all"), runs_left=4) == used_up
    after_outage = used_up._replace(spare=T + 10 * MINUTE)
    assert plan_misfires(every(60), T, now, Misfire("all", limit=4), runs_left=4) == after_outage
    assert plan_misfires(every(60), T, now, Misfire("all", limit=2), runs_left=4) == Plan(
        minutes(0, 1), T + 10 * MINUTE, (Range(*minutes(2, 9), 8),)
    )
    last = plan_misfires(every(60), T, now, Misfire(), runs_left=1)
    assert (last.emit, last.next, last.skipped) == (minutes(9), None, 9)
    assert plan_misfires(every(60), T, now, Misfire(), runs_left=0) == Plan((), None)


def test_an_occurrence_at_the_end_exists_and_none_after_it() -> None:
    end = T + 5 * MINUTE
    assert plan_misfires(every(60), T, T + YEAR, Misfire("all"), end=end) == Plan(minutes(*range(6)), None)
    ended = plan_misfires(every(60), T, T + YEAR, Misfire(), end=end)
    assert (ended.emit, ended.next, ended.skipped) == (minutes(5), None, 5)
    assert plan_misfires(every(60), end, end, Misfire(), end=end) == Plan((end,), None)
    assert plan_misfires(every(60), end + 1, end + 2, Misfire(), end=end) == Plan((), None)


@together(
    ("rule", "missed"),
    [
        (every(0.05), YEAR // 50 + 1),
        (every(60, align=True), YEAR // MINUTE + 1),
        (rule_of(cron("* * * * *", tz="Europe/Berlin"), UTC), YEAR // MINUTE + 1),
        (rule_of(cron("* * * * * *", tz="America/New_York"), UTC), YEAR // 1000 + 1),
    ],
)
@together("misfire", ["coalesce", "skip", Misfire("all", limit=1000), Misfire("all", grace=3600)])
def test_a_year_of_missed_runs_is_planned_at_once(rule: Any, missed: int, misfire: str | Misfire) -> None:
    begun = time.thread_time()
    done = plan_misfires(rule, T, T + YEAR, Misfire.of(misfire))
    assert time.thread_time() - begun < 0.25
    if Misfire.of(misfire).grace is None:
        assert len(done.emit) + done.skipped == missed
        assert done.next == rule.next_ms(T + YEAR)


@together("misfire", [Misfire(), Misfire("coalesce", grace=3600)])
def test_of_a_rule_that_cannot_count_a_thousand_missed_runs_are_counted(misfire: Misfire) -> None:
    rule = rule_of(rrule("FREQ=MINUTELY"), UTC)
    now = T + 3 * MOST_COUNTED * MINUTE
    done = plan_misfires(rule, T, now, misfire)
    assert (done.emit, done.skipped, done.next) == ((now,), MOST_COUNTED - 1, now + MINUTE)


def test_of_a_rule_that_cannot_count_none_is_sent_that_is_too_late() -> None:
    rule = rule_of(rrule("FREQ=MINUTELY"), UTC)
    now = T + 3 * MOST_COUNTED * MINUTE
    done = plan_misfires(rule, T, now, Misfire("all", grace=120))
    assert done.emit == (now - 2 * MINUTE, now - MINUTE, now)
    assert (done.skipped, done.next) == (MOST_COUNTED, now + MINUTE)


def test_of_bursts_that_cannot_be_counted_no_run_is_sent_twice() -> None:
    """The latest of them is searched in steps, which are longer than the gaps in a burst."""
    rule = rule_of(rrule("FREQ=SECONDLY;BYHOUR=3"), UTC)
    now = T + 9 * 86_400_000
    done = plan_misfires(rule, rule.next_ms(T) or 0, now, Misfire())
    [sent] = done.emit
    assert now - 86_400_000 < sent < now
    assert done.next == rule.next_ms(now)


def test_a_limit_holds_for_a_rule_that_cannot_count() -> None:
    rule = rule_of(rrule("FREQ=MINUTELY"), UTC)
    now = T + 3 * MOST_COUNTED * MINUTE
    done = plan_misfires(rule, T, now, Misfire("all", limit=2))
    assert done.emit == minutes(0, 1)
    assert done.next == now + MINUTE


def test_a_clock_set_back_delays_nothing_by_more_than_its_interval() -> None:
    now = T - 2 * 3_600_000
    assert pull_back(every(10), T, now) == now + 10_000
    assert pull_back(cron("0 * * * *"), T, now) == now + 3_600_000
    assert pull_back(cron("0 * * * *"), T, T - 5) == T


@together("back", [0, 1, 9_999, 10_000, 10_001, 30_000, 7_200_000])
@together("phase", [1, 4_321, 10_000])
def test_a_clock_set_back_leaves_an_interval_its_phase(back: int, phase: int) -> None:
    now = T - back
    found = pull_back(every(10), T + phase, now)
    assert now < found <= now + 10_000
    assert (T + phase - found) % 10_000 == 0


def test_a_clock_set_back_repeats_no_run_of_an_interval_within_one_occurrence() -> None:
    # By the old clock it was sent at T, and it is 4 s earlier now.
    assert pull_back(every(10), T + 10_000, T - 4_000, last=T) == T + 10_000


def test_a_clock_set_back_lets_nothing_run_before_its_start() -> None:
    assert pull_back(every(10), T, T - 3_600_000, start=T) == T
    assert pull_back(every(10), T + 50_000, T - 3_600_000, start=T) == T
    assert pull_back(cron("0 * * * *"), T, T - 3_600_000, start=T - 1) == T
    assert pull_back(at(datetime(2026, 1, 1, tzinfo=UTC)), T, T - 5, start=None) == T


def test_looking_ahead_keeps_the_phase_of_an_interval() -> None:
    def from_t(schedule: Any, now: int) -> int | None:
        return ahead(Entry("a", "t", schedule, app=UTC_APP), EntryState.new(T), now)

    assert from_t(every(10), T + 25_000) == T + 30_000
    assert from_t(every(10), T) == T + 10_000
    assert from_t(every(10), T - 1) == T
    assert from_t(rrule("FREQ=SECONDLY"), T + YEAR) == T + YEAR + 1000
    assert from_t(at(datetime(2026, 1, 1, tzinfo=UTC)), T) is None


def test_a_users_schedule_is_asked_once_and_makes_up_for_one_run() -> None:
    asked = []

    class Odd(BaseSchedule):
        def is_due(self, last_run_at: datetime) -> tuple[bool, float]:
            asked.append(self.now())
            rest = 7 - (self.now() - last_run_at).total_seconds()
            return rest <= 0, rest if rest > 0 else 7

    rule = rule_of(Odd(), UTC)
    first = plan_misfires(rule, T, T + 20_000, Misfire("all"))
    assert first.emit == (T,)
    assert first.next == T + 27_000
    assert len(asked) == 1
    second = plan_misfires(rule, first.next, T + 27_000, Misfire("all"))
    assert (second.emit, second.next) == ((T + 27_000,), T + 34_000)
    assert len(asked) == 2
    assert plan_misfires(rule, T, T + 20_000, Misfire("skip")).emit == ()


def test_the_rounded_interval_of_celery_is_planned_too() -> None:
    rule = rule_of(schedule(3600, relative=True), UTC)
    done = plan_misfires(rule, T + 10, T + 2 * 3_600_000, Misfire("all"))
    assert (done.emit, done.next) == ((T + 10,), T + 3 * 3_600_000)


@together(
    ("misfire", "stored"),
    [
        (Misfire(), "coalesce"),
        (Misfire("skip"), "skip"),
        (Misfire("all", limit=5), {"policy": "all", "limit": 5}),
        (Misfire("all", grace=timedelta(minutes=1)), {"policy": "all", "grace": 60.0}),
    ],
)
def test_a_policy_survives_the_store(misfire: Misfire, stored: object) -> None:
    assert misfire.encode() == stored
    assert Misfire.of(json.loads(json.dumps(stored))) == misfire
    assert Misfire.of(misfire) is misfire


@together(
    ("value", "field", "words"),
    [
        ("coalese", "misfire.policy", "did you mean 'coalesce'?"),
        ({"policy": "all", "grase": 5}, "misfire.grase", "did you mean 'grace'?"),
        ({"grace": -1}, "misfire.grace", "-1"),
        ({"grace": float("nan")}, "misfire.grace", "nan"),
        ({"grace": "5x"}, "misfire.grace", "'5x'"),
        ({"limit": 0}, "misfire.limit", "1 to 1000"),
        ({"limit": 1001}, "misfire.limit", "1001"),
        ({"limit": True}, "misfire.limit", "True"),
        (5, "misfire", "got 5"),
        (None, "misfire", "got None"),
    ],
)
def test_a_malformed_policy_names_field_and_value(value: Any, field: str, words: str) -> None:
    with pytest.raises(InvalidEntry) as refused:
        Misfire.of(value)
    assert refused.value.field == field
    assert words in str(refused.value)

"""What holds for every plan, whatever the rule, the outage and the policy."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

from hypothesis import given
from hypothesis import strategies as st

from redbeat_lite._base.times import from_ms, to_ms
from redbeat_lite.rules import Rule, at, cron, every, rrule, rule_of
from redbeat_lite.rules.misfire import CHUNK, Misfire, Plan, plan_misfires
from tests.support.examples import examples

BERLIN = ZoneInfo("Europe/Berlin")
RULES = [
    rule_of(schedule, BERLIN)
    for schedule in (
        every(0.05),
        every(10),
        every(3600, align=True),
        every(86_400 * 30),
        cron("*/5 * * * *"),
        cron("*/10 2 * * *"),
        cron("30 */2 * * sun"),
        cron("0 9 1 * *"),
        rrule("FREQ=DAILY;BYHOUR=2,3;BYMINUTE=30"),
        at(datetime(2026, 10, 25, 1, tzinfo=UTC)),
    )
]
rules = st.sampled_from(RULES)
# Around the end of summer time, so that the fold takes part.
starts = st.integers(to_ms(datetime(2026, 10, 20, tzinfo=UTC)), to_ms(datetime(2026, 10, 26, tzinfo=UTC)))
outages = st.one_of(st.integers(0, 60_000), st.integers(0, 3_600_000), st.integers(0, 40 * 86_400_000))
misfires = st.builds(
    Misfire,
    st.sampled_from(["coalesce", "skip", "all"]),
    grace=st.none() | st.integers(1, 7200),
    limit=st.none() | st.integers(1, 20),
)
MANY = 3000


def missed_of(rule: Rule, nominal: int, until: int) -> list[int] | None:
    """Every missed occurrence by walking, None when they are too many for a test."""
    found: list[int] = []
    ms: int | None = nominal
    while ms is not None and ms <= until:
        found.append(ms)
        if len(found) > MANY:
            return None
        ms = rule.next_ms(ms)
    return found


def finish(
    rule: Rule, nominal: int, now: int, misfire: Misfire, runs_left: int | None = None, **options: Any
) -> tuple[list[int], int, int | None, int]:
    """Follow the plans of one moment to their end: everything emitted and skipped, the next, and the rounds."""
    emitted: list[int] = []
    skipped, waiting, rounds = 0, nominal, 0
    while True:
        left = None if runs_left is None else runs_left - len(emitted)
        done = plan_misfires(rule, waiting, now, misfire, runs_left=left, **options)
        emitted += done.emit
        skipped, rounds = skipped + done.skipped, rounds + 1
        if done.next is None or done.next > now:
            return emitted, skipped, done.next, rounds
        assert done.next > waiting, "each round gets further"
        waiting = done.next


@examples(40)
@given(rules, starts, outages, misfires)
def test_every_missed_occurrence_is_emitted_or_skipped(rule: Rule, nominal: int, late: int, misfire: Misfire) -> None:
    now = nominal + late
    missed = missed_of(rule, nominal, now)
    if missed is None:
        return
    emitted, skipped, following, rounds = finish(rule, nominal, now, misfire)
    assert len(emitted) + skipped == len(missed)
    assert set(emitted) <= set(missed)
    assert all(earlier < later for earlier, later in pairwise(emitted)), "oldest first, none twice"
    assert following == rule.next_ms(missed[-1])
    assert rounds <= len(missed) // CHUNK + 2


@examples(40)
@given(rules, starts, outages, misfires)
def test_what_is_skipped_is_told_as_ranges(rule: Rule, nominal: int, late: int, misfire: Misfire) -> None:
    missed = missed_of(rule, nominal, nominal + late)
    if missed is None:
        return
    done = plan_misfires(rule, nominal, nominal + late, misfire)
    decided = [ms for ms in missed if done.next is None or ms < done.next]
    told = [[ms for ms in decided if each.first <= ms <= each.last] for each in done.ranges]
    assert sorted([*done.emit, *(ms for each in told for ms in each)]) == decided
    assert [(each[0], each[-1], len(each)) for each in told] == [*done.ranges]


@examples(40)
@given(rules, starts, outages, misfires)
def test_each_policy_keeps_its_word(rule: Rule, nominal: int, late: int, misfire: Misfire) -> None:
    now = nominal + late
    missed = missed_of(rule, nominal, now)
    if missed is None:
        return
    emitted, _, _, _ = finish(rule, nominal, now, misfire)
    in_time = [ms for ms in missed if misfire.grace_ms is None or now - ms <= misfire.grace_ms]
    if misfire.policy == "coalesce":
        assert emitted == [ms for ms in in_time if ms == missed[-1]]
    elif misfire.policy == "all" or misfire.grace is not None:
        assert emitted == (in_time if misfire.limit is None else in_time[: misfire.limit])
    else:
        assert set(emitted) <= {missed[-1]}
        assert all(now - ms <= 5000 for ms in emitted)


@examples(40)
@given(rules, starts, outages, misfires, st.integers(-3_600_000, 40 * 86_400_000))
def test_nothing_after_the_end_exists(rule: Rule, nominal: int, late: int, misfire: Misfire, lasts: int) -> None:
    end = nominal + lasts
    done = plan_misfires(rule, nominal, nominal + late, misfire, end=end)
    assert all(ms <= end for ms in done.emit)
    assert done.next is None or done.next <= end
    if lasts < 0:
        assert done == Plan((), None)


@examples(40)
@given(rules, starts, outages, misfires, st.integers(0, 30))
def test_no_more_runs_than_are_left(rule: Rule, nominal: int, late: int, misfire: Misfire, runs_left: int) -> None:
    free = plan_misfires(rule, nominal, nominal + late, misfire)
    done = plan_misfires(rule, nominal, nominal + late, misfire, runs_left=runs_left)
    assert done.emit == free.emit[:runs_left]
    if len(done.emit) == runs_left:
        assert done.next is None
    else:
        assert done == free


@examples(25)
@given(rules, starts, st.integers(1, 10**9))
def test_what_is_not_due_is_left_alone(rule: Rule, nominal: int, early: int) -> None:
    assert plan_misfires(rule, nominal, nominal - early, Misfire()) == Plan((), nominal)


@examples(25)
@given(rules, starts, outages, misfires)
def test_a_plan_is_the_same_in_any_process(rule: Rule, nominal: int, late: int, misfire: Misfire) -> None:
    assert plan_misfires(rule, nominal, nominal + late, misfire) == plan_misfires(
        rule, nominal, nominal + late, misfire
    )
    assert Misfire.of(misfire.encode()) == misfire
    assert from_ms(nominal).tzinfo is UTC

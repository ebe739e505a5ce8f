"""Jitter: the same offset for the same occurrence, on any machine."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from itertools import count
from typing import get_args

from celery.schedules import BaseSchedule, schedule
from hypothesis import given
from hypothesis import strategies as st

from redbeat_lite import Entry, cron, every
from redbeat_lite.entries import lifecycle
from redbeat_lite.entries.state import EntryState
from redbeat_lite.policies import Misfire, MisfirePolicy
from redbeat_lite.rules.occurrences import offset_ms
from tests.support.cases import together
from tests.support.examples import examples
from tests.support.rules import UTC_APP


def test_an_occurrence_has_the_same_offset_in_another_process() -> None:
    code = "from redbeat_lite.rules.occurrences import offset_ms; print(offset_ms('nightly', 1767225600000, 90000))"
    seeded = {"PYTHONHASHSEED": "1"}
    other = subprocess.run([sys.executable, "-c", code], env=seeded, capture_output=True, text=True, check=True)
    assert other.stdout == f"{offset_ms('nightly', 1767225600000, 90000)}\n"
    assert offset_ms("nightly", 1767225600000, 90000) == 86628, "an upgrade must not move what is due"


@examples(40)
@given(st.text(), st.integers(0, 2**45), st.integers(0, 10**7), st.none() | st.integers(1, 10**7))
def test_the_offset_stays_in_its_bounds_and_below_the_next_occurrence(
    name: str, nominal: int, jitter: int, gap: int | None
) -> None:
    offset = offset_ms(name, nominal, jitter, gap)
    assert 0 <= offset <= jitter
    assert gap is None or offset < gap


def test_offsets_are_spread_evenly_over_names_and_over_occurrences() -> None:
    by_name = Counter(offset_ms(f"entry-{i}", 1767225600000, 9) for i in range(10_000))
    by_time = Counter(offset_ms("nightly", 1767225600000 + i * 60_000, 9) for i in range(10_000))
    for spread in (by_name, by_time):
        assert set(spread) == set(range(10)), "both ends are drawn"
        assert all(850 < count < 1150 for count in spread.values())


@together(
    "misfire",
    [
        *("coalesce", "all", "skip", Misfire("all", limit=1)),
        *(Misfire(policy, grace=grace) for policy in get_args(MisfirePolicy) for grace in (1, 70)),
    ],
)
def test_after_an_outage_too_an_occurrence_waits_for_its_own_offset(misfire: MisfirePolicy | Misfire) -> None:
    entry = Entry("job", "add", every(60), jitter=50, misfire=misfire, app=UTC_APP)
    for minute in range(300):
        state = EntryState(1, "g", 60_000 * minute)
        due = lifecycle.score(entry, state.nominal)
        assert due is not None
        for late in (30_000, 65_000, 200_000):
            plan = lifecycle.plan(entry, state, due + late)
            waits_for = plan.next
            assert waits_for is not None
            handled = [*plan.emit, *(skipped.last for skipped in plan.ranges)]
            assert max(handled) == waits_for - 60_000, "none is left out that is not counted as skipped"
            own = [lifecycle.score(entry, nominal) or 0 for nominal in handled]
            assert max(own) <= due + late, "none is sent or skipped before it is due"
            if misfire in ("coalesce", "all"):
                assert plan.emit
            if misfire == "all":
                assert plan.skipped == 0


def test_the_last_of_max_runs_is_the_last_one_that_is_due() -> None:
    entry = Entry("job", "add", every(60), jitter=50, max_runs=1, app=UTC_APP)
    for minute in range(300):
        state = EntryState(1, "g", 60_000 * minute)
        plan = lifecycle.plan(entry, state, 60_000 * minute + 115_000)
        assert (len(plan.emit), plan.next) == (1, None)


class Own(schedule):  # type: ignore[misc]  # Celery ships no types
    """A class that only its ``is_due`` knows."""


@together("runs_at", [every(60), every(60, align=True), cron("* * * * *"), Own(60)])
def test_a_resumption_leaves_out_what_was_due_in_the_pause_and_no_more(runs_at: BaseSchedule) -> None:
    entry = Entry("job", "add", runs_at, jitter=50, app=UTC_APP)
    for minute in range(100):
        planned = 60_000 * minute
        state = EntryState(1, "g", planned, paused=True)
        for later in (-5_000, 5_000, 30_000, 100_000, 1_000_000):
            resumed = lifecycle.resumed(entry, state, planned + later, catch_up=False)
            due_later = (
                each for each in count(planned, 60_000) if (lifecycle.score(entry, each) or 0) > planned + later
            )
            assert resumed.nominal == next(due_later)

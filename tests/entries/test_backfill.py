"""Which occurrences a backfill sends, and what it leaves to those before it."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from celery.schedules import BaseSchedule, schedstate
from hypothesis import given, settings
from hypothesis import strategies as st

from redbeat_lite import Backfill, Calendar, Entry, InvalidEntry, cron, every, rrule
from redbeat_lite._base.times import from_ms, to_ms
from redbeat_lite.entries.backfill import after_step, covered, message_limit, unsent_times
from redbeat_lite.entries.state import EntryState
from tests.support.rules import UTC_APP

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
HOUR = 3_600_000


def backfill(first: datetime, last: datetime, **more: Any) -> Backfill:
    told = {"max_active": None, "rate": 10, "again": 0, "note": "", "actor": "me", "at": NOON, "generation": "g"}
    return Backfill("id", "a", first, last, **{**told, **more})


def found(schedule: Any, *, nominal: datetime | None = None, skip: Any = (), **fields: Any) -> list[datetime]:
    """What is sent of the six hours before noon."""
    entry = Entry("a", "add", schedule, app=UTC_APP, **fields)
    wanted = backfill(NOON - timedelta(hours=6), NOON, skip=skip)
    state = EntryState(1, "g", None if nominal is None else to_ms(nominal))
    return [from_ms(each) for each in unsent_times(wanted, entry, state)]


def at(*hours: float) -> list[datetime]:
    return [NOON.replace(hour=0) + timedelta(hours=hour) for hour in hours]


def test_they_are_those_of_the_schedule_both_ends_included() -> None:
    assert found(cron("0 */2 * * *", tz="UTC")) == at(6, 8, 10, 12)
    assert found(rrule("FREQ=HOURLY;INTERVAL=3;BYMINUTE=0;BYSECOND=0", tz="UTC", start=at(0)[0])) == at(6, 9, 12)
    assert found(every(2 * 3600, align=True)) == at(6, 8, 10, 12)


def test_an_interval_is_counted_back_from_its_next_run() -> None:
    assert found(every(7200), nominal=NOON + timedelta(minutes=30)) == at(6.5, 8.5, 10.5)
    assert found(every(7200), nominal=NOON - timedelta(days=3, hours=1)) == at(7, 9, 11)
    assert found(every(7200), start_at=NOON - timedelta(hours=3)) == at(9, 11)
    span = [[to_ms(at(7)[0]), to_ms(at(9.2)[0])]]
    assert found(every(7200), nominal=NOON + timedelta(hours=1), skip=span) == at(11), "in step behind a gap, too"


def test_what_bounds_the_entry_bounds_them() -> None:
    hourly = cron("0 * * * *", tz="UTC")
    assert found(hourly, start_at=at(7.5)[0], end_at=at(10)[0], max_runs=1, jitter=60) == at(8, 9, 10)
    closed = Calendar({date(2026, 3, 2)}, date(2026, 12, 31), name="closed", revision=1)
    entry = Entry("a", "add", hourly, calendar=closed, app=UTC_APP)
    wanted = backfill(NOON - timedelta(hours=14), NOON)
    assert [from_ms(each) for each in unsent_times(wanted, entry, EntryState(1, "g", None))] == at(-2, -1)


class _Asked(BaseSchedule):  # type: ignore[misc]  # Celery ships no types
    """It tells only whether it is due now."""

    def is_due(self, last_run_at: datetime) -> Any:
        return schedstate(is_due=False, next=5)

    def remaining_estimate(self, last_run_at: datetime) -> timedelta:
        return timedelta(seconds=5)


def test_a_schedule_that_has_to_be_asked_when_the_time_has_come_tells_nothing() -> None:
    with pytest.raises(InvalidEntry, match="schedule: expected one that tells its past occurrences"):
        found(_Asked())


spans = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=6)


@settings(max_examples=25)
@given(spans, st.integers(1, 3))
def test_one_after_the_other_they_send_each_occurrence_once(asked: list[tuple[int, int]], steps: int) -> None:
    """As many backfills of hours, each of which is cancelled after some steps."""
    entry, state = Entry("a", "add", cron("0 * * * *", tz="UTC"), once=True, app=UTC_APP), EntryState(1, "g", None)
    skip, sent = (), list[int]()
    for first, last in asked:
        wanted = backfill(*(from_ms(HOUR * min(max(each, 1), 40)) for each in sorted((first, last))), skip=skip)
        for _ in range(steps):
            left = [*unsent_times(wanted, entry, state)]
            assert left == [each for each in _hours(wanted) if each not in sent]
            some = left[: message_limit(wanted, entry)]
            wanted, sent = after_step(wanted, some), sent + some
        skip = covered(wanted)
        assert all(one[1] + 1 < other[0] for one, other in pairwise(skip))
    assert len({*sent}) == len(sent)


def _hours(wanted: Backfill) -> list[int]:
    return [*range(to_ms(wanted.start), to_ms(wanted.end) + 1, HOUR)]


def test_how_many_go_out_in_one_step() -> None:
    plain, locked = Entry("a", "add", every(1)), Entry("a", "add", every(1), once=True)
    wanted = backfill(NOON, NOON)
    assert [message_limit(wanted.but(rate=rate), plain) for rate in (0.001, 10, 100, 1000)] == [1, 1, 10, 50]
    assert message_limit(wanted.but(rate=1000), locked) == 1
    assert [message_limit(wanted.but(max_active=most, active=(1, 2)), plain) for most in (2, 3, 1000)] == [0, 1, 50]

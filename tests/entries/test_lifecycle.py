"""States of entries, decided without a server."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest

from redbeat_lite import Calendar, Entry, cron, every
from redbeat_lite._base.times import to_ms
from redbeat_lite.entries import lifecycle
from redbeat_lite.entries.on_calendar import assign_calendar, replanned
from redbeat_lite.entries.state import EntryState
from redbeat_lite.policies import MisfirePolicy
from tests.support.rules import UTC_APP


@pytest.mark.parametrize("misfire", ["skip", "coalesce", "all"])
def test_an_entry_that_has_had_more_runs_than_it_may_have_is_finished(misfire: MisfirePolicy) -> None:
    """The file of an import had more runs than a later edit of the configuration allows."""
    entry = Entry("a", "t", every(10), misfire=misfire, max_runs=3, app=UTC_APP)
    state = EntryState(version=1, generation="g", nominal=10_000, count=5)
    plan = lifecycle.plan(entry, state, 11_000)
    assert (plan.emit, plan.next) == ((), None)


def test_a_new_revision_of_a_calendar_delays_no_entry_after_the_clock_was_set_back() -> None:
    def days_off(day: int, revision: int) -> dict[str, Calendar]:
        return {"c": Calendar({date(2026, 12, day)}, date(2027, 12, 31), name="c", revision=revision)}

    entry = Entry("a", "t", cron("0 * * * *"), calendar="c", app=UTC_APP)
    assign_calendar(entry, days_off(25, 1))
    now = datetime(2026, 5, 1, 12, 30, tzinfo=UTC)
    tomorrow = to_ms(now + timedelta(days=1))
    state = EntryState(version=1, generation="g", nominal=to_ms(now) + 1, last=tomorrow)
    assign_calendar(entry, days_off(26, 2))
    after = replanned(entry, state, to_ms(now))
    assert after.nominal == to_ms(now + timedelta(minutes=30))
    assert after.generation != state.generation

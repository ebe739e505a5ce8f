"""States of entries, decided without a server."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from redbeat_lite import Entry, cron, every
from redbeat_lite._base.times import to_ms
from redbeat_lite.entries import lifecycle
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


def test_a_resumption_keeps_a_run_of_the_hour_that_comes_twice_while_its_jitter_is_not_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = datetime(2026, 10, 25, 0, tzinfo=UTC)  # 02:00 in Berlin, which comes again an hour later
    again = first + timedelta(hours=1)
    late = {to_ms(again): to_ms(again + timedelta(minutes=85))}
    monkeypatch.setattr(lifecycle, "offset_ms", lambda _, nominal, *__: late.get(nominal, nominal) - nominal)
    entry = Entry("a", "t", cron("0 */2 * * *", tz="Europe/Berlin"), jitter=5400, app=UTC_APP)
    state = EntryState(version=1, generation="g", nominal=to_ms(first), last=to_ms(first) - 1, paused=True)
    now = to_ms(again + timedelta(minutes=20))
    assert lifecycle.resumed(entry, state, now, catch_up=False).nominal == to_ms(again)

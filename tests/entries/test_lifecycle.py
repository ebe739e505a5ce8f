"""States of entries, decided without a server."""

from __future__ import annotations

import pytest

from redbeat_lite import Entry, every
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

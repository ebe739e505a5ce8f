"""A beat that turns late, again and again, keeps its entries to their pace."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest
import redis

from redbeat_lite import Entry, Scheduler, Schedules, cron, every
from redbeat_lite.entries.changes import Edit
from redbeat_lite.entries.state import EntryState
from tests.support.frozen import NOW, Clock
from tests.support.in_process import MakeApp
from tests.support.messages import of_entry


@pytest.mark.parametrize(("runs", "others"), [(100, 10), pytest.param(1000, 30, marks=pytest.mark.soak)])
def test_hundreds_of_runs_of_a_second_end_where_they_should_although_each_tick_is_late(
    make_app: MakeApp, clock: Clock, client: redis.Redis, runs: int, others: int
) -> None:
    app, chance = make_app(), random.Random(7)
    schedules = Schedules(app)
    schedules.add("steady", "add", every(1), expires=None)
    schedules.add_many([Entry(f"load-{n}", "add", every(0.7)) for n in range(others)])
    beat = Scheduler(app)
    for second in range(1, runs + 1):
        clock.set(NOW + timedelta(seconds=second + chance.uniform(0, 0.9)))
        beat.run_due()
    beat.close()
    nominals = [message.scheduled_at for message in of_entry(client, "steady")]
    assert nominals == [NOW + timedelta(seconds=second) for second in range(1, runs + 1)]
    assert schedules["steady"].total_run_count == runs


def test_other_zone_data_than_when_an_entry_was_planned_harm_nothing(
    make_app: MakeApp, clock: Clock, client: redis.Redis
) -> None:
    """What was planned under the old data is kept, and the next one follows the new."""

    app = make_app()
    schedules = Schedules(app)
    entry = schedules.add("daily", "add", cron("0 9 * * *", tz="Asia/Tokyo"))
    beat = Scheduler(app)
    beat.run_due()
    # As if the zone had been an hour further west when this was planned.
    planned = entry.state
    assert planned.nominal is not None
    moved = EntryState(planned.version, planned.generation, planned.nominal + 3_600_000)
    stored = client.hget(beat.store.keys.state, "daily")
    edit = Edit("daily", stored, moved.encode(), None, moved.nominal)
    assert beat.store.put([edit]) == [True]
    for _ in range(72):
        clock.forward(3600)
        beat.run_due()
    beat.close()
    times = [message.scheduled_at for message in of_entry(client, "daily")]
    first = NOW.replace(hour=0, minute=0, second=0) + timedelta(days=1)
    assert times == [first + timedelta(hours=1), first + timedelta(days=1), first + timedelta(days=2)]

"""Spread entries in the store: what their name decided stays, whoever writes the same again."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat_lite import Entry, Schedules, cron, every
from redbeat_lite.entries.selection import Selection
from redbeat_lite.interchange.backup import Export, Restore
from redbeat_lite.interchange.document import read_document
from redbeat_lite.interchange.plan import apply_plan, make_plan
from tests.support.frozen import NOW, Clock
from tests.support.in_process import MakeApp, MakeBeat, one_turn
from tests.support.messages import of_entry

ENTRIES = "{redbeat-lite}:entries"
SPREAD = [
    pytest.param(cron("H H(0-5) * * *"), cron("H H(0-6) * * *"), "7 2 * * *", id="cron"),
    pytest.param(every(3600, spread=True), every(1800, spread=True), 1234, id="interval"),
]
"""A schedule, another one, and what another release might have made of the first."""


@pytest.fixture(autouse=True)
def _frozen(clock: Clock) -> None:
    pass


def kept(client: redis.Redis, name: str = "job") -> Any:
    """What is stored of an entry as what its schedule stands for."""
    return json.loads(client.hget(ENTRIES, name))["schedule"]["resolved"]


def as_if_resolved(client: redis.Redis, value: Any, name: str = "job") -> None:
    """Have another release have stored the entry."""
    stored = json.loads(client.hget(ENTRIES, name))
    stored["schedule"]["resolved"] = value
    client.hset(ENTRIES, name, json.dumps(stored, separators=(",", ":")))


@pytest.mark.parametrize(("schedule", "other", "elsewhere"), SPREAD)
class TestEdits:
    def test_the_same_again_is_no_edit_and_moves_nothing(
        self, schedules: Schedules, client: redis.Redis, clock: Clock, schedule: Any, other: Any, elsewhere: Any
    ) -> None:
        added = schedules.add("job", "t", schedule)
        assert added.next_run_at is not None
        assert kept(client) == schedules["job"].schedule.resolved == Entry("job", "t", schedule).schedule.resolved
        clock.forward(60)
        again = schedules.add("job", "t", schedule, replace=True)
        assert (again.version, again.next_run_at) == (1, added.next_run_at)
        schedules.remove("job")
        assert schedules.add("job", "t", schedule).next_run_at == added.next_run_at, (
            "it does not go by when it was added"
        )

    def test_an_edit_that_leaves_the_text_alone_keeps_what_it_stands_for(
        self, schedules: Schedules, client: redis.Redis, clock: Clock, schedule: Any, other: Any, elsewhere: Any
    ) -> None:
        schedules.add("job", "t", schedule)
        as_if_resolved(client, elsewhere)
        schedules.pause("job")
        clock.forward(86_400)
        planned = schedules.resume("job")
        schedules.update("job", description="x")
        assert kept(client) == elsewhere
        replaced = schedules.add("job", "t", schedule, args=(1,), replace=True)
        assert kept(client) == elsewhere
        assert replaced.next_run_at == planned.next_run_at
        schedules.add_many([Entry("job", "t", schedule, args=(2,))], replace=True)
        assert kept(client) == elsewhere
        schedules.update("job", schedule=schedule)
        assert (schedules["job"].args, kept(client)) == ((2,), elsewhere)

    def test_another_text_is_resolved_anew(
        self, schedules: Schedules, client: redis.Redis, schedule: Any, other: Any, elsewhere: Any
    ) -> None:
        schedules.add("job", "t", schedule)
        as_if_resolved(client, elsewhere)
        edited = schedules.update("job", schedule=other)
        assert kept(client) == edited.schedule.resolved == Entry("job", "t", other).schedule.resolved

    def test_a_configuration_that_is_read_again_keeps_it(
        self,
        make_app: MakeApp,
        make_beat: MakeBeat,
        client: redis.Redis,
        schedule: Any,
        other: Any,
        elsewhere: Any,
    ) -> None:
        def deployed(**fields: Any) -> Entry:
            app = make_app(beat_schedule={"job": {"task": "t", "schedule": schedule, **fields}})
            return one_turn(app, make_beat)["job"]

        first = deployed()
        assert first.schedule.resolved == Entry("job", "t", schedule).schedule.resolved
        assert (deployed().version, deployed().next_run_at) == (1, first.next_run_at)
        as_if_resolved(client, elsewhere)
        assert deployed(args=(1,)).args == (1,)
        assert kept(client) == elsewhere

    def test_a_file_is_the_same_as_what_was_made_of_it(
        self,
        app: Celery,
        schedules: Schedules,
        client: redis.Redis,
        schedule: Any,
        other: Any,
        elsewhere: Any,
    ) -> None:
        schedules.add("job", "t", schedule)
        exported = Export(app, Selection())
        [record] = exported.records()
        assert "resolved" not in record["schedule"], "whoever edits the text must not have to edit it"
        document = read_document("entries.json", json.dumps({"entries": [record]}))
        for value in (kept(client), elsewhere):
            as_if_resolved(client, value)
            assert make_plan(app, document).same == 1
            assert [each.action for each in Restore(app).plan(document)] == ["same"]
        schedules.clear()
        apply_plan(app, make_plan(app, document))
        assert make_plan(app, document).changes == []
        assert kept(client) == Entry("job", "t", schedule).schedule.resolved


def test_the_beat_sends_at_what_was_resolved(
    app: Celery, schedules: Schedules, make_beat: MakeBeat, clock: Clock, client: redis.Redis
) -> None:
    for schedule in (cron("H * * * *"), every(3600, spread=True)):
        entry = schedules.add("job", "t", schedule, replace=True)
        assert entry.next_run_at is not None
        assert NOW < entry.next_run_at <= NOW + timedelta(hours=1)
        assert [each.at for each in schedules.upcoming(NOW + timedelta(hours=3))] == [
            entry.next_run_at + timedelta(hours=n) for n in range(3)
        ]
    beat = make_beat(app)
    for _ in range(3):
        due = schedules["job"].next_run_at
        assert due is not None
        clock.set(due - timedelta(milliseconds=1))
        beat.run_due()
        assert schedules["job"].next_run_at == due
        clock.set(due)
        beat.run_due()
    assert len(of_entry(client, "job")) == 3

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
from redbeat_lite.interchange.document import read_document
from redbeat_lite.interchange.files import Export, Restore, apply_plan, make_plan
from tests.support.frozen import NOW, Clock
from tests.support.in_process import MakeApp, MakeBeat, one_turn
from tests.support.messages import of_entry

SPREAD = [
    pytest.param(cron("H H(0-5) * * *"), cron("H H(0-6) * * *"), id="cron"),
    pytest.param(every(3600, spread=True), every(1800, spread=True), id="interval"),
]
"""A spread schedule, and another one."""


@pytest.fixture(autouse=True)
def _frozen(clock: Clock) -> None:
    pass


@pytest.mark.parametrize(("schedule", "other"), SPREAD)
class TestEdits:
    def test_the_same_again_is_no_edit_and_moves_nothing(
        self, schedules: Schedules, clock: Clock, schedule: Any, other: Any
    ) -> None:
        added = schedules.add("job", "t", schedule)
        assert added.next_run_at is not None
        assert schedules["job"].schedule.resolved == Entry("job", "t", schedule).schedule.resolved
        clock.forward(60)
        again = schedules.add("job", "t", schedule, replace=True)
        assert (again.version, again.next_run_at) == (1, added.next_run_at)
        schedules.remove("job")
        assert schedules.add("job", "t", schedule).next_run_at == added.next_run_at, (
            "it does not go by when it was added"
        )

    def test_an_edit_that_leaves_the_text_alone_keeps_the_times(
        self, schedules: Schedules, clock: Clock, schedule: Any, other: Any
    ) -> None:
        resolved = schedules.add("job", "t", schedule).schedule.resolved
        schedules.pause("job")
        clock.forward(86_400)
        planned = schedules.resume("job")
        assert schedules.update("job", description="x").schedule.resolved == resolved
        replaced = schedules.add("job", "t", schedule, args=(1,), replace=True)
        assert replaced.next_run_at == planned.next_run_at
        schedules.add_many([Entry("job", "t", schedule, args=(2,))], replace=True)
        assert schedules["job"].next_run_at == planned.next_run_at

    def test_another_text_has_other_times(self, schedules: Schedules, schedule: Any, other: Any) -> None:
        schedules.add("job", "t", schedule)
        edited = schedules.update("job", schedule=other)
        assert edited.schedule.resolved == Entry("job", "t", other).schedule.resolved

    def test_a_configuration_that_is_read_again_keeps_the_times(
        self, make_app: MakeApp, make_beat: MakeBeat, schedule: Any, other: Any
    ) -> None:
        def deployed(**fields: Any) -> Entry:
            app = make_app(beat_schedule={"job": {"task": "t", "schedule": schedule, **fields}})
            return one_turn(app, make_beat)["job"]

        first = deployed()
        assert first.schedule.resolved == Entry("job", "t", schedule).schedule.resolved
        assert (deployed().version, deployed().next_run_at) == (1, first.next_run_at)
        assert deployed(args=(1,)).next_run_at == first.next_run_at

    def test_a_file_is_the_same_as_the_entry(
        self, app: Celery, schedules: Schedules, schedule: Any, other: Any
    ) -> None:
        schedules.add("job", "t", schedule)
        [record] = Export(app, Selection()).records()
        assert "resolved" not in record["schedule"], "whoever edits the text must not have to edit it"
        document = read_document("entries.json", json.dumps({"entries": [record]}))
        assert make_plan(app, document).same == 1
        assert [each.action for each in Restore(app, document).plan()] == ["same"]
        schedules.clear()
        apply_plan(app, make_plan(app, document))
        assert make_plan(app, document).changes == []
        assert schedules["job"].schedule.resolved == Entry("job", "t", schedule).schedule.resolved


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

"""What an entry is to whoever reads it: Celery's own kind, comparable, copied with all it has."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone

import pytest
import redis
from celery.beat import ScheduleEntry

from redbeat_lite import Entry, Scheduler, Schedules, cron, every
from tests.support.cases import together
from tests.support.frozen import Clock
from tests.support.messages import of_entry

pytestmark = pytest.mark.usefixtures("clock")


class TestEntry:
    def test_is_an_entry_of_celerys(self, schedules: Schedules) -> None:
        schedules.add("a", "add", every(10), (1,), {"y": 2}, {"queue": "q"})
        entry = schedules["a"]
        assert isinstance(entry, ScheduleEntry)
        assert (entry.name, entry.task, entry.args, entry.kwargs) == ("a", "add", (1,), {"y": 2})
        assert entry.options == {"queue": "q"}
        assert repr(entry) == "<Entry 'a': add(1, y=2) every('10s')>"

    def test_two_that_a_user_would_write_alike_are_equal(self, schedules: Schedules) -> None:
        schedules.add("a", "add", 10, [1])
        assert schedules["a"] == Entry("a", "add", timedelta(seconds=10), (1,))
        for other in (Entry("b", "add", 10, [1]), Entry("a", "add", 11, [1]), Entry("a", "add", 10, [2]), "a"):
            assert schedules["a"] != other

    @together("duplicate", [copy.copy, copy.deepcopy, lambda entry: pickle.loads(pickle.dumps(entry))], emptied=True)
    def test_a_copy_carries_everything(self, schedules: Schedules, duplicate: Callable[[Entry], Entry]) -> None:
        schedules.add("a", "add", cron("0 3 * * *", tz="Asia/Tokyo"), (1,), once=True, misfire="skip", jitter=2)
        schedules.pause("a", "why")
        entry = schedules["a"]
        twin = duplicate(entry)
        assert twin == entry
        assert twin is not entry
        assert (twin.version, twin.paused_note, twin.generation) == (2, "why", entry.generation)
        assert twin.next_run_at == entry.next_run_at

    def test_instants_come_back_aware(self, schedules: Schedules) -> None:
        tokyo = timezone(timedelta(hours=9))
        schedules.add("a", "add", every(10), start_at=datetime(2026, 3, 3, 9, tzinfo=tokyo))
        entry = schedules["a"]
        assert entry.start_at == entry.next_run_at == datetime(2026, 3, 3, tzinfo=UTC)
        assert entry.next_run_at.tzinfo is UTC

    def test_the_last_task_id_is_the_one_that_was_sent(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add("a", "add", every(10))
        clock.forward(10)
        inner_beat.run_due()
        assert schedules["a"].last_task_id == of_entry(client, "a")[0].id

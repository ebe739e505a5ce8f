"""Entries that were set aside: seen, mended and released."""

from __future__ import annotations

from datetime import timedelta

import pytest
import redis

from redbeat_lite import CorruptEntry, Entry, EntryNotFound, Scheduler, Schedules, every
from tests.support.frozen import NOW, Clock

pytestmark = pytest.mark.usefixtures("clock")


@pytest.fixture
def set_aside(schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis) -> Schedules:
    """Schedules whose entry "a" cannot be read, which the beat has seen."""
    schedules.add("a", "add", every(10))
    client.hset("{redbeat-lite}:entries", "a", "{")
    clock.forward(10)
    inner_beat.run_due()
    return schedules


class TestQuarantine:
    def test_a_bad_entry_can_be_seen_mended_and_released(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add("a", "add", every(10), (1,))
        client.hset("{redbeat-lite}:state", "a", "garbage")
        clock.forward(10)
        inner_beat.run_due()
        assert "a" not in schedules
        record = schedules.quarantined()["a"]
        assert "state is not readable" in record["error"]
        assert record["state"] == "garbage"
        assert record["at"] == (NOW + timedelta(seconds=10)).timestamp() * 1000
        released = schedules.release("a")
        assert schedules.quarantined() == {}
        assert schedules["a"] == released == Entry("a", "add", every(10), (1,))
        assert released.next_run_at == NOW + timedelta(seconds=20)

    def test_the_record_of_changes_says_why_but_tells_no_argument(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add("a", "add", every(10))
        client.hset("{redbeat-lite}:entries", "a", '{"task":"add","schedule":{"every":10000},"kwargs":"hunter2"}')
        clock.forward(10)
        inner_beat.run_due()
        assert "got 'hunter2'" in schedules.quarantined()["a"]["error"]
        [change] = schedules.changes("a", limit=1)
        assert change.action == "quarantined"
        assert change.note.endswith("kwargs: expected a dict with text keys")

    def test_what_is_still_bad_stays(self, set_aside: Schedules) -> None:
        with pytest.raises(CorruptEntry, match="not readable as JSON"):
            set_aside.release("a")
        assert list(set_aside.quarantined()) == ["a"]

    def test_what_is_not_there_cannot_be_released(self, schedules: Schedules) -> None:
        with pytest.raises(EntryNotFound, match="no entry 'a' is in quarantine"):
            schedules.release("a")

    def test_a_new_entry_of_the_name_takes_it_out_of_quarantine(self, set_aside: Schedules) -> None:
        set_aside.add("a", "add", every(10))
        assert set_aside.quarantined() == {}

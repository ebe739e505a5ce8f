"""Entries that are paused and resumed, or disabled."""

from __future__ import annotations

from datetime import timedelta

import pytest
import redis

from redbeat_lite import InvalidEntry, Misfire, Scheduler, Schedules, every
from tests.support.frozen import NOW, Clock
from tests.support.messages import queued

pytestmark = pytest.mark.usefixtures("clock")


class TestPause:
    def test_a_paused_entry_does_not_fire_and_keeps_its_history_and_note(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add("a", "add", every(10))
        clock.forward(10)
        inner_beat.run_due()
        paused = schedules.pause("a", note="data centre move | at 5")
        assert (paused.paused_note, paused.next_run_at) == ("data centre move | at 5", None)
        clock.forward(1000)
        inner_beat.run_due()
        assert len(queued(client)) == 1
        entry = schedules["a"]
        assert (entry.paused_note, entry.total_run_count) == ("data centre move | at 5", 1)

    def test_resuming_waits_for_the_next_instant_in_the_old_phase(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add("a", "add", every(10))
        schedules.pause("a")
        clock.forward(1003)
        resumed = schedules.resume("a")
        assert (resumed.paused_note, resumed.next_run_at) == (None, NOW + timedelta(seconds=1010))
        inner_beat.run_due()
        assert queued(client) == []
        clock.forward(7)
        inner_beat.run_due()
        assert [message.scheduled_at for message in queued(client)] == [NOW + timedelta(seconds=1010)]

    @pytest.mark.parametrize(("misfire", "runs"), [("coalesce", 1), ("skip", 0), (Misfire("all", limit=4), 4)])
    def test_resuming_with_catch_up_leaves_the_pause_to_the_misfire_policy(
        self,
        schedules: Schedules,
        inner_beat: Scheduler,
        clock: Clock,
        client: redis.Redis,
        misfire: Misfire,
        runs: int,
    ) -> None:
        schedules.add("a", "add", every(10), misfire=misfire)
        schedules.pause("a")
        clock.forward(108)
        schedules.resume("a", catch_up=True)
        inner_beat.run_due()
        assert len(queued(client)) == runs
        assert schedules["a"].next_run_at == NOW + timedelta(seconds=110)

    def test_resuming_what_is_not_paused_changes_nothing(self, schedules: Schedules, clock: Clock) -> None:
        schedules.add("a", "add", every(10))
        clock.forward(15)
        assert schedules.resume("a").version == 1
        assert schedules["a"].next_run_at == NOW + timedelta(seconds=10)

    def test_pausing_again_renews_the_note(self, schedules: Schedules) -> None:
        schedules.add("a", "add", every(10))
        schedules.pause("a", "first")
        assert schedules.pause("a", "second").paused_note == "second"
        assert schedules["a"].paused_note == "second"

    def test_an_edit_of_a_paused_entry_does_not_wake_it(self, schedules: Schedules) -> None:
        schedules.add("a", "add", every(10))
        schedules.pause("a", "why")
        edited = schedules.update("a", schedule=every(5))
        assert (edited.paused_note, edited.next_run_at) == ("why", None)

    def test_a_note_is_text(self, schedules: Schedules) -> None:
        schedules.add("a", "add", every(10))
        with pytest.raises(InvalidEntry, match=r"entry 'a': note: expected text.*, got 5"):
            schedules.pause("a", 5)  # type: ignore[arg-type]

    def test_a_note_has_bounds(self, schedules: Schedules) -> None:
        schedules.add("a", "add", every(10))
        with pytest.raises(InvalidEntry, match="entry 'a': note: expected text of at most 1000 characters"):
            schedules.pause("a", "x" * 1001)

    def test_a_disabled_entry_does_not_fire_until_it_is_enabled(
        self, schedules: Schedules, inner_beat: Scheduler, clock: Clock, client: redis.Redis
    ) -> None:
        schedules.add("a", "add", every(10), enabled=False)
        clock.forward(25)
        inner_beat.run_due()
        assert queued(client) == []
        assert schedules.update("a", enabled=True).next_run_at == NOW + timedelta(seconds=30)

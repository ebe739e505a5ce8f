"""What holds whichever way messages go out, and what a crash does to each."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import redis

from redbeat_lite import Entry, every, locks
from redbeat_lite.beat.dispatch.publisher import Publisher
from redbeat_lite.store.records import Lost
from tests.beat.ways import SENDERS, WAYS, Setup, every_way, exactly_once
from tests.support.frozen import Clock
from tests.support.in_process import MakeApp, MakeBeat
from tests.support.kombus import BATCHES
from tests.support.messages import queued
from tests.support.server import Server


class TestEveryWay:
    @every_way
    @pytest.mark.parametrize("count", [70, pytest.param(700, marks=pytest.mark.soak)])
    def test_sends_each_occurrence_once(
        self, setup: Setup, clock: Clock, monkeypatch: pytest.MonkeyPatch, count: int
    ) -> None:
        monkeypatch.setattr(Publisher, "batch_size", count * 5 // 7)  # They do not fit into one batch.
        setup.schedules.add_many(Entry(f"e{number}", "t", every(10), (number,)) for number in range(count))
        for _ in range(3):
            clock.forward(10)
            setup.beat.run_due()
        messages = queued(setup.broker)
        assert len({message.id for message in messages}) == len(messages) == 3 * count
        assert all(entry.total_run_count == 3 for entry in setup.schedules.values())

    @every_way
    def test_says_how_it_sends(self, setup: Setup, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO")
        setup.schedules.add("a", "t", every(10))
        clock.forward(10)
        setup.beat.run_due()
        [line] = [each for each in caplog.messages if "messages go out" in each]
        is_apart = setup.broker.connection_pool.connection_kwargs["db"]
        one_step = BATCHES and not is_apart and setup.app.conf.get("redbeat_lite_dispatch") != "plain"
        assert ("in one step with the schedule" in line) == one_step
        assert ("one by one" in line) == (not one_step)

    @every_way
    def test_after_a_crash_between_publish_and_commit_the_same_ids_go_out(self, setup: Setup, clock: Clock) -> None:
        setup.schedules.add_many(Entry(f"e{number}", "t", every(10)) for number in range(20))
        clock.forward(10)
        setup.crash_before_the_commit()
        before = {message.id for message in queued(setup.broker)}
        setup.restart()
        setup.beat.run_due()
        messages = queued(setup.broker)
        assert len({message.id for message in messages}) == 20
        assert before <= {message.id for message in messages}
        assert len(messages) == 20 + len(before)
        assert all(entry.total_run_count == 1 for entry in setup.schedules.values())
        assert {entry.last_task_id for entry in setup.schedules.values()} == {message.id for message in messages}

    @exactly_once
    def test_a_crash_between_publish_and_commit_doubles_nothing_in_one_step(self, setup: Setup, clock: Clock) -> None:
        setup.schedules.add_many(Entry(f"e{number}", "t", every(10)) for number in range(20))
        clock.forward(10)
        setup.crash_before_the_commit()
        assert queued(setup.broker) == []
        setup.restart()
        setup.beat.run_due()
        assert len(queued(setup.broker)) == 20

    @exactly_once
    def test_a_leader_that_lost_its_lead_before_the_commit_holds_no_once_lock(self, setup: Setup, clock: Clock) -> None:
        setup.schedules.add("a", "t", every(10), once=True)
        clock.forward(10)
        with mock.patch.object(setup.beat.store, "commit", side_effect=Lost):
            setup.beat.run_due()
        assert (queued(setup.broker), list(locks(setup.app).list())) == ([], [])

    @exactly_once
    def test_a_beat_that_dies_before_the_commit_leaves_no_once_lock_to_the_next(
        self, setup: Setup, clock: Clock
    ) -> None:
        setup.schedules.add("a", "t", every(10), once=True)
        clock.forward(10)
        setup.crash_before_the_commit()
        setup.restart()
        clock.forward(10)
        setup.beat.run_due()
        assert len(queued(setup.broker)) == 1

    @exactly_once
    def test_a_commit_whose_answer_is_lost_doubles_nothing_in_one_step(self, setup: Setup, clock: Clock) -> None:
        setup.schedules.add("a", "t", every(10))
        clock.forward(10)
        commit = setup.beat.store.commit

        def lost(*args: Any) -> Any:
            commit(*args)
            raise redis.ConnectionError("the answer was lost")

        with (
            mock.patch.object(setup.beat.store, "commit", side_effect=lost),
            pytest.raises(redis.ConnectionError),
        ):
            setup.beat.run_due()
        setup.beat.run_due()
        assert len(queued(setup.broker)) == 1

    @exactly_once
    def test_an_entry_removed_between_plan_and_commit_is_not_sent_in_one_step(self, setup: Setup, clock: Clock) -> None:
        # The interleaving: peeked by the beat, removed and edited by somebody, committed by the beat.
        setup.schedules.add("removed", "t", every(10))
        setup.schedules.add("edited", "t", every(10), (1,))
        setup.schedules.add("paused", "t", every(10))
        clock.forward(10)

        def meanwhile() -> None:
            if "removed" in setup.schedules:
                del setup.schedules["removed"]
                setup.schedules.update("edited", args=(2,))
                setup.schedules.pause("paused")

        setup.commit_after(meanwhile)
        assert [(message.entry, message.args) for message in queued(setup.broker)] == [("edited", [2])]
        assert "removed" not in setup.schedules
        assert setup.schedules["paused"].paused_note == ""

    @exactly_once
    def test_an_entry_removed_between_plan_and_commit_holds_no_once_lock(self, setup: Setup, clock: Clock) -> None:
        for name in ("removed", "paused"):
            setup.schedules.add(name, "t", every(10), (name,), once=True)
        clock.forward(10)

        def meanwhile() -> None:
            del setup.schedules["removed"]
            setup.schedules.pause("paused")

        setup.commit_after(meanwhile)
        assert (queued(setup.broker), list(locks(setup.app).list())) == ([], [])

    def test_a_removed_entry_does_not_come_back_by_a_late_commit(self, setup: Setup, clock: Clock) -> None:
        setup.schedules.add("a", "t", every(10))
        clock.forward(10)
        setup.commit_after(lambda: setup.schedules.remove("a", missing_ok=True))
        assert "a" not in setup.schedules
        assert setup.schedules.list() == []

    def test_the_transports_key_prefix_is_honoured(
        self, make_app: MakeApp, make_beat: MakeBeat, server: Server, clock: Clock
    ) -> None:
        for way in WAYS:
            setup = Setup(way, make_app, make_beat, server, broker_transport_options={"global_keyprefix": f"{way}:"})
            setup.schedules.add("a", "t", every(10))
            for _ in range(2):
                clock.forward(10)
                setup.beat.run_due()
            assert setup.broker.llen(f"{way}:celery") == 2
            assert not setup.broker.exists("celery")
            setup.broker.delete(*setup.broker.keys(f"{way}:*"))
            setup.beat.close()
            setup.schedules.clear()
            setup.broker.close()

    @pytest.mark.parametrize("setup", [way for way in SENDERS if way != "one step"], indirect=True)
    def test_what_is_out_keeps_its_once_lock_where_it_cannot_be_committed(self, setup: Setup, clock: Clock) -> None:
        setup.schedules.add("a", "t", every(10), once=True)
        clock.forward(10)
        setup.crash_before_the_commit()
        [message] = queued(setup.broker)
        assert [lock.task_id for lock in locks(setup.app).list()] == [message.id]

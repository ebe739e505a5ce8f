"""Once-locks that a beat has acquired: those of messages that it did not send, and those of messages that it sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest import mock

import pytest
import redis

from redbeat_lite import every, locks
from redbeat_lite.once.claims import Claim
from redbeat_lite.once.lock_store import LockStore
from redbeat_lite.store.leader_store import LeaderStore
from tests.beat.ways import SENDERS, Setup, exactly_once
from tests.support.beats import KEYS
from tests.support.frozen import Clock
from tests.support.messages import of_entry, queued

#: Seconds between two runs.
GAP = 10

one_by_one = pytest.mark.parametrize("setup", [way for way in SENDERS if way != "one step"], indirect=True)


def add(setup: Setup, name: str = "a", **options: Any) -> None:
    setup.schedules.add(name, "t", every(GAP), once=True, **options)


def turn(setup: Setup, clock: Clock, seconds: float) -> None:
    clock.forward(seconds)
    setup.beat.run_due()


def lead_in_its_place(setup: Setup) -> None:
    """Dispatch by another beat, while the process of the earlier leader stands still."""
    setup.broker.delete(KEYS.leader)
    setup.beat = setup.make_beat(setup.app)
    setup.beat.run_due()
    assert (len(queued(setup.broker)), len(locks(setup.app).list())) == (1, 1)


def commit_late(setup: Setup, monkeypatch: pytest.MonkeyPatch, results: list[bool]) -> None:
    """Dispatch without a reply to the commit. This commit runs just before the next one, and has these results."""
    commit = LeaderStore.commit
    late: list[Any] = []

    def times_out(self: LeaderStore, *args: Any) -> Any:
        if not late:
            late[:] = [self, *args]
            raise redis.TimeoutError("no reply")
        monkeypatch.setattr(LeaderStore, "commit", commit)
        assert commit(late[0], *late[1:]) == results
        return commit(self, *args)

    monkeypatch.setattr(LeaderStore, "commit", times_out)
    with pytest.raises(redis.TimeoutError):
        setup.beat.run_due()


class TestOfABeatThatDied:
    @exactly_once
    @pytest.mark.parametrize("missed", [1, 2])
    @pytest.mark.parametrize(("misfire", "later"), [("skip", 4), ("coalesce", 11)])
    def test_the_next_run_takes_it_over(
        self, setup: Setup, clock: Clock, misfire: str, later: int, missed: int
    ) -> None:
        add(setup, misfire=misfire)
        clock.forward(missed * GAP)
        setup.crash_before_the_commit()
        assert (len(queued(setup.broker)), len(locks(setup.app).list())) == (0, 1)
        setup.restart()
        turn(setup, clock, later)
        turn(setup, clock, GAP - later % GAP)  # when the run after it is due
        [message] = queued(setup.broker)
        [lock] = locks(setup.app).list()
        assert lock.task_id == message.id

    @exactly_once
    def test_so_does_a_run_of_another_entry_if_its_own_is_gone(self, setup: Setup, clock: Clock) -> None:
        add(setup)
        clock.forward(GAP)
        setup.crash_before_the_commit()
        setup.schedules.remove("a")
        setup.restart()
        add(setup, "b")
        turn(setup, clock, GAP)
        assert len(of_entry(setup.broker, "b")) == 1


class TestOfABeatThatWasReplaced:
    @exactly_once
    def test_one_that_was_frozen_before_its_commit_leaves_it_to_its_successor(
        self, setup: Setup, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        add(setup)
        clock.forward(GAP)
        old, commit = setup.beat, LeaderStore.commit

        def freezes(self: LeaderStore, *args: Any) -> Any:
            monkeypatch.setattr(LeaderStore, "commit", commit)
            lead_in_its_place(setup)
            return commit(self, *args)

        monkeypatch.setattr(LeaderStore, "commit", freezes)
        old.run_due()
        turn(setup, clock, GAP)
        assert len(queued(setup.broker)) == 1

    @exactly_once
    def test_one_that_waits_for_the_reply_to_its_claims_leaves_it_to_its_successor(
        self, setup: Setup, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        add(setup)
        clock.forward(GAP)
        old, run = setup.beat, LockStore._run

        def hangs(self: LockStore, script: str, *sources: Any, **values: Any) -> Any:
            if script != "once/take":
                return run(self, script, *sources, **values)
            monkeypatch.setattr(LockStore, "_run", run)
            lead_in_its_place(setup)
            raise redis.TimeoutError("no reply")

        monkeypatch.setattr(LockStore, "_run", hangs)
        with pytest.raises(redis.TimeoutError):
            old.run_due()
        turn(setup, clock, GAP)
        assert len(queued(setup.broker)) == 1


class TestOfAMessageThatWasSent:
    @exactly_once
    def test_by_a_commit_that_came_late_is_kept(
        self, setup: Setup, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        add(setup)
        clock.forward(GAP)
        commit_late(setup, monkeypatch, [True])
        setup.beat.run_due()
        assert len(queued(setup.broker)) == 1
        turn(setup, clock, GAP)
        assert len(queued(setup.broker)) == 1

    @exactly_once
    @pytest.mark.parametrize("misfire", ["skip", "coalesce"])
    def test_is_not_sent_by_a_commit_that_comes_after_another_run_has_the_lock(
        self, setup: Setup, clock: Clock, monkeypatch: pytest.MonkeyPatch, misfire: str
    ) -> None:
        add(setup, misfire=misfire)
        clock.forward(GAP)
        commit_late(setup, monkeypatch, [False])
        turn(setup, clock, GAP)
        turn(setup, clock, GAP)
        [message] = queued(setup.broker)
        [lock] = locks(setup.app).list()
        assert lock.task_id == message.id

    @one_by_one
    def test_is_kept_if_the_beat_dies_before_the_commit(self, setup: Setup, clock: Clock) -> None:
        add(setup)
        clock.forward(GAP)
        setup.crash_before_the_commit()
        add(setup, "b")
        setup.schedules.pause("a")
        setup.restart()
        turn(setup, clock, GAP)
        [message] = queued(setup.broker)
        [lock] = locks(setup.app).list()
        assert (lock.task_id, message.entry) == (message.id, "a")

    @one_by_one
    def test_of_a_backfill_is_kept_if_the_beat_dies_before_the_commit(
        self, setup: Setup, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        add(setup)
        setup.schedules.pause("a")
        clock.forward(GAP)
        setup.schedules.backfills.start("a", clock.now, clock.now, max_active=None)
        clock.forward(1)
        with monkeypatch.context() as patch:
            patch.setattr(LeaderStore, "commit", mock.Mock(side_effect=redis.ConnectionError("crash")))
            with pytest.raises(redis.ConnectionError):
                setup.beat.run_due()
        add(setup, "b")
        setup.restart()
        turn(setup, clock, GAP)
        assert {message.entry for message in queued(setup.broker)} == {"a"}
        [lock] = locks(setup.app).list()
        assert {message.id for message in queued(setup.broker)} == {lock.task_id}

    @one_by_one
    def test_is_not_sent_if_another_task_has_got_it_just_before(
        self, setup: Setup, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        add(setup)
        clock.forward(GAP)
        take = LockStore.take

        def is_late(self: LockStore, claims: Sequence[Claim], planned_ms: int = 0) -> list[bool]:
            if not planned_ms:
                monkeypatch.setattr(LockStore, "take", take)
                [lock] = locks(setup.app).list()
                locks(setup.app).clear(lock.key)
                assert take(self, [claims[0]._replace(task_id="another")]) == [True]
            return take(self, claims, planned_ms)

        monkeypatch.setattr(LockStore, "take", is_late)
        setup.beat.run_due()
        assert not queued(setup.broker)
        assert setup.schedules["a"].skipped_count == 1

    @one_by_one
    def test_is_kept_if_the_entry_is_edited_before_the_commit(self, setup: Setup, clock: Clock) -> None:
        add(setup)
        clock.forward(GAP)
        setup.commit_after(lambda: setup.schedules.update("a", schedule=every(GAP + 1)))
        turn(setup, clock, GAP + 1)
        [message] = queued(setup.broker)
        [lock] = locks(setup.app).list()
        assert lock.task_id == message.id

    def test_leaves_out_the_next_runs_also_after_an_edit_and_with_another_leader(
        self, setup: Setup, clock: Clock
    ) -> None:
        add(setup)
        turn(setup, clock, GAP)
        setup.schedules.update("a", schedule=every(GAP + 1))
        turn(setup, clock, GAP + 1)
        setup.restart()
        turn(setup, clock, GAP + 1)
        [message] = queued(setup.broker)
        [lock] = locks(setup.app).list()
        assert lock.task_id == message.id
        assert setup.schedules["a"].skipped_count == 2

"""Once-locks that a beat acquires with its messages: no lock is left over, and no sent message loses its lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import redis
from kombu import Queue
from kombu.common import Broadcast
from kombu.exceptions import OperationalError

from redbeat_lite import Expect, Scheduler, Schedules, every, locks
from redbeat_lite.beat.dispatch.publisher import Publisher
from redbeat_lite.once.claims import Claim
from redbeat_lite.once.lock_store import LockStore
from redbeat_lite.runs.run_store import RunKeys
from redbeat_lite.store.keys import ForeignKey
from redbeat_lite.store.leader_store import LeaderStore
from tests.beat.ways import SENDERS, Setup, exactly_once
from tests.once.script_calls import begin, held
from tests.support.beats import KEYS
from tests.support.frozen import Clock
from tests.support.in_process import MakeApp, MakeBeat
from tests.support.kombus import needs_batches
from tests.support.messages import queued
from tests.support.server import Server

#: Seconds between two runs.
GAP = 10

one_by_one = pytest.mark.parametrize("setup", [way for way in SENDERS if way != "one step"], indirect=True)


def add(setup: Setup, name: str = "a", **options: Any) -> None:
    setup.schedules.add(name, "t", every(GAP), once=True, **options)


def turn(setup: Setup, clock: Clock, seconds: float) -> None:
    clock.forward(seconds)
    setup.beat.run_due()


def lead_in_its_place(setup: Setup) -> None:
    """Dispatch by another beat, while the process of the earlier leader stands still for longer than its lease."""
    setup.beat.leader.step_down()
    setup.beat.store.backend.client.delete(KEYS.leader)
    setup.beat = setup.make_beat(setup.app)
    setup.beat.run_due()
    assert_one_is_queued(setup)


def assert_one_is_queued(setup: Setup) -> None:
    """One message is queued, and its task has the lock."""
    [message] = queued(setup.broker)
    assert [lock.task_id for lock in locks(setup.app).list()] == [message.id]


def acquire_for_another_task(setup: Setup, claim: Claim) -> None:
    store = LockStore(setup.beat.store.backend.client, "redbeat-lite")
    if store.taken([claim]) == set():
        locks(setup.app).clear(claim.key)
    assert store.take(claim._replace(task_id="another"))


def commits() -> Any:
    """Count the commits."""
    return mock.patch.object(LeaderStore, "commit", autospec=True, side_effect=LeaderStore.commit)


def commit_late(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dispatch without a reply to the commit. This commit runs just before the next one."""
    commit = LeaderStore.commit
    late: list[Any] = []

    def times_out(self: LeaderStore, *args: Any) -> Any:
        if not late:
            late[:] = [self, *args]
            raise redis.TimeoutError("no reply")
        monkeypatch.setattr(LeaderStore, "commit", commit)
        assert commit(late[0], *late[1:]) == [True]
        return commit(self, *args)

    monkeypatch.setattr(LeaderStore, "commit", times_out)
    with pytest.raises(redis.TimeoutError):
        setup.beat.run_due()


class TestABeatThatDiesBeforeTheCommit:
    @exactly_once
    @pytest.mark.parametrize("misfire", ["skip", "coalesce"])
    def test_leaves_no_lock(self, setup: Setup, clock: Clock, misfire: str) -> None:
        add(setup, misfire=misfire)
        clock.forward(GAP)
        setup.crash_before_the_commit()
        assert (queued(setup.broker), locks(setup.app).list()) == ([], ())
        setup.restart()
        turn(setup, clock, GAP)
        assert_one_is_queued(setup)

    @one_by_one
    def test_leaves_the_lock_to_the_message_that_it_has_sent(self, setup: Setup, clock: Clock) -> None:
        add(setup)
        clock.forward(GAP)
        setup.crash_before_the_commit()
        add(setup, "b")
        setup.schedules.pause("a")
        setup.restart()
        turn(setup, clock, GAP)
        assert_one_is_queued(setup)
        assert queued(setup.broker)[0].entry == "a"

    @one_by_one
    def test_leaves_it_to_the_message_of_a_backfill(
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


@exactly_once
def test_a_commit_that_fails_halfway_leaves_no_lock(setup: Setup, clock: Clock) -> None:
    add(setup, expect=Expect(start_within=5))
    setup.beat.run_due()
    deadlines = RunKeys("redbeat-lite").deadlines
    setup.broker.set(deadlines, "a key of another program")
    clock.forward(GAP)
    with pytest.raises(ForeignKey):
        setup.beat.run_due()
    assert (queued(setup.broker), locks(setup.app).list()) == ([], ())
    setup.broker.delete(deadlines)
    turn(setup, clock, GAP)
    assert_one_is_queued(setup)


@exactly_once
def test_a_foreign_key_in_place_of_the_fences_is_noticed(setup: Setup, clock: Clock) -> None:
    add(setup)
    setup.beat.run_due()
    fence = LockStore(setup.broker, "redbeat-lite").keys.fence
    setup.broker.delete(fence)
    setup.broker.rpush(fence, "a key of another program")
    clock.forward(GAP)
    with pytest.raises(ForeignKey):
        setup.beat.run_due()
    setup.broker.delete(fence)


class TestABeatThatWasReplaced:
    @exactly_once
    def test_leaves_the_lock_to_its_successor_if_it_stood_still_before_its_commit(
        self, setup: Setup, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        add(setup)
        clock.forward(GAP)
        old, commit = setup.beat, LeaderStore.commit

        def stands_still(self: LeaderStore, *args: Any) -> Any:
            monkeypatch.setattr(LeaderStore, "commit", commit)
            lead_in_its_place(setup)
            return commit(self, *args)

        monkeypatch.setattr(LeaderStore, "commit", stands_still)
        old.run_due()
        turn(setup, clock, GAP)
        assert_one_is_queued(setup)

    @one_by_one
    @pytest.mark.parametrize(
        ("home", "name", "error"),
        [
            pytest.param(Scheduler, "emit", OperationalError("timed out"), id="publish"),
            pytest.param(LockStore, "take", redis.TimeoutError("no reply"), id="acquisition"),
        ],
    )
    def test_leaves_it_to_its_successor_if_its_own_attempt_hangs_and_fails(
        self, setup: Setup, clock: Clock, monkeypatch: pytest.MonkeyPatch, home: Any, name: str, error: Exception
    ) -> None:
        add(setup)
        clock.forward(GAP)
        old, attempt = setup.beat, getattr(home, name)

        def hangs(*_: Any) -> None:
            monkeypatch.setattr(home, name, attempt)
            clock.forward(1)
            lead_in_its_place(setup)
            raise error

        monkeypatch.setattr(home, name, hangs)
        old.run_due()
        turn(setup, clock, GAP)
        assert_one_is_queued(setup)

    @one_by_one
    def test_acquires_no_lock_for_a_run_that_its_successor_has_sent(
        self, setup: Setup, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        add(setup)
        clock.forward(GAP)
        old, check_lead = setup.beat, Publisher.check_lead

        def stands_still(self: Publisher, doing: str) -> None:
            monkeypatch.setattr(Publisher, "check_lead", check_lead)
            clock.forward(1)
            lead_in_its_place(setup)
            setup.broker.delete("celery")
            [lock] = locks(setup.app).list()
            locks(setup.app).clear(lock.key)  # as at the end of the run
            check_lead(self, doing)

        monkeypatch.setattr(Publisher, "check_lead", stands_still)
        old.run_due()
        assert not locks(setup.app).list()


class TestALateCommit:
    @exactly_once
    @pytest.mark.parametrize("seconds", [0, GAP])
    def test_sends_the_only_message(
        self, setup: Setup, clock: Clock, monkeypatch: pytest.MonkeyPatch, seconds: int
    ) -> None:
        add(setup)
        clock.forward(GAP)
        commit_late(setup, monkeypatch)
        turn(setup, clock, seconds)
        assert_one_is_queued(setup)
        turn(setup, clock, GAP)
        assert_one_is_queued(setup)

    @exactly_once
    def test_leaves_out_the_run_of_another_entry(
        self, setup: Setup, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        add(setup)
        clock.forward(GAP)
        commit_late(setup, monkeypatch)
        add(setup, "b")
        turn(setup, clock, GAP)
        assert_one_is_queued(setup)
        assert (queued(setup.broker)[0].entry, setup.schedules["b"].skipped_count) == ("a", 1)


class TestALockThatAnotherTaskAcquires:
    @exactly_once
    def test_after_the_beat_has_asked_for_it_leaves_out_the_run(
        self, setup: Setup, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        add(setup)
        clock.forward(GAP)
        taken = LockStore.taken

        def is_late(self: LockStore, claims: list[Claim]) -> set[Claim]:
            monkeypatch.setattr(LockStore, "taken", taken)
            assert taken(self, claims) == set()
            acquire_for_another_task(setup, claims[0])
            return set()

        monkeypatch.setattr(LockStore, "taken", is_late)
        setup.beat.run_due()
        assert not queued(setup.broker)
        assert (setup.schedules["a"].skipped_count, setup.schedules["a"].total_run_count) == (1, 0)

    @one_by_one
    def test_just_before_the_message_is_sent_leaves_out_the_run(
        self, setup: Setup, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        add(setup)
        clock.forward(GAP)
        take = LockStore.take

        def is_late(self: LockStore, claim: Claim) -> bool:
            monkeypatch.setattr(LockStore, "take", take)
            acquire_for_another_task(setup, claim)
            return take(self, claim)

        monkeypatch.setattr(LockStore, "take", is_late)
        setup.beat.run_due()
        assert not queued(setup.broker)
        assert (setup.schedules["a"].skipped_count, setup.schedules["a"].total_run_count) == (1, 0)

    @pytest.mark.parametrize("setup", SENDERS, indirect=True)
    def test_in_the_same_batch_leaves_out_the_run(self, setup: Setup, clock: Clock) -> None:
        add(setup)
        add(setup, "b")
        clock.forward(GAP)
        with commits() as commit:
            setup.beat.run_due()
        assert commit.call_count == 1, "nothing is tried again"
        assert_one_is_queued(setup)
        assert {setup.schedules[name].skipped_count for name in "ab"} == {0, 1}

    @exactly_once
    def test_in_the_same_batch_leaves_out_no_run_if_it_does_not_get_the_lock(
        self, setup: Setup, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        add(setup)
        add(setup, "b")
        commit = LeaderStore.commit

        def commit_after_a_pause(self: LeaderStore, *args: Any) -> Any:
            setup.schedules.pause("a")
            return commit(self, *args)

        monkeypatch.setattr(LeaderStore, "commit", commit_after_a_pause)
        turn(setup, clock, GAP)
        assert [message.entry for message in queued(setup.broker)] == ["b"]
        assert setup.schedules["b"].skipped_count == 0

    @pytest.mark.parametrize("setup", SENDERS, indirect=True)
    def test_for_a_message_that_cannot_be_sent_leaves_out_no_other_run(self, setup: Setup, clock: Clock) -> None:
        setup.broker.set("not-a-list", "text")
        add(setup, options={"queue": "not-a-list"})
        add(setup, "b")
        turn(setup, clock, GAP)
        setup.broker.delete("not-a-list")
        assert [message.entry for message in queued(setup.broker)] == ["b"]
        assert setup.schedules["a"].last_error

    @pytest.mark.parametrize("setup", SENDERS, indirect=True)
    def test_and_that_tasks_wait_for_is_due_for_the_lock_sweeper(self, setup: Setup, clock: Clock) -> None:
        add(setup)
        store = LockStore(setup.beat.store.backend.client, "redbeat-lite")
        begin(store, held("runs", key="t"))
        assert begin(store, held("waits", key="t"), on_conflict="wait", message="m") == "parked"
        locks(setup.app).clear("t")
        store.client.delete(store.keys.index)  # as when no worker has looked for a week
        turn(setup, clock, GAP)
        assert (queued(setup.broker), store.due()[0]) == ([], ["t"])


@exactly_once
class TestMissedRuns:
    def test_fill_a_batch_also_if_all_but_one_are_left_out(
        self, setup: Setup, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for number in range(10):
            setup.schedules.add(f"e{number}", "t", every(1), args=[number], once=True, misfire="all")
        clock.forward(600)
        commit = LeaderStore.commit
        entries: list[int] = []

        def counted(self: LeaderStore, term: Any, advances: list[Any], *args: Any) -> Any:
            entries.append(len(advances))
            return commit(self, term, advances, *args)

        monkeypatch.setattr(LeaderStore, "commit", counted)
        setup.beat.run_due()
        assert len(queued(setup.broker)) == 10
        assert max(entries) <= 4, "a batch takes 500 runs"


@needs_batches
def test_a_channel_that_refuses_a_message_leaves_no_lock(
    make_app: MakeApp, make_beat: MakeBeat, own_server: Callable[[], Server], clock: Clock
) -> None:
    server = own_server()
    with server.client() as admin:
        rights = ("~*", "resetchannels", f"&{KEYS.wake}", "+@all")
        admin.execute_command("ACL", "SETUSER", "planner", "on", ">secret", *rights)
    url = server.url.replace("redis://", "redis://planner:secret@")
    queues = [Queue("celery"), Broadcast("everybody")]
    app = make_app(broker_url=server.url, redbeat_lite_url=url, task_queues=queues)
    schedules = Schedules(app)
    schedules.add("a", "t", every(GAP), once=True, options={"queue": "everybody"})
    clock.forward(GAP)
    make_beat(app).run_due()
    assert "channel" in schedules["a"].last_error
    assert locks(app).list() == ()


@pytest.mark.parametrize("setup", SENDERS, indirect=True)
class TestALockOfASentMessage:
    def test_is_kept_if_the_entry_is_edited_before_the_commit(self, setup: Setup, clock: Clock) -> None:
        add(setup)
        clock.forward(GAP)
        setup.commit_after(lambda: setup.schedules.update("a", schedule=every(GAP + 1)))
        turn(setup, clock, GAP + 1)
        assert_one_is_queued(setup)

    def test_leaves_out_the_next_runs_also_after_an_edit_and_with_another_leader(
        self, setup: Setup, clock: Clock
    ) -> None:
        add(setup)
        turn(setup, clock, GAP)
        setup.schedules.update("a", schedule=every(GAP + 1))
        turn(setup, clock, GAP + 1)
        setup.restart()
        turn(setup, clock, GAP + 1)
        assert_one_is_queued(setup)
        assert setup.schedules["a"].skipped_count == 2

    def test_is_sent_once_even_if_the_next_run_may_take_the_lock_over_at_once(self, setup: Setup, clock: Clock) -> None:
        setup.schedules.add("a", "t", every(60), once=True)
        with commits() as commit:
            turn(setup, clock, 119.5)
        assert (commit.call_count, len(queued(setup.broker))) == (1, 1)

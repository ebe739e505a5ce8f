"""The look for the next batch, while the last part of one is planned: what it finds, and what befalls it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import redis

from redbeat_lite import Entry, every
from redbeat_lite.beat.dispatch import dispatcher as dispatching
from redbeat_lite.beat.dispatch.dispatcher import Dispatcher
from redbeat_lite.beat.dispatch.planner import MOST
from redbeat_lite.beat.freezing import Freezing
from redbeat_lite.storage.leader_store import LeaderStore
from redbeat_lite.storage.stored import Stored, Term
from tests.beat.ways import Setup
from tests.support.beats import KEYS
from tests.support.frozen import Clock
from tests.support.in_process import MakeApp, MakeBeat
from tests.support.kombus import needs_batches
from tests.support.messages import queued
from tests.support.server import Server

pytestmark = needs_batches

#: Entries of a batch, which goes in two parts.
BATCH = 200

Prepare = Callable[..., Setup]


class Commits(list[Any]):
    """The look that went with each commit; ``before[n]`` is called before the n-th, from 1: the first has a look."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.before: dict[int, Callable[[], object]] = {}
        commit = LeaderStore.commit

        def noted(store: LeaderStore, *args: Any) -> Any:
            self.append(args[5])
            self.before.get(len(self), lambda: None)()
            return commit(store, *args)

        monkeypatch.setattr(LeaderStore, "commit", noted)


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> Commits:
    return Commits(monkeypatch)


@pytest.fixture
def prepare(
    make_app: MakeApp,
    make_beat: MakeBeat,
    server: Server,
    clock: Clock,
    commits: Commits,
    monkeypatch: pytest.MonkeyPatch,
) -> Prepare:
    """Gives a leader with two batches that are due, a millisecond after one another, and others at one of these."""
    monkeypatch.setattr(dispatching, "_BATCH", 60)  # on a slow machine, too

    def prepare(*others: Entry, at: int = 0) -> Setup:
        setup = Setup("one step", make_app, make_beat, server)
        setup.schedules.add("first", "t", every(5))
        setup.schedules.add_many([Entry(f"e{each:03}", "t", every(10)) for each in range(2 * BATCH)])
        setup.schedules.add_many(others)
        clock.forward(5)
        setup.beat.run_due()
        setup.schedules.remove("first")
        setup.beat._dispatcher._most, setup.beat._dispatcher._batch_size = MOST, BATCH
        clock.forward(5)
        begin = (setup.broker.zscore(KEYS.due, "e000") or 0) - 1000
        dues = {f"e{each:03}": begin + each for each in range(2 * BATCH)}
        setup.broker.zadd(KEYS.due, {**dues, **{each.name: begin + at for each in others}})
        commits.clear()
        return setup

    return prepare


def test_it_finds_what_came_due_meanwhile_and_leaves_alone_what_is_on_its_way(
    prepare: Prepare, clock: Clock, commits: Commits
) -> None:
    setup = prepare(Entry("meanwhile", "t", every(10)), at=3_600_000)
    commits.before[1] = lambda: setup.broker.zadd(KEYS.due, {"meanwhile": clock.now.timestamp() * 1000 // 1})
    with mock.patch.object(setup.beat.store, "peek", side_effect=setup.beat.store.peek) as peek:
        setup.beat.run_due()
    assert peek.call_count == 2, "for the first batch, and for the end"
    sent = [message.entry for message in queued(setup.broker)][1:]
    assert sorted(sent) == sorted([*(f"e{each:03}" for each in range(2 * BATCH)), "meanwhile"])
    assert sent.index("meanwhile") < BATCH + BATCH // 2 + 1, "in the first part of the second batch"


def test_after_a_part_that_took_long_nothing_is_looked_for_as_the_rest_is_left(
    prepare: Prepare, commits: Commits, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = prepare()
    monkeypatch.setattr(dispatching, "_BATCH", 0)
    setup.beat.run_due()
    assert len(commits) >= 4
    assert not any(commits)


def test_what_came_of_a_commit_in_a_term_that_is_over_does_not_end_the_next_term(
    prepare: Prepare, commits: Commits, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = prepare()
    beat, dispatch = setup.beat, Dispatcher._dispatch
    commits.before[2] = lambda: setup.broker.hincrby(KEYS.leader, "term", 1)

    def then(dispatcher: Dispatcher, term: Term, due: list[Stored], now: int) -> Any:
        found = dispatch(dispatcher, term, due, now)
        assert found
        assert beat.leader._renewal is not None
        beat.leader._renewal._trusted_until = 0.0
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Dispatcher, "_dispatch", then)
        beat.run_due()
    assert not beat.leader.in_office
    setup.broker.delete(KEYS.leader)
    with mock.patch.object(beat._terms, "leave", wraps=beat._terms.leave) as leave:
        while setup.broker.llen("celery") < 1 + 2 * BATCH:
            beat.run_due()
    assert not leave.call_count


@pytest.mark.parametrize("frozen", [True, False])
def test_an_entry_that_lost_a_part_is_mended_first_whatever_came_of_the_last_commit(
    prepare: Prepare, commits: Commits, frozen: bool
) -> None:
    setup = prepare(Entry("torn", "t", every(10)), at=BATCH // 2)  # the oldest of the second batch
    commits.before[1] = lambda: setup.broker.hdel(KEYS.state, "torn")
    if frozen:
        commits.before[2] = lambda: setup.schedules.freezes.add("nobody*", seconds=3600)
    setup.beat.run_due()
    assert setup.beat.vitals.sent == setup.broker.llen("celery")
    for _ in range(3):
        setup.beat.run_due()
    assert not setup.broker.exists(KEYS.quarantine)
    assert "torn" in setup.schedules


def test_what_the_broker_refuses_fails_once(
    prepare: Prepare, commits: Commits, caplog: pytest.LogCaptureFixture
) -> None:
    setup = prepare(Entry("bad", "t", every(10), options={"queue": "foreign"}))
    commits.before[1] = lambda: setup.broker.set("foreign", "no list")
    with caplog.at_level(logging.ERROR):
        setup.beat.run_due()
    assert setup.beat.vitals.failed == 1
    assert len([record for record in caplog.records if "'bad'" in record.getMessage()]) == 1
    setup.broker.delete("foreign")


def test_while_a_freeze_is_thawed_each_batch_gives_some_back(prepare: Prepare) -> None:
    setup = prepare()
    freeze = setup.schedules.freezes.add("nobody*", seconds=3600)
    setup.schedules.freezes.thaw(freeze.id)
    with mock.patch.object(Freezing, "_thaw", autospec=True) as thaw:  # there is always more
        setup.beat._dispatcher.run()
    assert thaw.call_count > 2


@pytest.mark.parametrize("fails", [redis.ResponseError, redis.TimeoutError, redis.ConnectionError])
def test_one_that_fails_finds_nothing_and_takes_nothing_from_its_commit(
    prepare: Prepare, commits: Commits, monkeypatch: pytest.MonkeyPatch, fails: type[Exception]
) -> None:
    setup = prepare()
    read, replies = redis.Connection.read_response, list[int]()

    def second_fails(connection: redis.Connection, *args: Any, **by: Any) -> Any:
        if connection is not line:
            return read(connection, *args, **by)
        replies.append(1)
        if len(replies) == 2:
            raise fails
        return read(connection, *args, **by)

    line = None

    def look() -> None:
        nonlocal line
        line = setup.beat.store.backend.scripts._line

    commits.before[1] = look
    monkeypatch.setattr(redis.Connection, "read_response", second_fails)
    setup.beat.run_due()
    assert setup.beat.vitals.sent == setup.broker.llen("celery") == 1 + 2 * BATCH

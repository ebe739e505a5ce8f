"""Much is due at once and goes in batches: what befalls a beat between two of them, and the order of their messages."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import redis

from redbeat_lite import Entry, every, locks
from redbeat_lite.beat.dispatch.publisher import Publisher
from redbeat_lite.store.leader_store import LeaderStore
from tests.beat.ways import Setup, exactly_once
from tests.support.beats import KEYS
from tests.support.frozen import Clock
from tests.support.messages import queued

HERD, BATCH = 300, 100


def taken_over(setup: Setup) -> None:
    setup.broker.hincrby(KEYS.leader, "term", 1)


def frozen(setup: Setup) -> None:
    setup.schedules.freeze(3600)


def told_to_stop(setup: Setup) -> None:
    setup.beat.close()
    raise SystemExit


def cut_off(setup: Setup) -> None:
    raise redis.ConnectionError("cut")


@exactly_once
@pytest.mark.parametrize("once", [True, False])
@pytest.mark.parametrize("befalls", [taken_over, frozen, told_to_stop, cut_off])
def test_what_befalls_a_beat_before_the_second_commit_loses_and_doubles_nothing(
    setup: Setup, clock: Clock, monkeypatch: pytest.MonkeyPatch, befalls: Callable[[Setup], None], once: bool
) -> None:
    setup.schedules.add_many(Entry(f"e{number}", "t", every(10), (number,), once=once) for number in range(HERD))
    setup.beat.run_due()
    monkeypatch.setattr(Publisher, "batch_size", BATCH)
    commit, commits = LeaderStore.commit, list[int]()

    def befallen(store: LeaderStore, *args: Any) -> Any:
        commits.append(1)
        if len(commits) == 2:
            befalls(setup)
        return commit(store, *args)

    monkeypatch.setattr(LeaderStore, "commit", befallen)
    clock.forward(10)
    with suppress(SystemExit, redis.ConnectionError):
        setup.beat.run_due()
    monkeypatch.undo()
    sent = {message.id for message in queued(setup.broker)}
    assert 0 < len(sent) == setup.broker.llen("celery") < HERD
    held = {lock.task_id for lock in locks(setup.app).list()}
    if once:
        assert sent <= held
    if befalls in (taken_over, frozen):
        assert len(held) == len(sent) * once, "what is known not to have been sent holds no lock"

    if befalls is frozen:
        setup.schedules.thaw()
    setup.broker.delete(KEYS.leader)
    setup.beat = setup.make_beat(setup.app)
    while not setup.beat.run_due():
        pass
    assert len({message.id for message in queued(setup.broker)}) == setup.broker.llen("celery") == HERD


@exactly_once
def test_the_messages_of_a_batch_are_queued_in_the_order_in_which_they_were_due(
    setup: Setup, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup.schedules.add_many(Entry(f"e{number:03}", "t", every(1000 + number)) for number in range(BATCH + 1))
    setup.beat.run_due()
    clock.forward(1800)
    setup.beat.run_due()
    assert [message.entry for message in queued(setup.broker)] == [f"e{number:03}" for number in range(BATCH + 1)]

"""Entries with a once-lock: their draw, and mutations of the package that the simulation must find."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from redbeat_lite import Once
from redbeat_lite.beat.dispatch import entry_steps
from redbeat_lite.beat.dispatch.batch_sender import BatchSender
from redbeat_lite.beat.dispatch.planner import Job
from redbeat_lite.entries import lifecycle
from redbeat_lite.once.lock_store import LockStore
from tests.simulation.once_entries import OnceEntries, OnceEntry
from tests.simulation.rules import interval
from tests.simulation.scenario import Scenario, draw_setup
from tests.simulation.test_seeds import changed_script
from tests.simulation.test_work import WORK, busy
from tests.simulation.work import Work

#: Seeds of which one has to find the fault.
SEEDS = range(1, 41)

#: One worker, which runs one task after the other, so that messages wait in the queue.
CROWDED = replace(
    WORK, is_broker_apart=False, workers=1, slots=1, prefetch=0, forks=False, has_jobs=False, once_lease=5.0
)


def scenario_of(seed: int, work: Work = CROWDED) -> Scenario:
    """Return a scenario without faults, with four entries that have a once-lock.

    If there are workers, the tasks may take longer than the intervals.
    """
    shared = Once(scope="queue", key="shared", lease=work.once_lease)
    task = "project.long" if work.workers else "project.run"
    locks = {"own": True, "other": True, "one": shared, "two": shared}
    once = OnceEntries({name: OnceEntry(lock, task) for name, lock in locks.items()})
    config = dict(zip(locks, map(interval, (2, 3, 2, 3)), strict=True))
    tasks = dict.fromkeys(config, task)
    setup = busy(work=work, config=config, tasks=tasks, once=once, pipelines={}, history=20, stormy=12.0, calm=3.0)
    scenario = Scenario(seed, setup)
    scenario.user.is_done = True
    return scenario


def test_each_kind_of_lock_is_drawn() -> None:
    drawn = [draw_setup(seed) for seed in range(1, 101)]
    with_locks = [setup for setup in drawn if setup.once.of]
    assert 0.2 < len(with_locks) / len(drawn) < 0.4
    locks = {(entry.is_at_publish, entry.once is True) for setup in with_locks for entry in setup.once.of.values()}
    assert locks == {(True, True), (True, False), (False, False)}
    assert {setup.work.is_one_step for setup in with_locks} == {True, False}
    assert {setup.work.workers > 0 for setup in with_locks} == {True, False}
    assert not any(setup.once.of and setup.is_long for setup in drawn)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "work", [CROWDED, replace(CROWDED, workers=0), replace(CROWDED, is_broker_apart=True)], ids=["", "alone", "apart"]
)
def test_runs_are_left_out_and_no_promise_is_broken(work: Work) -> None:
    story = scenario_of(1, work).run()
    assert story.violations == []
    assert story.counts["runs left out by once-locks"] > 10
    assert story.counts["runs sent by rule"] > 5


# -- mutations -----------------------------------------------------------------------------------------

_IS_TAKEN = "claimed[keys.lock] or is_taken(keys, command[3])"
_ACQUIRE = "table.insert(claims, {keys, value})"
_HAS_LOCK = "redis.call('HGET', keys.lock, 'task') == command[3].task_id"


@contextmanager
def unasked() -> Iterator[None]:
    """Neither a beat nor a commit asks whether a lock is taken."""
    nothing_taken = patch.object(LockStore, "taken", lambda *_: set())
    with nothing_taken, changed_script("schedule/commit", {_IS_TAKEN: "false"}):
        yield


@contextmanager
def taken_before_commit(ms: int) -> Iterator[None]:
    """Before the commit, a beat acquires a lock that lasts ``ms`` milliseconds.

    The commit only checks that its task has the lock.
    """
    check = {_IS_TAKEN: f"not ({_HAS_LOCK})", _ACQUIRE: "local _"}

    def take(sender: BatchSender, jobs: list[Job]) -> None:
        for job in jobs:
            if job.claim and not sender.locks.take(job.claim):
                job.leave_out()

    with (
        changed_script("schedule/commit", check),
        changed_script("shared/claim", {"local ends = math.min(due + life, latest)": f"local ends = now + {ms}"}),
        patch.object(BatchSender, "_leave_out", take),
    ):
        yield


def count_none(state: Any, published: Any, _locked_out: int, history: int = 0) -> Any:
    """Advance an entry, and do not count the runs that are left out."""
    return _dispatched(state, published, 0, history)


_dispatched = lifecycle.dispatched

#: A change, whether only a scenario with workers shows it, and the law that it breaks.
MUTATIONS: dict[str, tuple[Callable[[], AbstractContextManager[object]], bool, str]] = {
    "a commit acquires no lock": (
        lambda: changed_script("schedule/commit", {_ACQUIRE: "local _"}),
        False,
        "lock of a message",
    ),
    "nobody asks whether a lock is taken": (unasked, False, "one message of a key"),
    "a lock is taken before the commit for a millisecond": (lambda: taken_before_commit(1), False, "in vain"),
    "a lock has expired before the commit": (lambda: taken_before_commit(0), False, "never silent"),
    "a lock is said to be taken that is free": (
        lambda: changed_script("once/taken", {"is_taken(keys, {key = key, task_id = task_id}) and 1 or 0": "1"}),
        False,
        "left out",
    ),
    "no lock is released at the end of its task": (
        lambda: changed_script("once/end", {"redis.call('DEL', lock)": "local _"}),
        True,
        "left out",
    ),
    "a lock is released while its message waits": (
        lambda: changed_script("once/extend", {"if left < extended then": "redis.call('DEL', lock) if false then"}),
        True,
        "lock of a message",
    ),
    "runs that are left out do not count": (
        lambda: patch.object(entry_steps.lifecycle, "dispatched", count_none),
        False,
        "accounted",
    ),
    "runs that are left out are not recorded": (
        lambda: patch.object(entry_steps.EntrySteps, "_range_commands", lambda *_: []),
        False,
        "accounted",
    ),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("mutation", "workers", "law"), MUTATIONS.values(), ids=MUTATIONS)
def test_a_change_that_breaks_a_promise_is_found(
    mutation: Callable[[], AbstractContextManager[object]], workers: bool, law: str
) -> None:
    work = CROWDED if workers else replace(CROWDED, workers=0)
    with mutation():
        stories = (scenario_of(seed, work).run() for seed in SEEDS)
        assert any(violation.law == law for story in stories for violation in story.violations)

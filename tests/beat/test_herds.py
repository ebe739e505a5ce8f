"""Many entries that are due at once, or have much to catch up with: they keep nobody waiting, and get through."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest
import redis
from hypothesis import example, given
from hypothesis import strategies as st

from redbeat_lite import Entry, Scheduler, Schedules, at, every
from redbeat_lite.beat.dispatch.planner import Planner
from redbeat_lite.entries.changes import Edit, Stored
from redbeat_lite.entries.model import encode
from redbeat_lite.entries.state import EntryState
from redbeat_lite.store.leader_store import LeaderStore
from redbeat_lite.store.records import Advance, Term
from tests.harness.queues import check_queue
from tests.store.test_commit_model import ends
from tests.support.examples import examples
from tests.support.frozen import Clock
from tests.support.in_process import MakeApp, MakeBeat
from tests.support.messages import queued
from tests.support.rules import UTC_APP

NOW, GAP = 1_800_000_000_000, 3_600_000
HOURLY = encode(Entry("any", "add", every(GAP / 1000), misfire="all")).encode()

#: A herd that is too large for the ordinary run.
LONG = [pytest.mark.soak, pytest.mark.timeout(600)]

#: Entries and messages of a batch.
SIZE, MOST = 10, 200


class Line:
    """Entries that are due, of which a planner takes batch after batch; without a server, and without time."""

    def __init__(self) -> None:
        self.planner = Planner(app=UTC_APP, completed=lambda entry: entry, prefix="redbeat-lite", slack=5_000)
        self.now, self.done, self.batches = NOW, 0, 0
        self.due: dict[str, tuple[int, int]] = {}  #: score and nominal time
        self.came: dict[str, tuple[int, int]] = {}  #: batches by then, and what may be done before it is served

    def add(self, runs: int) -> None:
        self.now += 1
        name = f"e{len(self.came):04}"
        before = sum((self.now - nominal) // GAP + 1 for _, nominal in self.due.values())
        self.came[name] = self.batches, self.done + 2 * before + SIZE
        self.due[name] = self.now, self.now - (runs - 1) * GAP

    def batch(self) -> dict[str, int]:
        """Take one; tells of those that it serves how much is done then."""
        self.batches += 1
        self.now += 1
        found = ends(sorted((score, name) for name, (score, _) in self.due.items()), SIZE)
        states = {name: EntryState.new(self.due[name][1]).encode().encode() for _, name in found}
        due = [Stored(name.encode(), score, HOURLY, states[name]) for score, name in found]
        batch = self.planner.plan(due, self.now, MOST)
        assert (batch.bad, bool(batch.jobs)) == ([], bool(due))
        for job in batch.jobs:
            self.done += len(job.plan.emit)
            assert job.plan.emit[0] == job.state.nominal, "its own runs stay in order"
            assert job.plan.next is not None
            assert job.due is not None
            if job.plan.next > self.now:
                del self.due[job.stored.name.decode()]
            else:
                self.due[job.stored.name.decode()] = job.due, job.plan.next
        return {job.stored.name.decode(): self.done for job in batch.jobs}


@examples(60)
@given(st.lists(st.sampled_from([1, 1, 1, 30, 700]), min_size=1, max_size=40), st.lists(st.integers(0, 9), max_size=30))
@example([1] * 40, [9] * 30)
@example([700] * 12, [1] * 30)
def test_who_is_due_is_served_after_twice_what_was_due_before_it_and_who_comes_late_in_the_next_batch(
    herd: list[int], arrivals: list[int]
) -> None:
    line = Line()
    for runs in herd:
        line.add(runs)
    while line.due or arrivals:
        number = arrivals.pop() if arrivals else 0
        known = set(line.came)
        for _ in range(number):
            line.add(1)
        served = line.batch()
        if number <= SIZE // 2:
            assert line.came.keys() - known <= served.keys()
        if set(herd) == {1}:
            assert all(done <= line.came[name][1] for name, done in served.items())


class Journal(list[tuple[float, list[Advance]]]):
    """When each batch was committed, seconds since 1970, and what it moved on; and when each batch began."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.batches: list[float] = []
        commit, plan = LeaderStore.commit, Planner.plan

        def noted(store: LeaderStore, term: Term, advances: Sequence[Advance], *args: Any) -> Any:
            results = commit(store, term, advances, *args)
            self.append((time.time(), [*advances]))
            return results

        def begun(planner: Planner, *args: Any, **kwargs: Any) -> Any:
            self.batches.append(time.time())
            return plan(planner, *args, **kwargs)

        monkeypatch.setattr(LeaderStore, "commit", noted)
        monkeypatch.setattr(Planner, "plan", begun)

    def longest_batch(self) -> float:
        """The longest time from the begin of one to that of the next."""
        return max(later - before for before, later in pairwise(self.batches))

    def longest(self, name: bytes) -> float:
        """The longest time from one commit of an entry to the next."""
        times = [at for at, advances in self if name in (each.name for each in advances)]
        return max(later - before for before, later in pairwise(times))


@pytest.mark.parametrize(
    ("herd", "runs"),
    [
        (2000, 1),
        (12, 200),
        pytest.param(100_000, 1, marks=LONG),
        pytest.param(12, 36_000, marks=LONG),
    ],
)
def test_an_entry_that_is_none_of_the_herd_waits_for_two_batches(
    schedules: Schedules,
    inner_beat: Scheduler,
    client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    herd: int,
    runs: int,
) -> None:
    schedules.add_many(Entry(f"herd{n}", "add", every(3600), misfire="all", expires=None) for n in range(herd))
    inner_beat.run_due()
    begin = int(time.time() * 1000) - (runs - 1) * 3_600_000
    names = [f"herd{n}" for n in range(herd)]
    stored = [*inner_beat.store.present(names)]
    states = [EntryState.decode(old.state or b"").edited(nominal=begin).encode() for old in stored]
    edits = (Edit(old.name, old.state, new, None, begin) for old, new in zip(stored, states, strict=True))
    assert all(inner_beat.store.put(edits))
    schedules.add("other", "add", every(0.05), misfire="all", options={"queue": "other"})
    journal = Journal(monkeypatch)
    journal.append((time.time(), [Advance(b"other", "", None, None)]))
    while client.llen("celery") < herd * runs:
        inner_beat.run_due()
    check_queue(client, names, 3_600_000)
    assert client.llen("celery") == herd * runs
    assert journal.longest(b"other") < 0.05 + 2 * journal.longest_batch()


def test_messages_that_are_sent_one_by_one_make_short_batches(
    make_app: MakeApp, make_beat: MakeBeat, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker may take its time for each, and a run that becomes due meanwhile waits for their end."""
    app = make_app(redbeat_lite_dispatch="plain")
    beat = make_beat(app)
    Schedules(app).add_many(Entry(f"e{n}", "add", every(3600)) for n in range(250))
    beat.run_due()
    journal = Journal(monkeypatch)
    clock.forward(3600)
    beat.run_due()
    assert [len(advances) for _, advances in journal] == [100, 100, 50]


@pytest.mark.parametrize("herd", [2000, pytest.param(50_000, marks=pytest.mark.soak)])
def test_the_resumption_of_many_keeps_no_other_entry_waiting(
    schedules: Schedules, inner_beat: Scheduler, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, herd: int
) -> None:
    schedules.add_many(Entry(f"herd{n}", "add", at(datetime.now(UTC)), expires=None) for n in range(herd))
    assert len(schedules.select("herd*").pause(seconds=3600)) == herd
    while not inner_beat.run_due():
        pass
    assert not client.llen("celery")
    schedules.add("other", "add", every(0.05), misfire="all", options={"queue": "other"})
    # The resumption edits every entry, and the beat of this process does not run meanwhile.
    schedules.select("herd*").resume(catch_up=True)
    journal = Journal(monkeypatch)
    journal.append((time.time(), [Advance(b"other", "", None, None)]))
    while client.llen("celery") < herd:
        inner_beat.run_due()
    check_queue(client)
    assert {message.entry for message in queued(client)} == {f"herd{n}" for n in range(herd)}
    assert journal.longest(b"other") - 0.05 < (journal[-1][0] - journal[0][0]) / 2

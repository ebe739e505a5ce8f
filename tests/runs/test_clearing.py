"""Which deadlines what is told of runs takes away, against a model: what is left is to be looked at."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from hypothesis import example, given
from hypothesis import strategies as st

from redbeat_lite.entries.run import Fate, Reported
from redbeat_lite.runs.run_store import RunStore
from tests.runs.test_record import THEN, TOLD, Model, fate
from tests.support.cases import together
from tests.support.examples import examples
from tests.support.server import Server

#: Of the runs that are told, which all begin now: a deadline that is over, and one that is to come.
OVER, TO_COME = THEN + 30_000, THEN + 3_600_000

#: What is open, and what tells the leader that it is over.
OPEN = {"missed": "begun", "not_consumed": "begun", "late": "begun", "too_long": "ended"}

tellings = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1), st.sampled_from(TOLD)), min_size=1, max_size=12)
deadlines = st.dictionaries(
    st.tuples(st.sampled_from(["start", "finish"]), st.integers(0, 2)), st.sampled_from([OVER, TO_COME])
)


class Clearing(Model):
    """The same with deadlines, by what they are for and the run."""

    def __init__(self, history: int, deadlines: dict[tuple[str, int], int], kinds: set[str]) -> None:
        super().__init__(history)
        self.deadlines = dict(deadlines)
        self.open = {OPEN[kind] for kind in kinds}

    def refuse(self, old: Fate | None, fate: Fate) -> None:
        """A run without a row is looked at after its deadline, unless it began or was kept back on purpose."""
        if old is None and (fate.began is not None or fate.outcome not in ("expired", "rejected")):
            self.settle_deadlines(fate)

    def settle_deadlines(self, fate: Fate) -> None:
        began, run = fate.began is not None, fate.attempt.nominal - THEN
        nothing_more = not began and fate.outcome != "lost"
        self.settle("start", run, began, nothing_more or fate.attempt.number > 0, "begun")
        if fate.outcome not in ("running", "retrying", "lost"):
            self.settle("finish", run, began, nothing_more, "ended")

    def settle(self, what: str, run: int, began: bool, over: bool, told: str) -> None:
        at = self.deadlines.get((what, run))
        if at is not None and (over or (began and at == TO_COME)):
            del self.deadlines[what, run]
            if began and at == TO_COME and told in self.open:
                self.deadlines[told, run] = 0


@pytest.fixture(scope="module")
def any_store(shared_server: Server) -> Iterator[RunStore]:
    with shared_server.client() as client:
        yield RunStore(client, "clearing")


def prepare(store: RunStore, deadlines: dict[tuple[str, int], int], kinds: Any) -> None:
    found = {f"{what}|{THEN + run}|entry": at for (what, run), at in deadlines.items()}
    if found:
        store.client.zadd(store.keys.deadlines, found)
    for kind in kinds:
        store.client.hset(store.keys.incidents, f"{kind}:entry", "{}")


def left(store: RunStore) -> dict[tuple[str, int], int]:
    found: Any = store.client.zrange(store.keys.deadlines, 0, -1, withscores=True)
    parts = {tuple(each.decode().split("|")): int(at) for each, at in found}
    return {(what, int(nominal) - THEN): at for (what, nominal, _), at in parts.items()}


@examples(60)
@given(tellings, deadlines, st.sets(st.sampled_from([*OPEN])), st.integers(1, 3))
@example([(0, 0, ("lost", True))], {("finish", 0): TO_COME}, set(), 1)
def test_what_was_in_time_or_comes_to_nothing_more_has_no_deadline(
    any_store: RunStore, tellings: Any, deadlines: Any, kinds: set[str], history: int
) -> None:
    any_store.client.flushall()
    prepare(any_store, deadlines, kinds)
    model = Clearing(history, deadlines, kinds)
    for run, number, (outcome, began) in tellings:
        told = fate(run, number, outcome, began, history)
        told = told._replace(attempt=told.attempt._replace(expected=True))
        model.tell(told)
        assert any_store.record([told]) == (0, "")
        assert left(any_store) == model.deadlines


@pytest.fixture
def store(client: redis.Redis) -> RunStore:
    return RunStore(client, "runs")


#: What becomes of a run that never begins -> whether that is to be looked at after its deadline.
NEVER_BEGUN: dict[Reported, bool] = {"revoked": False, "left out": False, "expired": True, "rejected": True}


@together(("outcome", "is_missed"), [*NEVER_BEGUN.items()], emptied=True)
@pytest.mark.parametrize("history", [1, 20])
def test_a_run_that_is_kept_from_beginning_after_newer_ones_ended_is_not_missed(
    store: RunStore, history: int, outcome: Reported, is_missed: bool
) -> None:
    prepare(store, {("start", 0): TO_COME, ("finish", 0): TO_COME}, [])
    store.record([fate(run, 0, "succeeded", history=history) for run in range(1, history + 1)])
    told = fate(0, 0, outcome, False, history)
    store.record([told._replace(attempt=told.attempt._replace(expected=True))])
    assert len(left(store)) == 2 * is_missed


def test_of_a_message_that_expects_nothing_no_deadline_is_looked_for(store: RunStore) -> None:
    prepare(store, {("start", 0): TO_COME}, [])
    store.client.config_resetstat()
    store.record([fate(0, 0, "succeeded")])
    assert left(store) == {("start", 0): TO_COME}
    assert "cmdstat_zmscore" not in store.client.info("commandstats")


@together("late", [False, True], emptied=True)
def test_what_is_told_after_the_deadline_goes_by_when_it_was(store: RunStore, late: bool) -> None:
    """As a recorder does that was busy: the body began, and ended, a second after or before the deadlines."""
    ago = 9 if late else 11
    now = time.time()
    at = round(1000 * (now - 10))
    prepare(store, {("start", 0): at, ("finish", 0): at + 500}, [])
    told = fate(0, 0, "succeeded")
    told = told._replace(attempt=told.attempt._replace(expected=True), began=time.monotonic() - ago, seconds=0.5)
    store.record([told])
    assert len(left(store)) == 2 * late


def test_a_run_in_the_last_year_that_there_is_has_its_deadline_cleared(store: RunStore) -> None:
    far = fate(253_402_300_799_000 - THEN, 0, "succeeded")
    store.client.zadd(store.keys.deadlines, {f"start|{far.attempt.nominal}|entry": far.attempt.nominal})
    store.record([far._replace(attempt=far.attempt._replace(expected=True))])
    assert not store.client.exists(store.keys.deadlines)


def test_deadlines_of_a_foreign_type_keep_no_row_from_being_written(store: RunStore) -> None:
    store.client.set(store.keys.deadlines, "x")
    told = fate(0, 0, "succeeded")
    failed, why = store.record([told._replace(attempt=told.attempt._replace(expected=True))])
    assert (failed, why.split()[0]) == (1, "WRONGTYPE")
    assert len(store.rows(["entry"], 10)[0]) == store.client.xlen(store.keys.feed) == 1

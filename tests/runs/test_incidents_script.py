"""Incidents in Redis against a model: opened once and closed once, whoever leads, whatever is sent twice."""

from __future__ import annotations

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from redbeat_lite.runs.incident import Case
from redbeat_lite.runs.incident_store import Change, IncidentStore, Look
from redbeat_lite.store.keys import Keys
from redbeat_lite.store.records import Lost, Term
from tests.support.examples import examples
from tests.support.server import Server

PREFIX = "incidents"
KEYS = Keys.of(PREFIX)
NAMES = ("a", "b")

#: What a look leads to, and who means to write it: the leader, one of a term that is over, or one that looked before
#: somebody else has read on.
steps = st.lists(
    st.tuples(
        st.sampled_from(["open", "end", "count", "told", "gone"]),
        st.sampled_from(NAMES),
        st.sampled_from(["leader", "late", "overtaken", "twice", "worker"]),
    ),
    max_size=20,
)


def look(read: str, reads: str) -> Look:
    return Look(read, reads, [], [], [], None, 0, more=False)


class Model:
    """What must be in Redis, and what was opened and closed so far."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        self.store = IncidentStore(client, PREFIX)
        self.open: dict[str, Case] = {}
        self.closed: list[Case] = []
        self.history: list[str] = []
        self.read = 0
        self.since = 1000

    def do(self, what: str, name: str, who: str) -> None:
        self.since += 1
        case = Case("failed", name, self.since, f"text {self.since}", times=self.since, nominal=10**14 + self.since)
        closed = next((each for each in self.closed if each.name == name), case._replace(until=1))
        about = closed if what == "gone" or name not in self.open else self.open[name]
        changes: list[Change] = [
            {
                "open": ("open", case.field, case.encode()),
                "end": ("end", case.field, self.since),
                "count": ("count", case.field, case.encode()),
                "told": ("told", about.field, ""),
                "gone": ("gone", about.field, ""),
            }[what]
        ]
        if who == "late":
            with pytest.raises(Lost):
                self.store.apply(Term("leader", 1), look(str(self.read), str(self.read)), changes)
        elif who == "overtaken":
            assert self.store.apply(Term("leader", 2), look("before", "now"), changes) is None
        elif who == "worker":
            if what == "open":
                self.store.apply(None, None, changes)
                self.apply(what, name, case, about)
        else:
            for _ in range(2 if who == "twice" else 1):
                before, self.read = self.read, self.read + (who == "leader")
                changed = self.store.apply(Term("leader", 2), look(str(before), str(self.read)), changes)
                assert changed == self.apply(what, name, case, about)

    def apply(self, what: str, name: str, case: Case, about: Case) -> int:
        found = self.open.get(name)
        if what == "open" and found is None:
            self.open[name] = case
            self.history.append(f"open {case.id}")
            return 1
        if what == "end" and found is not None:
            self.closed.append(self.open.pop(name)._replace(until=self.since))
            self.history.append(f"end {found.id}")
            return 1
        if what == "count" and found is not None:
            self.open[name] = found._replace(text=case.text, times=case.times, nominal=case.nominal)
        elif what == "told" and found is not None:
            self.open[name] = found._replace(announced=True)
        elif what in ("told", "gone"):
            self.tell_of_closed(what, about)
        return 0

    def tell_of_closed(self, what: str, about: Case) -> None:
        for place, each in enumerate(self.closed):
            if each.since == about.since:
                self.closed[place] = each._replace(announced=True)
                if what == "gone":
                    self.history.append(f"gone {self.closed.pop(place).id}")
                return


@examples(20)
@given(steps)
def test_each_is_opened_once_and_closed_once(shared_server: Server, steps: list[tuple[str, str, str]]) -> None:
    with shared_server.client() as client:
        client.flushall()
        client.hset(KEYS.leader, mapping={"token": "leader", "term": 2})
        client.hset(KEYS.meta, "feed", "0")
        model = Model(client)
        for step in steps:
            model.do(*step)
        assert sorted(model.store._stored()) == sorted([*model.open.values(), *model.closed])
        assert len(model.history) == len({*model.history})
        gone = [line.split()[1] for line in model.history if line.startswith("gone")]
        archived = client.xrange(model.store.keys.closed)
        ids = [Case.decode(fields[b"of"].decode(), fields[b"incident"]).id for _, fields in archived]
        assert ids == gone


def test_so_many_are_open_and_no_more(client: redis.Redis) -> None:
    store = IncidentStore(client, PREFIX)
    cases = [Case("failed", f"e{number}", 5, "text") for number in range(1005)]
    assert store.apply(None, None, [("open", case.field, case.encode()) for case in cases]) == 1000
    assert len(store.open()) == 1000
    whole = Case("no_leader", "", 5, "text")
    odd = Case("failed", "no_leader:", 5, "text")
    assert store.apply(None, None, [("open", case.field, case.encode()) for case in (odd, whole)]) == 1
    assert whole in store.open()


def test_an_incident_is_acknowledged_while_it_is_open(client: redis.Redis) -> None:
    store, case = IncidentStore(client, PREFIX), Case("failed", "e", 5, "text")
    assert not store.acknowledge(case, "mine")
    store.apply(None, None, [("open", case.field, case.encode())])
    assert store.acknowledge(case, "mine — ä")
    assert [each.note for each in store.open()] == ["mine — ä"]
    assert not store.acknowledge(case._replace(since=4), "of an earlier one")
    store.apply(None, None, [("end", case.field, 6)])
    assert not store.acknowledge(case, "too late")


def test_a_deadline_that_was_set_anew_is_not_done(client: redis.Redis) -> None:
    store = IncidentStore(client, PREFIX)
    store.apply(None, None, [("set", "success||e", 1_772_452_000_123), ("done", "success||e", 1_772_452_000_122)])
    assert client.zscore(store.keys.deadlines, "success||e") == 1_772_452_000_123
    store.apply(None, None, [("done", "success||e", 1_772_452_000_123)])
    assert not client.exists(store.keys.deadlines)

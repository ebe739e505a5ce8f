"""Incidents in Redis against a model: opened once and closed once, whoever leads, whatever is sent twice."""

from __future__ import annotations

import time
from collections.abc import Iterable

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from redbeat_lite import Incident
from redbeat_lite._base.times import from_ms
from redbeat_lite.entries.run import Attempt, Fate
from redbeat_lite.runs.incident_fold import Deadline, Decision
from redbeat_lite.runs.incident_store import IncidentStore
from redbeat_lite.runs.run_store import RunStore
from redbeat_lite.store.keys import Keys
from redbeat_lite.store.records import Lost, Term
from redbeat_lite.store.redis_values import server_ms
from tests.support.examples import examples
from tests.support.incidents import incident
from tests.support.server import Server

PREFIX = "incidents"
KEYS = Keys.of(PREFIX)
NAMES = ("a", "b")

#: What a look leads to, and who means to write it: the leader, one of a term that is over, one that looked before
#: somebody else has read on, or before somebody has taken up the incident.
steps = st.lists(
    st.tuples(
        st.sampled_from(["open", "end", "count", "handled"]),
        st.sampled_from(NAMES),
        st.sampled_from(["leader", "late", "overtaken", "noted", "twice", "worker"]),
    ),
    max_size=20,
)


def in_order(incidents: Iterable[Incident]) -> list[Incident]:
    return sorted(incidents, key=lambda each: each.field)


class Model:
    """What must be in Redis, and what was opened and closed so far."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        self.store = IncidentStore(client, PREFIX)
        self.open: dict[str, Incident] = {}
        self.news: list[Incident] = []
        self.handled = 0
        self.read = 0
        self.since = 1000

    def do(self, what: str, name: str, who: str) -> None:
        self.since += 1
        case = incident("failed", name, self.since, f"text {self.since}", count=self.since, nominal=10**14 + self.since)
        if who == "worker":
            if what == "open":
                assert self.store.open_incident(case) == self.apply(what, name, case)
            return
        for _ in range(2 if who == "twice" else 1):
            facts = self.store.read_facts(0)
            assert in_order(facts.incidents) == in_order(self.open.values())
            assert facts.unannounced == self.news[self.handled :]
            decision = self.follow(what, name, case)
            handled = facts.news_end if what == "handled" else facts.handled
            changed = facts._replace(feed_end=str(self.read + 1))
            if who == "late":
                with pytest.raises(Lost):
                    self.store.write_decision(Term("leader", 1), changed, decision, handled)
            elif who == "overtaken":
                assert self.store.write_decision(
                    Term("leader", 2), changed._replace(feed_begin="other"), decision, handled
                )
            elif who == "noted" and decision.incidents and name in self.open:
                found = self.open[name]
                assert self.store.acknowledge(found, f"note {self.since}")
                self.open[name] = replace(found, acknowledged=f"note {self.since}")
                assert self.store.write_decision(Term("leader", 2), changed, decision, handled)
            else:
                self.read += 1
                made = self.store.write_decision(Term("leader", 2), changed, decision, handled)
                assert made == bool(decision.incidents)
                self.apply(what, name, case)

    def follow(self, what: str, name: str, case: Incident) -> Decision:
        """What follows from a look, as the leader decides it."""
        known = self.open.get(name)
        decision = Decision([], {}, {})
        if what == "open" and not known:
            decision.incidents.append(case)
        elif what == "end" and known:
            decision.incidents.append(replace(known, until=from_ms(self.since)))
        elif what == "count" and known:
            decision.incidents.append(replace(known, text=case.text, count=case.count, nominal=case.nominal))
        return decision

    def apply(self, what: str, name: str, case: Incident) -> bool:
        """Change the model; return whether an incident was opened."""
        found = self.open.get(name)
        if what == "open" and found is None:
            self.open[name] = case
            self.news.append(case)
            return True
        if what == "end" and found is not None:
            self.news.append(replace(self.open.pop(name), until=from_ms(self.since)))
        elif what == "count" and found is not None:
            self.open[name] = replace(found, text=case.text, count=case.count, nominal=case.nominal)
        elif what == "handled":
            self.handled = len(self.news)
        return False


@examples(20)
@given(steps)
def test_each_is_opened_once_and_closed_once(shared_server: Server, steps: list[tuple[str, str, str]]) -> None:
    with shared_server.client() as client:
        client.flushall()
        client.hset(KEYS.leader, mapping={"token": "leader", "term": 2})
        client.hset(KEYS.meta, mapping={"feed": "0", "announced": "0"})
        model = Model(client)
        for step in steps:
            model.do(*step)
        assert in_order(model.store.open()) == in_order(model.open.values())
        closed = [case for case in reversed(model.news) if case.until is not None]
        assert model.store.closed(100) == closed
        assert len({(case.id, case.until is None) for case in model.news}) == len(model.news)


def lead(client: redis.Redis) -> Term:
    client.hset(KEYS.leader, mapping={"token": "leader", "term": 2})
    return Term("leader", 2)


def write(store: IncidentStore, term: Term, opened: list[Incident], closed: list[Incident], now: int) -> bool:
    changed = [replace(case, until=from_ms(now)) for case in closed]
    return store.write_decision(term, store.read_facts(0), Decision([*changed, *opened], {}, {}), "0")


def test_an_incident_is_acknowledged_while_it_is_open(client: redis.Redis) -> None:
    store, case = IncidentStore(client, PREFIX), incident("failed", "e", 5, "text")
    assert not store.acknowledge(case, "mine")
    assert store.open_incident(case)
    assert not store.open_incident(case)
    assert store.acknowledge(case, "mine — ä")
    assert [each.acknowledged for each in store.open()] == ["mine — ä"]
    assert not store.acknowledge(replace(case, since=from_ms(4)), "of an earlier one")
    assert write(store, lead(client), [], store.open(), 6)
    assert not store.acknowledge(case, "too late")


def test_a_deadline_that_was_set_anew_is_not_done(client: redis.Redis) -> None:
    store, term, nothing = IncidentStore(client, PREFIX), lead(client), Decision([], {}, {})
    client.zadd(store.keys.deadlines, {"success||e": 1_772_452_000_122})
    facts = store.read_facts(1_772_452_009_999)
    assert facts.overdue == [Deadline.decode("success||e", 1_772_452_000_122)]
    client.zadd(store.keys.deadlines, {"success||e": 1_772_452_000_123})
    assert store.write_decision(term, facts, nothing, facts.handled), "it has to look again"
    assert client.zscore(store.keys.deadlines, "success||e") == 1_772_452_000_123
    facts = store.read_facts(1_772_452_009_999)
    assert not store.write_decision(term, facts, nothing, facts.handled)
    assert not client.exists(store.keys.deadlines)


def test_a_run_that_is_told_to_have_begun_in_time_while_the_leader_decides_is_not_missed(client: redis.Redis) -> None:
    store, term, now = IncidentStore(client, PREFIX), lead(client), server_ms(client)
    nominal = now - 8000
    client.zadd(store.keys.deadlines, {f"start|{nominal}|e": nominal + 5000})
    facts = store.read_facts(now)
    missed = Decision([incident("missed", "e", now, "text", nominal=nominal)], {}, {})
    attempt = Attempt("e", nominal, "id", 0, history=20, expected=True)
    RunStore(client, PREFIX).record([Fate(attempt, "running", time.monotonic() - 7)])
    assert store.write_decision(term, facts, missed, facts.handled), "it has to look again"
    assert store.open() == store.read_facts(now).unannounced == []


@pytest.mark.parametrize("at", ["1.1", "-inf", "-1e20"])
def test_a_deadline_that_somebody_else_has_written_stops_no_decision(client: redis.Redis, at: str) -> None:
    store, term = IncidentStore(client, PREFIX), lead(client)
    client.zadd(store.keys.deadlines, {"start|1|e": at})
    facts = store.read_facts(server_ms(client))
    missed = incident("missed", "e", 5, "text")
    assert store.write_decision(term, facts, Decision([missed], {}, {}), facts.handled)
    assert store.open() == [missed]

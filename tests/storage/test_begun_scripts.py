"""A commit that is sent, and whose reply is read later: over connections that lose it, by who is interrupted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
import redis

from redbeat_lite.entries.state import EntryState
from redbeat_lite.settings import Settings
from redbeat_lite.storage.connections import Backend
from redbeat_lite.storage.leader_store import LeaderStore
from redbeat_lite.storage.stored import Advance, Edit, Lost, Term
from tests.support.beats import KEYS
from tests.support.proxy import Proxy
from tests.support.server import Server
from tests.support.waiting import eventually

TERM = Term("me", 1)


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy(server.port) as proxy:
        yield proxy


@pytest.fixture
def store(proxy: Proxy, server: Server, client: redis.Redis) -> Iterator[LeaderStore]:
    client.hset(KEYS.leader, mapping={"token": TERM.token, "term": TERM.number})
    backend = Backend(Settings(url=f"redis://127.0.0.1:{proxy.port}/0"))
    yield LeaderStore(backend, KEYS)
    backend.close()


def planned(store: LeaderStore, name: str) -> Advance:
    """What advances a new entry, and sends its name."""
    state = EntryState.new(1000)
    assert store.put([Edit(name, None, state.encode(), "definition", 1000)]) == [True]
    return Advance(name.encode(), state.guard, replace(state, nominal=2000).encode(), 2000, [("lpush", "queue", name)])


def test_the_server_commits_before_anybody_waits_for_it(store: LeaderStore, client: redis.Redis) -> None:
    steps = [planned(store, "a"), planned(store, "b")]
    assert store.commit(TERM, 1000, steps[:1])() == [True]  # the server has the script now
    results = store.commit(TERM, 1000, steps[1:])
    eventually(lambda: client.lrange("queue", 0, -1) == [b"b", b"a"], what="the message")
    assert results() == [True]


def test_a_reply_that_is_lost_sends_nothing_twice(store: LeaderStore, proxy: Proxy, client: redis.Redis) -> None:
    steps = [planned(store, "a"), planned(store, "b")]
    assert store.commit(TERM, 1000, steps[:1])() == [True]
    proxy.lose_reply_to = re.compile(b"EVALSHA")
    results = store.commit(TERM, 1000, steps[1:])
    eventually(lambda: proxy.lost == 1, what="the loss")
    proxy.heal()
    assert results() == [True]
    assert client.lrange("queue", 0, -1) == [b"b", b"a"]


def test_a_connection_that_broke_before_is_made_anew(store: LeaderStore, proxy: Proxy, client: redis.Redis) -> None:
    steps = [planned(store, "a"), planned(store, "b")]
    assert store.commit(TERM, 1000, steps[:1])() == [True]
    proxy.reset()
    assert store.commit(TERM, 1000, steps[1:])() == [True]
    assert client.llen("queue") == 2


def test_who_was_interrupted_leaves_nobody_the_reply_to_something_else(
    store: LeaderStore, proxy: Proxy, client: redis.Redis
) -> None:
    steps = [planned(store, "a"), planned(store, "b")]
    assert store.commit(TERM, 1000, steps[:1])() == [True]
    proxy.delay = 0.05
    store.commit(TERM, 1000, steps[:1])  # it is never looked at, and says that this was done before
    assert store.commit(TERM, 1000, steps[1:])() == [True]
    assert client.llen("queue") == 2


def test_a_server_that_has_forgotten_its_scripts_is_sent_them(store: LeaderStore, client: redis.Redis) -> None:
    step = planned(store, "a")
    client.script_flush()
    assert store.commit(TERM, 1000, [step])() == [True]


def test_an_answer_that_refuses_is_told_to_who_waits(store: LeaderStore, client: redis.Redis) -> None:
    step = planned(store, "a")
    client.hset(KEYS.leader, "term", 2)
    results = store.commit(TERM, 1000, [step])
    with pytest.raises(Lost):
        results()
    assert not client.exists("queue")

"""The scripts that keep to a freeze, each against a real server by its contract."""

from __future__ import annotations

import pytest
import redis

from redbeat_lite._base.actors import Who
from redbeat_lite._base.errors import UnsupportedFormat
from redbeat_lite.entries.changes import FORMAT, Edit, decode_change, line_of
from redbeat_lite.entries.state import EntryState
from redbeat_lite.store.connections import Backend
from redbeat_lite.store.leader_store import LeaderStore
from redbeat_lite.store.records import Advance, Frozen, Term
from tests.store.test_scripts import backend, leading, store, wake_messages
from tests.support.beats import KEYS
from tests.support.messages import heard

__all__ = ["backend", "leading", "store"]

FROZEN = line_of(Who("ada", "cli"), "frozen", "deploy", (("until", None, "noon"),))


def test_a_freeze_is_stored_if_it_is_as_it_was_read(store: LeaderStore, client: redis.Redis) -> None:
    pubsub = wake_messages(client)
    assert store.freeze() == b""
    assert store.set_freeze(b"", b"9|{}", FROZEN)
    assert heard(pubsub) == b"freeze"
    assert not store.set_freeze(b"", b"10|{}", FROZEN)
    assert store.set_freeze(b"9|{}", b"10|{}")
    assert store.freeze() == b"10|{}"
    [line] = [decode_change(*each) for each in client.xrange(KEYS.changes)]
    assert (line.action, line.actor, line.note, line.fields) == ("frozen", "ada", "deploy", (("until", None, "noon"),))
    pubsub.close()


def test_nothing_is_written_into_a_schedule_of_another_format(
    store: LeaderStore, backend: Backend, client: redis.Redis
) -> None:
    for other in (FORMAT - 1, FORMAT + 1):
        client.hset(KEYS.meta, "format", other)
        with pytest.raises(UnsupportedFormat, match=f"has format {other}; this redbeat_lite reads format {FORMAT}"):
            store.set_freeze(b"", b"9|{}", FROZEN)
        assert store.freeze() == b""
        about = {"token": "token", "lease_ms": 4000, "host": "host", "pid": 1, "change": FROZEN.change}
        assert backend.scripts.run("leader/acquire", KEYS, **about, format=FORMAT) == [-1, other]
        assert not client.exists(KEYS.leader)
    client.hdel(KEYS.meta, "format")
    assert store.set_freeze(b"", b"9|{}", FROZEN)
    assert client.hget(KEYS.meta, "format") == str(FORMAT).encode()


def test_peek_returns_nothing_until_a_freeze_ends(store: LeaderStore, leading: Term) -> None:
    store.put([Edit("a", None, EntryState.new(1000).encode(), "{}", 1000)])
    assert len(store.peek(leading, 3000, 10)[0]) == 1
    store.set_freeze(b"", b"3001|{}")
    assert store.peek(leading, 3000, 10) == ([], 3001, b"3001|{}")
    assert store.backfill_due == 3001
    due, _, freeze = store.peek(leading, 3001, 10)
    assert ([each.name for each in due], freeze) == ([b"a"], b"3001|{}")


@pytest.mark.parametrize("text", [b"", b"0|", b"5000", b"x|{}", b"-1|", b"|"])
def test_any_other_text_is_no_freeze(store: LeaderStore, leading: Term, client: redis.Redis, text: bytes) -> None:
    store.put([Edit("a", None, EntryState.new(1000).encode(), "{}", 1000)])
    client.hset(KEYS.meta, "freeze", text)
    assert len(store.peek(leading, 3000, 10)[0]) == 1


def test_commit_refuses_what_was_planned_before_a_freeze(
    store: LeaderStore, leading: Term, client: redis.Redis
) -> None:
    state = EntryState.new(1000)
    store.put([Edit("a", None, state.encode(), "{}", 1000)])
    step = Advance(b"a", state.guard, EntryState.new(2000).encode(), 2000, (("lpush", "queue", "m"),))
    store.set_freeze(b"", b"3001|{}")
    with pytest.raises(Frozen):
        store.commit(leading, [step], planned_at=3000)
    assert not client.exists("queue")
    assert store.commit(leading, [step], planned_at=3001) == [True]
    assert store.commit(leading, [step]) == [False], "a freeze does not matter for messages that were sent before"
    assert client.llen("queue") == 1

"""The scripts that keep to freezes, each against a real server by its contract."""

from __future__ import annotations

import pytest
import redis

from redbeat_lite._base.actors import Who
from redbeat_lite._base.errors import UnsupportedFormat
from redbeat_lite.entries.changes import FORMAT, Edit, decode_change, line_of
from redbeat_lite.entries.state import EntryState
from redbeat_lite.store.connections import Backend
from redbeat_lite.store.leader_store import LeaderStore
from redbeat_lite.store.records import Advance, Refrozen, Term
from tests.store.test_scripts import backend, leading, store, wake_messages
from tests.support.beats import KEYS
from tests.support.messages import heard

__all__ = ["backend", "leading", "store"]

FROZEN = line_of(Who("ada", "cli"), "frozen", "deploy", (("until", None, "noon"),))


def test_freezes_are_stored_where_they_are_as_they_were_read(store: LeaderStore, client: redis.Redis) -> None:
    pubsub = wake_messages(client)
    assert store.freezes() == b""
    assert store.set_freezes(b"", b"r1|[]", FROZEN)
    assert heard(pubsub) == b"freezes"
    assert not store.set_freezes(b"", b"r2|[]", FROZEN)
    assert store.set_freezes(b"r1|[]", b"r2|[]")
    assert store.freezes() == b"r2|[]"
    [line] = [decode_change(*each) for each in client.xrange(KEYS.changes)]
    assert (line.action, line.actor, line.note, line.fields) == ("frozen", "ada", "deploy", (("until", None, "noon"),))
    pubsub.close()


def test_nothing_is_written_into_a_schedule_of_another_format(
    store: LeaderStore, backend: Backend, client: redis.Redis
) -> None:
    for other in (FORMAT - 1, FORMAT + 1):
        client.hset(KEYS.meta, "format", other)
        with pytest.raises(UnsupportedFormat, match=f"has format {other}; this redbeat_lite reads format {FORMAT}"):
            store.set_freezes(b"", b"r1|[]", FROZEN)
        assert store.freezes() == b""
        about = {"token": "token", "lease_ms": 4000, "host": "host", "pid": 1, "change": FROZEN.change}
        assert backend.scripts.run("leader/acquire", KEYS, **about, format=FORMAT) == [-1, other]
        assert not client.exists(KEYS.leader)
    client.hdel(KEYS.meta, "format")
    assert store.set_freezes(b"", b"r1|[]", FROZEN)
    assert client.hget(KEYS.meta, "format") == str(FORMAT).encode()


def test_peek_tells_of_another_revision_and_reads_nothing_then(store: LeaderStore, leading: Term) -> None:
    store.put([Edit("a", None, EntryState.new(1000).encode(), "{}", 1000)])
    assert len(store.peek(leading, 3000, 10)[0]) == 1
    store.set_freezes(b"", b"r1|[]")
    for known in (b"", b"r", b"r1|", b"r12"):
        with pytest.raises(Refrozen) as caught:
            store.peek(leading, 3000, 10, known)
        assert caught.value.args == (b"r1|[]",)
    assert len(store.peek(leading, 3000, 10, b"r1")[0]) == 1
    assert store.peek(leading, 3000, 0, b"r1") == ([], 1000)


def test_commit_refuses_what_was_planned_under_another_revision(
    store: LeaderStore, leading: Term, client: redis.Redis
) -> None:
    state = EntryState.new(1000)
    store.put([Edit("a", None, state.encode(), "{}", 1000)])
    step = Advance(b"a", state.guard, EntryState.new(2000).encode(), 2000, (("lpush", "queue", "m"),))
    store.set_freezes(b"", b"r1|[]")
    for known in (b"", b"r", b"r2"):
        with pytest.raises(Refrozen):
            store.commit(leading, [step], revision=known)
    assert not client.exists("queue")
    assert store.commit(leading, [step], revision=b"r1") == [True]
    assert store.commit(leading, [step]) == [False], "whatever the revision, for what is out"
    assert client.llen("queue") == 1

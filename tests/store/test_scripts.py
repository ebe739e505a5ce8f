"""Each Lua script against a real server, by its contract."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from redbeat_lite._base.actors import BEAT
from redbeat_lite._base.errors import UnsupportedFormat
from redbeat_lite.entries.changes import FORMAT, Edit, Stored, line_of
from redbeat_lite.entries.run import LETTERS, LIFE_MS
from redbeat_lite.entries.state import EntryState
from redbeat_lite.settings import Settings
from redbeat_lite.store.connections import Backend
from redbeat_lite.store.leader_store import LeaderStore
from redbeat_lite.store.records import Advance, Bad, Command, Lost, Term
from redbeat_lite.store.redis_values import server_ms
from tests.support.beats import KEYS
from tests.support.cases import together
from tests.support.messages import heard
from tests.support.proxy import Proxy
from tests.support.server import Server

TERM = Term("me", 1)


@pytest.fixture
def backend(server: Server) -> Iterator[Backend]:
    backend = Backend(Settings(url=server.url))
    yield backend
    backend.close()


@pytest.fixture
def store(backend: Backend) -> LeaderStore:
    return LeaderStore(backend, KEYS)


@pytest.fixture
def leading(client: redis.Redis) -> Term:
    client.hset(KEYS.leader, mapping={"token": TERM.token, "term": TERM.number})
    return TERM


def put(store: LeaderStore, name: str, nominal: int | None, *, score: int | None = None) -> EntryState:
    state = EntryState.new(nominal)
    assert store.put([Edit(name, None, state.encode(), f"definition of {name}", score or nominal)]) == [True]
    return state


def wake_messages(client: redis.Redis) -> redis.client.PubSub:
    pubsub = client.pubsub()
    pubsub.subscribe(KEYS.wake)
    assert pubsub.get_message(timeout=5)["type"] == "subscribe"
    return pubsub


class TestPut:
    def test_creates_only_where_nothing_is(self, store: LeaderStore) -> None:
        put(store, "a", 1000)
        assert store.put([Edit("a", None, EntryState.new(2000).encode(), "other", 2000)]) == [False]
        [stored] = store.read(["a"])
        assert (stored.definition, stored.score) == (b"definition of a", 1000)

    def test_two_writers_of_one_version_do_not_both_win(self, store: LeaderStore) -> None:
        before = put(store, "a", 1000)
        after = before.edited().encode()
        first = Edit("a", before.encode().encode(), after, "first", 1000)
        second = Edit("a", before.encode().encode(), after, "second", 1000)
        assert store.put([first, second]) == [True, False]
        assert store.read(["a"])[0].definition == b"first"

    def test_one_call_may_change_an_entry_more_than_once(self, store: LeaderStore) -> None:
        before = put(store, "a", 1000)
        after, again = before.edited(), EntryState.new(3000)
        edits = [
            Edit("a", before.encode().encode(), after.encode(), "second", 2000),
            Edit("a", after.encode().encode(), None),
            Edit("a", None, again.encode(), "third", 3000),
            Edit("a", None, EntryState.new(4000).encode(), "fourth", 4000),
        ]
        edits.append(Edit("a", before.encode().encode(), EntryState.new(5000).encode(), "fifth", 5000))
        assert store.put(edits) == [True, True, True, False, False]
        assert store.read(["a"]) == [Stored(b"a", 3000, b"third", again.encode().encode())]

    def test_removes_everything_of_an_entry(self, store: LeaderStore, client: redis.Redis) -> None:
        state = put(store, "a", 1000)
        assert store.put([Edit("a", state.encode().encode(), None)]) == [True]
        assert store.read(["a"]) == [Stored(b"a", None, None, None)]
        assert client.zcard(KEYS.due) == 0

    def test_wakes_only_when_the_head_moves_forward(self, store: LeaderStore, client: redis.Redis) -> None:
        pubsub = wake_messages(client)
        put(store, "later", 5000)
        assert heard(pubsub) == b"head"
        put(store, "latest", 9000)
        assert pubsub.get_message(timeout=0.05) is None
        put(store, "sooner", 1000)
        assert heard(pubsub) == b"head"
        pubsub.close()

    def test_a_bulk_write_is_one_wake_up(self, store: LeaderStore, client: redis.Redis) -> None:
        pubsub = wake_messages(client)
        store.put(Edit(f"e{n}", None, EntryState.new(1000 - n).encode(), "d", 1000 - n) for n in range(100))
        assert heard(pubsub) == b"head"
        assert pubsub.get_message(timeout=0.05) is None
        pubsub.close()

    def test_a_parked_entry_has_no_due_time_and_wakes_nobody(self, store: LeaderStore, client: redis.Redis) -> None:
        pubsub = wake_messages(client)
        put(store, "parked", None)
        assert pubsub.get_message(timeout=0.05) is None
        assert client.zscore(KEYS.due, "parked") == float("inf")
        assert store.read(["parked"])[0].score is None
        pubsub.close()

    def test_keeps_the_reply_of_250_entries_in_one_key_for_a_minute(
        self, store: LeaderStore, client: redis.Redis
    ) -> None:
        store.put(Edit(f"e{n}", None, EntryState.new(1000).encode(), "d", 1000) for n in range(600))
        kept = client.keys(KEYS.reply("*"))
        assert sorted(client.strlen(key) for key in kept) == [102, 252, 252], "a letter for each, and for two guards"
        assert all(0 < client.pttl(key) <= 60_000 for key in kept)

    def test_refuses_a_schedule_of_another_format(self, store: LeaderStore, client: redis.Redis) -> None:
        for other, advice in ((99, "update redbeat_lite here"), (1, "export the schedule with the older version")):
            client.hset(KEYS.meta, "format", other)
            with pytest.raises(UnsupportedFormat, match=f"format {other}; .*: {advice}"):
                put(store, "a", 1000)
            assert not client.exists(KEYS.entries)


class TestPeek:
    def test_gives_both_ends_of_what_is_due_and_no_more_than_asked(self, store: LeaderStore, leading: Term) -> None:
        for name, nominal in (("b", 2000), ("a", 1000), ("c", 3000), ("d", 9000)):
            put(store, name, nominal)
        due, first_due, _ = store.peek(leading, 3000, 2)
        assert [stored.name for stored in due] == [b"a", b"c"]
        assert due[0].definition == b"definition of a"
        assert EntryState.decode(due[0].state or b"").nominal == 1000
        assert first_due == 1000

    def test_tells_when_the_next_comes_if_nothing_is_due(self, store: LeaderStore, leading: Term) -> None:
        assert store.peek(leading, 500, 10) == ([], None, b"")
        put(store, "parked", None)
        assert store.peek(leading, 500, 10) == ([], None, b"")
        put(store, "a", 1000)
        assert store.peek(leading, 500, 10) == ([], 1000, b"")

    def test_is_for_the_leader_alone(self, store: LeaderStore, leading: Term) -> None:
        put(store, "a", 1000)
        for other in (Term("me", 2), Term("you", 1)):
            with pytest.raises(Lost):
                store.peek(other, 3000, 10)

    def test_gives_entries_without_definition_as_such(
        self, store: LeaderStore, leading: Term, client: redis.Redis
    ) -> None:
        client.zadd(KEYS.due, {b"\xff\xfe": 5})
        assert store.peek(leading, 10, 10)[0] == [Stored(b"\xff\xfe", 5, None, None)]


class TestCommit:
    def advance(self, name: str, state: EntryState, *, nominal: int, commands: tuple = ()) -> Advance:  # type: ignore[type-arg]
        after = EntryState(state.version, state.generation, nominal, last=state.nominal, count=state.count + 1)
        return Advance(name.encode(), state.guard, after.encode(), nominal, commands)

    def test_advances_and_sends_in_one_step(self, store: LeaderStore, leading: Term, client: redis.Redis) -> None:
        state = put(store, "a", 1000)
        commands = (("lpush", "queue", "message"), ("pexpire", "queue", 60_000))
        assert store.commit(leading, [self.advance("a", state, nominal=2000, commands=commands)]) == [True]
        assert client.lrange("queue", 0, -1) == [b"message"]
        assert 0 < client.pttl("queue") <= 60_000
        assert client.zscore(KEYS.due, "a") == 2000
        assert EntryState.decode(client.hget(KEYS.state, "a")).count == 1

    def test_a_range_of_no_sense_stops_nothing(self, store: LeaderStore, leading: Term, client: redis.Redis) -> None:
        told: list[Command] = [("range", "rows-1000", (3, LIFE_MS, -5, LETTERS["skipped"], 1000, 1005, 2))]
        told += [("range", "rows-x", "nonsense"), ("range", "rows-x", (3, 1, 1, "k", "no time", 1, 1))]
        step = self.advance("a", put(store, "a", 1000), nominal=2000, commands=(("lpush", "queue", "m"),))
        assert store.commit(leading, [step._replace(commands=(*step.commands, *told))]) == [True]
        assert client.llen("queue") == client.zcard("rows-1000") == 1
        assert EntryState.decode(client.hget(KEYS.state, "a")).count == 1

    def test_the_same_commit_twice_sends_once(self, store: LeaderStore, leading: Term, client: redis.Redis) -> None:
        step = self.advance("a", put(store, "a", 1000), nominal=2000, commands=(("lpush", "queue", "m"),))
        assert store.commit(leading, [step]) == [True]
        assert store.commit(leading, [step]) == [False]
        assert client.llen("queue") == 1

    def test_a_reply_that_is_lost_sends_nothing_twice(
        self, store: LeaderStore, leading: Term, client: redis.Redis, proxy: Proxy
    ) -> None:
        steps = [
            self.advance(name, put(store, name, 1000), nominal=2000, commands=(("lpush", "queue", name),))
            for name in ("a", "b")
        ]
        backend = Backend(Settings(url=proxy.url))
        behind_proxy = LeaderStore(backend, KEYS)
        assert behind_proxy.commit(leading, steps[:1]) == [True]
        proxy.lose_reply_to = re.compile(b"EVALSHA")
        assert behind_proxy.commit(leading, steps[1:]) == [True]
        assert proxy.lost == 1
        assert client.lrange("queue", 0, -1) == [b"b", b"a"]
        backend.close()

    def test_leaves_alone_what_was_edited_or_removed(
        self, store: LeaderStore, leading: Term, client: redis.Redis
    ) -> None:
        edited, removed = put(store, "edited", 1000), put(store, "removed", 1000)
        store.put([Edit("edited", edited.encode().encode(), edited.edited(nominal=7000).encode(), "new", 7000)])
        store.put([Edit("removed", removed.encode().encode(), None)])
        send = (("lpush", "queue", "m"),)
        steps = [
            self.advance("edited", edited, nominal=2000, commands=send),
            self.advance("removed", removed, nominal=2000, commands=send),
        ]
        assert store.commit(leading, steps) == [False, False]
        assert client.zrange(KEYS.due, 0, -1, withscores=True) == [(b"edited", 7000.0)]
        assert not client.exists("queue")
        assert not client.hexists(KEYS.state, "removed")

    def test_writes_nothing_for_a_leader_whose_term_is_over(
        self, store: LeaderStore, leading: Term, client: redis.Redis
    ) -> None:
        state = put(store, "a", 1000)
        client.hset(KEYS.leader, "term", 2)
        with pytest.raises(Lost):
            store.commit(leading, [self.advance("a", state, nominal=2000, commands=(("lpush", "q", "m"),))])
        assert client.zscore(KEYS.due, "a") == 1000
        assert not client.exists("q")

    def test_a_refused_message_leaves_its_entry_where_it_is(
        self, store: LeaderStore, leading: Term, client: redis.Redis
    ) -> None:
        client.set("broken", "not a list")
        good, bad = put(store, "good", 1000), put(store, "bad", 1000)
        steps = [
            self.advance("bad", bad, nominal=2000, commands=(("lpush", "fine", "m"), ("lpush", "broken", "m"))),
            self.advance("good", good, nominal=2000, commands=(("lpush", "fine", "n"),)),
        ]
        assert store.commit(leading, steps) == ["the queue is a string, not a list", True]
        assert client.lrange("fine", 0, -1) == [b"n"]
        assert client.zscore(KEYS.due, "bad") == 1000


class TestQuarantine:
    def test_sets_aside_what_is_still_as_it_was_read(
        self, store: LeaderStore, leading: Term, client: redis.Redis
    ) -> None:
        client.zadd(KEYS.due, {"bad": 1, "mended": 1})
        client.hset(KEYS.entries, mapping={"bad": "{", "mended": "good by now"})
        record = '{"error":"no JSON"}'
        bad = [Bad(Stored(name, 1, b"{", None), "no JSON", record) for name in (b"bad", b"mended")]
        assert store.quarantine(leading, bad) == [True, False]
        assert client.xlen(KEYS.changes) == 1
        assert store.quarantined() == {"bad": {"error": "no JSON"}}
        assert client.zrange(KEYS.due, 0, -1) == [b"mended"]


class TestLease:
    def acquire(self, backend: Backend, token: str, lease: int = 4000) -> list[object]:
        about = {"host": "host", "pid": 1, "format": FORMAT, "change": line_of(BEAT, "term begun").change}
        reply: list[object] = backend.scripts.run("leader/acquire", KEYS, token=token, lease_ms=lease, **about)
        backend.client.hset(KEYS.meta, "synced", "stamp")  # as a leader does when it has stored its configuration
        return reply

    def renew(
        self,
        backend: Backend,
        token: str = "one",
        term: int = 1,
        least: int = 0,
        silent_ms: int = 0,
        planned_by: int = 0,
    ) -> Any:
        return backend.scripts.run(
            "leader/renew",
            KEYS,
            backfills_due=KEYS.of_backfills.due,
            token=token,
            number=term,
            lease_ms=9000,
            least=least,
            synced="stamp",
            silent_ms=silent_ms,
            report="{}",
            planned_by=planned_by,
        )

    def resign(self, backend: Backend, token: str) -> Any:
        return backend.scripts.run("leader/resign", KEYS, token=token)

    def led_by(self, backend: Backend, token: str) -> object:
        """The number of the term in which this beat leads."""
        leads, now, _, term, *_ = self.acquire(backend, token)
        assert leads == 1
        assert abs(now - server_ms(backend.client)) < 1000
        return term

    def test_one_leads_and_the_other_learns_for_how_long(self, backend: Backend) -> None:
        assert self.led_by(backend, "one") == 1
        leads, _, left, *_ = self.acquire(backend, "two")
        assert leads == 0
        assert 0 < left <= 4000

    def test_acquiring_again_keeps_the_term(self, backend: Backend, client: redis.Redis) -> None:
        self.acquire(backend, "one")
        assert self.led_by(backend, "one") == 1
        assert client.xlen(KEYS.changes) == 1, "sent again, as where the reply was lost"

    def test_terms_grow(self, backend: Backend, client: redis.Redis) -> None:
        self.acquire(backend, "one")
        client.delete(KEYS.leader)
        assert self.led_by(backend, "two") == 2

    def test_renews_for_its_holder_only(self, backend: Backend, client: redis.Redis) -> None:
        self.acquire(backend, "one", lease=2000)
        assert self.renew(backend, "two") == [0]
        assert self.renew(backend, term=2) == [0]
        assert client.pttl(KEYS.leader) <= 2000
        assert self.renew(backend)[0] == 1
        assert client.pttl(KEYS.leader) > 2000

    @together("key", [KEYS.due, KEYS.entries, KEYS.state, KEYS.meta], emptied=True)
    def test_a_renewal_notices_that_part_of_the_schedule_is_gone(
        self, backend: Backend, store: LeaderStore, client: redis.Redis, key: str
    ) -> None:
        self.acquire(backend, "one")
        put(store, "a", 1000)
        assert self.renew(backend)[:2] == [1, 1]
        client.delete(key)
        assert self.renew(backend)[:2] == [1, 0]

    def test_a_renewal_notices_that_all_entries_are_gone(self, backend: Backend, client: redis.Redis) -> None:
        self.acquire(backend, "one")
        assert self.renew(backend)[:2] == [1, 1]
        assert self.renew(backend, least=1)[:2] == [1, 0]

    def test_a_renewal_notices_that_a_sync_was_undone(self, backend: Backend, client: redis.Redis) -> None:
        self.acquire(backend, "one")
        client.hset(KEYS.meta, "synced", "an older stamp")
        assert self.renew(backend)[:2] == [1, 0]

    def test_a_renewal_counts_what_is_due(self, backend: Backend, store: LeaderStore, client: redis.Redis) -> None:
        self.acquire(backend, "one")
        put(store, "past", 1000)
        put(store, "to come", 10**15)
        client.zadd(KEYS.of_backfills.due, {"past": 1000, "past too": 1000, "to come": 10**15})
        reply = self.renew(backend)
        assert reply[:6] == [1, 1, 2, 1, b"", 2]

    def test_a_renewal_notices_that_the_clock_was_set_back(self, backend: Backend, client: redis.Redis) -> None:
        def mark(planned_by: int) -> object:
            return self.renew(backend, planned_by=planned_by)[7]

        self.acquire(backend, "one")
        assert mark(server_ms(client)) == b""
        assert mark(server_ms(client) + 5000) != b""
        assert mark(server_ms(client)) != b"", "until all entries have been rescheduled"
        client.hset(KEYS.meta, "set_back", "")
        assert mark(server_ms(client)) == b""

    def test_the_next_leader_notices_that_the_clock_was_set_back(self, backend: Backend, client: redis.Redis) -> None:
        assert self.acquire(backend, "one")[5] == b""
        client.delete(KEYS.leader)
        client.hset(KEYS.meta, "ticked", server_ms(client) + 5000)
        assert self.acquire(backend, "two")[5] != b""

    def test_resigns_for_its_holder_only_and_wakes_the_others(self, backend: Backend, client: redis.Redis) -> None:
        self.acquire(backend, "one")
        pubsub = wake_messages(client)
        assert self.resign(backend, "two") == 0
        assert self.resign(backend, "one") == 1
        assert heard(pubsub) == b"vacant"
        assert not client.exists(KEYS.leader)
        pubsub.close()

    def test_every_beat_says_from_when_on_it_is_silent(self, backend: Backend, client: redis.Redis) -> None:
        def silent_in(token: str) -> float:
            seconds, micros = client.time()  # type: ignore[misc]
            return float(client.zscore(KEYS.beats, token) or 0) - 1000 * seconds - micros / 1000  # type: ignore[arg-type]

        self.acquire(backend, "leader", lease=4000)
        assert -5000 < silent_in("leader") <= 0
        client.zadd(KEYS.beats, {"long gone": 1})
        self.acquire(backend, "stand-by", lease=4000)
        assert 2900 < silent_in("stand-by") <= 4000
        assert set(client.zrange(KEYS.beats, 0, -1)) == {b"leader", b"stand-by"}
        assert self.renew(backend, "leader", silent_ms=10_000)[0] == 1
        assert -15_000 < silent_in("leader") <= -10_000, "a loop that hangs shows"
        assert 0 < client.pttl(KEYS.beats) <= 3_600_000
        self.resign(backend, "leader")
        assert client.zrange(KEYS.beats, 0, -1) == [b"stand-by"]

    def test_a_lease_without_an_end_is_given_one(self, backend: Backend, client: redis.Redis) -> None:
        client.hset(KEYS.leader, "token", "ghost")
        assert self.acquire(backend, "one")[:3:2] == [0, 4000]
        assert 0 < client.pttl(KEYS.leader) <= 4000

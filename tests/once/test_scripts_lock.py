"""The scripts of the lock, directly, on a real server: taken, renewed, refused and freed."""

from __future__ import annotations

import time
from dataclasses import replace
from uuid import uuid4

import pytest
import redis

from redbeat_lite.once.claims import Hold
from redbeat_lite.once.lock_store import LockStore
from redbeat_lite.pipeline.definition import Ref
from redbeat_lite.store.redis_values import server_ms
from tests.once.bench import acquire_and_release
from tests.once.script_calls import KEPT_MS, begin, claim, held, leave, released, wake, wanted
from tests.support.waiting import eventually


def test_a_free_lock_is_taken_and_freed(store: LockStore) -> None:
    first, second = held("a"), held("b")
    assert begin(store, first) == "run"
    assert store.begin(second).text == "a"
    assert released(store, first)
    assert begin(store, held("c")) == "run"


def test_fences_grow_and_survive_a_flush(store: LockStore) -> None:
    fences = []
    for n in range(5):
        one = held(str(n))
        begin(store, one)
        fences.append(one.fence)
        store.end(one)
        if n == 2:
            store.client.flushall()
    assert fences == sorted(set(fences))


def test_fences_never_go_back_when_the_servers_clock_does(store: LockStore) -> None:
    ahead = 9_000_000_000_000_000
    store.client.set(store.keys.fence, ahead)
    one = held()
    begin(store, one)
    assert one.fence == ahead + 1


def test_only_the_holder_renews_and_releases(store: LockStore) -> None:
    mine, other = held("a"), held("a")
    begin(store, mine)
    assert store.renew(other, revive=True) == (False, False)
    assert not released(store, other)
    assert store.renew(mine, revive=True) == (True, True)
    assert released(store, mine)
    assert not released(store, mine)


def ran_out(store: LockStore, one: Hold) -> None:
    """Wait until a lock and its guard have run out, as they do while nobody renews them."""
    guard = f"{{t}}:guard:{one.task_id}"
    eventually(lambda: not store.client.exists("{t}:once:lock:k"))
    eventually(lambda: server_ms(store.client) >= int(store.client.hget(guard, "until") or 0))


def test_a_silent_holder_loses_the_lock_after_its_lease_to_whoever_asks_first(store: LockStore) -> None:
    silent, next_one = held("a", lease_ms=200), held("b")
    begin(store, silent)
    ran_out(store, silent)
    assert begin(store, next_one) == "run"
    assert next_one.fence > silent.fence
    assert store.renew(silent, revive=False) == (True, False)
    assert not released(store, silent)
    assert store.client.hget("{t}:once:lock:k", "task") == "b"


def test_a_machine_that_slept_past_its_lease_gets_no_lock_back(
    store: LockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, next_one = held("a", lease_ms=200, life_ms=1), held("b")
    begin(store, mine)
    began = time.monotonic()
    eventually(lambda: not store.client.exists("{t}:guard:a"))
    begin(store, next_one)
    store.end(next_one)
    # Linux stops this clock while the machine sleeps. The lease goes on.
    monkeypatch.setattr(time, "monotonic", lambda: began)
    assert store.renew(mine, revive=not mine.has_run_out()) == (False, False)


def test_a_lock_that_ran_out_stays_free_though_its_holder_lives(store: LockStore) -> None:
    """The first renewal may have been sent in time, and have arrived late."""
    mine = held("a", lease_ms=200)
    begin(store, mine)
    ran_out(store, mine)
    late = replace(mine, lease_ms=60_000)
    for revive in (True, False):
        assert store.renew(late, revive=revive) == (True, False)
        assert not store.client.exists("{t}:once:lock:k")
    assert begin(store, held("a"), message="copy") == "standby"
    assert begin(store, held("b")) == "run"


def test_a_main_process_puts_back_no_record_of_a_run_that_its_child_has_ended(store: LockStore) -> None:
    mine = held("a")
    begin(store, mine)
    store.client.flushall()
    assert store.renew(mine, revive=False) == (False, False)
    assert store.client.keys() == []


def test_a_lock_that_ran_out_is_not_held_for_a_retry(store: LockStore) -> None:
    mine = held("a", lease_ms=200)
    begin(store, mine)
    ran_out(store, mine)
    assert not released(store, mine, hold_ms=60_000)
    assert begin(store, held("a", attempt=1)) == "run"


def test_a_renewal_puts_back_what_a_flush_took_unless_someone_else_has_it(store: LockStore) -> None:
    mine = held("a")
    begin(store, mine)
    store.client.flushall()
    assert store.renew(mine, revive=True) == (True, True)
    assert begin(store, held("b")) == "taken"
    store.client.flushall()
    begin(store, held("b"))
    assert store.renew(mine, revive=True)[1] is False


def test_a_renewal_puts_back_no_lock_that_was_cleared_or_released(store: LockStore) -> None:
    mine = held("a")
    begin(store, mine)
    store.clear("k")
    assert store.renew(mine, revive=True) == (True, False)
    assert begin(store, held("b", key="k")) == "run"
    other = held("c", key="k2")
    begin(store, other)
    # The lock alone, as the end of a body does; the run, and with it the guard's record, goes on.
    assert not store.end(other, "lock").waiters
    assert store.renew(other, revive=True) == (True, False)
    assert not store.client.exists("{t}:once:lock:k2")


@pytest.mark.parametrize("again", [False, True])
def test_a_renewal_that_comes_after_the_end_brings_nothing_back(store: LockStore, again: bool) -> None:
    one = held("a")
    begin(store, one)
    store.end(one, "dead" if again else "done")
    assert store.renew(one, revive=True) == (False, False)
    assert begin(store, held("b")) == "run"
    assert begin(store, held("a", key=None)) == ("run" if again else "drop")


def test_a_copy_that_leaves_frees_no_lock_that_is_kept_for_a_retry(store: LockStore) -> None:
    first = held("a")
    begin(store, first)
    store.end(first, hold_ms=60_000)
    leave(store, "a")
    assert store.client.hget("{t}:once:lock:k", "state") == "queued"
    leave(store, "a", attempt=1)
    assert not store.client.exists("{t}:once:lock:k")
    assert wake(store) is None
    assert store.client.zcard(store.keys.index) == 0


def test_a_server_whose_memory_is_full_loses_no_lock_and_lets_the_next_task_run(store: LockStore) -> None:
    mine = held("a", lease_ms=500)
    queued = [wanted("long", "q1", 5_000, 0, "", "", life_ms=60_000), wanted("short", "q2", 5_000, 0, "", "")]
    begin(store, mine)
    assert begin(store, held("b"), on_conflict="wait", message="m") == "parked"
    assert all(map(store.take, queued))
    store.client.pexpire("{t}:once:lock:short", 1_000)
    store.client.config_set("maxmemory", 1)
    try:
        with pytest.raises(redis.ResponseError, match="maxmemory"):
            store.client.set("key", "value")
        assert store.renew(mine, revive=True) == (True, True)
        store.extend([("long", "q1", True), ("short", "q2", True)])
        assert store.client.pttl("{t}:once:lock:short") > 1_000
        assert store.end(mine).waiters
        assert wake(store) == "m"
    finally:
        store.client.config_set("maxmemory", 0)


def test_the_lock_is_held_for_a_retry_and_taken_over_by_it(store: LockStore) -> None:
    first = held("a")
    begin(store, first)
    assert released(store, first, hold_ms=60_000)
    assert begin(store, held("b")) == "taken"
    retry = held("a", attempt=1)
    assert begin(store, retry) == "run"
    assert released(store, retry)


EARLIER, LATER, OTHER = (Ref("run", step, round).task_id for step, round in ((0, 9), (0, 10), (1, 10)))


def test_a_step_that_is_started_again_takes_over_the_lock_that_is_held_for_its_retry(store: LockStore) -> None:
    first = held(EARLIER)
    begin(store, first)
    store.end(first, hold_ms=60_000)
    assert begin(store, held(OTHER)) == "taken"
    assert begin(store, held(LATER)) == "run"
    assert begin(store, held(EARLIER, attempt=1)) == "drop", "its retry is stale"


def test_a_step_that_is_started_again_takes_over_the_lock_of_its_queued_message(store: LockStore) -> None:
    earlier, later, other = (claim("e", task_id) for task_id in (EARLIER, LATER, OTHER))
    assert store.take(earlier)
    assert begin(store, held("waits", key=earlier.key), on_conflict="wait", message="m") == "parked"
    assert [*map(store.take, (other, later, earlier))] == [False, True, False]
    assert store.client.hget(store.keys.lock(earlier.key), "task") == LATER
    store.leave(earlier.key, EARLIER)
    assert begin(store, held(EARLIER, key=earlier.key)) == "drop"
    assert begin(store, held(LATER, key=earlier.key)) == "run"


@pytest.mark.parametrize("on_conflict", ["skip", "raise", "wait"])
def test_a_step_that_is_started_again_waits_for_a_stale_message_that_has_just_begun(
    store: LockStore, on_conflict: str
) -> None:
    stale, step = held(EARLIER), held(LATER, on_conflict=on_conflict)
    begin(store, stale)
    assert store.take(wanted("k", LATER, 5_000, 0, "", ""))
    assert begin(store, step) == "encode"
    assert begin(store, step, message="later") == "parked"
    assert store.end(stale).waiters
    assert wake(store) == "later"
    assert begin(store, step) == "run"


def test_a_step_that_is_started_again_is_published_behind_an_earlier_round_that_waits_for_the_lock(
    store: LockStore,
) -> None:
    first, second = held(EARLIER), held(LATER, on_conflict="skip")
    third = Ref("run", 0, 11).task_id
    begin(store, first)
    assert begin(store, second, message="second") == "parked"
    assert store.end(first).waiters
    assert not store.take(wanted("k", OTHER, 5_000, 0, "", ""))
    assert store.take(wanted("k", third, 5_000, 0, "", ""))


def test_a_copy_of_a_refused_task_stands_by_until_the_refusal_has_ended(store: LockStore) -> None:
    refused, copy = held("b"), held("b")
    begin(store, held("a"))
    assert begin(store, refused) == "taken"
    # The worker that got the answer may die before it has stored the result.
    assert begin(store, copy, message="copy") == "standby"
    store.end(copy)
    assert begin(store, copy, message="copy") == "standby", "another copy's end changes nothing"
    assert not store.end(refused).standby
    assert begin(store, copy) == "drop"
    assert store.records("b")["b"].is_copy(0)
    assert begin(store, held("b", attempt=1)) == "taken"


def test_a_refusal_that_came_to_nothing_is_asked_for_again(store: LockStore) -> None:
    refused, copy = held("b"), held("b")
    begin(store, held("a"))
    assert begin(store, refused) == "taken"
    store.end(refused, "dead")
    assert not store.records("b")["b"].is_copy(0)
    assert begin(store, copy) == "taken"
    store.end(copy, "dead")
    store.clear("k")
    assert begin(store, copy) == "run"


def test_who_only_tries_leaves_nothing_behind(store: LockStore) -> None:
    begin(store, held("a"))
    keys = sorted(store.client.keys("*"))
    one = held("b")
    assert [begin(store, one, on_conflict="try") for _ in range(3)] == ["taken"] * 3
    assert sorted(store.client.keys("*")) == keys
    store.clear("k")
    assert begin(store, one, on_conflict="try") == "run"


def test_what_nobody_looks_after_leaves_the_index(store: LockStore) -> None:
    now = server_ms(store.client)
    store.client.zadd(store.keys.index, {"forgotten": now - KEPT_MS - 1_000, "waiting": now - KEPT_MS + 60_000})

    def index_of_a_run() -> list[str]:
        begin(store, one := held(uuid4().hex))
        index: list[str] = store.client.zrange(store.keys.index, 0, -1)
        store.end(one)
        return index if "forgotten" not in index else []

    assert eventually(index_of_a_run) == ["waiting", "k"]
    store.client.zadd(store.keys.index, {"forgotten": now - KEPT_MS - 1_000})
    store.take(claim("e", "id-1"))
    assert store.client.zscore(store.keys.index, "forgotten") is None


def test_acquire_and_release_take_two_round_trips(store: LockStore) -> None:
    acquire_and_release(store.client, 1)
    store.client.config_resetstat()
    microseconds = acquire_and_release(store.client, 500)
    stats = store.client.info("commandstats")
    assert stats["cmdstat_evalsha"]["calls"] == 1_000
    assert "cmdstat_eval" not in stats
    print(f"{microseconds:.0f} µs")

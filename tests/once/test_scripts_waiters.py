"""The scripts of those who wait for a lock, directly, on a real server."""

from __future__ import annotations

import time

import pytest

from redbeat_lite.once.lock_store import LockStore
from redbeat_lite.store.redis_values import server_ms
from tests.once.script_calls import KEPT_MS, begin, held, leave, wake, wanted
from tests.support.waiting import eventually


def test_a_waiter_that_is_too_old_when_its_turn_comes_makes_room(store: LockStore) -> None:
    first = held("a")
    begin(store, first)
    soon = server_ms(store.client) + 1_000
    assert begin(store, held("w1", deadline_ms=soon), on_conflict="wait", message="m1") == "parked"
    assert begin(store, held("w2"), on_conflict="wait", message="m2") == "parked"
    store.end(first)
    assert wake(store) == "m1"
    eventually(lambda: server_ms(store.client) > soon)
    assert begin(store, held("w1", deadline_ms=soon), on_conflict="wait", message="m1") == "old"
    assert leave(store, "w1")
    assert wake(store) == "m2"


@pytest.mark.parametrize("limit", ["deadline_ms", "expires_ms", "life_ms"])
def test_a_waiter_that_nobody_has_run_when_its_time_has_passed_makes_room(store: LockStore, limit: str) -> None:
    first, soon = held("a"), server_ms(store.client) + 1_000
    begin(store, first)
    gone = held("w1", **{limit: 1_000 if limit == "life_ms" else soon})
    assert begin(store, gone, on_conflict="wait", message="m1") == "parked"
    assert begin(store, held("w2"), on_conflict="wait", message="m2") == "parked"
    store.end(first)
    assert wake(store, resend_ms=400) == "m1"  # into a queue that nobody consumes
    assert wake(store, resend_ms=400) is None
    eventually(lambda: "k" in store.due()[0])
    while (turn := store.wake("k", resend_ms=50)) == ("m1", False):
        eventually(lambda: "k" in store.due()[0])
    assert turn == ("m1", True)
    assert server_ms(store.client) >= soon
    assert store.wake("k") is None, "whoever was told lets it leave"
    assert leave(store, "w1")
    assert wake(store) == "m2"
    assert begin(store, held("w2")) == "run"
    assert store.client.keys("*once:[wp]*") == []


def test_those_who_wait_are_looked_at_when_the_time_of_the_first_has_passed(store: LockStore) -> None:
    first, limit = held("a"), server_ms(store.client) + 7_000
    begin(store, first)
    begin(store, held("w", expires_ms=limit), on_conflict="wait", message="m")
    store.end(first)
    assert wake(store, resend_ms=60_000) == "m"
    looked_at = store.client.zscore(store.keys.index, "k")
    assert looked_at - server_ms(store.client) > 50_000, "one that was woken may be about to start"
    store.client.hset("{t}:once:parked:k", "resend", 0)
    assert wake(store, resend_ms=5_000) == "m"
    assert limit < store.client.zscore(store.keys.index, "k") <= limit + 1


def test_those_who_wait_are_forgotten_a_week_after_the_last_is_too_old(store: LockStore) -> None:
    now = server_ms(store.client)
    begin(store, held("a"))
    for name, limit in (("w1", now + 100_000), ("w2", now + 300_000), ("w3", now + 200_000)):
        assert begin(store, held(name, deadline_ms=limit), on_conflict="wait", message=name) == "parked"
    for key in ("{t}:once:wait:k", "{t}:once:parked:k"):
        assert abs(store.client.pttl(key) + server_ms(store.client) - (now + 300_000 + KEPT_MS)) < 1_000


def test_a_task_that_is_too_old_frees_the_lock_it_was_queued_with(store: LockStore) -> None:
    soon = server_ms(store.client) + 50
    assert store.take(wanted("k", "a", 60_000, 0, "queued t", "q"))
    assert begin(store, held("w"), on_conflict="wait", message="m") == "parked"
    eventually(lambda: server_ms(store.client) > soon)
    for task_id in ("b", "a"):
        assert begin(store, held(task_id, deadline_ms=soon)) == "old"
    assert leave(store, "b") is False, "another task's lock stays"
    assert leave(store, "a") is True
    assert store.due()[0] == ["k"]
    assert wake(store) == "m"
    assert begin(store, held("w")) == "run"


def test_a_late_copy_does_not_take_the_place_of_its_own_retry(store: LockStore) -> None:
    first = held("w")
    begin(store, first)
    store.end(first)
    begin(store, held("a"))
    assert begin(store, held("w", attempt=1), on_conflict="wait", message="retry") == "parked"
    assert begin(store, held("w", attempt=0), on_conflict="wait", message="late") == "drop"
    assert store.client.zrange("{t}:once:wait:k", 0, -1) == ["w"]


def test_waiters_come_in_the_order_they_came(store: LockStore) -> None:
    first = held("a")
    begin(store, first)
    names = [f"w{n}" for n in range(20)]
    for name in names:
        assert begin(store, held(name), on_conflict="wait") == "encode"
        assert begin(store, held(name), on_conflict="wait", message=f"m-{name}") == "parked"
    running, order = first, []
    for name in names:
        assert store.end(running).waiters
        assert begin(store, held(f"late-{name}")) == "taken", "somebody who comes late must not overtake"
        message = wake(store)
        assert message == f"m-{name}"
        running = held(name)
        assert begin(store, running) == "run"
        order.append(running.fence)
    assert not store.end(running).waiters
    assert order == sorted(order)
    assert store.client.keys("*once:[wp]*") == []


def test_a_message_parked_twice_keeps_its_place(store: LockStore) -> None:
    begin(store, held("a"))
    for name in ("x", "y", "x"):
        begin(store, held(name), on_conflict="wait", message=name)
    assert store.client.zrange("{t}:once:wait:k", 0, -1) == ["x", "y"]


def test_a_lost_wake_up_is_repeated_with_growing_pauses(store: LockStore) -> None:
    first = held("a")
    begin(store, first)
    begin(store, held("w"), on_conflict="wait", message="m")
    store.end(first)
    started = time.monotonic()
    assert wake(store, resend_ms=300) == "m"
    assert wake(store, resend_ms=300) is None
    for pause in (0.3, 0.6, 1.2):
        eventually(lambda: "k" in store.due()[0])
        assert time.monotonic() - started >= pause * 0.9
        started = time.monotonic()
        assert wake(store, resend_ms=300) == "m"


def test_the_reaper_finds_what_a_releaser_left_behind(store: LockStore) -> None:
    first = held("a")
    begin(store, first)
    begin(store, held("w"), on_conflict="wait", message="m")
    assert store.due() == ([], [])
    store.end(first)
    assert store.due() == (["k"], [])
    assert wake(store) == "m"


def test_the_reaper_finds_a_lock_whose_holder_died(store: LockStore) -> None:
    begin(store, held("a", lease_ms=150))
    begin(store, held("w"), on_conflict="wait", message="m")
    eventually(lambda: store.due()[0] == ["k"])
    eventually(lambda: wake(store) == "m")


def test_a_waiter_whose_message_was_lost_makes_room(store: LockStore) -> None:
    first = held("a")
    begin(store, first)
    for name in ("w1", "w2"):
        begin(store, held(name), on_conflict="wait", message=name)
    store.client.hdel("{t}:once:parked:k", "m:w1")
    store.end(first)
    assert [wake(store), wake(store)] == [None, "w2"]


def test_one_waiter_too_many_is_refused(store: LockStore) -> None:
    begin(store, held("a"))
    assert begin(store, held("b"), on_conflict="wait", message="m", max_waiters=1) == "parked"
    assert begin(store, held("c"), on_conflict="wait", message="m", max_waiters=1) == "taken"


def test_a_waiter_that_leaves_makes_room_for_the_next(store: LockStore) -> None:
    first = held("a")
    begin(store, first)
    for name in ("w1", "w2"):
        begin(store, held(name), on_conflict="wait", message=name)
    assert leave(store, "w1") is False
    store.end(first)
    assert wake(store) == "w2"
    assert leave(store, "w2") is False
    assert store.client.keys("*once:[lwp]*") == []


def test_leaving_does_not_touch_the_lock_of_a_copy_that_runs(store: LockStore) -> None:
    begin(store, held("a"))
    leave(store, "a")
    assert begin(store, held("b")) == "taken"


def test_clearing_wakes_who_waits(store: LockStore) -> None:
    begin(store, held("a"))
    begin(store, held("w"), on_conflict="wait", message="m")
    assert store.clear("k") == (True, True)
    assert store.clear("free") == (False, False)
    assert store.due()[0] == ["k"]


def test_those_who_left_the_index_are_found_by_the_next_task_of_their_key(store: LockStore) -> None:
    first = held("a")
    begin(store, first)
    begin(store, held("w"), on_conflict="wait", message="m")
    store.end(first)
    store.client.delete(store.keys.index)
    assert begin(store, held("b")) == "taken"
    assert store.due()[0] == ["k"]
    store.client.delete(store.keys.index)
    assert not store.take(wanted("k", "c", 60_000, 0, "queued t", "q"))
    assert store.due()[0] == ["k"]

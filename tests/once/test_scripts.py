"""Each script, directly, on a real server."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from typing import Any

import pytest

from redbeat_lite.once import Once
from redbeat_lite.once.claims import Claim, give_back, headers, take
from redbeat_lite.once.store import KEPT_MS, Held, LockStore, Seen, Wanted
from redbeat_lite.storage.replies import server_ms
from tests.once.bench import acquire_and_release

tokens = (f"token-{n}" for n in itertools.count())


def held(task_id: str = "a", key: str | None = "k", **changes: Any) -> Held:
    values: dict[str, Any] = {"attempt": 0, "lease_ms": 60_000, "life_ms": 60_000, **changes}
    return Held(token=next(tokens), task_id=task_id, key=key, **values)


def begin(store: LockStore, one: Held, **options: Any) -> str:
    return store.begin(one, **options).word


def wake(store: LockStore, **options: Any) -> str | None:
    """The message that is to be published now."""
    turn = store.wake("k", **options)
    assert turn is None or not turn.too_old
    return turn and turn.message


def until(condition: Any, seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.01)


def test_a_free_lock_is_taken_and_freed(store: LockStore) -> None:
    first, second = held("a"), held("b")
    assert begin(store, first) == "run"
    assert store.begin(second).text == "a"
    assert store.end(first).released
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
    assert not store.end(other).released
    assert store.renew(mine, revive=False) == (True, True)
    assert store.end(mine).released
    assert not store.end(mine).released


def test_a_silent_holder_loses_the_lock_after_its_lease(store: LockStore) -> None:
    silent, next_one = held("a", lease_ms=200), held("b")
    begin(store, silent)
    until(lambda: begin(store, held("b2", lease_ms=100)) == "run" or store.client.exists("{t}:once:lock:k") == 0)
    until(lambda: begin(store, next_one) == "run")
    assert next_one.fence > silent.fence
    assert store.renew(silent, revive=False)[1] is False
    assert not store.end(silent).released
    assert store.client.hget("{t}:once:lock:k", "task") == "b"


def test_a_renewal_puts_back_what_a_flush_took_unless_someone_else_has_it(store: LockStore) -> None:
    mine = held("a")
    begin(store, mine)
    store.client.flushall()
    assert store.renew(mine, revive=False) == (False, False)
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
    assert store.end(replace(other, guard_id="released")).released
    assert store.renew(other, revive=True) == (True, False)
    assert not store.client.exists("{t}:once:lock:k2")


def test_a_renewal_puts_back_what_ran_out_when_the_servers_clock_leapt(store: LockStore) -> None:
    mine = held("a")
    begin(store, mine)
    store.client.delete("{t}:once:lock:k")
    store.client.hset("{t}:guard:a", "until", server_ms(store.client) - 1)
    assert store.renew(mine, revive=True) == (True, True)
    assert store.client.hget("{t}:once:lock:k", "fence") == str(mine.fence)


@pytest.mark.parametrize("again", [False, True])
def test_a_renewal_that_comes_after_the_end_brings_nothing_back(store: LockStore, again: bool) -> None:
    one = held("a")
    begin(store, one)
    store.end(one, again=again)
    assert store.renew(one, revive=True) == (False, False)
    assert begin(store, held("b")) == "run"
    assert begin(store, held("a", key=None)) == ("run" if again else "drop")


def test_a_waiter_that_is_too_old_when_its_turn_comes_makes_room(store: LockStore) -> None:
    first = held("a")
    begin(store, first)
    soon = server_ms(store.client) + 100
    assert begin(store, held("w1", deadline_ms=soon), on_conflict="wait", message="m1") == "parked"
    assert begin(store, held("w2"), on_conflict="wait", message="m2") == "parked"
    store.end(first)
    assert wake(store) == "m1"
    until(lambda: server_ms(store.client) > soon)
    assert begin(store, held("w1", deadline_ms=soon), on_conflict="wait", message="m1") == "old"
    assert wake(store) == "m2"


@pytest.mark.parametrize("limit", ["deadline_ms", "expires_ms", "life_ms"])
def test_a_waiter_that_nobody_has_run_when_its_time_has_passed_makes_room(store: LockStore, limit: str) -> None:
    first, soon = held("a"), server_ms(store.client) + 150
    begin(store, first)
    gone = held("w1", **{limit: 150 if limit == "life_ms" else soon})
    assert begin(store, gone, on_conflict="wait", message="m1") == "parked"
    assert begin(store, held("w2"), on_conflict="wait", message="m2") == "parked"
    store.end(first)
    assert wake(store, resend_ms=50) == "m1"  # into a queue that nobody consumes
    assert wake(store, resend_ms=50) is None
    until(lambda: "k" in store.due()[0])
    while (turn := store.wake("k", resend_ms=50)) == ("m1", False):
        until(lambda: "k" in store.due()[0])
    assert turn == ("m1", True)
    assert server_ms(store.client) >= soon
    assert store.wake("k") is None, "whoever was told ends it"
    assert store.leave("k", "w1")
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
    assert store.take([Wanted("k", "a", 60_000, 0, "queued t", "q")]) == [True]
    assert begin(store, held("w"), on_conflict="wait", message="m") == "parked"
    until(lambda: server_ms(store.client) > soon)
    assert begin(store, held("b", deadline_ms=soon)) == "old"
    assert store.due()[0] == [], "another task's lock stays"
    assert begin(store, held("a", deadline_ms=soon)) == "old"
    assert store.due()[0] == ["k"]
    assert wake(store) == "m"
    assert begin(store, held("w")) == "run"


def test_a_copy_that_is_too_old_frees_no_lock_that_is_kept_for_a_retry(store: LockStore) -> None:
    first, soon = held("a"), server_ms(store.client) + 50
    begin(store, first)
    store.end(first, hold_ms=60_000)
    until(lambda: server_ms(store.client) > soon)
    assert begin(store, held("a", deadline_ms=soon)) == "old"
    assert store.client.hget("{t}:once:lock:k", "state") == "queued"
    assert begin(store, held("a", attempt=1, deadline_ms=soon)) == "old"
    assert not store.client.exists("{t}:once:lock:k")
    assert wake(store) is None
    assert store.client.zcard(store.keys.index) == 0


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
    assert wake(store, resend_ms=100) == "m"
    assert wake(store, resend_ms=100) is None
    started = time.monotonic()
    for pause in (0.1, 0.2, 0.4):
        until(lambda: "k" in store.due()[0])
        assert time.monotonic() - started >= pause * 0.9
        started = time.monotonic()
        assert wake(store, resend_ms=100) == "m"


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
    until(lambda: store.due()[0] == ["k"])
    until(lambda: wake(store) == "m")


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
    assert begin(store, held("c"), on_conflict="wait", message="m", max_waiters=1) == "full"


def test_a_waiter_that_leaves_makes_room_for_the_next(store: LockStore) -> None:
    first = held("a")
    begin(store, first)
    for name in ("w1", "w2"):
        begin(store, held(name), on_conflict="wait", message=name)
    assert store.leave("k", "w1") is False
    store.end(first)
    assert wake(store) == "w2"
    assert store.leave("k", "w2") is False
    assert store.client.keys("*once:[lwp]*") == []


def test_leaving_does_not_touch_the_lock_of_a_copy_that_runs(store: LockStore) -> None:
    begin(store, held("a"))
    store.leave("k", "a")
    assert begin(store, held("b")) == "taken"


def test_the_lock_is_held_for_a_retry_and_taken_over_by_it(store: LockStore) -> None:
    first = held("a")
    begin(store, first)
    assert store.end(first, hold_ms=60_000).released
    assert begin(store, held("b")) == "taken"
    retry = held("a", attempt=1)
    assert begin(store, retry) == "run"
    assert store.end(retry).released


def test_clearing_wakes_who_waits(store: LockStore) -> None:
    begin(store, held("a"))
    begin(store, held("w"), on_conflict="wait", message="m")
    assert store.clear("k") == (True, True)
    assert store.clear("free") == (False, False)
    assert store.due()[0] == ["k"]


@pytest.mark.parametrize("verdict", ["taken", "full"])
def test_a_refusal_is_told_again_to_the_copy_that_did_not_hear_it(store: LockStore, verdict: str) -> None:
    policy: dict[str, Any] = {"on_conflict": "skip" if verdict == "taken" else "wait", "max_waiters": 1, "message": "m"}
    first, lost, copy = held("a"), held("b"), held("b")
    begin(store, first)
    begin(store, held("w"), on_conflict="wait", message="m")
    assert begin(store, lost, **policy) == verdict
    store.clear("k")
    # The lock's state may have changed meanwhile; what was said holds.
    again = store.begin(lost, **policy)
    assert (again.word, again.text) == (verdict, "a")
    # The worker that got the answer may have died before it could store it, so another copy has to look.
    refused = store.begin(copy, **policy)
    assert (refused.word, refused.text) == ("refused", "a")
    assert store.seen("b", 0) is Seen.REFUSED
    assert store.seen("b", 1) is Seen.NEVER


def test_a_refusal_that_was_told_to_all_is_an_end(store: LockStore) -> None:
    refused, copy = held("b"), held("b")
    begin(store, held("a"))
    begin(store, refused)
    store.end(copy)
    store.end(refused, again=True)
    assert begin(store, copy) == "refused", "another copy's end, and one that came to nothing, change nothing"
    store.end(refused)
    assert begin(store, copy) == "drop"
    assert store.seen("b", 0) is Seen.COPY
    assert begin(store, held("b", attempt=1)) == "taken"


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
    begin(store, held("a"))
    assert store.client.zrange(store.keys.index, 0, -1) == ["waiting", "k"]
    store.client.zadd(store.keys.index, {"forgotten": now - KEPT_MS - 1_000})
    take(store, [claim("e", "id-1")])
    assert store.client.zscore(store.keys.index, "forgotten") is None


def test_those_who_left_the_index_are_found_by_the_next_task_of_their_key(store: LockStore) -> None:
    first = held("a")
    begin(store, first)
    begin(store, held("w"), on_conflict="wait", message="m")
    store.end(first)
    store.client.delete(store.keys.index)
    assert begin(store, held("b")) == "taken"
    assert store.due()[0] == ["k"]
    store.client.delete(store.keys.index)
    assert store.take([Wanted("k", "c", 60_000, 0, "queued t", "q")]) == [False]
    assert store.due()[0] == ["k"]


# -- the guard ---------------------------------------------------------------------------------------------------------


def test_a_copy_of_a_finished_attempt_is_dropped(store: LockStore) -> None:
    first = held(key=None)
    begin(store, first)
    store.end(first)
    assert begin(store, held(key=None)) == "drop"
    assert begin(store, held(key=None, attempt=1)) == "run"
    assert begin(store, held(key=None, attempt=0)) == "drop"


def test_a_copy_waits_as_standby_and_runs_only_when_the_first_dies(store: LockStore) -> None:
    first = held(key=None, lease_ms=300)
    begin(store, first)
    assert begin(store, held(key=None)) == "encode"
    assert begin(store, held(key=None), message="copy") == "standby"
    assert store.wake_standby("a") is None
    until(lambda: store.due()[1] == ["a"])
    assert store.wake_standby("a") == "copy"
    assert begin(store, held(key=None)) == "run"
    assert store.due()[1] == []


def test_a_standby_is_dropped_when_the_first_succeeds(store: LockStore) -> None:
    first = held(key=None)
    begin(store, first)
    begin(store, held(key=None), message="copy")
    assert not store.end(first).standby
    assert store.wake_standby("a") is None
    assert "standby" not in store.client.hgetall("{t}:guard:a")


def test_a_retry_that_came_early_runs_after_the_attempt_before_it(store: LockStore) -> None:
    first = held(key=None)
    begin(store, first)
    begin(store, held(key=None, attempt=1), message="retry")
    assert store.end(first).standby
    assert store.wake_standby("a") == "retry"
    assert begin(store, held(key=None, attempt=1)) == "run"


def test_a_lost_wake_up_of_a_standby_is_repeated(store: LockStore) -> None:
    first = held(key=None)
    begin(store, first)
    begin(store, held(key=None), message="copy")
    assert store.end(first, again=True).standby
    assert store.wake_standby("a", resend_ms=100) == "copy"
    assert store.wake_standby("a", resend_ms=100) is None
    until(lambda: store.wake_standby("a", resend_ms=100) == "copy")


@pytest.mark.parametrize("attempt", [0, 1])
def test_a_discarded_message_takes_its_parked_copy_with_it(store: LockStore, attempt: int) -> None:
    first = held(key=None)
    begin(store, first)
    begin(store, held(key=None), message="copy")
    store.discard("a", 0)
    assert store.end(first, again=True).standby, "a copy that runs goes on, and may die"
    store.discard("a", attempt)
    assert store.wake_standby("a") is None
    assert begin(store, held(key=None)) == "drop"
    assert begin(store, held(key=None, attempt=1)) == ("drop" if attempt else "run")


def test_a_discarded_message_leaves_the_next_attempt_that_is_parked(store: LockStore) -> None:
    begin(store, held(key=None, lease_ms=100))
    begin(store, held(key=None, attempt=1), message="retry")
    until(lambda: store.due()[1] == ["a"])
    store.discard("a", 0)
    assert store.wake_standby("a") == "retry"
    assert begin(store, held(key=None, attempt=1)) == "run"


def test_a_copy_that_stood_by_and_waits_now_is_parked_in_one_place(store: LockStore) -> None:
    first = held()
    begin(store, first)
    begin(store, held(), message="copy")
    begin(store, held("b"), on_conflict="wait", message="b")
    assert store.end(first, again=True).standby
    assert store.wake_standby("a") == "copy"
    assert begin(store, held(), on_conflict="wait", message="copy") == "parked"
    assert store.client.zcard("{t}:guard:index") == 0
    assert store.wake_standby("a") is None


def test_a_message_past_its_deadline_is_too_old(store: LockStore) -> None:
    now = server_ms(store.client)
    assert begin(store, held(deadline_ms=now - 1)) == "old"
    assert begin(store, held(deadline_ms=now + 5000)) == "run"


def test_the_record_outlives_every_message_that_may_still_run(store: LockStore) -> None:
    deadline = server_ms(store.client) + 50_000
    one = held(key=None, deadline_ms=deadline)
    begin(store, one)
    store.end(one)
    assert int(store.client.execute_command("PEXPIRETIME", "{t}:guard:a")) > deadline


def test_the_same_copy_asked_twice_runs_once_and_goes_on(store: LockStore) -> None:
    one = held()
    assert [begin(store, one), begin(store, one)] == ["run", "run"]


@pytest.mark.parametrize(
    ("attempt", "state", "copy"), [(0, "run", True), (1, "run", False), (0, "done", True), (0, "dead", False)]
)
def test_whether_a_message_is_a_copy(store: LockStore, attempt: int, state: str, copy: bool) -> None:
    assert store.seen("a", 0) is Seen.NEVER
    one = held(key=None)
    begin(store, one)
    if state == "done":
        store.end(one)
    if state == "dead":  # its worker has died, and "until" is still to come
        store.client.hset("{t}:guard:a", "state", "dead")
    assert (store.seen("a", attempt) is Seen.COPY) is copy


# -- taking at publish -------------------------------------------------------------------------------------------------


def claim(name: str, task_id: str, **policy: Any) -> Claim:
    return Claim(name, "proj.task", (name,), {}, Once(**{"scope": "queue", "lease": 5, **policy}), task_id)


def test_a_batch_is_taken_in_one_round_trip(store: LockStore) -> None:
    take(store, [claim("warm", "up")])
    store.client.config_resetstat()
    taken = take(store, [claim(f"e{n % 300}", f"id-{n}") for n in range(400)])
    assert taken == [n < 300 for n in range(400)]
    assert store.client.info("commandstats")["cmdstat_evalsha"]["calls"] == 1


def test_taking_again_under_the_same_id_is_no_conflict(store: LockStore) -> None:
    one = claim("e", "id-1")
    assert [take(store, [one]), take(store, [one]), take(store, [claim("e", "id-2")])] == [[True], [True], [False]]
    assert store.client.pttl("{t}:once:lock:" + one.key) > 4000


def test_what_was_taken_at_publish_is_taken_over_by_the_run_and_freed_by_it(store: LockStore) -> None:
    one = claim("e", "id-1")
    take(store, [one])
    run = held("id-1", key=one.key)
    assert begin(store, run) == "run"
    assert take(store, [claim("e", "id-2")]) == [False]
    store.end(run)
    assert take(store, [claim("e", "id-2")]) == [True]


def test_a_publish_that_failed_gives_the_lock_back(store: LockStore) -> None:
    take(store, [claim("e", "id-1")])
    give_back(store, [claim("e", "id-1")])
    assert take(store, [claim("e", "id-2")]) == [True]
    give_back(store, [claim("e", "id-1")])
    assert take(store, [claim("e", "id-3")]) == [False], "another task's lock stays"


@pytest.mark.parametrize("policy", [{"scope": "run"}, {"on_conflict": "wait"}])
def test_other_policies_are_left_to_the_worker(store: LockStore, policy: dict[str, Any]) -> None:
    assert take(store, [claim("e", "id-1", **policy), claim("e", "id-2", **policy)]) == [True, True]
    assert store.client.keys("*") == []


def test_the_header_carries_key_and_policy(store: LockStore) -> None:
    header = headers(claim("e", "id-1"))["redbeat_once"]
    assert header["queued"] is True
    assert header["key"].startswith("proj.task:")
    assert Once.decode(header["policy"]) == Once(scope="queue", lease=5)


def test_a_lock_for_an_eta_lasts_until_then_and_its_lease_and_is_extended_by_the_lease_alone(store: LockStore) -> None:
    wanted = Wanted("k", "id-1", 1_000, 400, "queued t", "q")
    assert store.take([wanted]) == [True]
    assert 1_300 < store.client.pttl("{t}:once:lock:k") <= 1_400
    until(lambda: store.client.pttl("{t}:once:lock:k") < 900)
    assert store.extend([("k", "id-1"), ("k", "other")]) == [True, False]
    assert 900 < store.client.pttl("{t}:once:lock:k") <= 1_000


def test_an_extended_lock_stays_until_it_leaves_the_queue(store: LockStore) -> None:
    one = claim("e", "id-1", lease=1)
    take(store, [one])
    until(lambda: store.client.pttl("{t}:once:lock:" + one.key) < 800)
    assert store.extend([(one.key, "id-1")]) == [True]
    assert store.client.pttl("{t}:once:lock:" + one.key) > 900
    run = held("id-1", key=one.key)
    begin(store, run)
    assert store.extend([(one.key, "id-1"), (one.key, "another")]) == [False, False]


def test_acquire_and_release_take_two_round_trips(store: LockStore) -> None:
    acquire_and_release(store.client, 1)
    store.client.config_resetstat()
    microseconds = acquire_and_release(store.client, 500)
    stats = store.client.info("commandstats")
    assert stats["cmdstat_evalsha"]["calls"] == 1_000
    assert "cmdstat_eval" not in stats
    print(f"{microseconds:.0f} µs")

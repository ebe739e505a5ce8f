"""The scripts of the guard, directly, on a real server: one run for a task id, whatever copies there are."""

from __future__ import annotations

import pytest

from redbeat_lite.once.lock_store import LockStore
from redbeat_lite.store.redis_values import server_ms
from tests.once.script_calls import begin, held
from tests.support.waiting import eventually


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
    eventually(lambda: store.due()[1] == ["a"])
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
    assert store.end(first, "dead").standby
    assert store.wake_standby("a", resend_ms=500) == "copy"
    assert store.wake_standby("a", resend_ms=500) is None
    eventually(lambda: store.wake_standby("a", resend_ms=500) == "copy")


@pytest.mark.parametrize("attempt", [0, 1])
def test_a_discarded_message_takes_its_parked_copy_with_it(store: LockStore, attempt: int) -> None:
    first = held(key=None)
    begin(store, first)
    begin(store, held(key=None), message="copy")
    store.discard("a", 0)
    assert store.end(first, "dead").standby, "a copy that runs goes on, and may die"
    store.discard("a", attempt)
    assert store.wake_standby("a") is None
    assert begin(store, held(key=None)) == "drop"
    assert begin(store, held(key=None, attempt=1)) == ("drop" if attempt else "run")


def test_a_discarded_message_leaves_the_next_attempt_that_is_parked(store: LockStore) -> None:
    begin(store, held(key=None, lease_ms=100))
    begin(store, held(key=None, attempt=1), message="retry")
    eventually(lambda: store.due()[1] == ["a"])
    store.discard("a", 0)
    assert store.wake_standby("a") == "retry"
    assert begin(store, held(key=None, attempt=1)) == "run"


def test_a_copy_that_stood_by_and_waits_now_is_parked_in_one_place(store: LockStore) -> None:
    first = held()
    begin(store, first)
    begin(store, held(), message="copy")
    begin(store, held("b"), on_conflict="wait", message="b")
    assert store.end(first, "dead").standby
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
    assert not store.records("a")["a"].is_copy(0)
    one = held(key=None)
    begin(store, one)
    if state == "done":
        store.end(one)
    if state == "dead":  # its worker has died, and "until" is still to come
        store.client.hset("{t}:guard:a", "state", "dead")
    assert store.records("a")["a"].is_copy(attempt) is copy


def test_a_run_that_outlasts_its_deadline_holds_its_retry_back(store: LockStore) -> None:
    deadline = server_ms(store.client) + 200
    assert begin(store, held(key=None, deadline_ms=deadline)) == "run"
    eventually(lambda: server_ms(store.client) > deadline + 50)
    assert begin(store, held(key=None, attempt=1)) == "encode"

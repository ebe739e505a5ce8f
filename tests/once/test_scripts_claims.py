"""The scripts that take a lock at publish, directly, on a real server."""

from __future__ import annotations

import pytest

from redbeat_lite import Once
from redbeat_lite.once.claims import headers
from redbeat_lite.once.lock_store import LockStore
from redbeat_lite.store.redis_values import server_ms
from tests.once.script_calls import begin, claim, held, wanted
from tests.support.waiting import eventually


def test_a_batch_is_taken_in_one_round_trip(store: LockStore) -> None:
    store.take([claim("warm", "up")])
    store.client.config_resetstat()
    taken = store.take([claim(f"e{n % 300}", f"id-{n}") for n in range(400)])
    assert taken == [n < 300 for n in range(400)]
    assert store.client.info("commandstats")["cmdstat_evalsha"]["calls"] == 1


def test_the_fences_of_a_batch_grow_and_are_given_once(store: LockStore) -> None:
    ahead = (server_ms(store.client) + 3_600_000) * 1000
    store.client.set(store.keys.fence, ahead)
    claims = [claim(f"e{n}", f"id-{n}") for n in range(3)]
    store.take(claims)
    begin(store, after := held("id-3"))
    fences = [int(store.client.hget(store.keys.lock(one.key), "fence")) for one in claims]
    assert [*fences, after.fence] == [ahead + n for n in range(1, 5)]


def test_taking_again_under_the_same_id_is_no_conflict(store: LockStore) -> None:
    one = claim("e", "id-1")
    assert [store.take([one]), store.take([one]), store.take([claim("e", "id-2")])] == [[True], [True], [False]]
    assert store.client.pttl("{t}:once:lock:" + one.key) > 4000


def test_what_was_taken_at_publish_is_taken_over_by_the_run_and_freed_by_it(store: LockStore) -> None:
    one = claim("e", "id-1")
    store.take([one])
    run = held("id-1", key=one.key)
    assert begin(store, run) == "run"
    assert store.take([claim("e", "id-2")]) == [False]
    store.end(run)
    assert store.take([claim("e", "id-2")]) == [True]


def test_a_publish_that_failed_gives_the_lock_back(store: LockStore) -> None:
    store.take([claim("e", "id-1")])
    store.give_back([claim("e", "id-1")])
    assert store.take([claim("e", "id-2")]) == [True]
    store.give_back([claim("e", "id-1")])
    assert store.take([claim("e", "id-3")]) == [False], "another task's lock stays"


@pytest.mark.parametrize(("planned", "is_taken"), [(0, False), (999, False), (1000, False), (1001, True)])
def test_a_later_plan_alone_takes_over_what_an_earlier_one_has_not_sent(
    store: LockStore, planned: int, is_taken: bool
) -> None:
    assert store.take([claim("e", "id-1")], 1000) == [True]
    assert store.take([claim("e", "id-2")], planned) == [is_taken]
    assert store.take([claim("e", "id-3")], planned) == [False]


def test_what_was_sent_is_taken_over_by_no_plan(store: LockStore) -> None:
    one = claim("e", "id-1")
    store.take([one], 1000)
    store.client.hdel(store.keys.lock(one.key), "unsent")  # as a commit does
    assert store.take([one, claim("e", "id-2")], 2000) == [True, False]
    store.give_back([one], 2000)
    assert store.take([claim("e", "id-2")], 3000) == [False]


def test_what_is_taken_again_is_given_back_by_the_later_plan_alone(store: LockStore) -> None:
    one = claim("e", "id-1")
    for planned in (1000, 3000, 2000):
        assert store.take([one], planned) == [True]
    for planned in (1000, 2000):
        store.give_back([one], planned)
        assert store.take([claim("e", "id-2")]) == [False]
    store.give_back([one], 3000)
    assert store.take([claim("e", "id-2")]) == [True]


def test_who_waits_goes_before_the_run_that_takes_a_lock_over(store: LockStore) -> None:
    store.take([wanted("k", "id-1", 60_000, 0, "entry e", "q")], 1000)
    assert begin(store, held("waiter", key="k"), on_conflict="wait", message="m") == "parked"
    assert store.take([wanted("k", "id-2", 60_000, 0, "entry e", "q")], 2000) == [False]
    assert store.due()[0] == ["k"]
    assert store.wake("k") == ("m", False)


def test_the_header_carries_key_and_policy(store: LockStore) -> None:
    header = headers(claim("e", "id-1"))["redbeat_once"]
    assert header["key"].startswith("proj.task:")
    assert Once.decode(header["policy"]) == Once(scope="queue", lease=5)


def test_a_lock_for_an_eta_lasts_until_then_and_its_lease_and_is_extended_by_the_lease_alone(store: LockStore) -> None:
    one = wanted("k", "id-1", 1_000, 400, "queued t", "q")
    assert store.take([one]) == [True]
    assert 1_000 < store.client.pttl("{t}:once:lock:k") <= 1_400
    eventually(lambda: store.client.pttl("{t}:once:lock:k") < 500)
    store.extend([("k", "other", True)])
    assert store.client.pttl("{t}:once:lock:k") < 500
    store.extend([("k", "id-1", True)])
    assert 500 < store.client.pttl("{t}:once:lock:k") <= 1_000


def test_an_extended_lock_stays_until_it_leaves_the_queue(store: LockStore) -> None:
    one = claim("e", "id-1", lease=1)
    store.take([one])
    eventually(lambda: store.client.pttl("{t}:once:lock:" + one.key) < 400)
    store.extend([(one.key, "id-1", True)])
    assert store.client.pttl("{t}:once:lock:" + one.key) > 400
    begin(store, held("id-1", key=one.key, lease_ms=300))
    store.extend([(one.key, "id-1", True)])
    assert store.client.pttl("{t}:once:lock:" + one.key) <= 300


def test_a_lock_lasts_as_long_as_its_message_and_is_due_after_half_a_lease(store: LockStore) -> None:
    assert store.take([wanted("k", "id-1", 1_000, 500, "entry e", "q", life_ms=60_000)]) == [True]
    assert 60_000 < store.client.pttl("{t}:once:lock:k") <= 60_500
    assert store.client.zscore("{t}:once:index", "k") - server_ms(store.client) <= 1_000
    eventually(lambda: "k" in store.due()[0])
    assert store.wake("k") is None
    assert "k" in store.due()[0], "until a worker keeps it that knows its queue"
    store.extend([("k", "id-1", True)])
    assert "k" not in store.due()[0]


def test_a_message_that_is_lost_keeps_its_lock_no_longer_than_half_a_lease(store: LockStore) -> None:
    assert store.take([wanted("k", "id-1", 1_000, 0, "entry e", "q", life_ms=60_000)]) == [True]
    for task in (("id-1", True), ("another", False)):
        store.extend([("k", *task)])
        assert store.client.pttl("{t}:once:lock:k") > 50_000
    store.extend([("k", "id-1", False)])
    assert store.client.pttl("{t}:once:lock:k") <= 500
    store.extend([("k", "id-1", True)])  # it was on its way
    assert store.client.pttl("{t}:once:lock:k") > 500


def test_a_queued_one_gives_its_lock_to_the_next_run_when_that_has_come(store: LockStore) -> None:
    one = wanted("k", "id-1", 60_000, 0, "entry e", "q", life_ms=90_000, yields_ms=200)
    assert store.take([one]) == [True]
    assert store.take([one._replace(task_id="id-2")]) == [False], "too early"
    eventually(lambda: store.take([one._replace(task_id="id-2", yields_ms=60_000)]) == [True])
    assert store.client.hget("{t}:once:lock:k", "task") == "id-2"
    assert begin(store, held("id-1", key="k")) == "taken", "the message that waited for so long is refused"
    assert begin(store, held("id-2", key="k")) == "run"
    assert store.take([one._replace(task_id="id-3")]) == [False], "whoever runs gives it to nobody"


def test_one_with_somebody_behind_it_gives_its_lock_to_nobody_else(store: LockStore) -> None:
    one = wanted("k", "id-1", 60_000, 0, "entry e", "q", yields_ms=300)
    assert store.take([one]) == [True]
    assert begin(store, held("waiter", key="k"), on_conflict="wait", message="m") == "parked"
    store.extend([("k", "id-1", True)])
    eventually(lambda: not store.client.exists("{t}:once:lock:k"), what="its latest end")
    assert store.take([one._replace(task_id="id-2")]) == [False]

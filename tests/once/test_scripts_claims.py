"""The scripts that take a lock at publish, directly, on a real server."""

from __future__ import annotations

from redbeat_lite import Once
from redbeat_lite.once.claims import once_header
from redbeat_lite.once.lock_store import LockStore
from redbeat_lite.store.redis_values import server_ms
from tests.once.script_calls import begin, claim, held, wanted
from tests.support.waiting import eventually


def test_the_fences_grow_and_are_given_once(store: LockStore) -> None:
    ahead = (server_ms(store.client) + 3_600_000) * 1000
    store.client.set(store.keys.fence, ahead)
    claims = [claim(f"e{n}", f"id-{n}") for n in range(3)]
    assert all(map(store.take, claims))
    begin(store, after := held("id-3"))
    fences = [int(store.client.hget(store.keys.lock(one.key), "fence")) for one in claims]
    assert [*fences, after.fence] == [ahead + n for n in range(1, 5)]


def test_what_another_task_has_or_waits_for_is_taken(store: LockStore) -> None:
    mine, others, free = (claim(name, "id-1") for name in ("mine", "others", "free"))
    waited_for = wanted("k", "id-1", 60_000, 0, "entry e", "q")
    store.take(mine)
    store.take(others._replace(task_id="id-2"))
    begin(store, ended := held("ends"))
    assert begin(store, held("waits"), on_conflict="wait", message="m") == "parked"
    store.end(ended)
    assert store.taken([mine, others, free, waited_for]) == {others, waited_for}
    assert store.taken([]) == set()
    assert not store.client.exists(store.keys.lock(free.key))


def test_taking_again_under_the_same_id_is_no_conflict(store: LockStore) -> None:
    one = claim("e", "id-1")
    assert [store.take(one), store.take(one), store.take(claim("e", "id-2"))] == [True, True, False]
    assert store.client.pttl("{t}:once:lock:" + one.key) > 4000


def test_what_was_taken_at_publish_is_taken_over_by_the_run_and_freed_by_it(store: LockStore) -> None:
    one = claim("e", "id-1")
    store.take(one)
    run = held("id-1", key=one.key)
    assert begin(store, run) == "run"
    assert not store.take(claim("e", "id-2"))
    store.end(run)
    assert store.take(claim("e", "id-2"))


def test_a_publish_that_failed_gives_the_lock_back(store: LockStore) -> None:
    store.take(claim("e", "id-1"))
    store.leave(claim("e", "id-1").key, "id-1")
    assert store.take(claim("e", "id-2"))
    store.leave(claim("e", "id-1").key, "id-1")
    assert not store.take(claim("e", "id-3")), "another task's lock stays"


def test_the_header_carries_key_and_policy(store: LockStore) -> None:
    header = once_header(claim("e", "id-1").key, Once(scope="queue", lease=5, key=str))
    assert header["key"].startswith("proj.task:")
    assert Once.decode(header["policy"]) == Once(scope="queue", lease=5)


def test_a_lock_for_an_eta_lasts_until_then_and_its_lease_and_is_extended_by_the_lease_alone(store: LockStore) -> None:
    one = wanted("k", "id-1", 1_000, 400, "queued t", "q")
    assert store.take(one)
    assert 1_000 < store.client.pttl("{t}:once:lock:k") <= 1_400
    eventually(lambda: store.client.pttl("{t}:once:lock:k") < 500)
    store.extend([("k", "other", True)])
    assert store.client.pttl("{t}:once:lock:k") < 500
    store.extend([("k", "id-1", True)])
    assert 500 < store.client.pttl("{t}:once:lock:k") <= 1_000


def test_an_extended_lock_stays_until_it_leaves_the_queue(store: LockStore) -> None:
    one = claim("e", "id-1", lease=1)
    store.take(one)
    eventually(lambda: store.client.pttl("{t}:once:lock:" + one.key) < 400)
    store.extend([(one.key, "id-1", True)])
    assert store.client.pttl("{t}:once:lock:" + one.key) > 400
    begin(store, held("id-1", key=one.key, lease_ms=300))
    store.extend([(one.key, "id-1", True)])
    assert store.client.pttl("{t}:once:lock:" + one.key) <= 300


def test_a_lock_lasts_as_long_as_its_message_and_is_due_after_half_a_lease(store: LockStore) -> None:
    assert store.take(wanted("k", "id-1", 1_000, 500, "entry e", "q", life_ms=60_000))
    assert 60_000 < store.client.pttl("{t}:once:lock:k") <= 60_500
    assert store.client.zscore("{t}:once:index", "k") - server_ms(store.client) <= 1_000
    eventually(lambda: "k" in store.due()[0])
    assert store.wake("k") is None
    assert "k" in store.due()[0], "until a worker keeps it that knows its queue"
    store.extend([("k", "id-1", True)])
    assert "k" not in store.due()[0]


def test_a_message_that_is_lost_keeps_its_lock_no_longer_than_half_a_lease(store: LockStore) -> None:
    assert store.take(wanted("k", "id-1", 1_000, 0, "entry e", "q", life_ms=60_000))
    for task in (("id-1", True), ("another", False)):
        store.extend([("k", *task)])
        assert store.client.pttl("{t}:once:lock:k") > 50_000
    store.extend([("k", "id-1", False)])
    assert store.client.pttl("{t}:once:lock:k") <= 500
    store.extend([("k", "id-1", True)])  # it was on its way
    assert store.client.pttl("{t}:once:lock:k") > 500


def test_a_queued_one_gives_its_lock_to_the_next_run_when_that_has_come(store: LockStore) -> None:
    one = wanted("k", "id-1", 60_000, 0, "entry e", "q", life_ms=90_000)
    one = one._replace(takeover_at=server_ms(store.client) + 200)
    assert store.take(one)
    assert not store.take(one._replace(task_id="id-2")), "too early"
    eventually(lambda: store.take(one._replace(task_id="id-2", takeover_at=0)))
    assert store.client.hget("{t}:once:lock:k", "task") == "id-2"
    assert begin(store, held("id-1", key="k")) == "taken", "the message that waited for so long is refused"
    assert begin(store, held("id-2", key="k")) == "run"
    assert not store.take(one._replace(task_id="id-3")), "whoever runs gives it to nobody"


def test_one_with_somebody_behind_it_gives_its_lock_to_nobody_else(store: LockStore) -> None:
    one = wanted("k", "id-1", 60_000, 0, "entry e", "q", takeover_at=server_ms(store.client) + 300)
    assert store.take(one)
    assert begin(store, held("waiter", key="k"), on_conflict="wait", message="m") == "parked"
    store.extend([("k", "id-1", True)])
    eventually(lambda: not store.client.exists("{t}:once:lock:k"), what="its latest end")
    assert not store.take(one._replace(task_id="id-2"))

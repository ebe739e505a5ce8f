"""Members of chains, groups and chords that are skipped, that wait, or that follow a task of their own key.

Where Celery publishes one that is refused, what goes wrong belongs to that call, not to the task before it.
"""

from __future__ import annotations

from typing import Any

import pytest
from celery import chain, chord, group
from celery.exceptions import ChordError

from redbeat_lite import OnceRejected, OnceSkipped
from tests.once.client import OnceClient
from tests.once.conftest import one_pool_will_do
from tests.once.pools import Crew
from tests.support.waiting import eventually

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("any_pool"), one_pool_will_do]


def test_a_chain_whose_member_is_skipped_ends(proj: OnceClient, key: str, busy: Any) -> None:
    busy("skip")
    result = chain(proj.tasks.add.si(1), proj.tasks.skip.si(key), proj.tasks.add.s("tail")).apply_async()
    with pytest.raises(OnceSkipped):
        result.get(timeout=60)


@pytest.mark.parametrize("task", ["skip", "queue_skip"], ids=["when it is taken", "at publish"])
def test_a_chord_whose_member_is_skipped_ends(proj: OnceClient, key: str, busy: Any, task: str) -> None:
    busy(task)
    result = chord([proj.task(task).si(key), proj.tasks.add.si(1)])(proj.tasks.collect.s(key))
    with pytest.raises(OnceSkipped):
        result.get(timeout=60)
    with pytest.raises(ChordError, match="OnceSkipped"):
        proj.app.AsyncResult(result.id).get(timeout=60)


def test_a_chain_whose_first_member_is_skipped_at_publish_ends(proj: OnceClient, key: str, busy: Any) -> None:
    busy("queue_skip")
    result = chain(proj.tasks.queue_skip.si(key), proj.tasks.add.s("tail")).apply_async()
    with pytest.raises(OnceSkipped):
        result.get(timeout=60)


def test_a_group_whose_members_are_skipped_ends(proj: OnceClient, key: str, busy: Any) -> None:
    busy("skip")
    result = group(proj.tasks.skip.si(key), proj.tasks.add.si(1)).apply_async()
    with pytest.raises(OnceSkipped):
        result.get(timeout=60)
    assert result.results[1].get(timeout=60) == [1]


def test_chain_chord_and_group_members_that_wait_run(proj: OnceClient, key: str, busy: Any) -> None:
    busy("wait")
    chained = chain(proj.tasks.wait.si(key, n=1), proj.tasks.wait.si(key, n=2)).apply_async()
    joined = chord([proj.tasks.wait.si(key, n=n) for n in (3, 4)])(proj.tasks.collect.s("all"))
    grouped = group(proj.tasks.wait.si(key, n=n) for n in (5, 6)).apply_async()
    eventually(lambda: len(proj.waiters(key)) == 5)
    proj.go(key)
    assert chained.get(timeout=60) == 2
    assert sorted(joined.get(timeout=60)[:2]) == [3, 4]
    assert grouped.get(timeout=60) == [5, 6]


def test_a_chord_as_an_entry_delivered_twice_runs_once(proj: OnceClient, any_pool: Crew, key: str) -> None:
    header = [proj.tasks.foreign.si(key), proj.tasks.foreign.si(key)]  # which nobody guards
    raw = proj.sent_by_an_entry(chord(header, proj.tasks.foreign.si(f"{key}-body")))
    proj.inject(raw)
    proj.inject(raw)
    proj.ended(f"{key}-body")
    proj.inject(raw)
    eventually(lambda: "has ended already; this copy is dropped" in any_pool.output)
    the_workers_live(proj, any_pool)
    assert (proj.count(key), proj.count(f"{key}-body")) == (2, 1)


@pytest.fixture
def taken(proj: OnceClient, any_pool: Crew, key: str) -> Any:
    """The key of ``queue_raise`` is held."""
    first = proj.tasks.queue_raise.delay(key, how="until")
    proj.started(key)
    yield first
    proj.go(key)
    first.get(timeout=60)


def the_workers_live(proj: OnceClient, crew: Crew) -> None:
    assert proj.tasks.add.delay(1).get(timeout=60) == [1]
    assert all(worker.alive for worker in crew.workers)
    assert "raised outside body" not in crew.output


def test_a_later_member_of_a_chain_fails_and_the_one_before_it_does_not(
    proj: OnceClient, any_pool: Crew, taken: Any, key: str
) -> None:
    tasks = proj.tasks
    refused = tasks.queue_raise.si(key).set(link_error=tasks.plain.si(key + "-errback"))
    result = chain(tasks.add.si(1), refused, tasks.add.s("tail")).apply_async(
        link_error=tasks.plain.si(key + "-chain-errback")
    )
    with pytest.raises(OnceRejected, match="once-lock"):
        result.get(timeout=60)
    middle, first = result.parent, result.parent.parent
    # Celery stores the result of a task after it has published what follows.
    assert first.get(timeout=60) == [1]
    assert (middle.state, result.state) == ("FAILURE", "FAILURE")
    with pytest.raises(OnceRejected):
        middle.get(timeout=1)
    proj.ended(key + "-errback")
    eventually(lambda: proj.count_ended(key + "-chain-errback") >= 1)
    assert proj.count(key) == 1
    the_workers_live(proj, any_pool)


def test_a_link_that_is_refused_does_not_harm_the_task_it_is_linked_to(
    proj: OnceClient, any_pool: Crew, taken: Any, key: str
) -> None:
    result = proj.tasks.add.apply_async(
        (1,), link=[proj.tasks.queue_raise.si(key), proj.tasks.plain.si(key + "-other")]
    )
    assert result.get(timeout=60) == [1]
    proj.ended(key + "-other")
    assert result.state == "SUCCESS"
    the_workers_live(proj, any_pool)


@pytest.mark.parametrize("kind", ["group", "chord", "body"])
def test_a_refused_member_of_what_follows_fails_alone(
    proj: OnceClient, any_pool: Crew, taken: Any, key: str, kind: str
) -> None:
    tasks = proj.tasks
    refused, other = tasks.queue_raise.si(key), tasks.add.si(2)
    if kind == "group":
        result = chain(tasks.add.si(1), group(refused, other)).apply_async()
        with pytest.raises(OnceRejected):
            result.get(timeout=60)
        assert result.results[1].get(timeout=60) == [2]
        first = result.parent
    elif kind == "chord":
        result = chain(tasks.add.si(1), chord([refused, other], tasks.collect.s(key))).apply_async()
        with pytest.raises((ChordError, OnceRejected), match=r"OnceRejected|once-lock"):
            result.get(timeout=60)
        first = result.parent.parent
    else:
        result = chord([tasks.add.si(1), other])(refused)
        with pytest.raises((ChordError, OnceRejected), match=r"OnceRejected|once-lock"):
            result.get(timeout=60)
        first = result.parent.results[0]
    assert first.get(timeout=60) == [1]
    the_workers_live(proj, any_pool)


def test_a_call_in_a_body_raises_there(proj: OnceClient, any_pool: Crew, taken: Any, key: str) -> None:
    result = proj.tasks.calls.delay(key)
    assert result.get(timeout=60) == "OnceRejected"


def test_a_chord_and_a_chain_whose_member_expires_while_it_waits_end(
    proj: OnceClient, any_pool: Crew, key: str
) -> None:
    tasks = proj.tasks
    first = tasks.wait.delay(key, how="until")
    proj.started(key)
    joined = chord([tasks.wait.si(key), tasks.add.si(1)])(tasks.collect.s(key))
    chained = chain(tasks.wait.si(key), tasks.add.s("tail")).apply_async()
    eventually(lambda: len(proj.waiters(key)) == 2)
    # As time would do.
    proj.client.hset(f"{{t}}:once:parked:once.wait:{key}", mapping={f"d:{one}": 1 for one in proj.waiters(key)})
    proj.go(key)
    assert first.get(timeout=60) == key
    with pytest.raises(OnceSkipped, match="its message has expired, or is so old that the guard may have forgotten it"):
        chained.get(timeout=60)
    with pytest.raises(ChordError, match="OnceSkipped"):
        proj.app.AsyncResult(joined.id).get(timeout=60)
    assert (chained.parent.state, proj.count(key)) == ("REVOKED", 1)
    eventually(lambda: proj.waiters(key) == [])
    the_workers_live(proj, any_pool)


@pytest.mark.parametrize("task", ["skip", "queue_skip"])
def test_what_follows_a_task_of_its_own_key_finds_the_lock_free(
    proj: OnceClient, any_pool: Crew, key: str, task: str
) -> None:
    signature = proj.task(task).si
    chains = [chain(*[signature(f"{key}-{n}")] * 3).apply_async() for n in range(10)]
    chords = [chord([signature(f"{key}-c{n}")], signature(f"{key}-c{n}")).apply_async() for n in range(3)]
    signature(f"{key}-link").apply_async(link=signature(f"{key}-link"))
    eventually(lambda: all(result.ready() for result in (*chains, *chords)))
    assert [result.state for result in (*chains, *chords)] == ["SUCCESS"] * 13
    proj.ended(f"{key}-link", 2)


def test_a_body_that_calls_that_of_its_base_keeps_the_lock_to_its_own_end(
    proj: OnceClient, any_pool: Crew, key: str
) -> None:
    result = proj.tasks.derived.apply_async((key,), link=proj.tasks.add.si(1))
    proj.started(key)
    assert proj.ended(key, 1), "the base's body"
    with pytest.raises(OnceSkipped):
        proj.tasks.plain.apply_async((key + "-other",), once_key=f"once.derived:{key}").get(timeout=60)
    proj.go(key)
    assert result.get(timeout=60) == key

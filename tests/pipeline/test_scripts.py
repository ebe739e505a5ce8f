"""The scripts, each against a real server: recorded once, advanced once, by the right copy alone."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat_lite.pipeline import pipeline_store
from redbeat_lite.pipeline.definition import Definition, Step, encode_params
from redbeat_lite.pipeline.pipeline_keys import index_key
from redbeat_lite.pipeline.pipeline_store import MAX_DEATHS, PipelineStore, Ref
from tests.pipeline.lab import record
from tests.support.server import Server
from tests.support.waiting import eventually

RUN = "run1"


@pytest.fixture
def store(server: Server, monkeypatch: pytest.MonkeyPatch) -> PipelineStore:
    monkeypatch.setattr(pipeline_store, "SUSPICION_MS", 300)
    monkeypatch.setattr(pipeline_store, "OUTBOX_GRACE_MS", 300)
    app = Celery("scripts", broker=server.url, set_as_current=False)
    app.conf.update(redbeat_lite_key_prefix="t", redbeat_lite_once_lease=2)
    return PipelineStore(app)


def definition(*sizes: int, **more: Any) -> Definition:
    stages = tuple(tuple(Step(f"s{k}.{n}", "t", -k) for n in range(size)) for k, size in enumerate(sizes))
    return Definition(stages, more.pop("params", {}), **more)


def begun(store: PipelineStore, step: int, stage: int, token: str = "a", **more: Any) -> Ref:
    ref = Ref(RUN, step, more.pop("round", 0), more.pop("attempt", 0), token)
    word, _ = store.begin(
        ref, f"task{step}", stage=stage, again=more.pop("again", False), worker="w", renew_ms=more.pop("renew_ms", 0)
    )
    assert word == more.pop("word", "run")
    return ref


def state(store: PipelineStore, field: str = "state") -> str | None:
    return store.read(RUN)[0].get(field)


def step_of(store: PipelineStore, step: int, field: str = "state") -> Any:
    return record(store, RUN, step).get(field)


def test_a_run_is_created_once(store: PipelineStore) -> None:
    assert store.start(RUN, definition(2, 1), '{"a":1}') == ("run", [Ref(RUN, 0), Ref(RUN, 1)])
    store.remove_published([Ref(RUN, 0)])
    assert store.start(RUN, definition(1), '{"a":2}') == ("again", [Ref(RUN, 1)])
    assert store.results(RUN, (0,), []) == [b'{"a":1}']


def test_the_last_of_a_stage_advances_it_once(store: PipelineStore) -> None:
    store.start(RUN, definition(2, 3), "{}")
    first, second = begun(store, 0, 0), begun(store, 1, 0)
    assert store.complete(first, "SUCCEEDED", "{}").outbox == []
    done = store.complete(second, "SUCCEEDED", "{}")
    assert (done.word, done.state, done.outbox) == ("done", "RUNNING", [Ref(RUN, 2), Ref(RUN, 3), Ref(RUN, 4)])
    for ref in (first, second):
        again = store.complete(ref, "SUCCEEDED", "{}")
        assert (again.word, again.outbox) == ("again", done.outbox)  # whoever comes again helps to empty it
    assert (state(store, "stage"), state(store, "left")) == ("1", "3")
    store.remove_published(done.outbox)
    assert store.complete(first, "SUCCEEDED", "{}").outbox == []


def test_completions_at_one_time_count_each_step_once(store: PipelineStore) -> None:
    size = 40
    store.start(RUN, definition(size, 1), "{}")
    refs = [begun(store, n, 0) for n in range(size)]
    advanced: list[int] = []

    def complete(mine: list[Ref]) -> None:
        for ref in mine:
            done = store.complete(ref, "SUCCEEDED", "{}")
            if done.word == "done" and done.outbox:
                advanced.append(ref.step)

    threads = [threading.Thread(target=complete, args=(refs[n:] + refs[:n],)) for n in (0, 10, 20, 30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(advanced) == 1
    assert (state(store, "stage"), state(store, "left")) == ("1", "1")


def test_a_step_of_a_later_stage_does_not_begin(store: PipelineStore) -> None:
    store.start(RUN, definition(1, 1), "{}")
    begun(store, 1, 1, word="stale")
    assert step_of(store, 1) is None


def test_another_copy_may_not_complete(store: PipelineStore) -> None:
    store.start(RUN, definition(1, 1), "{}")
    old = begun(store, 0, 0, "old", again=True)
    begun(store, 0, 0, "new", again=True)  # the guard let it run: the first one is dead, or as good as that
    assert store.complete(old, "SUCCEEDED", '{"by":"old"}').word == "stale"
    assert (state(store, "stage"), step_of(store, 0)) == ("0", "RUNNING")


def test_nobody_succeeds_who_has_not_begun(store: PipelineStore) -> None:
    store.start(RUN, definition(1), "{}")
    assert store.complete(Ref(RUN, 0, token="x"), "SUCCEEDED", "{}").word == "stale"
    assert store.complete(Ref(RUN, 0, 0, 1, "x"), "FAILED", "of another attempt").word == "stale"
    assert store.complete(Ref(RUN, 0), "REVOKED", "was revoked").state == "FAILED"


def test_a_failure_ends_the_run_and_names_its_step(store: PipelineStore) -> None:
    store.start(RUN, definition(2, 1, revoke_siblings=True), "{}")
    first, second = begun(store, 0, 0), begun(store, 1, 0)
    done = store.complete(first, "FAILED", "ValueError: x")
    assert (done.state, done.outbox, done.revoke) == ("FAILED", [], ["task1"])
    assert (state(store, "error_step"), state(store, "error")) == ("0", "ValueError: x")
    assert store.check(RUN)[0] == "over"
    assert store.check(RUN)[2]
    store.client.hdel(store.keys(RUN).run, "revoke")
    assert store.check(RUN)[:3] == ("over", [], [])
    # The sibling ends for nothing: recorded, and nothing follows.
    late = store.complete(second, "SUCCEEDED", "{}")
    assert (late.word, late.state, late.outbox) == ("done", "FAILED", [])
    assert step_of(store, 1) == "SUCCEEDED"
    begun(store, 2, 1, word="over")


def test_a_sibling_revoked_after_the_end_is_aborted(store: PipelineStore) -> None:
    store.start(RUN, definition(2), "{}")
    first, second = begun(store, 0, 0), begun(store, 1, 0)
    store.complete(first, "FAILED", "x")
    store.complete(second, "REVOKED", "was revoked")
    assert (step_of(store, 0), step_of(store, 1), state(store, "error_step")) == ("FAILED", "ABORTED", "0")


def test_a_retry_waits_for_its_own_attempt(store: PipelineStore) -> None:
    store.start(RUN, definition(1), "{}")
    ref = begun(store, 0, 0)
    assert store.await_attempt(ref, 1, 500, sent=True)
    assert not store.await_attempt(ref, 1, 500, sent=True)
    begun(store, 0, 0, "late copy", word="stale")
    retry = begun(store, 0, 0, "b", attempt=1)
    assert store.complete(ref, "SUCCEEDED", "{}").word == "stale"
    assert store.complete(retry, "SUCCEEDED", "{}").state == "SUCCEEDED"


def test_what_a_step_told_of_its_progress_goes_with_its_attempt(store: PipelineStore) -> None:
    store.start(RUN, definition(1), "{}")
    ref = begun(store, 0, 0)
    store.progress(ref, 30.0, "reading")
    assert (step_of(store, 0, "percent"), step_of(store, 0, "note")) == (30, "reading")
    store.await_attempt(ref, 1, 0, sent=True)
    begun(store, 0, 0, "b", attempt=1)
    assert (step_of(store, 0, "percent"), step_of(store, 0, "note")) == (None, None)


def test_a_retry_that_was_not_sent_is_published_when_it_is_due(store: PipelineStore, client: redis.Redis) -> None:
    store.start(RUN, definition(2), "{}")
    assert store.await_attempt(begun(store, 0, 0), 1, 0, sent=False)
    assert store.await_attempt(begun(store, 1, 0), 1, 0, sent=True)
    due = [int(step_of(store, step, "due") or 0) for step in (0, 1)]
    assert due[1] - due[0] >= store.resend_ms
    client.hset(store.keys(RUN).run, "filled", 0)  # long ago
    assert store.check(RUN)[1][0] == Ref(RUN, 0, 0, 1)
    store.remove_published([Ref(RUN, 0, 0, 1)])
    assert step_of(store, 0, "tries") == 1


def test_cancel_ends_a_run_once(store: PipelineStore) -> None:
    store.start(RUN, definition(2, 1), "{}")
    ref = begun(store, 0, 0)
    assert (store.cancel(RUN, "left out"), state(store)) == ((0, ["task0"]), "RUNNING"), "it did not wait"
    assert store.cancel(RUN) == (1, ["task0"])
    assert store.cancel(RUN) == (0, ["task0"])
    assert store.cancel("nobody") == (-1, [])
    assert store.complete(ref, "SUCCEEDED", "{}").state == "ABORTED"
    begun(store, 1, 0, word="over")


def test_a_lost_step_is_suspected_first_and_then_gets_another_round(store: PipelineStore) -> None:
    store.start(RUN, definition(1), "{}")
    ref = begun(store, 0, 0, again=True)
    assert store.report(ref) == "suspect"
    assert eventually(lambda: store.report(ref) != "suspect" and step_of(store, 0, "round"), what="a verdict") == 1
    assert store.report(ref) == "stale"
    assert store.complete(ref, "SUCCEEDED", "{}").word == "stale"
    begun(store, 0, 0, "old message", word="stale")
    anew = begun(store, 0, 0, "b", round=1)
    assert store.complete(anew, "SUCCEEDED", "{}").state == "SUCCEEDED"


def test_a_suspicion_that_was_wrong_is_forgotten(store: PipelineStore) -> None:
    store.start(RUN, definition(1), "{}")
    ref = begun(store, 0, 0, again=True)
    assert [each.suspect for each in store.check(RUN)[2]] == [False]
    assert store.report(ref) == "suspect"
    [seen] = store.check(RUN)[2]
    assert seen.suspect
    store.withdraw_report(ref)
    assert [each.suspect for each in store.check(RUN)[2]] == [False]
    assert store.report(ref) == "suspect"
    store.await_attempt(ref, 1, 0, sent=True)
    assert step_of(store, 0, "suspect") is None


def test_a_step_is_not_given_up_before_its_next_sign_of_life_is_due(store: PipelineStore, client: redis.Redis) -> None:
    store.start(RUN, definition(1), "{}")
    ref = begun(store, 0, 0, again=True, renew_ms=20_000)
    assert store.report(ref) == "suspect"
    record(store, RUN, suspect=step_of(store, 0, "suspect") - 15_000)  # that much later
    assert store.report(ref) == "suspect"
    record(store, RUN, suspect=step_of(store, 0, "suspect") - 6_000)
    assert store.report(ref) == "again"


def test_a_lost_step_that_may_not_run_again_is_dead(store: PipelineStore) -> None:
    store.start(RUN, definition(1), "{}")
    ref = begun(store, 0, 0, again=False)
    assert eventually(lambda: (word := store.report(ref)) != "suspect" and word, what="a verdict") == "dead"
    assert store.complete(ref, "FAILED", "its worker is gone").state == "FAILED"


def test_what_kills_its_worker_each_time_is_given_up(store: PipelineStore) -> None:
    store.start(RUN, definition(1), "{}")
    for death in range(MAX_DEATHS + 1):
        begun(store, 0, 0, f"copy{death}", again=True)
    begun(store, 0, 0, "one more", again=True, word="dead")


def test_a_copy_of_what_may_not_run_again_does_not_begin(store: PipelineStore) -> None:
    store.start(RUN, definition(1), "{}")
    first = begun(store, 0, 0, "first")
    second = Ref(RUN, 0, token="second")
    for _ in range(2):  # also where the first answer got lost
        assert store.begin(second, "task0", stage=0, again=False, worker="w", renew_ms=0) == ("lost", b"first")
    begun(store, 0, 0, "first")  # as a reply that got lost is asked for again
    assert store.complete(second, "FAILED", "x").word == "stale"
    assert store.complete(first, "FAILED", "its worker is gone").state == "FAILED"


def test_a_message_that_does_not_begin_is_published_again_less_and_less_often(
    store: PipelineStore, client: redis.Redis
) -> None:
    store.start(RUN, definition(1), "{}")
    store.remove_published([Ref(RUN, 0)])
    first = int(step_of(store, 0, "due") or 0)
    assert store.check(RUN)[1] == []
    client.hset(store.keys(RUN).run, "filled", 0)  # long ago
    record(store, RUN, due=1)
    assert store.check(RUN)[1] == [Ref(RUN, 0)]
    store.remove_published([Ref(RUN, 0)])
    seconds, micros = client.time()
    left = int(step_of(store, 0, "due") or 0) - (seconds * 1000 + micros // 1000)
    assert 2 * store.resend_ms - 500 < left <= 2 * store.resend_ms
    assert first


def test_a_message_is_left_to_whoever_filled_the_outbox_for_a_while(store: PipelineStore) -> None:
    store.start(RUN, definition(1), "{}")
    assert store.check(RUN)[1] == []
    assert eventually(lambda: store.check(RUN)[1], what="the sweeper's turn") == [Ref(RUN, 0)]


def test_no_key_outlives_its_time(store: PipelineStore, client: redis.Redis) -> None:
    store.start(RUN, definition(2, 1, ttl=60.0), encode_params({}))
    store.remove_published([Ref(RUN, 0), Ref(RUN, 1)])
    refs = [begun(store, 0, 0), begun(store, 1, 0)]
    store.complete(refs[0], "SUCCEEDED", "{}")
    store.set_params(RUN, definition(2, 1), 1, "{}")
    keys = set(client.keys("*")) - {index_key("t").encode()}
    assert keys
    assert all(client.ttl(key) > 6 * 86400 for key in keys)
    store.complete(refs[1], "FAILED", "x")
    assert 0 < client.ttl(store.keys(RUN).run) <= 60
    assert 0 < client.ttl(store.keys(RUN).steps) <= 60
    assert 0 < client.ttl(store.keys(RUN).results) <= 60
    assert not client.exists(store.keys(RUN).outbox)
    assert client.ttl(store.keys(RUN).gone) > 60


def test_each_run_is_in_one_hash_slot(store: PipelineStore) -> None:
    keys = store.keys("a-b")
    assert {name.partition("}")[0] for name in (keys.run, keys.steps, keys.results, keys.outbox, keys.gone)} == {
        "{t:a-b"
    }

"""The scripts, each against a real server: recorded once, advanced once, by the right copy alone."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat_lite.pipeline import sweeper
from redbeat_lite.pipeline.definition import Definition, Ref, Step
from redbeat_lite.pipeline.pipeline_keys import index_key
from redbeat_lite.pipeline.pipeline_run import create
from redbeat_lite.pipeline.pipeline_store import PipelineStore
from tests.pipeline.lab import record
from tests.support.server import Server
from tests.support.waiting import eventually

RUN = "run1"


@pytest.fixture
def store(server: Server, monkeypatch: pytest.MonkeyPatch) -> PipelineStore:
    monkeypatch.setattr(sweeper, "SUSPICION_MS", 300)
    app = Celery("scripts", broker=server.url, set_as_current=False)
    app.conf.update(redbeat_lite_key_prefix="t", redbeat_lite_once_lease=2)
    return PipelineStore(app)


def definition(*sizes: int, **more: Any) -> Definition:
    steps = [Step(f"s{stage}.{n}", "t", stage) for stage, size in enumerate(sizes) for n in range(size)]
    return Definition(tuple(steps), more.pop("params", {}), **more)


def start(store: PipelineStore, *sizes: int, **more: Any) -> list[Ref]:
    """Start the run, and return the steps to publish."""
    assert create(store, RUN, definition(*sizes, **more)) == "WAITING"
    state, outbox, running = store.check(RUN, turn="0")
    assert (state, running) == ("RUNNING", [])
    return outbox


def note_published(store: PipelineStore, ref: Ref) -> None:
    store.change(ref, store.resend_ms * 2**ref.tries, tries=ref.tries + 1)


def await_attempt(store: PipelineStore, ref: Ref, attempt: int) -> None:
    store.change(ref, 500, state="WAITING", attempt=attempt)


def cancel(store: PipelineStore, why: str = "", terminate: int = 0, run: str = RUN) -> int:
    return int(store.run("pipeline/cancel", run, why=why, terminate=terminate))


def report(store: PipelineStore, ref: Ref, until_ms: float) -> str:
    word = store.run("pipeline/lost", ref.run, ref, until_ms=until_ms, patience_ms=sweeper.SUSPICION_MS)
    return str(word.decode())


def begun(store: PipelineStore, step: int, token: str = "a", **more: Any) -> Ref:
    ref = Ref(RUN, step, more.pop("round", 0), more.pop("attempt", 0), token)
    word, _ = store.begin(ref, again=more.pop("again", False), worker="w", renew_ms=more.pop("renew_ms", 0))
    assert word == more.pop("word", "run")
    return ref


def state(store: PipelineStore, field: str = "state") -> str | None:
    return store.read(RUN)[0].get(field)


def step_of(store: PipelineStore, step: int, field: str = "state") -> Any:
    return record(store, RUN, step).get(field)


def test_a_run_is_created_once(store: PipelineStore) -> None:
    assert create(store, RUN, definition(2, 1, params={"a": 1})) == "WAITING"
    assert store.check(RUN, turn="0") == ("RUNNING", [Ref(RUN, 0), Ref(RUN, 1)], [])
    note_published(store, Ref(RUN, 0))
    assert create(store, RUN, definition(1, params={"a": 2})) == "RUNNING"
    assert store.check(RUN, turn="0") == ("RUNNING", [Ref(RUN, 1)], []), "who comes again helps to publish"
    store.client.hincrby(store.keys(RUN).run, "since", -20_000)
    assert store.check(RUN, turn="0") == ("RUNNING", [], []), "those that wait behind it do not look at its steps"
    assert store.client.hget(store.keys(RUN).results, "stage:0") == b'{"a":1}'


def test_the_last_of_a_stage_advances_it_once(store: PipelineStore) -> None:
    start(store, 2, 3)
    first, second = begun(store, 0), begun(store, 1)
    assert store.complete(first, "SUCCEEDED", "{}")[0] == "wait"
    outbox = [Ref(RUN, 2), Ref(RUN, 3), Ref(RUN, 4)]
    assert store.complete(second, "SUCCEEDED", "{}") == ("next", outbox)
    for ref in (first, second):
        assert store.complete(ref, "SUCCEEDED", "{}")[0] == "next", "who comes again helps to publish"
    assert (state(store, "stage"), state(store, "left")) == ("1", "3")
    assert store.check(RUN).due == outbox
    for ref in outbox:
        note_published(store, ref)
    assert store.check(RUN).due == []


def test_completions_at_one_time_count_each_step_once(store: PipelineStore) -> None:
    size = 40
    start(store, size, 1)
    refs = [begun(store, n) for n in range(size)]
    advanced: list[int] = []

    def complete(mine: list[Ref]) -> None:
        for ref in mine:
            _, outbox = store.complete(ref, "SUCCEEDED", "{}")
            if outbox:
                advanced.append(ref.step)

    threads = [threading.Thread(target=complete, args=(refs[n:] + refs[:n],)) for n in (0, 10, 20, 30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert (state(store, "stage"), state(store, "left")) == ("1", "1")
    assert len(advanced) == 1


def test_a_step_of_a_later_stage_does_not_begin(store: PipelineStore) -> None:
    start(store, 1, 1)
    begun(store, 1, word="stale")
    assert step_of(store, 1) is None


def test_another_copy_may_not_complete(store: PipelineStore) -> None:
    start(store, 1, 1)
    old = begun(store, 0, "old", again=True)
    begun(store, 0, "new", again=True)  # the guard let it run: the first one is dead, or as good as that
    assert store.complete(old, "SUCCEEDED", '{"by":"old"}')[0] == "stale"
    assert (state(store, "stage"), step_of(store, 0)) == ("0", "RUNNING")


def test_nobody_succeeds_who_has_not_begun(store: PipelineStore) -> None:
    start(store, 1)
    assert store.complete(Ref(RUN, 0, token="x"), "SUCCEEDED", "{}")[0] == "stale"
    assert store.complete(Ref(RUN, 0, 0, 1, "x"), "FAILED", "of another attempt")[0] == "stale"
    assert store.complete(Ref(RUN, 0), "REVOKED", "was revoked")[0] == "next"


def test_a_failure_ends_the_run_and_names_its_step(store: PipelineStore) -> None:
    start(store, 2, 1, revoke_siblings=True)
    first, second = begun(store, 0), begun(store, 1)
    assert store.complete(first, "FAILED", "ValueError: x")[0] == "next"
    assert (state(store, "error_step"), state(store, "error")) == ("0", "ValueError: x")
    assert store.check(RUN) == ("FAILED", [], [second]), "the sibling is to be killed"
    # The sibling ends for nothing: recorded, and nothing follows.
    assert store.complete(second, "SUCCEEDED", "{}")[0] == "over"
    assert store.check(RUN) == ("FAILED", [], [])
    assert step_of(store, 1) == "SUCCEEDED"
    begun(store, 2, word="over")


def test_a_sibling_revoked_after_the_end_is_aborted(store: PipelineStore) -> None:
    start(store, 2)
    first, second = begun(store, 0), begun(store, 1)
    store.complete(first, "FAILED", "x")
    store.complete(second, "REVOKED", "was revoked")
    assert (step_of(store, 0), step_of(store, 1), state(store, "error_step")) == ("FAILED", "ABORTED", "0")


def test_a_retry_waits_for_its_own_attempt(store: PipelineStore) -> None:
    start(store, 1)
    ref = begun(store, 0)
    await_attempt(store, ref, 1)
    await_attempt(store, ref, 2)
    assert step_of(store, 0, "attempt") == 1, "the step does not run any more"
    begun(store, 0, "late copy", word="stale")
    retry = begun(store, 0, "b", attempt=1)
    assert store.complete(ref, "SUCCEEDED", "{}")[0] == "stale"
    assert store.complete(retry, "SUCCEEDED", "{}")[0] == "next"


def test_what_a_step_told_of_its_progress_goes_with_its_attempt(store: PipelineStore) -> None:
    start(store, 1)
    ref = begun(store, 0)
    store.change(ref, percent=30.0, note="reading")
    assert (step_of(store, 0, "percent"), step_of(store, 0, "note")) == (30, "reading")
    await_attempt(store, ref, 1)
    begun(store, 0, "b", attempt=1)
    assert (step_of(store, 0, "percent"), step_of(store, 0, "note")) == (None, None)


def test_a_retry_that_was_not_sent_is_published_when_it_is_due(store: PipelineStore) -> None:
    start(store, 1)
    ref = begun(store, 0)
    store.change(ref, 0, state="WAITING", attempt=1, tries=0)
    assert store.check(RUN).due == [Ref(RUN, 0, 0, 1)]
    note_published(store, Ref(RUN, 0, 0, 1))
    assert store.check(RUN).due == []
    assert step_of(store, 0, "tries") == 1


def test_cancel_ends_a_run_once(store: PipelineStore) -> None:
    start(store, 2, 1)
    ref = begun(store, 0)
    assert (cancel(store, "left out"), state(store)) == (0, "RUNNING"), "it did not wait"
    assert cancel(store) == 1
    assert cancel(store) == 0
    assert store.check(RUN) == ("ABORTED", [], [])
    assert cancel(store, terminate=1) == 0
    assert store.check(RUN) == ("ABORTED", [], [ref]), "what runs is to be killed"
    assert cancel(store, run="nobody") == -1
    assert store.complete(ref, "SUCCEEDED", "{}")[0] == "over"
    begun(store, 1, word="over")


def test_a_lost_step_is_suspected_first_and_then_gets_another_round(store: PipelineStore) -> None:
    start(store, 1)
    ref = begun(store, 0, again=True)
    assert report(store, ref, 0) == "suspect"
    assert eventually(lambda: report(store, ref, 0) != "suspect" and step_of(store, 0, "round"), what="a verdict") == 1
    assert report(store, ref, 0) == "stale"
    assert store.complete(ref, "SUCCEEDED", "{}")[0] == "stale"
    begun(store, 0, "old message", word="stale")
    anew = begun(store, 0, "b", round=1)
    assert store.complete(anew, "SUCCEEDED", "{}")[0] == "next"


def test_a_suspicion_counts_for_nothing_if_the_record_was_renewed_since(store: PipelineStore) -> None:
    start(store, 1)
    ref = begun(store, 0, again=True)
    assert report(store, ref, 1000) == "suspect"
    record(store, RUN, suspect=1)  # long ago
    assert report(store, ref, 2000) == "suspect", "a worker has renewed it, and it has ended again"
    record(store, RUN, suspect=1)
    assert report(store, ref, 2000) == "again"


def test_a_step_is_not_given_up_before_its_next_sign_of_life_is_due(store: PipelineStore, client: redis.Redis) -> None:
    start(store, 1)
    ref = begun(store, 0, again=True, renew_ms=20_000)
    assert report(store, ref, 0) == "suspect"
    record(store, RUN, suspect=step_of(store, 0, "suspect") - 15_000)  # that much later
    assert report(store, ref, 0) == "suspect"
    record(store, RUN, suspect=step_of(store, 0, "suspect") - 6_000)
    assert report(store, ref, 0) == "again"


def test_a_lost_step_that_may_not_run_again_is_dead(store: PipelineStore) -> None:
    start(store, 1)
    ref = begun(store, 0, again=False)
    assert eventually(lambda: (word := report(store, ref, 0)) != "suspect" and word, what="a verdict") == "dead"
    assert store.complete(ref, "FAILED", "its worker is gone")[0] == "next"


def test_what_kills_its_worker_each_time_is_given_up(store: PipelineStore) -> None:
    start(store, 1)
    for death in range(6):
        last = begun(store, 0, f"copy{death}", again=True)
    begun(store, 0, "one more", again=True, word="stale")
    assert store.complete(last, "FAILED", "its worker is gone")[0] == "next"


def test_a_copy_of_what_may_not_run_again_does_not_begin(store: PipelineStore) -> None:
    start(store, 1)
    first = begun(store, 0, "first")
    second = Ref(RUN, 0, token="second")
    for _ in range(2):  # also where the first answer got lost
        assert store.begin(second, again=False, worker="w", renew_ms=0) == ("stale", b"")
    begun(store, 0, "first")  # as a reply that got lost is asked for again
    assert store.complete(second, "FAILED", "x")[0] == "stale"
    assert store.complete(first, "FAILED", "its worker is gone")[0] == "next"


def test_a_message_that_does_not_begin_is_published_again_less_and_less_often(
    store: PipelineStore, client: redis.Redis
) -> None:
    start(store, 1)
    note_published(store, Ref(RUN, 0))
    first = int(step_of(store, 0, "due") or 0)
    assert store.check(RUN).due == []
    record(store, RUN, due=1)
    [ref] = store.check(RUN).due
    assert ref == Ref(RUN, 0, tries=1)
    note_published(store, ref)
    seconds, micros = client.time()
    left = int(step_of(store, 0, "due") or 0) - (seconds * 1000 + micros // 1000)
    assert 2 * store.resend_ms - 500 < left <= 2 * store.resend_ms
    assert first


def test_a_run_whose_steps_are_lost_fails(store: PipelineStore) -> None:
    start(store, 1)
    store.client.delete(store.keys(RUN).steps)
    assert store.check(RUN).state == "FAILED"
    assert state(store, "error") == "the server has lost the records of its steps"


def test_no_key_outlives_its_time(store: PipelineStore, client: redis.Redis) -> None:
    start(store, 2, 1, ttl=60.0)
    note_published(store, Ref(RUN, 0))
    note_published(store, Ref(RUN, 1))
    refs = [begun(store, 0), begun(store, 1)]
    store.complete(refs[0], "SUCCEEDED", "{}")
    keys = set(client.keys("*")) - {index_key("t").encode()}
    assert keys
    assert all(client.ttl(key) > 6 * 86400 for key in keys)
    store.complete(refs[1], "FAILED", "x")
    assert 0 < client.ttl(store.keys(RUN).run) <= 60
    assert 0 < client.ttl(store.keys(RUN).steps) <= 60
    assert 0 < client.ttl(store.keys(RUN).results) <= 60
    assert client.ttl(store.keys(RUN).gone) > 60


def test_each_run_is_in_one_hash_slot(store: PipelineStore) -> None:
    keys = store.keys("a-b")
    assert {name.partition("}")[0] for name in (keys.run, keys.steps, keys.results, keys.gone)} == {"{t:a-b"}

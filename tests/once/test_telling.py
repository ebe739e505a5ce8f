"""What a run tells the record of runs, without a worker: what it costs, and what stands in its way."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import celery
import pytest
from celery import Celery, chain, chord, group
from celery.app.trace import build_tracer
from celery.exceptions import Reject

from redbeat_lite import Once, lock
from redbeat_lite._base.clock import elapsed, wall_ms
from redbeat_lite._base.times import from_ms
from redbeat_lite.entries.message import run_headers
from redbeat_lite.entries.run import EXPECT_HEADER, HISTORY_HEADER, Row
from redbeat_lite.once.claims import DEADLINE_HEADER
from redbeat_lite.once.install import adopt
from redbeat_lite.once.lock_client import LockClient
from redbeat_lite.once.lock_store import OnceKeys
from redbeat_lite.runs.run_store import RunKeys, RunStore
from tests.once.test_task import make_app, one
from tests.support.server import Server
from tests.support.stopwatch import Stopwatch
from tests.support.waiting import eventually

NOW = wall_ms()


@pytest.fixture
def app(once_server: Server) -> Iterator[Celery]:
    with once_server.client(decode_responses=True) as client:
        client.flushall()
    app = make_app(once_server.url)
    yield app
    LockClient.of(app).recorder.close()  # It records nothing in the next test.


def run(app: Celery, body: Callable[[], Any], *, ours: bool, fields: Any = None, **options: Any) -> str:
    """Run one occurrence of the entry "e" as a worker would, and return its id."""
    task_id = name = uuid4().hex
    app.finalize()
    app.task(shared=False, name=name, **({} if ours else {"base": celery.Task}), **options)(body)
    task = app.tasks[name]
    if not ours:
        adopt(task)
    request = {"id": task_id, "delivery_info": {}, "hostname": "w", **run_headers("e", NOW), **(fields or {})}
    build_tracer(name, task, app=app)(task_id, (), {}, request)
    return task_id


def rows(app: Celery) -> list[Row]:
    return RunStore(LockClient.of(app).store.client, "u").rows(["e"], 10)[0]


def outcomes(app: Celery) -> list[str]:
    eventually(lambda: not LockClient.of(app).recorder._fates)
    return [row.outcome for row in rows(app)]


def fail() -> None:
    raise ValueError("as asked")


def reject() -> None:
    raise Reject("as asked")


def requeue() -> None:
    raise Reject("as asked", requeue=True)


@pytest.mark.parametrize("ours", [True, False])
@pytest.mark.parametrize(("body", "outcome"), [(fail, "failed"), (reject, "rejected")])
def test_what_a_body_says_is_recorded(app: Celery, ours: bool, body: Any, outcome: str) -> None:
    task_id = run(app, body, ours=ours)
    assert outcomes(app) == [outcome]
    [row] = rows(app)
    assert (row.task_id, row.duration is None) == (task_id, False)


@pytest.mark.parametrize("ours", [True, False])
def test_a_message_that_goes_back_to_its_queue_has_no_end(app: Celery, ours: bool) -> None:
    task_id, client = run(app, requeue, ours=ours), LockClient.of(app).store.client
    assert outcomes(app) == (["running"] if ours else [])
    assert not client.exists("{u}:runs:feed")
    assert client.hget(OnceKeys("u").guard(task_id), "state") != b"running", "it may run again"


@pytest.mark.parametrize("ours", [True, False])
@pytest.mark.parametrize("acks_late", [False, True])
def test_a_run_that_is_torn_down_is_lost_unless_its_message_comes_again(
    app: Celery, ours: bool, acks_late: bool
) -> None:
    def leave() -> None:
        raise SystemExit

    with pytest.raises(SystemExit):
        run(app, leave, ours=ours, acks_late=acks_late)
    assert ("lost" in outcomes(app)) is not acks_late


def test_the_begin_of_a_run_that_takes_nothing_is_recorded_where_something_is_expected(app: Celery) -> None:
    app.conf.redbeat_lite_history = 0
    seen = []

    def body() -> None:
        seen.extend(eventually(lambda: [(row.outcome, row.duration) for row in rows(app)]))

    run(app, body, ours=False, fields={EXPECT_HEADER: True})
    assert seen == [("running", None)]
    assert outcomes(app) == ["succeeded"]
    run(app, one, ours=False)
    assert outcomes(app) == ["succeeded"]


@pytest.mark.parametrize("ours", [True, False])
def test_an_entry_that_keeps_no_history_has_none(app: Celery, ours: bool) -> None:
    run(app, one, ours=ours, fields={HISTORY_HEADER: 0})
    assert not outcomes(app)


@pytest.mark.parametrize("way", ["alone", "chain", "chord", "group"])
def test_what_goes_on_under_the_id_of_a_run_is_that_run(app: Celery, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    step, sent = app.task(shared=False, name="step")(one), []
    ways = {"alone": step.si(), "chain": chain(step.si(), step.si()), "group": group(step.si(), step.si())}
    signature = ways.get(way) or chord([step.si(), step.si()], step.si())
    monkeypatch.setattr("celery.app.task.Task.on_replace", lambda self, sig: sent.append(sig))

    def body(self: Any) -> None:
        self.replace(signature)

    task_id = run(app, body, ours=True, bind=True)
    [sig] = sent
    told = [each for each in parts(sig) if each["options"].get("headers")]
    assert {each["options"]["task_id"] for each in told} == {task_id}
    assert all(run_headers("e", NOW).items() <= each["options"]["headers"].items() for each in told)


@pytest.mark.parametrize("other", [False, True])
def test_a_run_that_goes_on_as_another_task_has_not_ended(
    app: Celery, monkeypatch: pytest.MonkeyPatch, other: bool
) -> None:
    step, client = app.task(shared=False, name="step")(one), LockClient.of(app).store.client
    deadline = f"finish|{NOW}|e"
    client.zadd(RunKeys("u").deadlines, {deadline: NOW + 3_600_000})
    monkeypatch.setattr("celery.canvas.Signature.delay", lambda self: None)

    def body(self: Any) -> None:
        self.replace(step.si() if other else self.si())

    run(app, body, ours=True, bind=True, fields={EXPECT_HEADER: True})
    assert outcomes(app) == ["running"]
    assert not client.exists(RunKeys("u").feed)
    assert client.zscore(RunKeys("u").deadlines, deadline), "what goes on can take too long"


def parts(signature: Any) -> Iterator[Any]:
    """A signature, and all that it is made of."""
    yield signature
    within = signature["kwargs"].get("tasks", ()), signature["kwargs"].get("body"), signature["options"].get("chord")
    for part in [*within[0], *filter(None, within[1:])]:
        yield from parts(part)


def test_a_run_whose_key_is_taken_is_left_out_or_has_failed(app: Celery) -> None:
    with lock(app, "k"):
        run(app, one, ours=True, once=Once(key="k"))
        assert outcomes(app) == ["left out"]
        run(app, one, ours=True, once=Once(key="k", on_conflict="raise"))
    assert sorted(outcomes(app)) == ["failed", "left out"]


def test_a_run_whose_lock_has_no_key_has_failed(app: Celery) -> None:
    def key() -> str:
        raise ValueError("no key")

    run(app, one, ours=True, once=Once(key=key))
    assert outcomes(app) == ["failed"]


@pytest.mark.parametrize("acks_late", [False, True])
def test_a_run_that_gets_no_lock_of_a_server_that_is_away_has_failed_unless_it_comes_again_a_second_later(
    app: Celery, monkeypatch: pytest.MonkeyPatch, acks_late: bool
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise ConnectionError("as asked")

    monkeypatch.setattr("redbeat_lite.once.lock_client.PATIENCE", 0)
    monkeypatch.setattr(LockClient.of(app).store, "begin", broken)
    began = elapsed()
    run(app, one, ours=True, once=Once(key="k"), acks_late=acks_late)
    assert not acks_late or elapsed() - began >= 1, "the broker delivers the message again at once"
    assert outcomes(app) == ([] if acks_late else ["failed"])


def test_a_retry_at_an_instant_that_is_a_text_keeps_its_lock(app: Celery) -> None:
    def body(self: Any) -> None:
        self.retry(eta=from_ms(wall_ms() + 60_000).isoformat())

    task_id = run(app, body, ours=True, once=Once(key="k"), bind=True)
    assert outcomes(app) == ["retrying"]
    assert LockClient.of(app).store.client.hget("{u}:once:lock:k", "state") == b"queued"
    assert LockClient.of(app).store.records([task_id])[task_id].state == "done"


def test_a_message_that_is_too_old_to_run_has_expired(app: Celery) -> None:
    run(app, one, ours=True, fields={DEADLINE_HEADER: 1})
    assert outcomes(app) == ["expired"]


@pytest.mark.parametrize("broken", [("{u}:runs:of:e", "{u}:runs:feed"), ("{u}:runs:feed",)])
def test_what_lies_in_the_place_of_the_record_stops_no_run_and_is_told(
    app: Celery, broken: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    client, ran = LockClient.of(app).store.client, []

    def body() -> None:
        ran.append(1)

    for key in broken:
        client.set(key, "x")
    for _ in range(2):
        run(app, body, ours=True, once=Once(key="k"))
    assert len(ran) == 2
    assert client.exists("{u}:once:lock:k") == 0
    if len(broken) == 1:
        assert outcomes(app) == ["succeeded"] * 2
    eventually(lambda: [each for each in caplog.messages if "ends of runs" in each and "WRONGTYPE" in each])


def test_a_server_that_is_away_delays_no_run(caplog: pytest.LogCaptureFixture) -> None:
    away, ran = make_app("redis://127.0.0.1:1/0"), []

    def body() -> None:
        ran.append(1)

    caplog.set_level(logging.INFO)
    with Stopwatch() as watch:
        for _ in range(20):
            run(away, body, ours=False)
    watch.at_most(0.5)
    assert len(ran) == 20
    lines = eventually(lambda: [each.getMessage() for each in caplog.records if "ends of runs" in each.getMessage()])
    assert len(lines) == 1
    LockClient.of(away).recorder._fates.clear()  # of which its thread would tell the tests that follow


def test_the_end_of_a_run_that_could_not_be_told_is_told_later(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = LockClient.of(app)

    def broken(*_: Any, **__: Any) -> Any:
        raise ConnectionError("as asked")

    def body() -> None:
        monkeypatch.setattr("redbeat_lite.once.lock_client.PATIENCE", 0)
        monkeypatch.setattr(runtime.store, "end", broken)

    run(app, body, ours=True)
    assert outcomes(app) == ["succeeded"]

"""Whoever publishes a stage, its messages are those that its tasks' own code base would have published."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from kombu import Queue

from redbeat_lite import Once, Pipeline, PipelineTask, install
from redbeat_lite.once.claims import ONCE_HEADER
from redbeat_lite.pipeline.definition import Ref
from redbeat_lite.pipeline.pipeline_store import store_of
from redbeat_lite.pipeline.sweeper import dispatch
from tests.pipeline.lab import Lab

#: What differs from one message to the next of the same task.
OF_ITS_OWN = {"reply_to", "correlation_id", "delivery_tag", "origin", "redbeat_deadline"}


@pytest.fixture
def stranger(lab: Lab) -> Iterator[Celery]:
    """Another code base on the same server: it has none of the tasks, and other routes."""
    app = Celery("stranger", broker=lab.server.url, backend=lab.server.url, set_as_current=False)
    app.conf.task_default_queue = "elsewhere"
    install(app)
    yield app
    app.close()


@pytest.fixture
def owner(lab: Lab, queue: str) -> Iterator[Celery]:
    """The code base of the tasks."""
    app = Celery("owner", broker=lab.server.url, backend=lab.server.url, set_as_current=False)
    app.conf.update(task_default_queue=queue, task_routes={"own.routed": {"queue": f"{queue}.routed", "priority": 2}})
    install(app)
    options: dict[str, Any] = {"base": PipelineTask, "shared": False}

    def body(params: dict[str, Any], region: str = "eu") -> None: ...

    app.task(name="own.plain", **options)(body)
    app.task(name="own.routed", **options)(body)
    app.task(name="own.big", queue=f"{queue}.big", priority=7, time_limit=50, guard_life=900.0, ignore_result=True,
             **options)(body)  # fmt: skip
    app.task(name="own.queued", once=Once(key="in {region}", scope="queue", lease=5), **options)(body)
    app.task(name="own.called", once=Once(key=lambda params, region="eu": region, scope="queue"), **options)(body)
    yield app
    app.close()


def published(lab: Lab, app: Celery, outbox: list[Ref], queues: str) -> list[tuple[str, Any, Any, Any]]:
    """What this app publishes for an outbox: queue, headers, properties and body of each message."""
    dispatch(store_of(app), outbox)
    found = []
    for name in sorted(lab.client.scan_iter(f"{queues}*")):
        for text in lab.client.lrange(name, 0, -1):
            message = json.loads(text)
            headers = {key: value for key, value in message["headers"].items() if key not in OF_ITS_OWN}
            properties = {key: value for key, value in message["properties"].items() if key not in OF_ITS_OWN}
            found.append((name, headers, properties, message["body"]))
        lab.client.delete(name)
    return found


@pytest.mark.parametrize(
    ("task", "call", "options"),
    [
        ("own.plain", {}, {}),
        ("own.routed", {}, {}),
        ("own.big", {}, {"priority": 3}),
    ],
)
def test_a_stage_published_by_another_code_base_is_the_same(
    lab: Lab, owner: Celery, stranger: Celery, queue: str, task: str, call: dict[str, Any], options: dict[str, Any]
) -> None:
    run = Pipeline(owner, [("a", owner.tasks[task].s(**call).set(**options), 1)]).start()
    outbox = [Ref(run.id, 0)]
    own = published(lab, owner, outbox, queue)[-1:]
    assert own
    assert published(lab, stranger, outbox, queue) == own
    run.cancel()
    lab.client.delete("{redbeat-lite}:once:lock:own.queued:in eu")


def test_a_publisher_that_may_make_no_queues_reaches_those_of_others(
    lab: Lab, owner: Celery, stranger: Celery, queue: str
) -> None:
    # Celery 5.5 publishes nothing at all where the default queue is not one of them.
    stranger.conf.update(task_create_missing_queues=False, task_queues=[Queue("its own")], task_default_queue="its own")
    run = Pipeline(owner, [("big", owner.tasks["own.big"].s(), 1), ("plain", owner.tasks["own.plain"].s(), 1)]).start()
    outbox = [Ref(run.id, 0), Ref(run.id, 1)]
    published(lab, owner, [], queue)  # takes away what start() has published
    own = published(lab, owner, outbox, queue)
    assert [name.partition("\x06")[0] for name, *_ in own] == [queue, f"{queue}.big"]
    assert published(lab, stranger, outbox, queue) == own
    run.cancel()


@pytest.mark.parametrize("task", ["own.called", "own.queued"])
def test_a_lock_that_only_the_task_can_name_is_left_to_the_worker(
    lab: Lab, owner: Celery, stranger: Celery, queue: str, task: str
) -> None:
    run = Pipeline(owner, [("a", owner.tasks[task].s(region=queue).set(on_conflict="wait"), 1)]).start()
    lab.client.delete(queue)
    [(_, headers, _, _)] = published(lab, stranger, [Ref(run.id, 0)], queue)
    assert ONCE_HEADER not in headers
    run.cancel()

"""A stage is published by a process that does not know its tasks, by the routes of its own app."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery

from redbeat_lite import Once, Pipeline, PipelineTask, install
from redbeat_lite.once.claims import ONCE_HEADER
from redbeat_lite.pipeline.pipeline_store import Ref, store_of
from redbeat_lite.pipeline.publish import dispatch
from tests.pipeline.lab import Lab

#: What differs from one message to the next of the same task.
OF_ITS_OWN = {"reply_to", "correlation_id", "delivery_tag", "origin", "redbeat_deadline", "ignore_result"}


@pytest.fixture
def stranger(lab: Lab, owner: Celery) -> Iterator[Celery]:
    """Another code base on the same server: it has the same routes, and none of the tasks."""
    app = Celery("stranger", broker=lab.server.url, backend=lab.server.url, set_as_current=False)
    app.conf.update(task_default_queue=owner.conf.task_default_queue, task_routes=owner.conf.task_routes)
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


@pytest.mark.parametrize("task", ["own.plain", "own.routed"])
def test_a_stage_published_by_another_code_base_is_the_same(
    lab: Lab, owner: Celery, stranger: Celery, queue: str, task: str
) -> None:
    run = Pipeline(owner, [("a", owner.tasks[task].s().set(priority=3), 1)]).start()
    outbox = [Ref(run.id, 0)]
    own = published(lab, owner, outbox, queue)[-1:]
    assert own
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

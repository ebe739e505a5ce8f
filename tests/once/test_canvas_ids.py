"""What the canvas of an entry publishes: the same ids each time its message is delivered, whatever its shape."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import celery.canvas
import pytest
import redis
from celery import Celery, chain, chord, group, signature
from celery._state import _task_stack
from kombu.exceptions import OperationalError

from redbeat_lite import install
from redbeat_lite._base.json_values import pack, unpack
from redbeat_lite.entries.canvas import CANVAS
from redbeat_lite.once.task import Task

Make = Callable[[], Any]


def a(name: str = "a") -> Any:
    return signature(name, (name,), immutable=True)


def b() -> Any:
    return a("b")


SHAPES: dict[str, Make] = {
    "chain": lambda: chain(a(), b(), a()),
    "chain of one": lambda: chain(a()),
    "group": lambda: group(a(), b(), a()),
    "group of a generator": lambda: group(a() for _ in range(3)),
    "chord": lambda: chord([a(), b()], a()),
    "group, and then a task": lambda: chain(group(a(), b()), a()),
    "group at the end": lambda: chain(a(), group(b(), b())),
    "two groups in a chain": lambda: chain(group(a(), b()), group(b(), b()), a()),
    "chords in a group": lambda: group(chord([a(), b()], a()), chord([b(), b()], a()), group(a(), b())),
    "chords in a chord": lambda: chord([chord([a(), b()], a()), chain(a(), b())], chain(a(), group(a(), b()))),
    "a chord in a chain in a group": lambda: group(chain(group(a(), b()), a(), b()), a()),
}


def nothing(*_: Any) -> None: ...


@pytest.fixture
def app(make_app: Any) -> Celery:
    """An app that knows these tasks, and applies canvases."""
    app: Celery = make_app()
    app.conf.result_backend = app.conf.broker_url
    for name in "ab":
        app.task(name=name, shared=False)(nothing)
    install(app)
    app.finalize()
    # A result that is collected once the server is gone would try for twenty seconds to unsubscribe from it.
    app.backend.remove_pending_result = lambda result: result
    return app


def applied(app: Celery, client: redis.Redis, canvas: Any, task_id: str) -> list[Any]:
    """What it publishes as the task of this id."""
    task = app.tasks[CANVAS]
    task.push_request(id=task_id, root_id=task_id, called_directly=False)
    _task_stack.push(task)
    try:
        task.run(json.loads(json.dumps(unpack(pack(canvas, "task")))))
    finally:
        _task_stack.pop()
        task.pop_request()
    published = []
    while raw := client.rpop("celery"):
        message: Any = json.loads(raw)
        headers, body = message["headers"], json.loads(base64.b64decode(message["body"]))
        published.append(without({**headers, "body": body}, "origin", "reply_to", "redbeat_deadline"))
    return published


def without(value: Any, *names: str) -> Any:
    if isinstance(value, dict):
        return {key: without(each, *names) for key, each in value.items() if key not in names}
    return [without(each, *names) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("shape", SHAPES)
def test_a_second_delivery_publishes_the_same_ids(app: Celery, client: redis.Redis, shape: str) -> None:
    first, second, other = (applied(app, client, SHAPES[shape](), task_id) for task_id in ("x", "x", "y"))
    assert first
    assert first == second
    assert not {each["id"] for each in first} & {each["id"] for each in other}
    assert {each["root_id"] for each in first} == {"x"}
    assert len({each["id"] for each in first}) == len(first)


def test_what_others_apply_meanwhile_has_ids_of_its_own(app: Celery, client: redis.Redis) -> None:
    elsewhere: list[str] = []

    def publishes(**_: Any) -> None:
        with ThreadPoolExecutor(1) as thread:
            elsewhere.extend(thread.submit(celery.canvas.uuid).result() for _ in range(2))

    celery.signals.before_task_publish.connect(publishes)
    try:
        once, again = (applied(app, client, group(a(), b()), "x") for _ in range(2))
    finally:
        celery.signals.before_task_publish.disconnect(publishes)
    assert once == again
    assert len({*elsewhere}) == len(elsewhere) == 8
    assert celery.canvas.uuid() != celery.canvas.uuid()


def test_it_is_tried_again_where_the_broker_is_away_and_never_lost(app: Celery) -> None:
    task = app.tasks[CANVAS]
    assert isinstance(task, Task)
    assert OperationalError in task.autoretry_for
    assert (task.acks_late, task.reject_on_worker_lost, task.max_retries) == (True, True, None)

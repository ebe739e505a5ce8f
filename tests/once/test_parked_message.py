"""Where a parked message is put when its turn has come."""

from __future__ import annotations

import json
import socket
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from kombu import Queue
from kombu.exceptions import OperationalError

from redbeat_lite._base.celery_app import short_publish_timeout
from redbeat_lite.once import parked_message
from tests.support.kombus import needs_batches
from tests.support.server import Server


@pytest.fixture
def app(once_server: Server) -> Celery:
    """An app on an empty server, with a queue that has priorities, and one that goes when nobody uses it."""
    app = Celery("unit", broker=once_server.url, set_as_current=False)
    app.conf.task_queues = [Queue("q"), Queue("short", expires=60)]
    app.conf.broker_transport_options = {"priority_steps": [0, 5]}
    with once_server.client(decode_responses=True) as client:
        client.flushall()
    return app


def message(task_id: str, queue: str = "q", **properties: Any) -> str:
    """What lies in Redis of a task that waits."""
    request = SimpleNamespace(
        id=task_id, task="t", args=(), kwargs={}, properties=properties, delivery_info={"routing_key": queue}
    )
    return parked_message.encode(request)


def waiting(server: Server, name: str) -> list[str]:
    """The ids of the messages of a list, in the order in which workers take them."""
    with server.client(decode_responses=True) as client:
        return [json.loads(raw)["headers"]["id"] for raw in reversed(client.lrange(name, 0, -1))]


def test_it_is_the_next_to_be_taken(app: Celery, once_server: Server) -> None:
    for n in range(3):
        app.send_task("t", task_id=f"new-{n}", queue="q")
    assert parked_message.publish(app, message("old"))["id"] == "old"
    app.send_task("t", task_id="newer", queue="q")
    assert waiting(once_server, "q") == ["old", "new-0", "new-1", "new-2", "newer"]


def test_it_keeps_its_priority(app: Celery, once_server: Server) -> None:
    app.send_task("t", task_id="new", queue="q", priority=5)
    parked_message.publish(app, message("old", priority=5))
    parked_message.publish(app, message("of all", priority=0))
    assert waiting(once_server, "q\x06\x165") == ["old", "new"]
    assert waiting(once_server, "q") == ["of all"]


@needs_batches
def test_a_queue_that_goes_by_itself_still_does(app: Celery, once_server: Server) -> None:
    app.send_task("t", task_id="new", queue="short")
    with once_server.client(decode_responses=True) as client:
        client.delete("short")
        parked_message.publish(app, message("old", "short"))
        assert 0 < client.pttl("short") <= 60_000


@pytest.mark.parametrize("scheme", ["redis", "amqp"])
def test_who_cannot_wait_gives_up_a_broker_that_hangs(scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:  # takes connections, and answers nothing
        app = Celery("unit", broker=f"{scheme}://127.0.0.1:{listening.getsockname()[1]}", set_as_current=False)
        with pytest.raises(OperationalError), short_publish_timeout(app, 0.1):
            parked_message.publish(app, message("old"))

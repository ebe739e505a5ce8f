"""What a worker leaves behind in a process that outlives it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest
from celery import Celery
from celery.contrib.testing.worker import start_worker

from redbeat_lite import Once, Task, install
from redbeat_lite.once.lock_store import LockStore
from tests.support.server import Server
from tests.support.waiting import eventually

#: Seconds that a lock lives unless somebody keeps it.
LEASE = 1.0


def ours() -> list[str]:
    """The threads of ours that run for a worker."""
    names = ("redbeat-lite-visibility", "redbeat-lite-lock-sweeper", "redbeat-lite-children")
    return [thread.name for thread in threading.enumerate() if thread.name in names]


@pytest.fixture
def logging_as_before() -> Iterator[None]:
    """A worker sets up the logging of its process, and leaves it so."""
    root = logging.getLogger()
    level, handlers = root.level, [*root.handlers]
    yield
    root.setLevel(level)
    root.handlers[:] = handlers


@pytest.mark.usefixtures("logging_as_before")
def test_a_stopped_worker_leaves_no_thread_and_keeps_no_lock(once_server: Server, store: LockStore) -> None:
    app = Celery("unit", broker=once_server.url, backend="cache+memory://", task_cls=Task, set_as_current=False)
    app.conf.update(redbeat_lite_key_prefix="t", worker_hijack_root_logger=False)
    install(app)

    @app.task(shared=False, name="one", once=Once(key="k", scope="queue", lease=LEASE))
    def one() -> int:
        return 1

    before = ours()
    for _ in range(3):
        with start_worker(app, perform_ping_check=False):
            eventually(lambda: len(ours()) == len(before) + 3, what="the threads of the worker")
            assert one.delay().get(timeout=60) == 1
        eventually(lambda: ours() == before, what="the end of the threads")
    # Nobody runs it, and nobody keeps its lock.
    one.delay()
    name = store.keys.lock("k")
    assert store.client.exists(name)
    eventually(lambda: not store.client.exists(name), what="the end of the lease")

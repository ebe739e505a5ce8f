"""A message that goes to every worker, and tasks that have a once-lock all the same."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness.workers import Worker
from tests.once.client import OnceClient
from tests.once.pools import once_worker
from tests.support.server import Server
from tests.support.waiting import eventually

pytestmark = [pytest.mark.timeout(60)]


@pytest.fixture
def listeners(proj: OnceClient, worker_server: Server) -> Iterator[list[Worker]]:
    """Two workers that hear what is broadcast."""
    # A connection over which the exchange was not declared takes it for a direct one.
    with proj.app.producer_or_acquire() as producer:
        proj.app.amqp.queues["everybody"].exchange(producer.channel).declare()
    workers = [once_worker(worker_server.url, "solo", name=f"ear{n}", queues="everybody") for n in range(2)]

    def both_hear() -> bool:
        # They say that they are ready before they have subscribed.
        proj.tasks.plain.apply_async(("hear",), queue="everybody")
        return all("] received" in worker.output for worker in workers)

    eventually(both_hear)
    yield workers
    for worker in workers:
        worker.destroy()


def test_a_broadcast_runs_in_each_worker(proj: OnceClient, key: str, listeners: list[Worker]) -> None:
    proj.tasks.plain.apply_async((key,), queue="everybody")
    assert len({entry["pid"] for entry in proj.ended(key, 2)}) == 2


def test_a_broadcast_with_a_lock_runs_in_one(proj: OnceClient, key: str, listeners: list[Worker]) -> None:
    result = proj.tasks.skip.apply_async((key,), {"how": "until"}, queue="everybody")
    proj.started(key)
    eventually(lambda: any("this copy is kept" in each.output for each in listeners))
    proj.go(key)
    assert result.get(timeout=60) == key
    assert proj.count(key) == 1

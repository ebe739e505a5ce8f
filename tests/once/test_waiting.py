"""Waiters beside a backlog of others: only what workers have fetched comes before the one whose turn it is."""

from __future__ import annotations

from typing import Any

import pytest

from tests.once.client import OnceClient
from tests.once.pools import Stage
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(120)

SLOTS, WAITERS = 2, 4


@pytest.mark.parametrize(
    ("prefetch", "priority", "size"),
    [
        (8, 6, 240),
        *(pytest.param(*each, 400, marks=pytest.mark.soak) for each in ((1, 0), (1, 6), (16, 0), (16, 6))),
    ],
)
def test_only_what_is_prefetched_comes_before_a_waiter(
    stages: Any, proj: OnceClient, prefetch: int, priority: int, size: int
) -> None:
    """In a worker of two queues, both of them full."""

    def play(stage: Stage) -> None:
        queues, backlog = [stage.queue, f"{stage.queue}-other"], f"{stage.key}-backlog"
        conf = {"worker_prefetch_multiplier": prefetch}
        stage.worker(concurrency=SLOTS, queues=",".join(queues), conf=conf)
        stage.send("wait", how="until")
        proj.started(stage.key)
        waiting = [stage.send("wait", n=n, options={"priority": priority}) for n in range(WAITERS)]
        eventually(lambda: len(proj.waiters(stage.key)) == WAITERS)
        for n in range(size):
            proj.tasks.plain.apply_async((backlog, 0.02), queue=queues[n % 2], priority=priority)
        proj.go(stage.key)
        eventually(lambda: all(result.ready() for result in waiting))
        assert [result.get() for result in waiting] == list(range(WAITERS))
        freed, last = proj.ended(stage.key)[0]["ended"], proj.started(stage.key)[-1]["began"]
        before = sum(freed < body["began"] < last for body in proj.bodies(backlog))
        # Twice what a worker holds and takes from its other queue, and what both slots do in half a second, for between
        # the end of one and the message of the next there is a moment. At the other end all of them were before it.
        assert before <= 2 * WAITERS * (SLOTS * prefetch + 2) + 50 < 0.85 * size
        for name in proj.client.keys(f"{stage.queue}*"):
            proj.client.delete(name)

    stages(["prefork"], play)

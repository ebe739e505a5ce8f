"""Workers of the project of once-locks, in every pool of Celery's."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any
from uuid import uuid4

import pytest

from tests.harness.workers import Worker
from tests.once.client import OnceClient
from tests.support.waiting import eventually

#: Pools in which another thread or process can renew a lock while the body runs.
BOTH = ("prefork", "threads")

#: All pools.
ALL = ("prefork", "threads", "solo", "gevent")


def once_worker(
    url: str,
    pool: str = "prefork",
    *,
    queues: str = "once",
    conf: dict[str, Any] | None = None,
    **options: Any,
) -> Worker:
    """Start a worker of the project of once-locks; the options are those of `Worker`."""
    env = {"ONCE_URL": url, "ONCE_CONF": json.dumps(conf or {})}
    return Worker("tests.once.tasks", pool=pool, queues=queues, **options, **env)


class Crew:
    """The workers of one pool that scenarios share. Together they run four tasks at a time."""

    def __init__(self, url: str, pool: str) -> None:
        self.pool = pool
        # A solo worker runs one task at a time. In the other pools, one worker is enough, and starts in half the time.
        concurrency = 1 if pool == "solo" else 4
        self.workers = [
            once_worker(url, pool, name=f"{pool}{n}", concurrency=concurrency, ready=False)
            for n in range(4 // concurrency)
        ]
        for worker in self.workers:
            worker.ready()
        self._children = [len(worker.children()) for worker in self.workers]

    def whole(self) -> Crew:
        """Wait until each worker has replaced its children that were killed.

        Celery may lose a task that it hands to a dead child before it has noticed.
        """
        eventually(self._is_whole, what="all children of the workers")
        return self

    def _is_whole(self) -> bool:
        numbers = [len(worker.children()) for worker in self.workers]
        return all(number >= full for number, full in zip(numbers, self._children, strict=True))

    @property
    def output(self) -> str:
        return "".join(worker.output for worker in self.workers)

    def destroy(self) -> None:
        for worker in self.workers:
            worker.destroy()


# -- one fault in several pools --------------------------------------------------------------------


class Stage:
    """One pool's part of a fault, with a queue, a key and workers of its own."""

    def __init__(self, proj: OnceClient, pool: str, stack: ExitStack) -> None:
        self.proj = proj
        self.pool = pool
        self._stack = stack
        #: The key of its tasks.
        self.key = f"{pool}-{uuid4().hex[:8]}"
        #: The name of its queue, which is the same.
        self.queue = self.key

    def worker(self, **options: Any) -> Worker:
        """Start a worker that ends with the test; the options are those of `once_worker`."""
        concurrency = 1 if self.pool == "solo" else 2
        options = {"concurrency": concurrency, "queues": self.queue, **options}
        worker = once_worker(self.proj.server.url, self.pool, **options)
        self._stack.callback(worker.destroy)
        return worker

    def send(self, task: str, *, options: Any = None, **kwargs: Any) -> Any:
        """Send a task with this stage's key to its queue."""
        signature = self.proj.task(task)
        return signature.apply_async((self.key,), kwargs, queue=self.queue, **(options or {}))

    def starts(self) -> int:
        return self.proj.count(self.key)

    def ends(self) -> int:
        return self.proj.count_ended(self.key)


Play = Callable[[Iterable[str], Callable[[Stage], None]], None]


def in_pools(*first: str, others: Iterable[str] = ALL) -> pytest.MarkDecorator:
    """Play a fault in the pools that matter most for it; in the others only by ``make soak``."""
    rest = [pool for pool in others if pool not in first]
    soak = pytest.param(rest, id="-".join(rest), marks=pytest.mark.soak)
    return pytest.mark.parametrize("pools", [pytest.param(first, id="-".join(first)), soak])


@contextmanager
def stages_of(proj: OnceClient) -> Iterator[Play]:
    """Yield a function that plays a fault in several pools at once. A fault is mostly waiting."""
    with ExitStack() as stack:

        def play(pools: Iterable[str], fault: Callable[[Stage], None]) -> None:
            stages = [Stage(proj, pool, stack) for pool in pools]
            with ThreadPoolExecutor(len(stages)) as threads:
                plays = {stage.pool: threads.submit(fault, stage) for stage in stages}
            errors = {pool: play.exception() for pool, play in plays.items()}
            failed = [RuntimeError(f"{pool}: {error!r}") for pool, error in errors.items() if error]
            if failed:
                raise ExceptionGroup("in some pools", failed)

        yield play

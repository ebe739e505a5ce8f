"""One fault in several pools at once, each with workers and a queue of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any
from uuid import uuid4

import pytest

from tests.once.workers import Proj, Worker

BOTH = ("prefork", "threads")
ALL = ("prefork", "threads", "solo", "gevent")


def in_pools(*first: str, others: Iterable[str] = ALL) -> pytest.MarkDecorator:
    """A fault in the ``pools`` that tell most about it; `make soak` plays it in the others."""
    rest = [pool for pool in others if pool not in first]
    return pytest.mark.parametrize(
        "pools",
        [pytest.param(first, id="-".join(first)), pytest.param(rest, id="-".join(rest), marks=pytest.mark.soak)],
    )


class Stage:
    """One pool's part of a fault: its queue, its key and its workers."""

    def __init__(self, proj: Proj, pool: str, stack: ExitStack) -> None:
        self.proj, self.pool, self._stack = proj, pool, stack
        self.queue = self.key = f"{pool}-{uuid4().hex[:8]}"

    def worker(self, **options: Any) -> Worker:
        options = {"concurrency": 1 if self.pool == "solo" else 2, "queues": self.queue, **options}
        worker = Worker(self.proj.server, self.pool, **options)
        self._stack.callback(worker.close)
        return worker

    def send(self, task: str, *, options: Any = None, **kwargs: Any) -> Any:
        return getattr(self.proj.tasks, task).apply_async((self.key,), kwargs, queue=self.queue, **(options or {}))

    def starts(self) -> int:
        return self.proj.count(self.key)

    def ends(self) -> int:
        return self.proj.count(self.key, "end")


@pytest.fixture
def stages(proj: Proj) -> Iterator[Callable[[Iterable[str], Callable[[Stage], None]], None]]:
    """Play one fault in several pools at once."""
    with ExitStack() as stack:

        def play(pools: Iterable[str], fault: Callable[[Stage], None]) -> None:
            parts = [Stage(proj, pool, stack) for pool in pools]
            with ThreadPoolExecutor(len(parts)) as threads:
                done = {part.pool: threads.submit(fault, part) for part in parts}
            failed = [RuntimeError(f"{pool}: {part.exception()!r}") for pool, part in done.items() if part.exception()]
            if failed:
                raise ExceptionGroup("in some pools", failed)

        yield play

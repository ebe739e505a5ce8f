"""Fixtures of the once-lock tests: a real server, and the lock store on it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from redbeat_lite.once.store import LockStore
from tests.once.server import Server
from tests.once.stages import ALL, stages
from tests.once.workers import Proj, Worker, until
from tests.support.process_table import descendants

__all__ = ["stages"]

#: What is decided before a body is run or after it has ended is the same in every pool; `make soak` sees to the others.
one_pool_will_do = pytest.mark.parametrize(
    "crew_of_any_pool", [ALL[0], *(pytest.param(pool, marks=pytest.mark.soak) for pool in ALL[1:])], indirect=True
)


@pytest.fixture(scope="session")
def once_server() -> Iterator[Server]:
    """One server for the session; tests keep apart by flushing it."""
    server = Server()
    yield server
    server.close()


@pytest.fixture
def store(once_server: Server) -> Iterator[LockStore]:
    """The lock store on an empty server."""
    with once_server.client() as client:
        client.flushall()
        yield LockStore(client, "t")


@pytest.fixture(scope="session")
def worker_server() -> Iterator[Server]:
    """A server of their own for the workers; it keeps its data when a test restarts it."""
    server = Server("--appendonly", "yes", "--appendfsync", "always")
    yield server
    server.close()


@pytest.fixture(scope="session")
def proj(worker_server: Server) -> Iterator[Proj]:
    """The client's side of the workers' app."""
    proj = Proj(worker_server)
    yield proj
    # A result that is collected once the server is gone would try for twenty seconds to unsubscribe from it.
    proj.app.backend.remove_pending_result = lambda result: result


class Crew:
    """The workers of one pool that scenarios share; together they run four tasks at a time."""

    def __init__(self, server: Server, pool: str) -> None:
        self.pool = pool
        # A solo worker runs one task; four of them do as the four slots of the others.
        self.workers = [
            Worker(server, pool, concurrency=1 if pool == "solo" else 2, name=f"{pool}{n}", ready=False)
            for n in range(4 if pool == "solo" else 2)
        ]
        for worker in self.workers:
            worker.ready()
        self._children = [len(descendants(worker.process.pid)) for worker in self.workers]

    def whole(self) -> Crew:
        """Wait until each worker has replaced its children that were killed: Celery may lose what it hands to one of
        them before it has noticed."""
        for worker, number in zip(self.workers, self._children, strict=True):
            until(lambda pid=worker.process.pid, least=number: len(descendants(pid)) >= least, what="all children")
        return self

    def text(self) -> str:
        return "".join(worker.text() for worker in self.workers)

    def close(self) -> None:
        for worker in self.workers:
            worker.close()


def _crew(request: pytest.FixtureRequest, server: Server) -> Iterator[Crew]:
    crew = Crew(server, request.param)
    yield crew
    crew.close()


@pytest.fixture(scope="module", params=ALL)
def crew_of_any_pool(request: pytest.FixtureRequest, worker_server: Server) -> Iterator[Crew]:
    yield from _crew(request, worker_server)


@pytest.fixture(scope="module", params=["prefork"])
def crew_with_children(request: pytest.FixtureRequest, worker_server: Server) -> Iterator[Crew]:
    yield from _crew(request, worker_server)


@pytest.fixture
def any_pool(crew_of_any_pool: Crew) -> Crew:
    """Workers of each pool in turn."""
    return crew_of_any_pool.whole()


@pytest.fixture
def prefork(crew_with_children: Crew) -> Crew:
    """Workers with children."""
    return crew_with_children.whole()


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    """A key that no other test uses."""
    name = request.node.name.split("[")[0].removeprefix("test_")
    return f"{name[:40]}-{uuid4().hex[:6]}"


@pytest.fixture
def busy(proj: Proj, key: str) -> Iterator[Any]:
    """A task of each policy's kind holds the key of ``task`` until told to go on: ``busy("skip")``."""
    results = []

    def hold(name: str) -> Any:
        before = proj.count(key)
        result = getattr(proj.tasks, name).delay(key, how="until")
        proj.started(key, before + 1)
        results.append(result)
        return result

    yield hold
    proj.go(key)
    for result in results:
        with contextlib.suppress(Exception):
            result.get(timeout=15)

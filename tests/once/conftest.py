"""Fixtures of the once-lock tests: a real server, and the lock store on it."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from redbeat_lite.once.store import LockStore

from .server import Server
from .workers import Proj, Worker


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
    """A server of their own for the workers, which nobody flushes."""
    server = Server()
    yield server
    server.close()


@pytest.fixture(scope="session")
def proj(worker_server: Server) -> Proj:
    return Proj(worker_server)


@pytest.fixture(scope="module", params=["prefork", "threads"])
def worker(request: pytest.FixtureRequest, worker_server: Server) -> Iterator[Worker]:
    """One worker for the scenarios that leave it alive, per pool and module."""
    worker = Worker(worker_server, request.param, concurrency=3)
    worker.pool = request.param
    yield worker
    worker.close()


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    """A key that no other test uses."""
    return f"{request.node.name}-{uuid4().hex[:6]}"

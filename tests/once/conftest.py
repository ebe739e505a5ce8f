"""Fixtures of the once-lock tests: a real server, and the lock store on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from redbeat_lite.once.store import LockStore

from .server import Server


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

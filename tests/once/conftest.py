"""Fixtures of the once-lock tests: a real server, and the lock store on it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from redbeat_lite.once.lock_store import LockStore
from tests.harness.history import HistoryLog
from tests.once.client import OnceClient
from tests.once.pools import ALL, Crew, Play, stages_of
from tests.support.cases import for_the_soak
from tests.support.server import DURABLE, Server


def in_crews(*first: str, others: Iterable[str] = ()) -> pytest.MarkDecorator:
    """Have a test run with the shared workers of these pools; with those of others by `make soak`."""
    rest = for_the_soak(pool for pool in others if pool not in first)
    return pytest.mark.parametrize("crew_of_any_pool", [*first, *rest], indirect=True)


#: What is decided before a body is run or after it has ended is the same in every pool; `make soak` sees to the others.
one_pool_will_do = in_crews(ALL[0], others=ALL)


@pytest.fixture(scope="session")
def once_server() -> Iterator[Server]:
    """One server for the session; tests keep apart by flushing it."""
    with Server() as server:
        yield server


@pytest.fixture
def store(once_server: Server) -> Iterator[LockStore]:
    """The lock store on an empty server."""
    with once_server.client(decode_responses=True) as client:
        client.flushall()
        yield LockStore(client, "t")


@pytest.fixture(scope="session")
def worker_server() -> Iterator[Server]:
    """A server of their own for the workers; it keeps its data when a test restarts it."""
    with Server(**DURABLE) as server:
        yield server


@pytest.fixture(scope="session")
def session_proj(worker_server: Server, history_path: Path) -> Iterator[OnceClient]:
    """The client's side of the workers' app."""
    proj = OnceClient(worker_server, HistoryLog(history_path))
    yield proj
    # A result that is collected once the server is gone would try for twenty seconds to unsubscribe from it.
    proj.app.backend.remove_pending_result = lambda result: result


@pytest.fixture
def proj(session_proj: OnceClient, history: HistoryLog) -> OnceClient:
    """The client's side of the workers' app; the history of the test is audited at its end."""
    return session_proj


@pytest.fixture
def stages(proj: OnceClient) -> Iterator[Play]:
    """Play one fault in several pools at once."""
    with stages_of(proj) as play:
        yield play


def _crew(request: pytest.FixtureRequest, server: Server) -> Iterator[Crew]:
    crew = Crew(server.url, request.param)
    yield crew
    crew.destroy()


@pytest.fixture(scope="module", params=ALL)
def crew_of_any_pool(request: pytest.FixtureRequest, worker_server: Server, history_path: Path) -> Iterator[Crew]:
    yield from _crew(request, worker_server)


@pytest.fixture(scope="module", params=["prefork"])
def crew_with_children(request: pytest.FixtureRequest, worker_server: Server, history_path: Path) -> Iterator[Crew]:
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
def busy(proj: OnceClient, key: str) -> Iterator[Any]:
    """A task of each policy's kind holds the key of ``task`` until told to go on: ``busy("skip")``."""
    results = []

    def hold(name: str) -> Any:
        before = proj.count(key)
        result = proj.task(name).delay(key, how="until")
        proj.started(key, before + 1)
        results.append(result)
        return result

    yield hold
    proj.go(key)
    for result in results:
        with contextlib.suppress(Exception):
            result.get(timeout=60)

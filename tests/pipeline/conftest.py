"""Fixtures of the pipeline tests: a server, an app, worker processes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from celery import Celery

from redbeat_lite.pipeline import sweeper
from tests.harness.history import HistoryLog
from tests.harness.workers import Worker
from tests.pipeline.lab import Lab, step_worker
from tests.pipeline.steps import make_app
from tests.support.server import Server


@pytest.fixture(autouse=True)
def audited(history: HistoryLog) -> None:
    """Audit the history of each test."""


@pytest.fixture(scope="session")
def pipe_server() -> Iterator[Server]:
    """A server of their own for the pipelines and their workers; tests keep apart by the ids of their runs."""
    with Server() as server:
        yield server


@pytest.fixture(scope="session")
def pipe_app(pipe_server: Server) -> Iterator[Celery]:
    """The workers' app, in the tests' process."""
    app = make_app(pipe_server.url)
    yield app
    app.close()


@pytest.fixture(scope="session")
def crew(pipe_server: Server, history_path: Path) -> Iterator[Worker]:
    """A prefork worker with four children."""
    with step_worker(pipe_server.url, concurrency=4) as worker:
        yield worker


@pytest.fixture
def make_lab(history: HistoryLog) -> Iterator[Callable[[Server, Celery], Lab]]:
    """Makes labs. Successes of their runs are noted before the history is audited."""
    labs: list[Lab] = []

    def make(server: Server, app: Celery) -> Lab:
        labs.append(Lab(server, app))
        return labs[-1]

    yield make
    for lab in labs:
        lab.note_successes()


@pytest.fixture
def lab(pipe_server: Server, pipe_app: Celery, make_lab: Callable[[Server, Celery], Lab]) -> Lab:
    """What tests ask of runs, without a worker."""
    return make_lab(pipe_server, pipe_app)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sweeper of this process waits less; that of a beat does not."""
    monkeypatch.setattr(sweeper, "SUSPICION_MS", 250)


@pytest.fixture
def hire(owned: ExitStack) -> Callable[..., Worker]:
    """Starts workers that a test may kill; queue names keep them apart."""
    return lambda url, **options: owned.enter_context(step_worker(url, **options))


@pytest.fixture
def queue() -> str:
    """A queue that no other test uses."""
    return f"queue{next(_numbers)}"


_numbers = itertools.count()

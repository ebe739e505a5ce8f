"""Stages, and where their results go."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.faults.collector import Verdict
from tests.faults.driver import Stage
from tests.faults.guarded import Guarded
from tests.faults.page import keep
from tests.support.in_process import make_beat
from tests.support.server import Server

__all__ = ["make_beat"]


@pytest.fixture
def own_server() -> Iterator[Callable[..., Guarded]]:
    """Starts servers that a test may stop, kill and configure, and that ask for a password."""
    servers: list[Guarded] = []

    def start(**options: str) -> Guarded:
        servers.append(Guarded(**options))
        servers[-1].start()
        return servers[-1]

    yield start
    for each in servers:
        each.destroy()


#: What runs for a minute.
LONG = [pytest.mark.soak, pytest.mark.timeout(300)]


@pytest.fixture(params=[pytest.param(5, id="5s"), pytest.param(60, id="60s", marks=LONG)])
def seconds(request: pytest.FixtureRequest) -> float:
    """How long a scenario runs."""
    return float(request.param)


@pytest.fixture
def lease(seconds: float) -> float:
    """The default one where there is time for it."""
    return 2.0 if seconds < 60 else 4.0


@pytest.fixture
def staged(seconds: float) -> Iterator[Callable[..., Stage]]:
    """Makes stages."""
    stages: list[Stage] = []

    def make(*args: Any, **settings: Any) -> Stage:
        stages.append(Stage(seconds, *args, **settings))
        return stages[-1]

    yield make
    for each in stages:
        each.close()


@pytest.fixture
def on(staged: Callable[..., Stage], lease: float) -> Callable[..., Stage]:
    """Makes a stage on one server that holds both the schedule and the queue."""

    def make(server: Server, **settings: Any) -> Stage:
        return staged(server.client, settings.pop("url", server.url), lease=lease, **settings)

    return make


@pytest.fixture
def publish(seconds: float) -> Callable[..., None]:
    """Keeps the figures of a scenario, where they are asked for with ``PUBLISH=1``."""

    def keep_long(name: str, verdict: Verdict) -> None:
        if seconds >= 60:
            keep(name, {"seconds": seconds, **verdict.as_dict()})

    return keep_long

"""Scenarios, and where their figures go."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from tests.faults.page import keep
from tests.faults.scenario import Scenario
from tests.faults.verdict import Verdict
from tests.harness.history import HistoryLog
from tests.support.in_process import make_beat
from tests.support.server import GuardedServer, Server

__all__ = ["make_beat"]

#: Makes a scenario: `make_scenario` of clients, `scenario_on` of one server.
MakeScenario = Callable[..., Scenario]

#: Keeps the figures of a scenario under a name.
Publish = Callable[..., None]

#: Starts a server of the test's own.
StartServer = Callable[..., GuardedServer]

#: Marks of tests that run for a minute.
LONG = [pytest.mark.soak, pytest.mark.timeout(300)]


@pytest.fixture
def own_server(owned: ExitStack) -> StartServer:
    """Starts servers that a test may stop, kill and configure, and that ask for a password."""

    return lambda **options: owned.enter_context(GuardedServer(**options))


@pytest.fixture(params=[pytest.param(5, id="5s"), pytest.param(60, id="60s", marks=LONG)])
def seconds(request: pytest.FixtureRequest) -> float:
    """How long a scenario runs."""
    return float(request.param)


#: A scenario of the soak alone, because quicker tests in `make test` show the same.
only_long = pytest.mark.parametrize("seconds", [pytest.param(60, id="60s", marks=LONG)], indirect=True)


@pytest.fixture
def lease(seconds: float) -> float:
    """The default one where there is time for it."""
    return 2.0 if seconds < 60 else 4.0


@pytest.fixture
def log(tmp_path: Path) -> HistoryLog:
    """The history of the test."""
    return HistoryLog(tmp_path / "history")


@pytest.fixture
def make_scenario(seconds: float, log: HistoryLog, owned: ExitStack) -> MakeScenario:
    """Makes a scenario."""

    def make(*args: Any, **settings: Any) -> Scenario:
        return owned.enter_context(closing(Scenario(seconds, log, *args, **settings)))

    return make


@pytest.fixture
def scenario_on(make_scenario: MakeScenario, lease: float) -> MakeScenario:
    """Makes a scenario on one server that holds both the schedule and the queue."""

    def make(server: Server, **settings: Any) -> Scenario:
        url = settings.pop("url", server.url)
        return make_scenario(server.client, url, lease=lease, **settings)

    return make


@pytest.fixture
def publish(seconds: float) -> Publish:
    """Keeps the figures of a scenario, where they are asked for with ``PUBLISH=1``."""

    def keep_long(name: str, verdict: Verdict) -> None:
        if seconds >= 60:
            keep(name, {"seconds": seconds, **verdict.as_dict()})

    return keep_long

"""A beat in this process, the Schedules API, a clock that stands still, and every way for messages to go out."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from tests.beat.incidents import Stage
from tests.beat.ways import SENDERS, Setup
from tests.support.frozen import Clock
from tests.support.in_process import (
    MakeApp,
    MakeBeat,
    clock,
    inner_beat,
    make_app,
    make_beat,
    no_leaks,
    schedules,
    small_pages,
)
from tests.support.server import Server

__all__ = ["clock", "inner_beat", "make_app", "make_beat", "no_leaks", "schedules", "small_pages"]


@pytest.fixture(params=SENDERS)
def setup(
    request: pytest.FixtureRequest, make_app: MakeApp, make_beat: MakeBeat, server: Server, clock: Clock
) -> Iterator[Setup]:
    """An app, its schedules and a beat, in each of the ways to send."""
    setup = Setup(request.param, make_app, make_beat, server)
    yield setup
    setup.broker.close()


@pytest.fixture
def apart(make_app: MakeApp, make_beat: MakeBeat, server: Server, clock: Clock) -> Iterator[Setup]:
    """Such an app whose broker is another database than its schedule's."""
    setup = Setup("one by one to another database", make_app, make_beat, server)
    yield setup
    setup.broker.close()


@pytest.fixture
def stage(
    make_app: MakeApp,
    make_beat: MakeBeat,
    client: redis.Redis,
    clock: Clock,
    request: pytest.FixtureRequest,
) -> Stage:
    """A beat that watches runs; its app has the settings that the test is given."""
    return Stage(make_app(**getattr(request, "param", {})), make_beat, client, clock)

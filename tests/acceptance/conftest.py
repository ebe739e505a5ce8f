"""What several acceptance tests start from."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis
from celery import Celery

from redbeat_lite import Schedules
from tests.support.beats import WakeChannel


@pytest.fixture
def schedules(app: Celery) -> Schedules:
    """The schedule of the shared server, as another process sees it."""
    return Schedules(app)


@pytest.fixture
def wake_channel(client: redis.Redis) -> Iterator[WakeChannel]:
    """What is said on the wake channel of the shared server."""
    channel = WakeChannel(client)
    yield channel
    channel.close()

"""A redis-py that kombu refuses, as where another package of the project pins it: nothing is tried twice."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import click
import kombu.transport.redis
import pytest
from celery import Celery

from redbeat_lite import Scheduler
from redbeat_lite._base.errors import ConfigurationError
from redbeat_lite.once.worker.keeper import OnceStep
from redbeat_lite.operate import examine
from redbeat_lite.store.server_check import check_driver
from tests.support.cases import together

#: Nobody listens there, and nobody is asked.
REDIS = ["redis://127.0.0.1:1/0", "rediss://127.0.0.1:1/0", "sentinel://127.0.0.1:1", "redis+socket:///none"]


def app_of(broker: str) -> Celery:
    return Celery("proj", broker=broker, set_as_current=False)


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """redis-py seems to be of a version that no kombu takes which Celery 5.5 allows."""
    monkeypatch.setattr(kombu.transport.redis.redis, "VERSION", (3, 0, 0))
    monkeypatch.setattr(kombu.transport.redis.redis, "__version__", "3.0.0")


@pytest.mark.usefixtures("refused")
@together("broker", REDIS)
def test_is_told_with_both_versions_and_the_way_out(broker: str) -> None:
    with pytest.raises(ConfigurationError) as told:
        check_driver(app_of(broker))
    assert f"kombu {kombu.__version__} refuses" in str(told.value)
    assert "You have 3.0.0" in str(told.value)
    assert "pip install 'celery[redis]'" in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.usefixtures("refused")
@together("broker", ["amqp://127.0.0.1:1//", "memory://"])
def test_matters_to_no_other_broker(broker: str) -> None:
    check_driver(app_of(broker))


@together("broker", REDIS)
def test_the_one_that_is_installed_is_taken(broker: str) -> None:
    check_driver(app_of(broker))


@pytest.mark.usefixtures("refused")
@together(
    ("start", "ends"),
    [
        (Scheduler, click.ClickException),
        (examine, ConfigurationError),
        (lambda app: OnceStep(SimpleNamespace(app=app)), SystemExit),
    ],
    ids=["beat", "doctor", "worker"],
)
def test_ends_what_needs_both(start: Callable[[Celery], Any], ends: type[BaseException]) -> None:
    with pytest.raises(ends, match="refuses the redis-py that is installed"):
        start(app_of(REDIS[0]))

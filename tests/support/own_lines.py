"""What a test finds in its log was logged by the test."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def earlier_threads() -> frozenset[threading.Thread]:
    """Those that other tests in this process have left behind: renewals, say, which last as long as a worker."""
    return frozenset(threading.enumerate()) - {threading.current_thread()}


@pytest.fixture
def caplog(
    caplog: pytest.LogCaptureFixture, earlier_threads: frozenset[threading.Thread]
) -> Iterator[pytest.LogCaptureFixture]:
    """Pytest's own, without what threads log that have nothing to do with this test: their next minute comes now."""

    def of_this_test(_: logging.LogRecord) -> bool:
        return threading.current_thread() not in earlier_threads

    caplog.handler.addFilter(of_this_test)
    yield caplog
    caplog.handler.removeFilter(of_this_test)

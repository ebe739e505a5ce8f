"""Pytest fixture ``schedule_clock``.

To use it, add this module to ``pytest_plugins`` in ``conftest.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from . import testing


@pytest.fixture
def schedule_clock() -> Iterator[Callable[..., testing.ScheduleClock]]:
    """Return a function that works as :func:`redbeat_lite.testing.schedule_clock`.

    It also freezes the time of the process until the test ends.
    """
    with ExitStack() as stack:
        yield lambda *args, **kwargs: stack.enter_context(testing.schedule_clock(*args, **kwargs))

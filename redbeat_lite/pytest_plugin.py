"""The pytest fixture ``schedule_clock``, for projects whose ``conftest.py`` has this module in
``pytest_plugins``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from . import testing


@pytest.fixture
def schedule_clock() -> Iterator[Callable[..., testing.ScheduleClock]]:
    """Makes clocks as :func:`redbeat_lite.testing.schedule_clock` does, and freezes the time until
    the test ends.
    """
    with ExitStack() as stack:
        yield lambda *args, **kwargs: stack.enter_context(testing.schedule_clock(*args, **kwargs))

"""The pytest fixture ``schedule_clock``. Every pytest run loads this module, so it imports next to nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .testing import ScheduleClock


@pytest.fixture
def schedule_clock() -> Iterator[Callable[..., ScheduleClock]]:
    """Makes clocks as :func:`redbeat_lite.testing.schedule_clock` does, and freezes the time until the test ends."""
    from .testing import schedule_clock as made  # Celery comes with it

    with ExitStack() as stack:

        def make(*args: Any, **kwargs: Any) -> ScheduleClock:
            return stack.enter_context(made(*args, **kwargs))

        yield make

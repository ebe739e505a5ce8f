"""A wall clock that stands still until a test moves it. The monotonic clock of leases and timeouts goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from freezegun import freeze_time

#: Where the frozen clock stands at first: a Monday, no minute or hour that any rule would find special.
NOW = datetime(2026, 3, 2, 12, 7, 19, tzinfo=UTC)


class Clock:
    """The frozen wall clock."""

    def __init__(self, frozen: Any) -> None:
        self._frozen = frozen

    @property
    def now(self) -> datetime:
        return datetime.now(UTC)

    def forward(self, seconds: float) -> datetime:
        """Move on, or back where ``seconds`` is negative; returns the new time."""
        self._frozen.tick(timedelta(seconds=seconds))
        return self.now

    def set(self, instant: datetime) -> None:
        self._frozen.move_to(instant)


@contextmanager
def frozen_clock(instant: datetime = NOW) -> Iterator[Clock]:
    """Freeze the wall clock at ``instant``."""
    # What waits for the server or for a condition must not wait for a clock that stands still.
    with freeze_time(instant, ignore=["redis", "tests.support.waiting"]) as frozen:
        yield Clock(frozen)

"""A wall clock that stands still until a test moves it. The monotonic clock of leases and timeouts goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import Any

from freezegun import api, freeze_time

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


def _how_it_looks(module: ModuleType) -> str:
    """What changes where names are added to a module, or another one takes its place."""
    return f"{id(module)}-{len(getattr(module, '__dict__', ()))}"


# At each start freezegun lists the names in all modules, a thousand of them, to see which of them it has to search
# anew: four times as much work as all the rest of it, for each test that freezes the clock. Their number will do.
if hasattr(api, "_get_module_attributes_hash"):
    api._get_module_attributes_hash = _how_it_looks


@contextmanager
def frozen_clock(instant: datetime = NOW) -> Iterator[Clock]:
    """Freeze the wall clock at ``instant``."""
    # What waits for the server or for a condition must not wait for a clock that stands still.
    with freeze_time(instant, ignore=["redis", "tests.support.waiting"]) as frozen:
        yield Clock(frozen)

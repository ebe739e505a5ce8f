"""A wall clock that stands still until a test moves it. The monotonic clock of leases and timeouts goes on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import Any
from unittest import mock

from freezegun import api, freeze_time

from redbeat_lite._base.clock import wall_ms
from redbeat_lite.beat.server_clock import ServerClock

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


class _Sys:
    """``sys`` as freezegun has it; of the modules that it walks through, only those that have a name for a clock."""

    def __init__(self) -> None:
        self.modules = self
        self.keys, self.get = sys.modules.keys, sys.modules.get
        self._names: frozenset[str] = frozenset()
        self._found: list[tuple[str, Any]] = []

    def items(self) -> list[tuple[str, Any]]:
        if self._names != (names := frozenset(sys.modules)):
            self._names = names
            named = [each for each in [*sys.modules.items()] if hasattr(each[1], "__name__")]
            self._found = [each for each in named if api._get_cached_module_attributes(each[1])]
        return self._found


# At each start freezegun lists the names in all modules, a thousand of them, to see which of them it has to search
# anew: four times as much work as all the rest of it, for each test that freezes the clock. Their number will do, and
# where no module came since the last time, the few that it found then.
if hasattr(api, "_get_module_attributes_hash"):
    api._get_module_attributes_hash = _how_it_looks
    api.sys = _Sys()  # type: ignore[assignment]


@contextmanager
def frozen_clock(instant: datetime = NOW) -> Iterator[Clock]:
    """Freeze the wall clock at ``instant``, and what beats in this process take for the clock of the server."""
    # What waits for the server or for a condition must not wait for a clock that stands still.
    with (
        freeze_time(instant, ignore=["redis", "tests.support.waiting"]) as frozen,
        mock.patch.object(ServerClock, "now_ms", side_effect=wall_ms),
    ):
        yield Clock(frozen)

"""Threads of the simulated processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from greenlet import greenlet  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from tests.simulation.world import Process


class Thread(greenlet):  # type: ignore[misc]  # greenlet ships no types
    """One thread of a process."""

    def __init__(self, process: Process, run: Callable[[], object]) -> None:
        super().__init__(lambda _=None: run(), process.world.hub)
        self.process = process

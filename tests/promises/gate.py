"""A gate at which a process waits until a test lets it go on.

A test closes the gate. The first process that comes to it waits; others pass meanwhile. So a test
can act between two steps of a beat without guessing how long these take. A process comes to the
gate when it routes a message of the task ``proj.gated`` (by ``route_through_gate``), or when it
asks a :class:`Gated` schedule for its next instant.
"""

from __future__ import annotations

import os
import time
from datetime import datetime, timedelta
from pathlib import Path

from celery.schedules import schedule

from redbeat_lite import register_schedule
from tests.support.waiting import eventually

#: Environment variable that names the directory of the gate.
VARIABLE = "PROJ_GATE"


class Gate:
    """The test's side of the gate.

    Parameters:
        directory: an empty directory that belongs to the gate.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._closed = directory / "closed"
        self._held = directory / "held"

    def close(self) -> None:
        """Let the next process that comes to the gate wait there."""
        self._closed.touch()

    def holds(self) -> None:
        """Wait until a process waits at the gate."""
        eventually(self._held.exists, what="a process at the gate")

    def open(self) -> None:
        """Let everybody pass."""
        self._closed.unlink()


def wait_at_gate() -> None:
    """Wait while the gate is closed, unless another process waits there already."""
    name = os.environ.get(VARIABLE)
    if name is None:
        return
    directory = Path(name)
    closed = directory / "closed"
    held = directory / "held"
    if not closed.exists():
        return
    try:
        held.touch(exist_ok=False)
    except FileExistsError:
        return
    while closed.exists():
        time.sleep(0.005)
    held.unlink()


def route_through_gate(name: str, *_: object, **__: object) -> None:
    """Wait at the gate for ``proj.gated``. As a router of ``task_routes``, it changes no route."""
    if name == "proj.gated":
        wait_at_gate()


class Gated(schedule):  # type: ignore[misc]  # Celery ships no types
    """A schedule of every second that waits at the gate when a beat asks for its next instant."""

    def __init__(self) -> None:
        super().__init__(1)

    def next_after(self, instant: datetime) -> datetime:
        wait_at_gate()
        return instant + timedelta(seconds=1)


register_schedule(Gated, lambda gated: None, lambda data: Gated(), name="gated")

"""What happens in one seed: a history for the audit, and lines for people."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

from tests.simulation.world import EPOCH_US, World
from tests.support.audit import Record

#: Log lines of one second from which on somebody spins.
MOST_LINES = 60


class Story:
    """Collects records and lines in the order of their time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.records: list[Record] = []
        self.lines: list[str] = []
        self.violations: list[str] = []
        #: Key and fencing number of each lock, in the order in which they were taken.
        self.fences: list[tuple[str, int | None]] = []
        #: How often each fault and each act happened.
        self.counts: Counter[str] = Counter()

    @property
    def now(self) -> int:
        """Epoch milliseconds by a clock that nobody sets."""
        return self._world.now_us // 1000

    def tell(self, text: str) -> None:
        """Note a line."""
        process = self._world.current
        who = "" if process is None else f"{process.name}: "
        self.lines.append(f"{(self._world.now_us - EPOCH_US) / 1_000_000:10.3f} s  {who}{text}")

    def record(self, **record: Any) -> None:
        """Note a record for the audit."""
        self.records.append(record)

    def violate(self, text: str) -> None:
        """Note that a promise is broken."""
        self.tell(f"VIOLATION: {text}")
        self.violations.append(text)


class LogLines(logging.Handler):
    """Notes log lines of warnings and errors in the story."""

    def __init__(self, story: Story) -> None:
        super().__init__(logging.WARNING)
        self._story = story
        self._lines: Counter[int] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        second = self._story.now // 1000
        self._lines[second] += 1
        if self._lines[second] == MOST_LINES:
            self._story.violate(f"{MOST_LINES} log lines within one second")
        if self._lines[second] > MOST_LINES:
            return
        self._story.tell(f"{record.levelname} {record.getMessage().splitlines()[0]}")
        if record.exc_info:
            self._story.counts["logged tracebacks"] += 1

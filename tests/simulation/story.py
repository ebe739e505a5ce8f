"""What happens in one seed: a history for the audit, and lines for people."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any, NamedTuple

from tests.simulation.world import World
from tests.support.audit import Record

#: Log lines of one second from which on somebody spins.
MOST_LINES = 60


#: Loggers by which Celery tells of tasks that have failed.
_OF_CELERY = ("celery.app.trace", "celery.worker")


class Violation(NamedTuple):
    """A promise that is broken: which one, and how."""

    law: str
    what: str

    def __str__(self) -> str:
        return f"{self.law}: {self.what}"


class Story:
    """Collects records and lines in the order of their time.

    Parameters:
        left_out: names of the faults and calls that must not happen.
    """

    def __init__(self, world: World, left_out: frozenset[str] = frozenset()) -> None:
        self._world = world
        self._left_out = left_out
        #: Names of the faults and calls that have happened.
        self.happened: list[str] = []
        self.records: list[Record] = []
        self.lines: list[str] = []
        self.violations: list[Violation] = []
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
        seconds = (self._world.now_us - self._world.start_us) / 1_000_000
        self.lines.append(f"{seconds:10.3f} s  {who}{text}")

    def record(self, **record: Any) -> None:
        """Note a record for the audit."""
        self.records.append(record)

    def happens(self, name: str) -> bool:
        """Whether this fault or call is to happen; note that it does."""
        if name in self._left_out:
            return False
        self.happened.append(name)
        return True

    def violate(self, law: str, what: str) -> None:
        """Note that a promise is broken."""
        violation = Violation(law, what)
        self.tell(f"VIOLATION: {violation}")
        self.violations.append(violation)


class LogLines(logging.Handler):
    """Notes log lines of warnings and errors in the story."""

    def __init__(self, story: Story) -> None:
        super().__init__(logging.WARNING)
        self._story = story
        self._lines: Counter[int] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        second = self._story.now // 1000
        # Celery writes a line, often with a traceback, for each task that fails.
        if not record.name.startswith(_OF_CELERY):
            self._lines[second] += 1
            if self._lines[second] == MOST_LINES:
                self._story.violate("log", f"{MOST_LINES} log lines within one second")
            if record.exc_info:
                what = f"a traceback of an error that nobody foresaw: {record.exc_info[1]!r}"
                self._story.violate("log", what)
        if self._lines[second] < MOST_LINES:
            self._story.tell(f"{record.levelname} {record.getMessage().splitlines()[0]}")

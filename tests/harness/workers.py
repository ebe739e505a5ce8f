"""Real ``celery worker`` processes, which tests kill, freeze and stop."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from tests.harness.history import HistoryLog
from tests.support.process_table import descendants
from tests.support.processes import Process, celery_command

#: Seconds within which a started worker consumes.
_READY = 40.0


class Worker(Process):
    """One ``celery worker`` process with its children.

    Its queues are separated by commas. With ``ready``, it consumes when the constructor returns.
    """

    def __init__(
        self,
        app: str,
        *,
        pool: str = "prefork",
        concurrency: int = 2,
        queues: str = "celery",
        name: str = "w",
        ready: bool = True,
        **env: Any,
    ) -> None:
        self.name = f"{name}{time.monotonic_ns()}@test"
        options = ["-P", pool, "-c", str(concurrency), "-n", self.name, "-Q", queues, "-l", "INFO"]
        options += ["--without-gossip", "--without-mingle"]
        super().__init__(*celery_command(app, "worker", *options, **env))
        if ready:
            self.ready()

    def ready(self) -> None:
        """Wait until it consumes."""
        self.says(r" ready\.", within=_READY)

    def children(self) -> list[int]:
        """Return the ids of the processes in which it runs tasks."""
        return sorted(descendants(self.pid))

    def signal_all(self, number: int) -> None:
        """Send a signal to the main process and its children."""
        for pid in [self.pid, *self.children()]:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        """Kill it as a whole, as when its machine is lost."""
        self.signal_all(signal.SIGKILL)
        self.wait()

    @contextmanager
    def frozen_as_a_whole(self) -> Iterator[None]:
        """Freeze it with its children for the length of the block, and note that as a fault."""
        pids = [self.pid, *self.children()]
        with HistoryLog.of_environment().fault(what="a worker is frozen", pids=pids):
            self.signal_all(signal.SIGSTOP)
            try:
                yield
            finally:
                self.signal_all(signal.SIGCONT)

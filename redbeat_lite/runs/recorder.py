"""Recorder of fates: it writes them from a thread of its own, so that no task waits for Redis."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from typing import Any

from celery import signals
from celery.utils.log import get_logger

from .._base.clock import elapsed
from .._base.lazy import lazy
from .._base.text import describe
from .._base.threads import Ticker
from ..settings import Settings
from ..store.connections import FAULTS, Backend
from .run import Fate
from .run_store import BATCH, RunStore

logger = get_logger(f"celery.{__name__}")

#: Most fates that wait while the server is away. Later ones are dropped.
MOST = 2_000

#: Seconds after which a hanging command is given up.
_TIMEOUT = 2.0

#: Seconds after a write in which fates are gathered for the next, so that they share its cost.
_GATHER = 0.02

#: Seconds between two attempts while the server is away.
_RETRY = 1.0

#: Seconds between two looks while there is nothing to do.
_IDLE = 60.0

#: Seconds between two log lines about fates that were not recorded.
_SILENCE = 60.0

#: Seconds that the end of the process may wait for the last fates.
END = 1.0


class Recorder:
    """Queue of the fates that one process reports, and the thread that writes them.

    The thread starts with the first fate.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._pid = os.getpid()
        self._fates: deque[Fate] = deque()
        self._failed = 0
        self._why = ""
        self._last_warning = float("-inf")
        self._not_before = float("-inf")
        self._ticker = Ticker("redbeat-lite-runs", self._pause, self._write)
        #: Acquired by the caller that starts the thread, and never released.
        self._start = threading.Lock()

    def tell(self, fate: Fate) -> None:
        """Queue a fate. Waits for nothing, and never raises."""
        if len(self._fates) >= MOST:
            self._failed += 1
            return
        self._fates.append(fate)
        self._wake()

    def failed(self, why: str) -> None:
        """Count a fate that another way has failed to write. Without a reason it was written."""
        if why:
            self._failed += 1
            self._why = why
            self._wake()

    def _wake(self) -> None:
        if self._start.acquire(blocking=False):
            # A pool's child process ends without the exit hooks of Python.
            signals.worker_process_shutdown.connect(self.close, weak=False)
            signals.worker_shutdown.connect(self.close, weak=False)
            self._ticker.start()
        if elapsed() >= self._not_before:  # else the thread wakes at that time by itself
            self._ticker.soon()

    def close(self, **_: Any) -> None:
        """Wait up to :data:`END` seconds for the last fates, and log how many were not written."""
        if self._pid != os.getpid():
            return  # this recorder belongs to the parent process
        deadline = elapsed() + END
        self._not_before = 0.0
        self._ticker.soon()
        while self._fates and elapsed() < deadline:
            time.sleep(0.01)
        if self._fates or self._failed:
            self._warn()

    @lazy
    def _store(self) -> RunStore:
        backend = Backend(self._settings, timeout=_TIMEOUT)
        return RunStore(backend.client, self._settings.key_prefix)

    def _pause(self) -> float:
        left = self._not_before - elapsed()
        if left > 0:
            return left
        return _RETRY if self._fates or self._failed else _IDLE

    def _write(self) -> None:
        """Write all fates that wait. After a failure of the server, wait before the next try."""
        if elapsed() < self._not_before:
            return
        try:
            while self._fates:
                self._write_batch()
        except FAULTS as exc:
            self._why = describe(exc)
            self._not_before = elapsed() + _RETRY
        if (self._fates or self._failed) and elapsed() - self._last_warning >= _SILENCE:
            self._warn()

    def _write_batch(self) -> None:
        """Write one batch of fates."""
        # Read by index, because other threads append meanwhile. The fates stay queued until the
        # server has them.
        batch = [self._fates[index] for index in range(min(len(self._fates), BATCH))]
        try:
            failed, why = self._store.record(batch)
        except FAULTS:
            raise
        except Exception as exc:  # noqa: BLE001 - one bad fate must not block the next
            failed = len(batch)
            why = describe(exc)
        for _ in batch:
            self._fates.popleft()
        if failed:
            self._failed += failed
            self._why = why
        self._not_before = elapsed() + _GATHER

    def _warn(self) -> None:
        text = "%d beginnings or ends of runs were not recorded, or not in full, and %d wait: %s"
        why = self._why or "the server has not answered in time"
        logger.warning(text, self._failed, len(self._fates), why)
        self._last_warning = elapsed()
        self._failed = 0
        self._why = ""

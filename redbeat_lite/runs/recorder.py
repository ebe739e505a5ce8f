"""The recorder: writes what became of runs from a thread of its own, so that no task waits for it."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from typing import Any

from celery import signals
from celery.utils.log import get_logger

from ..clock import elapsed
from ..errors import describe
from ..settings import Settings
from ..storage.connections import FAULTS, Backend
from ..storage.lazy import lazy
from ..threads import Ticker
from .attempt import Fate
from .store import BATCH, RunStore

logger = get_logger(f"celery.{__name__}")

#: How many fates wait at most while the server is away; of what comes then, nothing is kept.
MOST = 2_000

#: Seconds after which a command that hangs is given up.
_TIMEOUT = 2.0

#: Seconds after one write in which what comes waits for the next: what one that comes alone costs is shared by many.
_GATHER = 0.02

#: Seconds between two attempts while the server is away, and between two looks while there is nothing to do.
_AGAIN = 1.0
_IDLE = 60.0

#: Seconds between two lines of the log that tell of what was not recorded.
_SILENCE = 60.0

#: Seconds that the end of the process may wait for what is still to be written.
END = 1.0


class Recorder:
    """Writes the fates that one process tells, as soon as it may; its thread begins with the first one."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._pid = os.getpid()
        self._fates: deque[Fate] = deque()
        self._failed = 0
        self._why = ""
        self._said = self._not_before = float("-inf")
        self._ticker = Ticker("redbeat-lite-runs", self._pause, self._write)
        #: Taken by whoever starts the thread, and never given back.
        self._start = threading.Lock()

    def tell(self, fate: Fate) -> None:
        """Have this written. Waits for nothing, and never raises."""
        if len(self._fates) >= MOST:
            self._failed += 1
            return
        self._fates.append(fate)
        self._go()

    def failed(self, why: str) -> None:
        """Count one that could not be written by another way: this is why. Where that is empty, it was written."""
        if why:
            self._failed, self._why = self._failed + 1, why
            self._go()

    def _go(self) -> None:
        if self._start.acquire(blocking=False):
            # A child of a pool ends without the hooks of Python.
            for end in (signals.worker_process_shutdown, signals.worker_shutdown):
                end.connect(self.close, weak=False)
            self._ticker.start()
        if elapsed() >= self._not_before:  # else the thread looks then
            self._ticker.soon()

    def close(self, **_: Any) -> None:
        """Wait for what is still to be written, no longer than :data:`END`, and say what is not."""
        if self._pid != os.getpid():
            return  # Of the process that this one was forked from.
        deadline, self._not_before = elapsed() + END, 0.0
        self._ticker.soon()
        while self._fates and elapsed() < deadline:
            time.sleep(0.01)
        if self._fates or self._failed:
            self._say()

    @lazy
    def _store(self) -> RunStore:
        return RunStore(Backend(self._settings, timeout=_TIMEOUT).client, self._settings.key_prefix)

    def _pause(self) -> float:
        left = self._not_before - elapsed()
        return left if left > 0 else _AGAIN if self._fates or self._failed else _IDLE

    def _write(self) -> None:
        if elapsed() < self._not_before:
            return
        try:
            while self._fates:
                self._write_some()
        except FAULTS as exc:
            self._why, self._not_before = describe(exc), elapsed() + _AGAIN
        if (self._fates or self._failed) and elapsed() - self._said >= _SILENCE:
            self._say()

    def _write_some(self) -> None:
        # By number: others append meanwhile. They stay where they are until the server has them.
        batch = [self._fates[n] for n in range(min(len(self._fates), BATCH))]
        try:
            failed, why = self._store.record(batch)
        except FAULTS:
            raise
        except Exception as exc:  # noqa: BLE001 - what cannot be sent must not hold up what comes after it
            failed, why = len(batch), describe(exc)
        for _ in batch:
            self._fates.popleft()
        if failed:
            self._failed, self._why = self._failed + failed, why
        self._not_before = elapsed() + _GATHER

    def _say(self) -> None:
        text = "%d beginnings or ends of runs were not recorded, or not in full, and %d wait: %s"
        logger.warning(text, self._failed, len(self._fates), self._why or "the server has not answered in time")
        self._said, self._failed, self._why = elapsed(), 0, ""

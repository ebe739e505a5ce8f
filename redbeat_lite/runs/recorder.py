"""Recorder of fates: a thread writes them, so that no task waits for Redis.

A fate is the start or the end of one attempt of a run.
"""

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
from ..entries.run import Fate
from ..settings import Settings
from ..store.connections import FAULTS, Backend
from .run_store import BATCH, RunStore

logger = get_logger(f"celery.{__name__}")

#: Maximum number of fates (starts and ends of runs) that are queued while the server does not
#: answer. Later fates are dropped.
MOST = 2_000

#: Timeout of a command, in seconds.
_TIMEOUT = 2.0

#: Seconds between two writes. Fates (starts and ends of runs) that come in between share one round
#: trip.
_GATHER = 0.02

#: Seconds between two attempts while the server does not answer.
_RETRY = 1.0

#: Seconds that the thread sleeps if there is nothing to do and no fate wakes it.
_IDLE = 60.0

#: Seconds between two log lines about fates that were not recorded.
_SILENCE = 60.0

#: Maximum number of seconds that the end of the process waits until the last fates are written.
END = 1.0


class Recorder:
    """Queue of the fates of one process, and the thread that writes them.

    A fate is the start or the end of an attempt. The thread starts with the first fate.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        #: Process that made this recorder. A copy in a forked child has no thread that writes.
        self._pid = os.getpid()
        #: Fates that the server does not have yet, the oldest first.
        self._fates: deque[Fate] = deque()
        #: Count of the fates that could not be recorded since the last warning.
        self._failed = 0
        #: Last error since the last warning; empty if there is none.
        self._why = ""
        #: Time of the last warning, in seconds of :func:`elapsed`.
        self._last_warning = float("-inf")
        #: Time before which the thread does not write, in seconds of :func:`elapsed`.
        self._not_before = 0.0
        self._ticker = Ticker("redbeat-lite-runs", self._pause, self._write)
        #: Lock that only the first fate acquires, to start the thread. It is never released.
        self._first = threading.Lock()

    def enqueue(self, fate: Fate) -> None:
        """Queue the start or the end of an attempt, to be recorded by the thread.

        Does not wait for the server, and never raises.
        """
        if len(self._fates) >= MOST:
            self._failed += 1  # This fate is dropped, and counts as not recorded.
            return
        self._fates.append(fate)
        # Only the first fate can acquire this lock.
        if self._first.acquire(blocking=False):
            self._start()
        # Wake the thread, unless it sleeps until ``_not_before``, when it wakes by itself.
        if elapsed() >= self._not_before:
            self._ticker.soon()

    def _start(self) -> None:
        """Start the thread, and have the end of the process wait for its last fates."""
        # Use signals, because a pool's child process ends without Python's exit hooks.
        signals.worker_process_shutdown.connect(self.close, weak=False)
        signals.worker_shutdown.connect(self.close, weak=False)
        self._ticker.start()

    def close(self, **_: Any) -> None:
        """Wait up to :data:`END` seconds until the last fates are written. Log how many are not.

        Signals of Celery call it with keyword arguments, which it ignores.
        """
        if self._pid != os.getpid():
            return  # This recorder belongs to the parent process.
        deadline = elapsed() + END
        # Have the thread write at once, even if it waits for ``_not_before``.
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
        """Return the seconds until the thread writes or warns next."""
        left = self._not_before - elapsed()
        if left > 0:
            return left
        return _RETRY if self._fates or self._failed else _IDLE

    def _write(self) -> None:
        """Write all queued fates, and log once a minute how many could not be recorded.

        If the server does not answer, the next attempt comes after ``_RETRY`` seconds.
        """
        if elapsed() < self._not_before:
            return  # Wait for more fates after a write, or for the retry after an error.
        try:
            while self._fates:
                self._write_batch()
        except FAULTS as exc:
            self._why = describe(exc)
            self._not_before = elapsed() + _RETRY
        if (self._fates or self._failed) and elapsed() - self._last_warning >= _SILENCE:
            self._warn()

    def _write_batch(self) -> None:
        """Write one batch of fates, and count those that the server has not recorded.

        Raises one of ``FAULTS`` if the server does not answer. Then the fates stay queued.
        """
        # Read by index, because an iteration fails if another thread appends meanwhile. The fates
        # stay queued until the server has them.
        batch = [self._fates[index] for index in range(min(len(self._fates), BATCH))]
        try:
            failed, why = self._store.record(batch)
        except FAULTS:
            raise  # The caller tries again later.
        except Exception as exc:  # noqa: BLE001 - one bad fate must not block the next
            failed = len(batch)
            why = describe(exc)
        for _ in batch:
            self._fates.popleft()
        if failed:
            self._failed += failed
            self._why = why
        # Fates that come until then share the next round trip.
        self._not_before = elapsed() + _GATHER

    def _warn(self) -> None:
        """Log how many fates were not recorded, and count from 0 again."""
        text = "%d beginnings or ends of runs were not recorded, or not in full, and %d wait: %s"
        why = self._why or "the server has not answered in time"
        logger.warning(text, self._failed, len(self._fates), why)
        self._last_warning = elapsed()
        self._failed = 0
        self._why = ""

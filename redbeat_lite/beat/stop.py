"""Stopping a beat: a signal sets a flag, and the loop ends at the next place where it is safe.

Celery's handler raises SystemExit wherever it interrupts the process: between a publish and its commit, in a lock, in a
finalizer where Python ignores it. So the first tick replaces that handler.
"""

from __future__ import annotations

import _thread
import atexit
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from celery.utils.log import get_logger

from ..clock import elapsed

logger = get_logger(f"celery.{__name__}")

SIGNALS = (signal.SIGTERM, signal.SIGINT)

#: Seconds after a signal in which the loop may end by itself. A supervisor may be waiting to kill the process.
_PATIENCE = 1.0

#: Seconds that the last work may take after that.
_LAST_PATIENCE = 0.4

#: Seconds in which further signals belong to the first: a terminal and a wrapper may both pass on one Ctrl-C.
_SAME_REQUEST = 0.3


class Stop:
    """Request that one beat stops, made by a signal or by :meth:`Scheduler.close`."""

    def __init__(self) -> None:
        #: Whether the beat is to stop.
        self.requested = False
        self._signalled_at: float | None = None
        self._previous: dict[signal.Signals, Any] = {}
        self._last_work: Callable[[], None] = lambda: None

    def check(self) -> None:
        """Raise SystemExit if the beat is to stop; called where nothing is half done."""
        if self.requested:
            raise SystemExit

    def take_signals(self, last_work: Callable[[], None]) -> None:
        """Handle SIGTERM and SIGINT from now on. Does nothing outside of the main thread.

        Parameters:
            last_work: run by another thread if the loop does not end in time; the process ends after that.
        """
        if self._previous or threading.current_thread() is not threading.main_thread():
            return
        self._last_work = last_work
        for number in SIGNALS:
            self._previous[number] = signal.signal(number, self._handle) or signal.SIG_DFL

    def return_signals(self) -> None:
        """Restore the previous handlers, because the process may go on after the beat."""
        if threading.current_thread() is not threading.main_thread():
            return
        previous = self._previous
        self._previous = {}
        for number, handler in previous.items():
            signal.signal(number, handler)
        if previous and self._signalled_at is not None:
            # Python restores the default handlers when it ends, and a late signal would kill it with exit code -2.
            atexit.register(_ignore_signals)

    def _handle(self, number: int, frame: object) -> None:
        self.requested = True
        if self._signalled_at is None:
            self._signalled_at = elapsed()
            # threading.Thread takes locks that the interrupted code may hold.
            _thread.start_new_thread(self._watch, ())
        elif elapsed() - self._signalled_at > _SAME_REQUEST:
            os._exit(128 + number)

    def _watch(self) -> None:
        """End the process if the loop hangs, in a call to a server that does not answer, for example."""
        time.sleep(_PATIENCE)
        if not self._previous:
            return
        last = threading.Thread(target=self._leave, daemon=True)
        last.start()
        last.join(_LAST_PATIENCE)
        if self._previous:
            os._exit(0)

    def _leave(self) -> None:
        self._last_work()
        logger.warning("beat: still busy %g s after the signal to stop; leaving", _PATIENCE)


def _ignore_signals() -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)

"""Reasons for a beat to stop: a signal, a call of ``Scheduler.close``, or the death of its worker.

Celery's signal handler raises SystemExit wherever it interrupts the process: between a publish and
its commit, while a lock is held, or in a finalizer, where Python ignores it. So the first tick
replaces that handler by one that sets a flag, and the loop ends at the next place where nothing is
half done.
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

import celery.beat
from billiard import current_process
from celery.utils.log import get_logger

from .._base.clock import elapsed

logger = get_logger(f"celery.{__name__}")

SIGNALS = (signal.SIGTERM, signal.SIGINT)

#: Seconds that the loop has to end by itself after a signal. A supervisor may be waiting to kill
#: the process.
_PATIENCE = 1.0

#: Seconds that the last work may take after that.
_LAST_PATIENCE = 0.4

#: Seconds in which further signals belong to the first: a terminal and a wrapper may both pass on
#: one Ctrl-C.
_SAME_REQUEST = 0.3


class Stop:
    """Request that one beat stops."""

    def __init__(self) -> None:
        #: Whether a signal or :meth:`Scheduler.close` asked the beat to stop.
        self.requested = False
        self._signalled_at: float | None = None
        self._previous: dict[signal.Signals, Any] = {}
        self._last_work: Callable[[], None] | None = None

    @property
    def is_due(self) -> bool:
        """Whether the beat is to stop."""
        return self.requested or worker_is_gone()

    def check(self) -> None:
        """Raise SystemExit if the beat is to stop; called where nothing is half done."""
        if self.requested:
            raise SystemExit
        if worker_is_gone():
            text = "beat: leaving, because the worker that runs this beat is gone (pid %d)"
            logger.warning(text, _worker())
            raise SystemExit

    def take_signals(self, last_work: Callable[[], None]) -> None:
        """Handle SIGTERM and SIGINT from now on. Does nothing outside of the main thread.

        Parameters:
            last_work: run by another thread if the loop does not end in time. The process ends
                after that.
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
            # Python restores the default handlers when it ends, and a late signal would kill it
            # with exit code -2.
            atexit.register(_ignore_signals)

    def _handle(self, number: int, frame: object) -> None:
        self.requested = True
        if self._signalled_at is None:
            self._signalled_at = elapsed()
            # threading.Thread acquires locks that the interrupted code may hold.
            _thread.start_new_thread(self._watch, ())
        elif elapsed() - self._signalled_at > _SAME_REQUEST:
            os._exit(128 + number)

    def _watch(self) -> None:
        """End the process if the loop hangs, in a call to a silent server for example."""
        time.sleep(_PATIENCE)
        if not self._previous:
            return
        last = threading.Thread(target=self._leave, daemon=True)
        last.start()
        last.join(_LAST_PATIENCE)
        if self._previous:
            os._exit(0)

    def _leave(self) -> None:
        if self._last_work is not None:
            self._last_work()
        logger.warning("beat: still busy %g s after the signal to stop; leaving", _PATIENCE)


def _ignore_signals() -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def worker_is_gone() -> bool:
    """Return whether this process is the beat of ``celery worker -B``, and that worker has ended.

    A worker that stops also stops its beat. A worker that is killed cannot, and its beat would go
    on to lead with old code. ``celery beat``, with ``--detach`` or without, and a beat in a thread
    have no such worker.
    """
    worker = _worker()
    # A process whose parent has ended may be adopted by any other process, not only by process 1.
    return worker is not None and os.getppid() != worker


def _worker() -> int | None:
    """Return the pid of the worker that started this process as its beat, if one did."""
    process: Any = current_process()
    # If Celery renames its class, no worker is ever gone.
    embedded = getattr(celery.beat, "_Process", None)
    if type(process) is not embedded:
        return None
    # Billiard read this before the fork. The parent read here might be another process already.
    pid: int | None = getattr(process, "_parent_pid", None)
    return pid

"""Stop of a beat, by a signal, a call of ``Scheduler.close``, or the death of its worker.

Celery's signal handler raises SystemExit wherever a signal interrupts the process. That may be
between a publish and its commit, or while the code holds a lock. In a finalizer, Python even
ignores the exception. So the scheduler replaces Celery's handler by one that sets a flag. The main
loop checks the flag where it can end safely.
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

#: Seconds after a signal in which the main loop must end by itself. If it does not, a thread ends
#: the process, because a supervisor may soon kill it.
_PATIENCE = 1.0

#: Maximum number of seconds for the last work, such as to release the lease. It begins when
#: ``_PATIENCE`` is over.
_LAST_PATIENCE = 0.4

#: Seconds after the first signal in which further signals count as copies of it. For one Ctrl-C, a
#: terminal and a wrapper may both send a signal.
_SAME_REQUEST = 0.3


class Stop:
    """Request to one beat to stop."""

    def __init__(self) -> None:
        #: Whether a signal or :meth:`Scheduler.close` has asked the beat to stop.
        self.requested = False
        #: Time of the first signal, in seconds of :func:`elapsed`.
        self._signalled_at: float | None = None
        #: Handlers that :meth:`take_signals` has replaced. It is empty before that call, and after
        #: :meth:`return_signals`.
        self._previous: dict[signal.Signals, Any] = {}
        #: Function to call before the process ends, if the main loop hangs after a signal.
        self._last_work: Callable[[], None] | None = None

    @property
    def is_due(self) -> bool:
        """Whether the beat must stop."""
        return self.requested or worker_is_gone()

    def check(self) -> None:
        """Raise SystemExit if the beat must stop. The caller must have finished its last write."""
        if self.requested:
            raise SystemExit
        if worker_is_gone():
            text = "beat: leaving, because the worker that runs this beat is gone (pid %d)"
            logger.warning(text, _worker())
            raise SystemExit

    def take_signals(self, last_work: Callable[[], None] | None = None) -> None:
        """Handle SIGTERM and SIGINT from now on. Does nothing outside of the main thread.

        Parameters:
            last_work: function that is called in another thread, if the main loop does not end in
                time after a signal. After that, the process ends.
        """
        self._last_work = last_work
        # Return if this object handles the signals already, or if Python allows no handler because
        # this is not the main thread.
        if self._previous or threading.current_thread() is not threading.main_thread():
            return
        for number in SIGNALS:
            previous = signal.signal(number, self._handle)
            # signal() returns None if the previous handler was not set by Python.
            self._previous[number] = previous or signal.SIG_DFL

    def return_signals(self) -> None:
        """Restore the previous signal handlers, because the process may outlive the beat."""
        if threading.current_thread() is not threading.main_thread():
            return  # Python allows no handler in this thread, so none was replaced.
        previous = self._previous
        self._previous = {}
        for number, handler in previous.items():
            signal.signal(number, handler)
        if previous and self._signalled_at is not None:
            # When Python ends, it restores the default handlers. Then a late copy of the signal
            # would kill the process with exit code -2.
            atexit.register(_ignore_signals)

    def _handle(self, number: int, frame: object) -> None:
        """Handle a signal: request the stop, or end the process at once at a second signal."""
        # The main loop checks this flag where it can end safely.
        self.requested = True
        if self._signalled_at is None:
            self._signalled_at = elapsed()
            # Do not use threading.Thread, which acquires locks: the interrupted code may hold them.
            _thread.start_new_thread(self._watch, ())
        elif elapsed() - self._signalled_at > _SAME_REQUEST:
            # A shell shows this exit code for a process that a signal has killed.
            os._exit(128 + number)

    def _watch(self) -> None:
        """End the process if the main loop hangs after the first signal. Runs in its own thread.

        For example, the loop may hang in a command to a server that does not answer.
        """
        time.sleep(_PATIENCE)
        if not self._previous:
            return  # The loop has ended, and has restored the handlers.
        # Do the last work in another thread, because it may hang, too.
        last = threading.Thread(target=self._leave, daemon=True)
        last.start()
        last.join(_LAST_PATIENCE)
        if self._previous:  # The loop still hangs.
            os._exit(0)

    def _leave(self) -> None:
        """Do the last work, and log that the loop hangs."""
        if self._last_work is not None:
            self._last_work()
        logger.warning("beat: still busy %g s after the signal to stop; leaving", _PATIENCE)


def _ignore_signals() -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def worker_is_gone() -> bool:
    """Return whether this process is the beat of ``celery worker -B``, and that worker has ended.

    A worker that stops also stops its beat. But if the worker is killed, the beat would continue to
    lead, with old code after a deployment. ``celery beat``, with ``--detach`` or without, has no
    such worker, and neither has a beat in a thread.
    """
    worker = _worker()
    # If the worker is gone, this process has another parent. That need not be process 1, so compare
    # with the worker's pid.
    return worker is not None and os.getppid() != worker


def _worker() -> int | None:
    """Return the pid of the worker that started this process as its beat, if one did."""
    process: Any = current_process()
    # Celery runs the beat of a worker in a process of this private class. If a later version
    # renames the class, no worker is found.
    embedded = getattr(celery.beat, "_Process", None)
    if type(process) is not embedded:
        return None
    # Billiard has read this pid before the fork, so it stays the worker's pid after the worker has
    # ended.
    pid: int | None = getattr(process, "_parent_pid", None)
    return pid

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

#: Seconds after a signal in which the main loop must end by itself. If it does not, a thread does
#: the last work and ends the process, because a supervisor may soon kill it.
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
        #: Whether this object handles the signals: from :meth:`take_signals` to
        #: :meth:`return_signals`.
        self._handles_signals = False
        #: Handlers that :meth:`take_signals` has replaced.
        self._replaced_handlers: dict[signal.Signals, Any] = {}
        #: Function to call before the process ends, if the main loop hangs after a signal. It is
        #: called in another thread. ``None`` until the beat is built.
        self.last_work: Callable[[], None] | None = None

    @property
    def is_due(self) -> bool:
        """Whether the beat must stop."""
        return self.requested or worker_is_gone()

    def check(self) -> None:
        """Raise SystemExit if the beat must stop. The caller must have finished its last write."""
        if not self.is_due:
            return
        if not self.requested:
            text = "beat: leaving, because the worker that runs this beat is gone (pid %d)"
            logger.warning(text, _worker_pid())
        raise SystemExit

    def take_signals(self) -> None:
        """Handle SIGTERM and SIGINT from now on. Does nothing outside of the main thread."""
        # Python allows a handler only in the main thread.
        if self._handles_signals or not _is_main_thread():
            return
        for number in SIGNALS:
            replaced = signal.signal(number, self._handle)
            # signal() returns None if the replaced handler was not set by Python.
            self._replaced_handlers[number] = replaced or signal.SIG_DFL
        self._handles_signals = True

    def return_signals(self) -> None:
        """Restore the replaced signal handlers, because the process may outlive the beat."""
        if not self._handles_signals or not _is_main_thread():
            return
        self._handles_signals = False
        for number, handler in self._replaced_handlers.items():
            signal.signal(number, handler)
        if self._signalled_at is not None:
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
            # This is no copy of the first signal, so somebody asks again and does not want to wait.
            # A shell shows this exit code for a process that a signal has killed.
            os._exit(128 + number)

    def _watch(self) -> None:
        """End the process if the main loop hangs after the first signal. Runs in its own thread.

        For example, the loop may hang in a command to a server that does not answer.
        """
        time.sleep(_PATIENCE)
        if not self._handles_signals:
            return  # The loop has ended, and has called return_signals().
        # Do the last work in another thread, because it may hang, too.
        worker = threading.Thread(target=self._do_last_work, daemon=True)
        worker.start()
        worker.join(_LAST_PATIENCE)
        if self._handles_signals:
            # The loop still hangs. Somebody asked for this stop, so it does not count as a failure.
            os._exit(0)

    def _do_last_work(self) -> None:
        """Do the last work, and log that the loop hangs."""
        if self.last_work is not None:
            self.last_work()
        logger.warning("beat: still busy %g s after the signal to stop; leaving", _PATIENCE)


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _ignore_signals() -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def worker_is_gone() -> bool:
    """Return whether this process is the beat of ``celery worker -B``, and that worker has ended.

    A worker that stops also stops its beat. But if the worker is killed, the beat would continue to
    lead, with old code after a deployment. ``celery beat``, with ``--detach`` or without, has no
    such worker, and neither has a beat in a thread.
    """
    worker_pid = _worker_pid()
    # If the worker is gone, this process has another parent. That need not be process 1, so compare
    # with the worker's pid.
    return worker_pid is not None and os.getppid() != worker_pid


def _worker_pid() -> int | None:
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

"""Background threads that work in every kind of worker pool."""

from __future__ import annotations

import _thread
import queue
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from celery.utils.log import get_logger

from .forks import no_forks
from .text import describe

logger = get_logger(f"celery.{__name__}")


def _original(name: str) -> Any:
    """Return a function of ``_thread`` as it was before gevent replaced it."""
    monkey = sys.modules.get("gevent.monkey")
    return getattr(_thread, name) if monkey is None else monkey.get_original("_thread", name)


class Alarm:
    """Wait of a thread that another thread can end early.

    It uses a lock of the operating system, which works between native threads and greenlets.
    """

    def __init__(self) -> None:
        # wait() waits for this lock, which only ring() releases.
        self._lock = _original("allocate_lock")()
        self._lock.acquire()

    def wait(self, seconds: float) -> None:
        """Return after ``seconds``, or as soon as :meth:`ring` is called.

        The wait blocks the whole native thread.
        """
        self._lock.acquire(timeout=max(seconds, 0.0))

    def ring(self) -> None:
        """End the current wait, or the next one."""
        with suppress(RuntimeError):  # The lock is free, because ring() was called before.
            self._lock.release()


def start_native(run: Callable[[], None], name: str) -> None:
    """Run a function in a native daemon thread, even under gevent.

    A greenlet would not run while a task computes.
    """
    if "gevent.monkey" in sys.modules:
        # Call Python's function, which gevent has replaced by its own.
        _original("start_new_thread")(run, ())
    else:
        threading.Thread(target=run, name=name, daemon=True).start()


class Ticker:
    """Daemon thread (under gevent a greenlet) that calls a function at intervals until it stops.

    The process does not fork while the function runs. An exception of the function is logged, and
    the next call follows nevertheless.

    Parameters:
        name: name of the thread.
        seconds: function that returns the length of the next wait in seconds.
        call: function to call.
        failure: text of the log line after an exception; the name of the thread by default.
    """

    def __init__(
        self, name: str, seconds: Callable[[], float], call: Callable[[], object], failure: str = ""
    ) -> None:
        self._seconds = seconds
        self._call = call
        self._failure = failure or name
        # An Event has a lock. If the process forks while the lock is held, it stays held in the
        # child for ever. A SimpleQueue has no such lock.
        self._woken: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread unless it has started."""
        if self._thread.ident is None:
            self._thread.start()

    def soon(self) -> None:
        """End the current wait, so that the function is called at once."""
        self._woken.put(None)

    def stop(self) -> None:
        """Have the thread end after the current call, and return without waiting for it."""
        self._stopped = True
        self._woken.put(None)

    def join(self, seconds: float) -> None:
        """Wait up to ``seconds`` for the end of the thread."""
        if self._thread.ident is not None:
            self._thread.join(seconds)

    def _run(self) -> None:
        """Call the function after each wait, until :meth:`stop` is called."""
        is_failing = False
        while True:
            self._wait(self._seconds())
            if self._stopped:
                return
            with no_forks():
                try:
                    self._call()
                    is_failing = False
                except Exception as exc:  # noqa: BLE001 - One failure must not end the thread.
                    # Only the first of several failures in a row is a warning.
                    log = logger.debug if is_failing else logger.warning
                    log("%s, trying again: %s", self._failure, describe(exc))
                    is_failing = True

    def _wait(self, seconds: float) -> None:
        """Wait for ``seconds``, or until :meth:`soon` or :meth:`stop` is called."""
        with suppress(queue.Empty):
            self._woken.get(timeout=seconds)
            # Drop further items, so that several calls of soon() lead to one call of the function.
            while True:
                self._woken.get_nowait()

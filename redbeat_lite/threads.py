"""Threads of our own, in every pool."""

from __future__ import annotations

import _thread
import queue
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from celery.utils.log import get_logger

from .errors import describe
from .forks import held_off

logger = get_logger(f"celery.{__name__}")


def _original(name: str) -> Any:
    """A function of ``_thread`` as it was before gevent patched it, if it did."""
    monkey = sys.modules.get("gevent.monkey")
    return getattr(_thread, name) if monkey is None else monkey.get_original("_thread", name)


class Alarm:
    """A wait with an early end, on a lock of the operating system: it works across native threads and greenlets."""

    def __init__(self) -> None:
        self._lock = _original("allocate_lock")()
        self._lock.acquire()

    def wait(self, seconds: float) -> None:
        """Return after ``seconds``, or as soon as somebody rings. Blocks the whole native thread."""
        self._lock.acquire(timeout=max(seconds, 0.0))

    def ring(self) -> None:
        """End the current wait, or the next one."""
        with suppress(RuntimeError):  # It rings already.
            self._lock.release()


def start_native(run: Callable[[], None], name: str) -> None:
    """Run a function in a native daemon thread, under gevent too: a greenlet would not run while a task computes."""
    if "gevent.monkey" in sys.modules:
        _original("start_new_thread")(run, ())
    else:
        threading.Thread(target=run, name=name, daemon=True).start()


class Ticker:
    """Calls a function every so often in a daemon thread (a greenlet under gevent), until it is stopped.

    The process is not forked while the function runs.

    Parameters:
        name: of the thread.
        seconds: asked before each wait.
        call: what to do; an error is logged, and the next call comes nevertheless.
        failure: what the log says then; the name by default.
    """

    def __init__(self, name: str, seconds: Callable[[], float], call: Callable[[], object], failure: str = "") -> None:
        self._seconds, self._call, self._failure = seconds, call, failure or name
        # No Event: its lock may be held when the process forks, and would be held in the child for ever.
        self._woken: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin, if it has not begun."""
        if self._thread.ident is None:
            self._thread.start()

    def soon(self) -> None:
        """Call at once instead of at the end of the wait."""
        self._woken.put(None)

    def stop(self) -> None:
        """End after the call that is under way, if there is one. Does not wait for that."""
        self._stopped = True
        self._woken.put(None)

    def join(self, seconds: float) -> None:
        """Wait for the end, no longer than this, if it has begun."""
        if self._thread.ident is not None:
            self._thread.join(seconds)

    def _run(self) -> None:
        failing = False
        while True:
            self._wait(self._seconds())
            if self._stopped:
                return
            with held_off():
                try:
                    self._call()
                    failing = False
                except Exception as exc:  # noqa: BLE001 - one failure must not be the end
                    log = logger.debug if failing else logger.warning
                    log("%s, trying again: %s", self._failure, describe(exc))
                    failing = True

    def _wait(self, seconds: float) -> None:
        with suppress(queue.Empty):
            self._woken.get(timeout=seconds)
            # Several that woke it before it began are answered by one call.
            while True:
                self._woken.get_nowait()

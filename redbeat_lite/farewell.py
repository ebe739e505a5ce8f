"""What a beat does when it is told to stop, cut off at a deadline: a supervisor may be waiting to kill it."""

from __future__ import annotations

import _thread
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue

from celery.utils.log import get_logger

from .clock import elapsed

logger = get_logger(__name__)

#: Seconds for everything together. The rest of the two seconds that a stop may take is for Python to end.
_PATIENCE = 1.4


class Farewell:
    """Runs what may hang in a thread of its own, and waits for it no longer than the time that is left.

    The time begins to run with the first piece of work, however many follow. May be used from a signal handler, which
    another signal may interrupt.
    """

    def __init__(self) -> None:
        self._deadline: float | None = None
        self._works: SimpleQueue[tuple[tuple[Callable[[], None], ...], SimpleQueue[None]]] = SimpleQueue()

    def do(self, *works: Callable[[], None]) -> None:
        """Do these after all earlier ones; what hangs, or is not reached in time, ends with the process."""
        done: SimpleQueue[None] = SimpleQueue()
        self._works.put((works, done))
        if self._deadline is None:
            # Neither Thread nor Event: the signal may have interrupted the main thread while it holds their locks.
            _thread.start_new_thread(self._run, ())
            self._deadline = elapsed() + _PATIENCE
        with suppress(Empty):
            done.get(timeout=max(self._deadline - elapsed(), 0.0))

    def _run(self) -> None:
        # Without end: a thread that comes to one while the interpreter does may crash it.
        while True:
            works, done = self._works.get()
            for work in works:
                try:
                    work()
                except Exception as exc:  # noqa: BLE001 - what follows has to be done all the same
                    logger.debug("beat: %s failed while stopping: %r", work, exc)
            done.put(None)

"""What a beat does when it is told to stop, cut off at a deadline: a supervisor may be waiting to kill it."""

from __future__ import annotations

import _thread
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue

from celery.utils.log import get_logger
from redis.client import PubSub

from ..clock import elapsed

logger = get_logger(f"celery.{__name__}")

#: Seconds for everything together. The rest of the two seconds that a stop may take is for Python to end.
_PATIENCE = 1.4

#: Seconds that the end of an idle thread may take.
_LAST = 0.2

_Work = tuple[tuple[Callable[[], None], ...], SimpleQueue[None]]


class Farewell:
    """Runs what may hang in a thread of its own, and waits for it no longer than the time that is left.

    The time begins to run with the first piece of work, however many follow. May be used from a signal handler, which
    another signal may interrupt.
    """

    def __init__(self) -> None:
        self._deadline: float | None = None
        self._works: SimpleQueue[_Work | None] | None = None
        self._thread = 0

    def do(self, *works: Callable[[], None]) -> bool:
        """Do these after all earlier ones; what hangs, or is not reached in time, ends with the process.

        Returns whether all of them were reached and done.
        """
        done: SimpleQueue[None] = SimpleQueue()
        if self._works is None:
            self._works = SimpleQueue()
            # Neither Thread nor Event: the signal may have interrupted the main thread while it holds their locks.
            self._thread = _thread.start_new_thread(_run, (self._works,))
        self._works.put((works, done))
        if self._deadline is None:
            self._deadline = elapsed() + _PATIENCE
        with suppress(Empty):
            done.get(timeout=max(self._deadline - elapsed(), 0.0))
            return True
        return False

    def end(self) -> None:
        """End the thread, which has nothing left to do, in a process that may go on without it.

        Waits until it is gone: one that comes to its end while the interpreter does may crash it. For the same reason
        one that hangs is never told to end.
        """
        works, self._works = self._works, None
        if works is None:
            return
        works.put(None)
        deadline = elapsed() + _LAST
        while self._thread in sys._current_frames() and elapsed() < deadline:
            time.sleep(0.001)


def by_celerys_signal_handler() -> bool:
    """Whether it is what asks, from however deep."""
    frame = sys._getframe()
    while (frame := frame.f_back) is not None:  # type: ignore[assignment]  # told from a frame just here
        if frame.f_code.co_name == "_sync" and frame.f_globals.get("__name__") == "celery.apps.beat":
            return True
    return False


def leave_subscriptions_alone() -> None:
    """Have Python take no subscription apart that nobody refers to any more; the end of the process does.

    redis-py's finalizer takes a lock of the subscription. The signal may have interrupted who had just taken that: then
    the process would wait for itself, for ever.
    """
    PubSub.__del__ = lambda self: None  # type: ignore[method-assign]


def say_nothing_of_ignored_exits() -> None:
    """Have Python print no traceback of a SystemExit that it ignores.

    Celery's signal handler raises one wherever it interrupts the process, which may be in a finalizer. The beat ends
    all the same, see :meth:`redbeat_lite.Scheduler.tick`; a traceback would say otherwise.
    """
    if sys.unraisablehook is sys.__unraisablehook__:  # not that of somebody who wants to know
        sys.unraisablehook = _say_unless_exit


def _say_unless_exit(ignored: sys.UnraisableHookArgs) -> None:
    if not issubclass(ignored.exc_type, SystemExit):
        sys.__unraisablehook__(ignored)


def _run(works: SimpleQueue[_Work | None]) -> None:
    while (work := works.get()) is not None:
        each, done = work
        for do in each:
            try:
                do()
            except Exception as exc:  # noqa: BLE001 - what follows has to be done all the same
                logger.debug("beat: %s failed while stopping: %r", do, exc)
        done.put(None)

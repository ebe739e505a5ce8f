"""What a step tells of its progress: the last word of each half second, written by a thread, so that no body waits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

from celery.utils.log import get_logger

from ..clock import elapsed
from ..errors import storable, text_of
from ..forks import held_off
from ..storage.connections import FAULTS

logger = get_logger(f"celery.{__name__}")

#: Seconds from one write to the next.
_PAUSE = 0.5

#: Longest note, in characters.
_MAX_NOTE = 200


class Progress:
    """What one run of a step tells."""

    def __init__(self, write: Callable[[float, str], object]) -> None:
        self._write_down = write
        self._said = (0.0, "")
        self._written = float("-inf")
        self._waits = threading.Lock()  #: Held while a write is to come, which takes the last word.
        self._timer: threading.Timer | None = None

    def tell(self, percent: float, note: str) -> None:
        """Have this noted, unless something newer comes before the next write."""
        # In this order what is no number counts as 0.
        self._said = min(max(0.0, float(percent)), 100.0), storable(str(note))[:_MAX_NOTE]
        if self._waits.acquire(blocking=False):
            timer = threading.Timer(max(self._written + _PAUSE - elapsed(), 0), self._write)
            timer.daemon = True
            # Where there can be no more threads, the last word is written at the end alone.
            with suppress(RuntimeError):
                timer.start()
                self._timer = timer

    def close(self) -> None:
        """Write the last word: after the end of its step none is taken."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()
        if self._waits.locked():
            self._write()

    def _write(self) -> None:
        self._written = elapsed()
        self._waits.release()  # Before the last word is read: who comes later than that writes it.
        try:
            with held_off():
                self._write_down(*self._said)
        except FAULTS as exc:
            logger.debug("The progress of a step was not written: %s", text_of(exc))

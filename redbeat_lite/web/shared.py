"""One read for all who look: however many pages are open, each is read from the server every two seconds at most."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from concurrent.futures import Future
from threading import Lock
from typing import Any, TypeVar

from ..clock import elapsed

#: Seconds for which what was read is shown, or that it could not be read.
_FRESH = 2.0

_T = TypeVar("_T")


class Shared:
    """Answers that are a few seconds old at most."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: dict[Hashable, tuple[float, Future[Any]]] = {}

    def read(self, question: Hashable, ask: Callable[[], _T]) -> _T:
        """What ``ask`` answers, or raises; or has just done so, or is about to, for somebody else."""
        with self._lock:
            now = elapsed()
            self._kept = {each: kept for each, kept in self._kept.items() if now - kept[0] < _FRESH}
            asked = question in self._kept
            answer: Future[_T] = self._kept.setdefault(question, (now, Future()))[1]
        if not asked:
            try:
                answer.set_result(ask())
            except BaseException as exc:  # noqa: BLE001 - raised to all who wait
                answer.set_exception(exc)
        return answer.result()

    def forget(self) -> None:
        """Something was changed from here."""
        with self._lock:
            self._kept.clear()

"""One read for all who look: however many have a page open, it is read from the server every two seconds at most."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from concurrent.futures import Future
from math import inf
from threading import Lock
from typing import Any, TypeVar

from ..clock import elapsed
from ..storage.connections import UNREACHABLE

#: Seconds for which what was read is shown, or that it could not be; and for how many times as long what took long:
#: no page that is left open shall keep a process busy.
_FRESH, _TIMES = 2.0, 10

_T = TypeVar("_T")


class Shared:
    """Answers that are a few seconds old at most."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: dict[Hashable, tuple[float, Future[Any]]] = {}
        #: The last time that Redis did not answer: until when nobody asks it again, and the error.
        self._outage: tuple[float, Exception] | None = None

    def read(self, question: Hashable, ask: Callable[[], _T]) -> _T:
        """What ``ask`` answers, or raises; or has just done so, or is about to, for somebody else."""
        with self._lock:
            began = elapsed()
            if self._outage is not None and began < self._outage[0]:
                raise self._outage[1]
            self._kept = {each: kept for each, kept in self._kept.items() if began < kept[0]}
            asked = question in self._kept
            answer: Future[_T] = self._kept.setdefault(question, (inf, Future()))[1]
        if not asked:
            fresh = _FRESH
            try:
                answer.set_result(ask())
                fresh = max(_FRESH, _TIMES * (elapsed() - began))
            except BaseException as exc:  # noqa: BLE001 - raised to all who wait
                answer.set_exception(exc)
                if isinstance(exc, UNREACHABLE):
                    self._outage = (elapsed() + _FRESH, exc)
            with self._lock:
                if self._kept.get(question, (0, None))[1] is answer:  # nothing was changed meanwhile
                    self._kept[question] = (elapsed() + fresh, answer)
        return answer.result()

    def forget(self) -> None:
        """Something was changed from here."""
        with self._lock:
            self._kept.clear()
            self._outage = None

"""Cache of replies, so that a page reads the server at most once in two seconds."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from concurrent.futures import Future
from math import inf
from threading import Lock
from typing import Any, TypeVar

from .._base.clock import elapsed
from ..store.connections import UNREACHABLE

#: Seconds for which a reply is fresh, and for which no page asks a server that did not answer.
_FRESH = 2.0

#: A reply that took long stays fresh for this many times as long as it took, so that pages that
#: are left open keep the process idle at least nine tenths of the time.
_TIMES_AS_LONG = 10

_T = TypeVar("_T")


class ReadCache:
    """Replies of the server that all visitors of the page share for a few seconds."""

    def __init__(self) -> None:
        self._lock = Lock()
        #: Key -> the instant at which its reply is stale, and the reply. A read in flight is not.
        self._replies: dict[Hashable, tuple[float, Future[Any]]] = {}
        #: Instant until which no page asks the server again, and the error of the last read.
        self._outage: tuple[float, Exception] | None = None

    def read(self, key: Hashable, ask: Callable[[], _T]) -> _T:
        """Return the fresh reply for a key, or ask for it; raises what ``ask`` raises.

        Visitors who come while somebody else asks wait for that reply.
        """
        with self._lock:
            began = elapsed()
            if self._outage is not None and began < self._outage[0]:
                raise self._outage[1]
            for other in [*self._replies]:
                if self._replies[other][0] <= began:
                    del self._replies[other]
            is_asked = key in self._replies
            reply: Future[_T] = self._replies.setdefault(key, (inf, Future()))[1]
        if not is_asked:
            self._ask(key, ask, reply, began)
        return reply.result()

    def _ask(self, key: Hashable, ask: Callable[[], _T], reply: Future[_T], began: float) -> None:
        """Ask for a reply and keep it, longer if it took long."""
        fresh_for = _FRESH
        try:
            reply.set_result(ask())
            fresh_for = max(_FRESH, _TIMES_AS_LONG * (elapsed() - began))
        except BaseException as exc:  # noqa: BLE001 - all visitors who wait raise it
            reply.set_exception(exc)
            if isinstance(exc, UNREACHABLE):
                self._outage = (elapsed() + _FRESH, exc)
        with self._lock:
            # If somebody has edited meanwhile, forget() has dropped this reply, because it may be
            # older than the edit.
            if self._replies.get(key, (0, None))[1] is reply:
                self._replies[key] = (elapsed() + fresh_for, reply)

    def forget(self) -> None:
        """Drop all replies, because something was changed by a post."""
        with self._lock:
            self._replies.clear()
            self._outage = None

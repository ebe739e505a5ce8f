"""Cache of replies, so that each page reads the server at most once in two seconds."""

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

#: A reply whose read took N seconds is fresh for 10 N seconds. So pages that are left open use at
#: most a tenth of the time of the process.
_TIMES_AS_LONG = 10

_T = TypeVar("_T")


class ReadCache:
    """Replies of the server that all requests to the page share for a few seconds."""

    def __init__(self) -> None:
        self._lock = Lock()
        #: Key -> when its reply becomes stale, and the reply. While a reply is awaited, it is never
        #: stale.
        self._replies: dict[Hashable, tuple[float, Future[Any]]] = {}
        #: When a page may ask the server again, and the error of the last read; ``None``: no error.
        self._outage: tuple[float, Exception] | None = None

    def read(self, key: Hashable, ask: Callable[[], _T]) -> _T:
        """Return the reply for a key: the fresh one, or the result of ``ask``.

        If another request is asking for the same key, this call waits for its reply.

        Raises:
            Exception: the error that ``ask`` raised, or the last one if the server did not answer.
        """
        with self._lock:
            began = elapsed()
            if self._outage is not None:
                ask_again_at, error = self._outage
                if began < ask_again_at:
                    raise error
            # Drop all stale replies, so that the cache does not grow.
            fresh = {other: kept for other, kept in self._replies.items() if kept[0] > began}
            self._replies = fresh
            known: tuple[float, Future[_T]] | None = fresh.get(key)
            reply = Future[_T]()
            if known is None:
                # Other requests see this reply before it is set, and wait for it.
                fresh[key] = (inf, reply)
        if known is not None:
            return known[1].result()  # This waits if the other request has not got its reply yet.
        fresh_for = _FRESH
        try:
            reply.set_result(ask())
            fresh_for = max(_FRESH, _TIMES_AS_LONG * (elapsed() - began))
        except BaseException as exc:  # noqa: BLE001 - all requests that wait raise it
            reply.set_exception(exc)
            if isinstance(exc, UNREACHABLE):
                self._outage = (elapsed() + _FRESH, exc)
        with self._lock:
            # If a post has called forget() meanwhile, the key is gone or has a newer reply. This
            # reply may be older than the change, so do not keep it.
            if self._replies.get(key, (0, None))[1] is reply:
                self._replies[key] = (elapsed() + fresh_for, reply)
        return reply.result()

    def forget(self) -> None:
        """Drop all replies, because a post has changed something."""
        with self._lock:
            self._replies.clear()
            self._outage = None

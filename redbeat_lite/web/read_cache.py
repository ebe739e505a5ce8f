"""Cache of replies, so that each page reads the server at most once in two seconds."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any, TypeVar

from .._base.clock import elapsed
from ..store.connections import UNREACHABLE

#: Seconds for which a reply is fresh, and for which no page asks a server that did not answer.
_FRESH = 2.0

#: A reply whose read took N seconds is fresh for 10 N seconds. So pages that are left open use at
#: most a tenth of the time of the process.
_TIMES_AS_LONG = 10

#: Number of locks. Two keys with the same lock are read one after the other.
_LOCKS = 64

_T = TypeVar("_T")


class ReadCache:
    """Replies of the server that all requests to the page share for a few seconds."""

    def __init__(self) -> None:
        self._locks = [Lock() for _ in range(_LOCKS)]
        #: Key -> when its reply becomes stale, and the reply.
        self._replies: dict[Hashable, tuple[float, Any]] = {}
        #: When a page may ask the server again, and the error of the last read; ``None``: no error.
        self._outage: tuple[float, Exception] | None = None

    def read(self, key: Hashable, ask: Callable[[], _T]) -> _T:
        """Return the reply for a key: the fresh one, or the result of ``ask``.

        If another request is asking for the same key, this call waits for its reply.

        Raises:
            Exception: the error that ``ask`` raised, or the last one if the server did not answer.
        """
        with self._locks[hash(key) % _LOCKS]:
            began = elapsed()
            if self._outage is not None:
                ask_again_at, error = self._outage
                if began < ask_again_at:
                    raise error
            replies = self._replies
            # Drop all stale replies, so that the cache does not grow.
            for other, (stale_at, _) in replies.copy().items():
                if stale_at <= began:
                    replies.pop(other, None)
            kept: tuple[float, _T] | None = replies.get(key)
            if kept is not None:
                return kept[1]
            try:
                reply = ask()
            except UNREACHABLE as exc:
                self._outage = (elapsed() + _FRESH, exc)
                raise
            fresh_for = max(_FRESH, _TIMES_AS_LONG * (elapsed() - began))
            # If a post has called forget() meanwhile, this reply may be older than the change, and
            # ``replies`` is no longer in use.
            replies[key] = (elapsed() + fresh_for, reply)
            return reply

    def forget(self) -> None:
        """Drop all replies, because a post has changed something."""
        self._replies = {}
        self._outage = None

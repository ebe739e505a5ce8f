"""``lock(...)``: the same locks for a block of code."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..durations import Duration
from ..public import public
from ..uuids import drawn
from .errors import LockLost, LockUnavailable
from .hold import Hold
from .lock_key import checked
from .policy import Once, check_seconds
from .runtime import Runtime
from .store import Held

#: Seconds between two attempts of a caller that waits.
_POLL = 0.1

#: A cache lock is not deleted in the last seconds of its time, as it may be somebody else's by then.
_MARGIN = 3.0


@public
class LockHandle:
    """What ``with lock(...) as held`` gives: true if the lock was taken."""

    def __init__(self, key: str, hold: Hold | None, *, taken: bool, until: float | None = None) -> None:
        self.key, self._hold, self._taken, self._until = key, hold, taken, until

    def __bool__(self) -> bool:
        return self._taken

    @property
    def fence(self) -> int | None:
        """The fencing number; ``None`` without the lock, and for a cache, which has none."""
        return self._hold.held.fence if self._hold is not None and self._taken else None

    @property
    def lost(self) -> bool:
        """Whether the lock ran out within the block."""
        if self._until is not None:
            return self._taken and time.monotonic() >= self._until
        return self._hold is not None and self._hold.lost

    def check(self) -> None:
        """Raise if the lock is not held any more.

        Raises:
            LockLost: it was not taken, or ran out.
        """
        if not self._taken or self.lost:
            raise LockLost(f"the once-lock {self.key!r} is not held", self.key)


@public
@contextmanager
def lock(where: Any, key: str, *, lease: Duration = 60.0, timeout: Duration = 0.0) -> Iterator[LockHandle]:
    """Hold the once-lock ``key`` for a block of code; tasks with that key are held back too.

    Parameters:
        where: the Celery app; or a cache with ``get``, ``delete`` and an ``add(key, value, timeout)`` that sets a key
            only where there is none, atomically: Django's with memcached or Redis, or a client of memcached. A cache
            lock is not renewed, has no fencing number, and is independent of the app's locks. The cache gets its lease
            in whole seconds.
        key: as ``Once(key="...")`` without fields, or ``once_key``.
        lease: length of time after which a holder that died frees the lock. Renewed during the block, but for a cache,
            where the block must be shorter.
        timeout: how long to wait for it. Who waits here has no place in the queue of the tasks that wait: those go
            first.

    Yields:
        a handle that is true if the lock was taken; the block runs either way. At its end a server that does not
        answer is asked for about eight seconds.

    Raises:
        LockUnavailable: the server does not answer.
        InvalidEntry: the lease is below a second, it or the timeout is above a year, or the key is empty.
    """
    manager = _cache_lock if hasattr(where, "add") and not hasattr(where, "amqp") else _app_lock
    lengths = check_seconds("once.lease", lease), check_seconds("timeout", timeout, 0)
    with manager(where, checked(key), *lengths) as handle:
        yield handle


@contextmanager
def _app_lock(app: Any, key: str, lease: float, timeout: float) -> Iterator[LockHandle]:
    runtime = Runtime.of(app)
    token = drawn()
    lease_ms = round(lease * 1000)
    holder = f"lock() in process {os.getpid()}"
    # The guard's record outlives the block only to tell a renewal under way that the block has ended.
    held = Held(token, f"lock:{token}", 0, lease_ms, key=key, holder=holder, life_ms=2 * lease_ms)
    hold = Hold(held, Once(lease=lease))
    try:
        taken = _take(runtime, hold, timeout)
    except LockUnavailable:
        raise
    except BaseException:
        # A time limit or a signal may strike after the server gave the lock and before its reply.
        runtime.end(hold, patient=True)
        raise
    if not taken:
        yield LockHandle(key, None, taken=False)
        return
    runtime.renewer.add(hold)
    try:
        yield LockHandle(key, hold, taken=True)
    finally:
        runtime.end(hold, patient=True)


def _take(runtime: Runtime, hold: Hold, timeout: float) -> bool:
    """Ask for the lock until it is taken or the time is over; return whether it is taken."""
    deadline = time.monotonic() + timeout
    while runtime.begin(hold, on_conflict="try").word != "run":
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(_POLL, left))
    return True


@contextmanager
def _cache_lock(cache: Any, key: str, lease: float, timeout: float) -> Iterator[LockHandle]:
    token = drawn()
    deadline = time.monotonic() + timeout
    while True:
        # Read before the question, so that the local end is never later than the cache's.
        until = time.monotonic() + lease
        # pymemcache says True without waiting for the answer, so the stored token decides.
        taken = bool(cache.add(key, token, math.ceil(lease))) and _has_token(cache, key, token)
        if taken or time.monotonic() >= deadline:
            break
        time.sleep(_POLL)
    try:
        yield LockHandle(key, None, taken=taken, until=until)
    finally:
        # Between the look and the delete the key may run out and be taken by another; the margin makes that take a
        # pause of seconds at the wrong place. No cache can promise more.
        margin = min(_MARGIN, lease / 4)
        if taken and time.monotonic() < until - margin and _has_token(cache, key, token):
            cache.delete(key)


def _has_token(cache: Any, key: str, token: str) -> bool:
    """Return whether the cache holds this token. Clients of memcached return bytes."""
    return cache.get(key) in (token, token.encode())

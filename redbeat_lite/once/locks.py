"""``lock(...)`` for a block of code, and ``locks(app)`` to list and clear locks."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any

from celery import Celery
from celery.utils.log import get_logger

from .._base.fields import Length
from .._base.ids import random_hex
from .._base.public import public
from .._base.times import MAX_MS, Duration, from_ms
from ..policies import MIN_LEASE, Once
from ..store.redis_values import text_of_hash, texts
from .errors import LockLost, LockUnavailable
from .lock_client import Hold, LockClient
from .lock_key import checked_key
from .lock_store import Held

logger = get_logger(f"celery.{__name__}")

#: Seconds between two attempts of a caller that waits.
_POLL = 0.1

#: A cache lock is not deleted in the last seconds of its lease, because another holder may have
#: acquired it by then. At most a quarter of the lease.
_MARGIN = 3.0

#: Locks per round trip of a listing.
_PAGE = 500


# -- a lock for a block of code --------------------------------------------------------------------


@public
class LockHandle:
    """Lock of a block, given by ``with lock(...) as held``; true if the lock was acquired."""

    def __init__(
        self,
        key: str,
        hold: Hold | None,
        *,
        taken: bool,
        until: float | None = None,
    ) -> None:
        self.key = key
        self._hold = hold
        self._taken = taken
        self._until = until

    def __bool__(self) -> bool:
        return self._taken

    @property
    def fence(self) -> int | None:
        """Fencing number; ``None`` without the lock, and for a cache, which has none."""
        if self._hold is None or not self._taken:
            return None
        return self._hold.held.fence

    @property
    def lost(self) -> bool:
        """Whether the lock ran out within the block."""
        if self._until is not None:
            return self._taken and time.monotonic() >= self._until
        return self._hold is not None and self._hold.lost

    def check(self) -> None:
        """Raise if the lock is not held any more.

        Raises:
            LockLost: the lock was not acquired, or ran out.
        """
        if not self._taken or self.lost:
            raise LockLost(f"the once-lock {self.key!r} is not held", self.key)


@public
@contextmanager
def lock(
    where: Any,
    key: str,
    *,
    lease: Duration = 60.0,
    timeout: Duration = 0.0,
) -> Iterator[LockHandle]:
    """Hold the once-lock ``key`` for a block of code; tasks with that key are held back too.

    Parameters:
        where: the Celery app; or a cache with ``get``, ``delete`` and an
            ``add(key, value, timeout)`` that sets a key only if there is none, atomically: Django's
            with memcached or Redis, or a client of memcached. A cache lock is not renewed, has no
            fencing number, and is independent of the app's locks. The cache gets its lease in whole
            seconds.
        key: as ``Once(key="...")`` without fields, or ``once_key``.
        lease: length of time after which the lock of a holder that died is free. It is renewed
            during the block, but for a cache, where the block must be shorter.
        timeout: how long to wait for the lock. A caller that waits here has no place in the queue
            of the tasks that wait: those go first.

    Yields:
        a handle that is true if the lock was acquired; the block runs either way. At its end a
        server that does not answer is asked for about eight seconds.

    Raises:
        LockUnavailable: the server does not answer.
        InvalidEntry: the lease is below a second, it or the timeout is above a year, or the key is
            empty.
    """
    is_cache = hasattr(where, "add") and not hasattr(where, "amqp")
    manager = _cache_lock if is_cache else _app_lock
    lease_seconds = Length(MIN_LEASE).read("once.lease", lease)
    wait_seconds = Length().read("timeout", timeout)
    with manager(where, checked_key(key), lease_seconds, wait_seconds) as handle:
        yield handle


@contextmanager
def _app_lock(app: Any, key: str, lease: float, timeout: float) -> Iterator[LockHandle]:
    """Acquire a once-lock on the server of the app, and renew it during the block."""
    client = LockClient.of(app)
    token = random_hex()
    lease_ms = round(lease * 1000)
    held = Held(
        token=token,
        task_id=f"lock:{token}",
        attempt=0,
        lease_ms=lease_ms,
        key=key,
        holder=f"lock() in process {os.getpid()}",
        # The guard's record outlives the block only for a renewal in flight, which must not restore
        # the lock.
        life_ms=2 * lease_ms,
    )
    hold = Hold(held, Once(lease=lease))
    try:
        taken = _acquire(client, hold, timeout)
    except LockUnavailable:
        raise
    except BaseException:
        # A time limit or a signal may strike after the server gave the lock and before its reply.
        client.end(hold, patient=True)
        raise
    if not taken:
        yield LockHandle(key, None, taken=False)
        return
    client.renewer.add(hold)
    try:
        yield LockHandle(key, hold, taken=True)
    finally:
        client.end(hold, patient=True)


def _acquire(client: LockClient, hold: Hold, timeout: float) -> bool:
    """Ask for the lock until it is acquired or the time is over; return whether it is acquired."""
    deadline = time.monotonic() + timeout
    while client.begin(hold, on_conflict="try").word != "run":
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(_POLL, left))
    return True


@contextmanager
def _cache_lock(cache: Any, key: str, lease: float, timeout: float) -> Iterator[LockHandle]:
    """Acquire a lock in a cache. It is not renewed, so it may expire during the block."""
    token = random_hex()
    deadline = time.monotonic() + timeout
    while True:
        # Computed before the cache is asked, so that the local end is never later than the cache's.
        until = time.monotonic() + lease
        # pymemcache returns True without waiting for the reply, so the stored token decides.
        taken = bool(cache.add(key, token, math.ceil(lease))) and _has_token(cache, key, token)
        if taken or time.monotonic() >= deadline:
            break
        time.sleep(_POLL)
    try:
        yield LockHandle(key, None, taken=taken, until=until)
    finally:
        # If this process pauses between the look and the delete for longer than the margin, the key
        # expires, another holder acquires it, and the delete frees the lock of that holder. A cache
        # cannot compare and delete in one step.
        margin = min(_MARGIN, lease / 4)
        if taken and time.monotonic() < until - margin and _has_token(cache, key, token):
            cache.delete(key)


def _has_token(cache: Any, key: str, token: str) -> bool:
    """Return whether the cache holds this token. Clients of memcached return bytes."""
    return cache.get(key) in (token, token.encode())


# -- the locks of an app ---------------------------------------------------------------------------


@public
@dataclass(frozen=True, slots=True)
class LockInfo:
    """One lock, or a queue of waiters for it.

    Parameters:
        key: of the lock.
        state: ``"running"``, ``"queued"``, or ``"free"`` while the next waiter is on its way.
        task_id: of the task that holds it.
        holder: host and process that run it, or the entry or task it is queued for.
        since: when it was acquired, in UTC.
        expires_in: seconds until it is free if no worker renews it.
        fence: its fencing number.
        waiters: the task ids that wait, in their order.
    """

    key: str
    state: str
    task_id: str | None
    holder: str
    since: datetime | None
    expires_in: float | None
    fence: int | None
    waiters: tuple[str, ...]


@public
class Locks:
    """The locks of one app. Get it with :func:`locks`; opens no connection before it is asked."""

    def __init__(self, app: Celery) -> None:
        self._app = app

    def list(self, limit: int | None = None) -> Sequence[LockInfo]:
        """Return the locks that are held or waited for, in the order in which they run out.

        It takes two round trips per 500 locks.

        Parameters:
            limit: how many to return at most; ``None`` for all.
        """
        return tuple(islice(self._pages(), limit))

    def get(self, key: str) -> LockInfo | None:
        """Return one lock; ``None`` if it is free and no task waits."""
        return next(iter(self._read([checked_key(key)])), None)

    def clear(self, key: str) -> bool:
        """Free a lock, no matter which task holds it, and wake the first waiter.

        The other waiters keep their places. A task that held the lock goes on running, beside the
        next task of its key. The task learns within a third of its lease that it lost the lock:
        ``self.once.lost``; in a block ``check()`` raises :class:`~redbeat_lite.LockLost`.

        Returns:
            whether it was held.
        """
        client = LockClient.of(self._app)
        key = checked_key(key)
        held, waiters = client.store.clear(key)
        if waiters:
            client.wake([key])
        return held

    def _pages(self) -> Iterator[LockInfo]:
        """Yield all locks, a page per round trip."""
        store = LockClient.of(self._app).store
        seen: set[str] = set()
        start = 0
        while True:
            page = texts(store.client.zrange(store.keys.index, start, start + _PAGE - 1))
            if not page:
                return
            # A renewal moves its key towards the end, so a key may appear twice.
            yield from self._read([key for key in page if key not in seen])
            seen.update(page)
            start += _PAGE

    def _read(self, keys: Sequence[str]) -> Iterator[LockInfo]:
        """Yield the locks of these keys, in one round trip."""
        if not keys:
            return
        store = LockClient.of(self._app).store
        pipe = store.client.pipeline(transaction=False)
        for key in keys:
            pipe.hgetall(store.keys.lock(key))
            pipe.pttl(store.keys.lock(key))
            pipe.zrange(store.keys.waiters(key), 0, -1)
        # A lock that another program has overwritten must not hide the others.
        replies = iter(pipe.execute(raise_on_error=False))
        for key, fields, left_ms, waiters in zip(keys, replies, replies, replies, strict=True):
            if any(isinstance(reply, Exception) for reply in (fields, left_ms, waiters)):
                logger.warning("the once-lock %r cannot be read: %s", key, fields)
            elif fields or waiters:
                yield _info(key, text_of_hash(fields), left_ms, texts(waiters))


@public
def locks(app: Celery) -> Locks:
    """Return the once-locks of an app, to list and to clear."""
    return Locks(app)


def _info(key: str, fields: Mapping[str, str], left_ms: int, waiters: Sequence[str]) -> LockInfo:
    """Return a lock from its stored fields.

    Parameters:
        left_ms: ms until the lock expires; negative if nobody holds it.
    """
    since_ms = _number(fields.get("since"))
    since = None
    if since_ms is not None and since_ms <= MAX_MS:
        since = from_ms(since_ms)
    expires_in = left_ms / 1000 if left_ms >= 0 else None
    return LockInfo(
        key=key,
        state=fields.get("state", "free"),
        task_id=fields.get("task"),
        holder=fields.get("holder", ""),
        since=since,
        expires_in=expires_in,
        fence=_number(fields.get("fence")),
        waiters=tuple(waiters),
    )


def _number(text: str | None) -> int | None:
    """Return a number that one of our scripts has written; ``None`` for any other text."""
    if text is None or not re.fullmatch(r"[0-9]{1,18}", text):
        return None
    return int(text)

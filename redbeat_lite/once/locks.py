"""``lock(...)`` for a block of code, and ``locks(app)`` to list and clear locks."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, islice
from typing import Any

from celery import Celery
from celery.utils.log import get_logger

from .._base.clock import elapsed
from .._base.fields import length
from .._base.ids import random_hex
from .._base.public import public
from .._base.times import Duration, from_ms
from ..policies import MIN_LEASE
from ..store.records import chunks
from ..store.redis_values import UNREADABLE, text_of_hash, texts
from .claims import Hold
from .errors import LockLost, LockUnavailable
from .lock_client import LockClient
from .lock_key import checked_key

logger = get_logger(f"celery.{__name__}")

#: Seconds between two attempts of a caller that waits.
_POLL = 0.1

#: Seconds before the end of its lease in which a cache lock is not deleted any more, because
#: another holder may acquire it during the delete. If a quarter of the lease is shorter, that
#: quarter counts.
_MARGIN = 3.0

#: Number of locks that a listing reads per round trip.
_PAGE = 500


# -- a lock for a block of code --------------------------------------------------------------------


@public
class LockHandle:
    """Handle of a lock: ``held`` in ``with lock(...) as held``, or ``task.once`` of a running task.

    The handle is true if the lock was acquired. Outside of a run, and in eager mode, ``task.once``
    is false, and its ``key`` is the key of the task's policy.
    """

    def __init__(self, key: Any, hold: Hold | None = None, until: float | None = None) -> None:
        self.key = key
        self._hold = hold
        #: When the lease of a cache lock ends, in seconds of :func:`elapsed`; ``None`` for a lock
        #: of the app.
        self._until = until

    def __bool__(self) -> bool:
        return self._hold is not None or self._until is not None

    @property
    def fence(self) -> int | None:
        """Fencing number, which grows with every task that acquires a lock.

        Pass the number to the resource that the lock protects, and let the resource refuse any
        number that is lower than one before. Nothing else stops a holder that was paused for longer
        than its lease. ``None`` if the lock was not acquired, and for a lock that :func:`lock`
        acquires in a cache such as memcached.
        """
        return None if self._hold is None else self._hold.fence

    @property
    def lost(self) -> bool:
        """Whether the lock expired during the block or the run, so that another task may have it.

        After a pause of the process, up to a third of the lease can pass before the process knows.
        """
        if self._until is not None:
            return elapsed() >= self._until
        return self._hold is not None and self._hold.lost

    def check(self) -> None:
        """Check that the block or the run still has the lock.

        Raises:
            LockLost: the lock was not acquired, or has expired.
        """
        if not self or self.lost:
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
    """Hold the once-lock ``key`` for a block of code. No task of that key runs meanwhile.

    Parameters:
        where: the Celery app, or a cache: Django's with memcached or Redis, or a client of
            memcached. The cache needs ``get``, ``delete``, and an ``add(key, value, timeout)`` that
            atomically sets a key only if it does not exist. A cache lock is not renewed, has no
            fencing number, and is independent of the app's locks. Its lease is rounded up to whole
            seconds in the cache.
        key: key of the lock, as in ``Once(key="...")`` without fields, or ``once_key``.
        lease: length of time after which the lock is free if its holder has died. The lock of an
            app is renewed during the block. With a cache, the block must end within the lease.
        timeout: longest wait for the lock. Tasks that wait for the lock get it first, because this
            caller only tries again and again, and has no place among them.

    Yields:
        a handle that is true if the lock was acquired. The block runs even if the handle is false.
        If the server does not answer at the end of the block, the release is retried for about
        eight seconds.

    Raises:
        LockUnavailable: the server does not answer.
        InvalidEntry: the lease is below a second, the lease or the timeout is above a year, or the
            key is empty.
    """
    # Only a Celery app has ``amqp``.
    manager = _app_lock if hasattr(where, "amqp") else _cache_lock
    lease_seconds = length(MIN_LEASE).read("once.lease", lease)
    wait_seconds = length().read("timeout", timeout)
    with manager(where, checked_key(key), lease_seconds, wait_seconds) as handle:
        yield handle


@contextmanager
def _app_lock(app: Any, key: str, lease: float, timeout: float) -> Iterator[LockHandle]:
    """Acquire a once-lock on the server of the app, and renew it during the block.

    Parameters:
        lease, timeout: seconds, as for :func:`lock`.
    """
    client = LockClient.of(app)
    token = random_hex()
    lease_ms = round(lease * 1000)
    hold = Hold(
        token=token,
        # A lock belongs to a task id, so make up an id for the block.
        task_id=f"lock:{token}",
        attempt=0,
        lease_ms=lease_ms,
        key=key,
        holder=f"lock() in process {os.getpid()}",
        # The guard's record outlives the block by two leases, so that a renewal in flight does not
        # restore the lock.
        life_ms=2 * lease_ms,
        # If another task has the lock, _acquire() tries again.
        on_conflict="try",
    )
    try:
        taken = _acquire(client, hold, timeout)
    except LockUnavailable:
        raise  # The server does not answer, so it could not release the lock either.
    except BaseException:
        # A time limit or a signal can interrupt _acquire() after the server has acquired the lock
        # and before the reply is read. So release the lock.
        client.end(hold)
        raise
    if not taken:
        yield LockHandle(key)
        return
    client.renewer.add(hold)
    try:
        yield LockHandle(key, hold)
    finally:
        client.end(hold)


def _acquire(client: LockClient, hold: Hold, timeout: float) -> bool:
    """Try to acquire the lock until the timeout; return whether it was acquired."""
    deadline = elapsed() + timeout
    while client.begin(hold).word != "run":
        left = deadline - elapsed()
        if left <= 0:
            return False
        time.sleep(min(_POLL, left))
    return True


@contextmanager
def _cache_lock(cache: Any, key: str, lease: float, timeout: float) -> Iterator[LockHandle]:
    """Acquire a lock in a cache. It is not renewed, so it may expire during the block.

    Parameters:
        lease, timeout: seconds, as for :func:`lock`.
    """
    token = random_hex()
    deadline = elapsed() + timeout
    while True:
        # Count the lease from before the request, so that it never ends later here than in the
        # cache.
        until = elapsed() + lease
        # pymemcache returns True before it has the reply, so also read the stored token back.
        taken = bool(cache.add(key, token, math.ceil(lease))) and _has_token(cache, key, token)
        if taken or elapsed() >= deadline:
            break
        time.sleep(_POLL)
    try:
        yield LockHandle(key, until=until if taken else None)
    finally:
        # A cache cannot compare the token and delete the key in one step. If the key expired
        # between the two steps, another holder could acquire the lock, and the delete would free
        # it. So do not delete the key in the last seconds of the lease.
        margin = min(_MARGIN, lease / 4)
        if taken and elapsed() < until - margin and _has_token(cache, key, token):
            cache.delete(key)


def _has_token(cache: Any, key: str, token: str) -> bool:
    """Return whether the cache holds this token. Clients of memcached return bytes."""
    return cache.get(key) in (token, token.encode())


# -- the locks of an app ---------------------------------------------------------------------------


@public
@dataclass(frozen=True, slots=True)
class LockInfo:
    """One lock that a task holds or waits for.

    Parameters:
        key: key of the lock.
        state: ``"running"``, ``"queued"``, or ``"free"`` while the next waiter is in flight.
        task_id: id of the task that has the lock.
        holder: host and process of a running task; entry or name of a queued task.
        since: when the lock was acquired, in UTC.
        expires_in: seconds until the lock is free if no worker renews it.
        fence: its fencing number.
        waiters: ids of the tasks that wait, in the order of their turns.
    """

    key: str
    state: str
    task_id: str | None = None
    holder: str = ""
    since: datetime | None = None
    expires_in: float | None = None
    fence: int | None = None
    waiters: tuple[str, ...] = ()


@public
class Locks:
    """The locks of one app. Get it with :func:`locks`, which opens no connection."""

    def __init__(self, app: Celery) -> None:
        self._app = app

    def list(self, limit: int | None = None) -> Sequence[LockInfo]:
        """Return the locks that a task holds or waits for.

        The order is that in which workers check the locks. This takes a round trip per 500 locks,
        and one more.

        Parameters:
            limit: maximum number of locks to return; ``None``: all.
        """
        store = LockClient.of(self._app).store
        pages = chunks(texts(store.client.zrange(store.keys.index, 0, -1)), _PAGE)
        infos = chain.from_iterable(self._read(page) for page in pages)
        return tuple(islice(infos, limit))

    def get(self, key: str) -> LockInfo | None:
        """Return one lock; ``None`` if it is free and no task waits."""
        return next(self._read([checked_key(key)]), None)

    def clear(self, key: str) -> bool:
        """Free a lock, no matter which task holds it, and publish the first waiter.

        The other waiters keep their places. A task that held the lock goes on running, beside the
        next task of its key. Within a third of its lease, its ``self.once.lost`` becomes true. The
        same is true of a block of code, and ``check()`` of its handle then raises
        :class:`~redbeat_lite.LockLost`.

        Returns:
            whether a task held the lock.
        """
        client = LockClient.of(self._app)
        key = checked_key(key)
        held, waiters = client.store.clear(key)
        if waiters:
            client.wake([key])
        return held

    def _read(self, keys: Sequence[str]) -> Iterator[LockInfo]:
        """Read these locks in one round trip. Yield those that a task holds or waits for."""
        store = LockClient.of(self._app).store
        pipe = store.client.pipeline(transaction=False)
        for key in keys:
            pipe.hgetall(store.keys.lock(key))
            pipe.pttl(store.keys.lock(key))
            pipe.zrange(store.keys.waiters(key), 0, -1)
        # Each key has three replies in a row. zip() gets the same iterator three times, so each
        # step of the loop takes the three replies of one key.
        replies = iter(pipe.execute(raise_on_error=False))
        for key, fields, left_ms, waiters in zip(keys, replies, replies, replies, strict=True):
            if not fields and not waiters:
                continue  # The lock is free, and no task waits for it.
            try:
                yield _info(key, text_of_hash(fields), left_ms, texts(waiters))
            except (*UNREADABLE, AttributeError):
                # Another program has overwritten this lock. Still yield the others.
                logger.warning("the once-lock %r cannot be read: %s", key, fields)


@public
def locks(app: Celery) -> Locks:
    """Return the once-locks of an app, to list and to clear."""
    return Locks(app)


def _info(key: str, fields: Mapping[str, str], left_ms: int, waiters: Sequence[str]) -> LockInfo:
    """Return a lock from its stored fields.

    Parameters:
        fields: the hash of the lock; empty if nobody holds the lock.
        left_ms: ms until the lock expires.
    """
    if not fields:
        return LockInfo(key, "free", waiters=tuple(waiters))
    return LockInfo(
        key=key,
        state=fields["state"],
        task_id=fields["task"],
        holder=fields["holder"],
        since=from_ms(int(fields["since"])),
        expires_in=left_ms / 1000,
        fence=int(fields["fence"]),
        waiters=tuple(waiters),
    )

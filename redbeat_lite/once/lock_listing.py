"""Who holds which lock, who waits for it, and how to free it by hand."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice

from celery import Celery
from celery.utils.log import get_logger

from ..instants import MAX_MS, from_ms
from ..public import public
from ..storage.redis_values import text_of_hash, texts
from .lock_key import checked
from .runtime import Runtime

logger = get_logger(f"celery.{__name__}")

#: Locks read in one round trip.
_PAGE = 500


@public
@dataclass(frozen=True, slots=True)
class LockInfo:
    """One lock, or a queue of waiters for it.

    Parameters:
        key: of the lock.
        state: ``"running"``, ``"queued"``, or ``"free"`` while the next waiter is on its way.
        task_id: who holds it.
        holder: host and process that run it, or the entry or task it is queued for.
        since: when it was taken, in UTC.
        expires_in: seconds until it is free if nobody renews it.
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
        """The locks that are held or waited for, those that run out first in front; two round trips per 500. With a
        ``limit``, no more than so many."""
        return tuple(islice(self._pages(), limit))

    def get(self, key: str) -> LockInfo | None:
        """One lock; ``None`` if it is free and nobody waits."""
        return next(iter(self._read([checked(key)])), None)

    def clear(self, key: str) -> bool:
        """Free a lock whoever holds it, and wake the first of those who wait for it; the others keep their places.

        A task that held it goes on running, beside the next one of its key, and learns within a third of its lease that
        it lost the lock: ``self.once.lost``, in a block ``check()`` raises :class:`~redbeat_lite.LockLost`.

        Returns:
            whether it was held.
        """
        runtime, key = Runtime.of(self._app), checked(key)
        held, waiters = runtime.store.clear(key)
        if waiters:
            runtime.wake([key])
        return held

    def _pages(self) -> Iterator[LockInfo]:
        store = Runtime.of(self._app).store
        seen: set[str] = set()
        start = 0
        while page := texts(store.client.zrange(store.keys.index, start, start + _PAGE - 1)):
            # Renewal moves keys towards the end, so one may be met twice.
            yield from self._read([key for key in page if key not in seen])
            seen.update(page)
            start += _PAGE

    def _read(self, keys: Sequence[str]) -> Iterator[LockInfo]:
        if not keys:
            return
        store = Runtime.of(self._app).store
        pipe = store.client.pipeline(transaction=False)
        for key in keys:
            pipe.hgetall(store.keys.lock(key))
            pipe.pttl(store.keys.lock(key))
            pipe.zrange(store.keys.waiters(key), 0, -1)
        # What lies there may be anything: the others are told all the same.
        replies = iter(pipe.execute(raise_on_error=False))
        for key, lock, left, waiters in zip(keys, replies, replies, replies, strict=True):
            if any(isinstance(reply, Exception) for reply in (lock, left, waiters)):
                logger.warning("the once-lock %r cannot be read: %s", key, lock)
            elif lock or waiters:
                yield _info(key, text_of_hash(lock), left, texts(waiters))


@public
def locks(app: Celery) -> Locks:
    """The once-locks of an app, to look at and to clear."""
    return Locks(app)


def _info(key: str, lock: Mapping[str, str], left: int, waiters: Sequence[str]) -> LockInfo:
    since = _number(lock.get("since"))
    return LockInfo(
        key=key,
        state=lock.get("state", "free"),
        task_id=lock.get("task"),
        holder=lock.get("holder", ""),
        since=from_ms(since) if since is not None and since <= MAX_MS else None,
        expires_in=left / 1000 if left >= 0 else None,
        fence=_number(lock.get("fence")),
        waiters=tuple(waiters),
    )


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"[0-9]{1,18}", text) else None

"""Renewal: keeps what the runs of this process hold, from a thread of its own.

The thread starts with the first run, after a fork, and has a connection of its own. A run that ends before a third of
its lease has passed costs nothing here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from celery.utils.log import get_logger

from ..errors import text_of
from ..forks import held_off
from ..threads import Alarm, start_native
from .hold import Hold
from .store import LockStore

logger = get_logger(f"celery.{__name__}")

#: Renewals within one lease. Two may fail before the lock is lost.
PER_LEASE = 3

#: Seconds after which a renewal that hangs is given up: a third of the lease, within these bounds. Less would give up
#: healthy servers; more would keep the next hold waiting for its turn.
_SHORTEST = 0.5
_LONGEST = 2.0

#: Longest wait of the thread, so that a clock or a pause cannot send it to sleep for good.
_IDLE = 30.0


class Renewer:
    """Renews the holds of this process.

    Parameters:
        connect: opens a lock store with a connection of its own; called in the thread, with a timeout in seconds.
    """

    def __init__(self, connect: Callable[[float], LockStore]) -> None:
        self._connect = connect
        self._holds: dict[str, Hold] = {}
        self._store: LockStore | None = None
        self._timeout = _LONGEST
        self._alarm = Alarm()
        #: Taken by whoever starts the thread, and never given back.
        self._start = threading.Lock()

    def add(self, hold: Hold) -> None:
        """Keep ``hold`` until it is removed."""
        self._holds[hold.held.token] = hold
        if self._start.acquire(blocking=False):
            start_native(self._run, "redbeat-lite-renewal")
        elif hold.lease < _IDLE * PER_LEASE:
            self._alarm.ring()

    def remove(self, hold: Hold) -> None:
        """Stop keeping ``hold``; a renewal under way may still land, and finds it gone."""
        self._holds.pop(hold.held.token, None)

    def _run(self) -> None:
        while True:
            self._alarm.wait(self._pause())
            for hold in list(self._holds.values()):
                now = time.monotonic()
                if now - hold.renewed >= hold.lease / PER_LEASE:
                    with held_off():
                        self._renew(hold, now)

    def _pause(self) -> float:
        now = time.monotonic()
        due = [hold.renewed + hold.lease / PER_LEASE - now for hold in list(self._holds.values())]
        # A renewal that failed is due at once; the pause keeps it from spinning.
        return min([_IDLE, *(max(left, 0.1) for left in due)])

    def _renew(self, hold: Hold, now: float) -> None:
        # After a whole lease without a good renewal, another task may have had the lock and released
        # it. So this run has lost the lock, even if it is free.
        is_late = now - hold.renewed >= hold.lease
        keeps = hold.keeps_lock(now)
        try:
            guard, ours = self._store_for(hold).renew(hold.held, revive=not is_late, lock=keeps)
        except Exception as exc:  # noqa: BLE001 - whatever it is, one failed renewal must not end the others
            # Ten times a second, for as long as the server is away; that is told once.
            log = logger.debug if hold.failing else logger.warning
            log("Renewal of %s failed, trying again: %s", shown(hold), text_of(exc))
            hold.failing = True
            # For all one can tell. Should the server come back with the lock still ours, it was not lost after all.
            hold.lost = hold.let_go or now - hold.locked >= hold.lease
            return
        hold.failing = False
        if hold.held.token not in self._holds:
            return  # It ended while the renewal was under way.
        if guard:
            hold.renewed = now
        else:
            self.remove(hold)
        if guard and keeps and ours:
            hold.locked, hold.lost = now, False
        elif keeps or not guard:
            self._lose(hold, f"its lease of {hold.lease:g}s ran out or it was cleared")
        elif now - hold.locked >= hold.lease:
            self._lose(hold, "it was held for max_hold")

    def _lose(self, hold: Hold, why: str) -> None:
        if not hold.let_go:
            hold.lost = hold.let_go = True
            logger.warning("Lost %s: %s", shown(hold), why)

    def _store_for(self, hold: Hold) -> LockStore:
        """The store; its timeout fits the shortest lease it has met, for a renewal that hangs delays all of them."""
        timeout = min(max(hold.lease / PER_LEASE, _SHORTEST), _LONGEST)
        if self._store is None or timeout < self._timeout:
            old, self._store, self._timeout = self._store, self._connect(timeout), timeout
            if old is not None:
                old.client.close()
        return self._store


def shown(hold: Hold) -> str:
    """For log lines."""
    held = hold.held
    return f"the once-lock {held.key!r} of task {held.task_id}" if held.key is not None else f"task {held.task_id}"

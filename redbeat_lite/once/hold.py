"""What one run holds, in the process that runs it, and what its task is told of that.

``fields`` are those of a message as a request holds them: its headers, its arguments and where it came from.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..durations import seconds_of
from ..instants import told_ms
from ..runs.run import Attempt
from .claims import DEADLINE_HEADER, ONCE_HEADER
from .lock_key import key_of
from .policy import Once
from .store import Held

#: Seconds the guard remembers which tasks have run, unless their class says otherwise. Three days: a queue that stood
#: still over a weekend still runs.
GUARD_LIFE = 3 * 86_400.0


@dataclass(slots=True, eq=False)
class Hold:
    """One run's lock and its record of the guard, with the local side of the lease.

    Parameters:
        once: the policy; ``None`` where there is only the guard.
        begun: monotonic time at which it was taken.
        renewed: monotonic time at which the last good renewal was *sent*; the lease counts from there.
        locked: the same for a renewal of the lock, which may be let go while the guard's record is still kept.
        let_go: whether the lock is not renewed any more, because it was lost.
        lost: whether the lock ran out, or is somebody else's.
        failing: whether the last renewal failed.
        in_body: whether the body has begun of a task that something comes after.
        run: which attempt of which run that is, where it is to be recorded.
        late_ms: how long after it is due the message of its retry may come, where publishing that is left to another
            process; else 0.
    """

    held: Held
    once: Once | None
    begun: float = field(default_factory=time.monotonic)
    renewed: float = field(default_factory=time.monotonic)
    locked: float = field(default_factory=time.monotonic)
    let_go: bool = False
    lost: bool = False
    failing: bool = False
    in_body: bool = False
    run: Attempt | None = None
    late_ms: int = 0

    @property
    def lease(self) -> float:
        """In seconds."""
        return self.held.lease_ms / 1000

    def start(self, now: float) -> None:
        """It is about to be taken: the lease counts from before the question, for the server starts it no earlier."""
        self.begun = self.renewed = self.locked = now

    def keeps_lock(self, now: float) -> bool:
        """Whether the lock is still to be renewed. The guard's record is, until the run ends: a copy of the task has to
        stand by for as long as it runs."""
        limit = seconds_of(self.once.max_hold) if self.once is not None else None
        return not self.let_go and (limit is None or now - self.begun < limit)


class Current:
    """``task.once``: what its lock is about, and what a run holds: ``None`` outside of one, and in eager mode."""

    def __init__(self, policy: Once, hold: Hold | None) -> None:
        self._policy, self._hold = policy, hold

    @property
    def key(self) -> str | Callable[..., str] | None:
        """The lock's key during a run, the policy's otherwise."""
        return self._policy.key if self._hold is None else self._hold.held.key

    @property
    def fence(self) -> int | None:
        """Grows with every task that gets a lock: give it to whatever the lock protects, and let that refuse a lower
        number than it has seen. Nothing else stops a holder that slept through its lease."""
        return self._hold.held.fence if self._hold is not None else None

    @property
    def lost(self) -> bool:
        """Whether the lock ran out during the run, so that somebody else may have it. Known within a third of the
        lease after a pause."""
        return self._hold is not None and self._hold.lost


def is_guarded(task: Any, fields: Mapping[str, Any]) -> bool:
    """Whether the guard looks after a message: one of a class of ours, and one of any class that brings a once-lock.

    A broadcast is meant for each worker, so that all of its copies run, unless it has a once-lock.
    """
    if fields.get(ONCE_HEADER):
        return True
    return getattr(task, "guarded", False) and (task.once_policy is not None or not _is_broadcast(task.app, fields))


def _is_broadcast(app: Any, fields: Mapping[str, Any]) -> bool:
    exchange = (fields.get("delivery_info") or {}).get("exchange")
    if not exchange:  # Celery's default one, which reaches the queue of its routing key
        return False
    return any(
        queue.exchange.name == exchange and queue.exchange.type == "fanout" for queue in app.amqp.queues.values()
    )


def policy_of(task: Any, fields: Mapping[str, Any]) -> tuple[Once, str] | None:
    """Which lock a message asks for, its policy and its key, or ``None``; raises InvalidEntry if it gives no key."""
    header = fields.get(ONCE_HEADER)
    if header:
        return Once.decode(header["policy"]), str(header["key"])
    once = getattr(task, "once_policy", None)
    if once is None:
        return None
    args, kwargs = fields.get("args"), fields.get("kwargs")
    return once, key_of(once, task.name, args, kwargs, task.once_signature)


def has_expired(fields: Mapping[str, Any], now: int) -> bool:
    """Whether a message that waited until its time had passed has expired, and is not only past its deadline.

    Parameters:
        now: epoch milliseconds. One that came without a deadline got one when it was parked, which nobody knows here.
    """
    return 0 < expires_ms(fields) <= (deadline_ms(fields) or now)


def deadline_ms(fields: Mapping[str, Any]) -> int:
    return int(fields.get(DEADLINE_HEADER) or 0)


def expires_ms(fields: Mapping[str, Any]) -> int:
    return told_ms(fields["expires"]) if fields.get("expires") else 0

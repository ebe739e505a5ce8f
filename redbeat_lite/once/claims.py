"""The lock of a message: a claim before the message is sent, a hold while its task runs.

Headers of the message name the lock. If the commit of the beat sends the message, it acquires the
lock in the same step. Otherwise the beat acquires the lock just before it publishes the message. If
the beat cannot publish the message, it releases the lock, because the next message may have another
task id. (Acquiring a lock twice under one task id would do no harm.)

For an entry with ``scope="run"`` or ``on_conflict="wait"``, the beat acquires no lock, and always
publishes the message. The worker acquires the lock when the task begins. If another task has the
lock, ``"wait"`` makes the worker park the message (keep it in Redis) until its turn comes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .._base.clock import elapsed
from .._base.times import delay_ms, message_ms, seconds_of
from ..entries.entry import Entry
from ..entries.message import lock_life_ms
from ..policies import Once
from .lock_key import key_of, signature_of

#: Attributes of a message's request: its headers, its arguments and where it came from.
Fields = Mapping[str, Any]

#: Message header: the key of the once-lock, and the policy.
ONCE_HEADER = "redbeat_once"

#: Message header: epoch ms after which the message is too old to run. By then the guard, which
#: remembers the task ids that have run, may have forgotten that of the message.
DEADLINE_HEADER = "redbeat_deadline"

#: Policy in the :class:`Hold` of a run without a lock. It has no effect.
NO_LOCK = Once()

#: Renewals within one lease. Two may fail before the lock is lost.
_PER_LEASE = 3


class Claim(NamedTuple):
    """A lock for a task that is about to be published, by the names that the scripts use.

    Parameters:
        key: key of the lock.
        holder: name that lists show as the holder while the task is queued.
        queue: queue of the message. Its workers keep the lock while the queue is not empty.
        delay_ms: ms until the ``eta`` or the ``countdown`` of the message. The lease counts from
            there.
        life_ms: ms from the end of this delay until the message expires; the lock lasts as long,
            but at least for a lease. 0: the message never expires.
        takeover_at: when the lock is free for other tasks even if this task is still queued, in
            epoch ms of the server; 0: the lock is kept for a queued task.
    """

    key: str
    task_id: str
    lease_ms: int
    holder: str
    queue: str = ""
    delay_ms: int = 0
    life_ms: int = 0
    takeover_at: int = 0


@dataclass(slots=True, eq=False)
class Hold:
    """The lock of one run and its record in the guard, as the process of the run knows them.

    The guard's record says that a copy of the task runs. Lock and record last for one lease.

    Parameters:
        token: name of this copy of this run. Each delivery gets a new token.
        attempt: number that grows with each retry and each ``Task.replace`` under this task id.
        lease_ms: ms for which the lock and the record last without a renewal.
        key: key of the once-lock; ``None`` for a run that has only the guard's record.
        fence: fencing number of the lock; 0 until it is acquired, and for a run without a lock.
        holder: host and process of the run, for people.
        deadline_ms: when the message is too old to run, in epoch ms of the server; 0: never.
        expires_ms: when the message expires, in epoch ms of the server; 0: never.
        life_ms: ms for which the guard remembers a run that has no deadline.
        once: policy of the lock; without effect if the run has no lock.
        on_conflict: what happens if another task has the lock: ``"skip"`` and ``"raise"`` refuse
            this run, ``"wait"`` parks its message. ``"try"``, for a block of code, refuses the run
            and leaves no record in the guard, so that the caller can try again.
        max_waiters: maximum number of tasks that wait for the lock; 0: no limit.
        begun: when the run asked for the lock, in seconds of :func:`elapsed`.
        renewed: when the last good renewal was *sent*, in seconds of :func:`elapsed`. The lease
            counts from that time.
        let_go: whether this run has released or lost the lock. Then the lock is not renewed.
        lost: whether the lock expired, or another task has it.
        failing: whether the last renewal failed.
        late_ms: ms by which a retry may be late if another process publishes it; else 0.
    """

    token: str
    task_id: str
    attempt: int
    lease_ms: int
    key: str | None = None
    fence: int = 0
    holder: str = ""
    deadline_ms: int = 0
    expires_ms: int = 0
    life_ms: int = 1
    once: Once = NO_LOCK
    on_conflict: str = "skip"
    max_waiters: int = 0
    begun: float = field(default_factory=elapsed)
    renewed: float = field(default_factory=elapsed)
    let_go: bool = False
    lost: bool = False
    failing: bool = False
    late_ms: int = 0

    def __str__(self) -> str:
        if self.key is None:
            return f"task {self.task_id}"
        return f"the once-lock {self.key!r} of task {self.task_id}"

    @property
    def period(self) -> float:
        """Seconds between two renewals."""
        return self.lease_ms / 1000 / _PER_LEASE

    def has_run_out(self) -> bool:
        """Return whether the lease is over by the clock of this process."""
        return elapsed() - self.renewed >= self.lease_ms / 1000

    def keeps_lock(self) -> bool:
        """Return whether the run has not released or lost its lock, and ``max_hold`` is not over.

        If true, the lock must be renewed. The guard's record is renewed in any case until the run
        ends, so that no copy of the task runs beside this run.
        """
        if self.let_go:
            return False  # This run has released or lost the lock.
        limit = seconds_of(self.once.max_hold)
        return limit is None or elapsed() - self.begun < limit


def claim_of(
    entry: Entry, once: Once, task: Any, *, task_id: str, life: int | None, now: int
) -> Claim:
    """Return the claim of one message of an entry, which says for how long it needs which lock.

    Parameters:
        once: the entry's policy.
        task: the registered task; ``None`` if this process does not have it.
        task_id: id of the task that the message starts.
        life: ms until the entry's next message replaces this one, from ``life_ms()`` in
            ``entries/message.py``; ``None``: no later message replaces it.
        now: epoch ms.

    Raises:
        InvalidEntry: no key can be made from the arguments.
    """
    return Claim(
        key=call_key(once, task, entry.task, entry.args, entry.kwargs),
        task_id=task_id,
        lease_ms=once.lease_ms,
        holder=f"entry {entry.name}",
        queue=queue_of(task, entry.task, entry.args, entry.kwargs, entry.options),
        delay_ms=delay_ms(entry.options, now),
        life_ms=lock_life_ms(entry, life, now),
    )


def once_header(key: str, once: Once) -> dict[str, Any]:
    """Return the value of ``ONCE_HEADER`` for the lock of this key and policy."""
    # The header has the finished key. So leave out the policy's own key, which may be a callable.
    return {"key": key, "policy": once.but(key=None).encode()}


def call_key(once: Once, task: Any, name: str, args: Any, kwargs: Any) -> str:
    """Return the key of the lock of a call.

    Parameters:
        task: the registered task; ``None`` if this process does not have it. With the task,
            ``f(1)`` and ``f(x=1)`` have the same key.
        name: name of the task.

    Raises:
        InvalidEntry: no key can be made from the arguments.
    """
    return key_of(once, name, args, kwargs, signature_of(getattr(task, "run", None)))


def queue_of(task: Any, name: str, args: Any, kwargs: Any, options: Mapping[str, Any]) -> str:
    """Return the queue that a message goes to; empty if that is unknown.

    Parameters:
        task: the registered task; ``None`` if this process does not have it.
        options: options of the call, which override the task's.
    """
    if task is not None:
        try:
            merged = {**task._get_exec_options(), **options}
            options = task.app.amqp.router.route(merged, name, args, kwargs)
        except Exception:  # noqa: BLE001 - publishing fails with the same error, and shows it
            return ""
    # The router returns a queue object. A caller may also pass the name of a queue.
    queue = options.get("queue")
    return str(getattr(queue, "name", queue) or "")


# -- the lock that a message needs -----------------------------------------------------------------


def is_guarded(task: Any, fields: Fields) -> bool:
    """Return whether the guard, the record of task ids that have run, drops copies of a message.

    The guard protects messages of our task class, and every message whose headers name a once-lock.
    A broadcast is meant for each worker, so all of its copies run. If the task of a broadcast has a
    once-lock, the guard still drops copies.
    """
    if fields.get(ONCE_HEADER):
        return True
    if not getattr(task, "guarded", False):
        return False
    exchange_name = (fields.get("delivery_info") or {}).get("exchange")
    # The default exchange has no name. It delivers to one queue, so it makes no broadcasts.
    if task.once_policy is not None or not exchange_name:
        return True
    exchanges = (queue.exchange for queue in task.app.amqp.queues.values())
    fanouts = {exchange.name for exchange in exchanges if exchange.type == "fanout"}
    return exchange_name not in fanouts


def policy_of(task: Any, fields: Fields) -> tuple[Once | None, str | None]:
    """Return the policy and the key of the lock that a message needs, or ``(None, None)``.

    Both come from the header ``ONCE_HEADER``. Without this header, the policy is that of the task's
    class, and the key is made from the arguments. Without a policy, the message needs no lock, and
    both are ``None``.

    Raises:
        InvalidEntry: no key can be made from the arguments.
    """
    header = fields.get(ONCE_HEADER)
    if header:
        return Once.decode(header["policy"]), str(header["key"])
    once = getattr(task, "once_policy", None)
    if once is None:
        return None, None
    args = fields.get("args")
    return once, key_of(once, task.name, args, fields.get("kwargs"), task.once_signature)


def expires_ms(fields: Fields) -> int:
    """Return the epoch ms at which a message expires; 0: never."""
    expires = fields.get("expires")
    return message_ms(expires) if expires else 0

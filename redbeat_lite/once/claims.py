"""The beat's side: take the locks of due entries before they are published.

Taking is idempotent for one task id. Nevertheless a publish that failed gives its lock back: what is published in its
place may be a later occurrence, under another id. What a beat that dies leaves behind runs out, or is kept while there
is something in its queue.

An entry with ``scope="run"`` or ``on_conflict="wait"`` takes nothing here and is always published: the worker decides
in the first case, and parks the message until its turn in the second.

The task of a message with these headers sees that its lock is held, and takes nothing itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from .lock_key import key_of, signature_of
from .policy import Once
from .store import DOWN, LockStore, Wanted

#: Message header: the key of the once-lock, the policy, and whether the lock is held under the task id already.
ONCE_HEADER = "redbeat_once"

#: Message header: epoch ms after which the message is too old to run, because the guard may have forgotten it.
DEADLINE_HEADER = "redbeat_deadline"


@dataclass(frozen=True, slots=True)
class Claim:
    """One occurrence that wants its lock.

    Parameters:
        entry_name: shown as the holder while the task is queued.
        task: the registered task, where this process has it: then ``f(1)`` and ``f(x=1)`` are one key.
        queue: where it goes, so that a worker of that queue can tell whether it is still there.
        delay_ms: until its message may run.
        life_ms: for how long from then on its message lives; 0 if that has no end.
        yields_ms: after which another one may have the lock if this one is still queued; 0 for never.
        key: the key of the lock; worked out from the rest.
    """

    entry_name: str
    task_name: str
    args: Sequence[Any] | None
    kwargs: Mapping[str, Any] | None
    once: Once
    task_id: str
    task: Any = None
    queue: str = ""
    delay_ms: int = 0
    life_ms: int = 0
    yields_ms: int = 0
    key: str = field(init=False)

    def __post_init__(self) -> None:
        signature = signature_of(getattr(self.task, "run", None))
        key = key_of(self.once, self.task_name, self.args, self.kwargs, signature)
        object.__setattr__(self, "key", key)


def take(store: LockStore, claims: Sequence[Claim]) -> list[bool]:
    """Take the locks of a batch, in one round trip.

    Returns:
        for each claim, whether it may be published: its lock was taken, had been taken under the same task id before,
        or is none of the beat's business. ``False``: another task of its key is queued, running or waiting.

    Raises:
        redis.exceptions.RedisError: the server did not answer. Where only its reply was lost, the locks are given back
            if it answers then; otherwise they may or may not be taken. Taking again is safe.
    """
    mine = [claim for claim in claims if claim.once.at_publish]
    wanted = [_wanted(claim) for claim in mine]
    try:
        taken = iter(store.take(wanted) if wanted else [])
    except DOWN:
        with suppress(*DOWN):
            give_back(store, mine)
        raise
    return [next(taken) if claim.once.at_publish else True for claim in claims]


def _wanted(claim: Claim) -> Wanted:
    lease_ms, holder = claim.once.lease_ms, f"entry {claim.entry_name}"
    return Wanted(
        claim.key, claim.task_id, lease_ms, claim.delay_ms, holder, claim.queue, claim.life_ms, claim.yields_ms
    )


def headers(claim: Claim) -> dict[str, Any]:
    """The message headers that tell the worker which lock, under which policy, belongs to the message."""
    return {ONCE_HEADER: once_header(claim.key, claim.once, queued=claim.once.at_publish)}


def once_header(key: str, once: Once, *, queued: bool) -> dict[str, Any]:
    """The value of ``ONCE_HEADER``."""
    # The key is written out beside it, which a callable could not be and a template need not be again.
    return {"key": key, "policy": once.but(key=None).encode(), "queued": queued}


def give_back(store: LockStore, claims: Sequence[Claim]) -> None:
    """Release the locks of occurrences that were not published after all, in one round trip.

    Whoever came to wait for one of them meanwhile is woken by a worker within a second.
    """
    store.leave_all([(claim.key, claim.task_id) for claim in claims if claim.once.at_publish])


def queue_of(task: Any, name: str, args: Any, kwargs: Any, options: Mapping[str, Any]) -> str:
    """The queue that a message goes to; empty where that cannot be told.

    The options of its task, where this process has it, come first, as Celery merges them.
    """
    if task is None:
        queue = options.get("queue")
        return str(getattr(queue, "name", queue) or "")
    try:
        merged = {**task._get_exec_options(), **options}
        queue = task.app.amqp.router.route(merged, name, args, kwargs).get("queue")
    except Exception:  # noqa: BLE001 - a router may raise anything; publishing will show it, this is only a hint
        return ""
    return str(getattr(queue, "name", queue) or "")

"""The lock of a message: the headers that name it, and how the beat acquires it.

The beat acquires the lock of a due entry before it publishes the message. Acquiring a lock twice
under one task id does no harm. If the beat cannot publish the message, it still releases the lock,
because the next occurrence that it publishes may have another id. If the beat dies, the lock
expires, unless workers keep it because its queue is not empty.

An entry with ``scope="run"`` or ``on_conflict="wait"`` acquires no lock here, and is always
published. With ``"run"`` the worker decides; with ``"wait"`` it parks the message until its turn.

Parameters named ``fields`` are the attributes of a message's request: its headers, its arguments
and where it came from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._base.times import message_ms
from ..policies import Once
from .lock_key import key_of, signature_of
from .lock_store import Claim

#: Message header: the key of the once-lock, and the policy.
ONCE_HEADER = "redbeat_once"

#: Message header: epoch ms after which the message is too old to run, because the guard may have
#: forgotten it.
DEADLINE_HEADER = "redbeat_deadline"


def headers(claim: Claim) -> dict[str, Any]:
    """Return the message headers that name the lock and its policy."""
    return {ONCE_HEADER: once_header(claim.key, claim.once)}


def once_header(key: str, once: Once) -> dict[str, Any]:
    """Return the value of ``ONCE_HEADER``."""
    # The header has the finished key. So leave out the policy's own, which may be a callable.
    return {"key": key, "policy": once.but(key=None).encode()}


def call_key(once: Once, task: Any, name: str, args: Any, kwargs: Any) -> str:
    """Return the key of the lock of a call.

    Parameters:
        task: the registered task; ``None`` if this process does not have it. With it, ``f(1)`` and
            ``f(x=1)`` are one key.

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
        except Exception:  # noqa: BLE001 - publishing shows the error of the router; this is a hint
            return ""
    queue = options.get("queue")
    return str(getattr(queue, "name", queue) or "")


# -- the lock that a message asks for --------------------------------------------------------------


def is_guarded(task: Any, fields: Mapping[str, Any]) -> bool:
    """Return whether the guard, which records which task ids have run, drops copies of a message.

    It does so for messages of our task class, and for every message whose headers name a once-lock.
    A broadcast is meant for each worker, so all of its copies run unless its task has a once-lock.
    """
    if fields.get(ONCE_HEADER):
        return True
    if not getattr(task, "guarded", False):
        return False
    return task.once_policy is not None or not _is_broadcast(task.app, fields)


def _is_broadcast(app: Any, fields: Mapping[str, Any]) -> bool:
    name = (fields.get("delivery_info") or {}).get("exchange")
    if not name:
        return False  # The default exchange delivers to one queue.
    exchanges = (queue.exchange for queue in app.amqp.queues.values())
    return any(exchange.name == name and exchange.type == "fanout" for exchange in exchanges)


def policy_of(task: Any, fields: Mapping[str, Any]) -> tuple[Once | None, str | None]:
    """Return the policy and the key of the lock that a message needs; ``None`` twice without one.

    They come from the message's header. Without it, they are those of the task's class.

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


def deadline_ms(fields: Mapping[str, Any]) -> int:
    """Return the epoch ms after which a message is too old to run; 0: never."""
    return int(fields.get(DEADLINE_HEADER) or 0)


def expires_ms(fields: Mapping[str, Any]) -> int:
    """Return the epoch ms at which a message expires; 0: never."""
    expires = fields.get("expires")
    return message_ms(expires) if expires else 0

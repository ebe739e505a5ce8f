"""What a step's message takes from its task, noted where the task is known: a stage may be published by anybody.

Whoever ends a stage, and the beat that sweeps, publish the next one. They may be of another code base than its tasks.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from celery import Celery
from kombu.entity import Queue

from ..errors import InvalidEntry
from ..once.policy import Once
from ..once.task import Task
from ..storage.json_values import pack, unpack
from .definition import Step

#: What Celery's ``apply_async`` takes from a task where a call does not say it.
_OPTIONS = (
    "queue", "routing_key", "exchange", "priority", "expires", "serializer", "delivery_mode", "compression",
    "time_limit", "soft_time_limit", "ignore_result",
)  # fmt: skip


def note(app: Celery, name: str) -> dict[str, Any]:
    """What the messages of a registered task take from it, as values that can be stored.

    An option that cannot be stored, such as a queue object with an exchange of its own, is left out.
    """
    task = app.tasks[name]
    options = {option: getattr(task, option) for option in _OPTIONS if getattr(task, option, None) is not None}
    routed = _routed(app, task, options)
    noted: dict[str, Any] = {"options": _storable({**routed, **options}), "guard_life": task.guard_life}
    once = task.once_policy
    if once is not None:
        noted["once"] = once.but(key=None if callable(once.key) else once.key).encode()
        try:
            noted["signature"] = None if callable(once.key) else _noted_signature(task.once_signature)
        except InvalidEntry:
            noted["signature"] = None
    return noted


def task_of(app: Celery, step: Step, options: dict[str, Any]) -> Task:
    """The task that publishes a step: the registered one, or one that does the same from what was noted.

    Parameters:
        options: of the call. ``on_conflict`` is taken out where nobody here can tell which lock it is about; the worker
            then asks for the lock by the policy of the task. A queue that this app has not and must not make is put in
            as one that is reached by its name alone.
    """
    known = app.tasks.get(step.task)
    if isinstance(known, Task):
        return known
    noted = step.noted
    fields: dict[str, Any] = {**noted["options"], "name": step.task, "guard_life": noted["guard_life"], "typing": False}
    if "once" in noted:
        if noted["signature"] is not None or options.get("once_key"):
            fields["once_policy"] = Once.decode(noted["once"])
            parameters = [_parameter(*each) for each in noted["signature"] or ()]
            fields["once_signature"] = inspect.Signature(parameters) if parameters else None
        else:
            options.pop("on_conflict", None)
    queue = options.get("queue") or fields.get("queue")
    if isinstance(queue, str) and not app.conf.task_create_missing_queues and queue not in app.amqp.queues:
        # Not declared either: what it is made of, its own code base knows.
        options.update(queue=Queue(queue), declare=[])  # type: ignore[no-untyped-call]
    task: Task = type("Noted", (Task,), fields)()
    task.bind(app)
    return task


def _routed(app: Celery, task: Task, options: Mapping[str, Any]) -> dict[str, Any]:
    """What this app's routes say of the task; else its default queue, which need not be the publisher's."""
    try:
        # Not route(), which gives every task the default queue of this app.
        found = app.amqp.router.lookup_route(task.name, (), {}, dict(options), task) or {}
    except Exception:  # noqa: BLE001 - a router may raise anything, or want arguments; publishing will show it
        return {}
    if isinstance(found, str):
        found = {"queue": found}
    routed = {option: found[option] for option in _OPTIONS if found.get(option) is not None}
    if not any(option in both for both in (routed, options) for option in ("queue", "routing_key", "exchange")):
        routed["queue"] = app.conf.task_default_queue
    return routed


def _storable(options: Mapping[str, Any]) -> dict[str, Any]:
    stored: dict[str, Any] = {}
    for option, value in options.items():
        with suppress(InvalidEntry):
            # A queue or an exchange may be an object; its name finds it.
            stored[option] = unpack(pack(getattr(value, "name", value), option))
    return stored


def _noted_signature(signature: inspect.Signature | None) -> list[list[Any]]:
    """The parameters of a task: name, kind, and the default where there is one."""
    return [
        [each.name, int(each.kind), *([] if each.default is each.empty else [pack(each.default, each.name)])]
        for each in (signature.parameters.values() if signature is not None else ())
    ]


def _parameter(name: str, kind: int, *default: Any) -> inspect.Parameter:
    found = inspect.Parameter(name, inspect._ParameterKind(kind))
    return found.replace(default=unpack(default[0])) if default else found

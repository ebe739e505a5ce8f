"""Messages of steps.

The id of each message is derived from the run, the step and its round. So all publishers publish
the same tasks, however often, and workers drop the copies.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from celery import Celery
from celery.result import denied_join_result
from kombu.entity import Queue

from .._base.celery_app import own_options
from .._base.errors import InvalidEntry
from .._base.json_values import pack, unpack
from .definition import Definition, Ref, Step, takes_name

#: Message header with the run and the step. The params stay in Redis.
HEADER = "redbeat_pipeline"


def publish(app: Celery, definition: Definition, ref: Ref) -> None:
    """Publish the message of one step.

    Raises:
        OnceRejected: another task has the once-lock of the step.
        Exception: the broker does not answer, or a router or a serializer refuses the message.
    """
    step = definition.steps[ref.step]
    options = _options_of(definition, ref)
    # The body gets the params in place of the run's id.
    args: tuple[Any, ...] = (ref.run, *unpack(step.args))
    task = app.tasks.get(step.task)
    kwargs = unpack(step.kwargs)
    # Without this block, the result backend would subscribe to the result of each step.
    with denied_join_result():
        if task is None:
            app.send_task(step.task, args, kwargs, **_options_by_name(step, options))
            return
        once = getattr(task, "once_policy", None)
        # With this scope, apply_async() acquires the once-lock. If another task has the lock, the
        # option ``on_conflict`` decides what happens.
        if once is not None and once.scope == "queue":
            on_conflict = options.get("on_conflict") or once.on_conflict
            if on_conflict == "skip":
                # A skipped call looks like a published one, so no worker would ever end its step.
                # With "raise", the call raises an error, and the caller fails the step.
                options["on_conflict"] = "raise"
        if definition.process is not None:
            # Celery checks the number of arguments against the body, which takes the data, or the
            # data and the name.
            args = (ref.run, step.name) if takes_name(task.run) else (ref.run,)
        task.apply_async(args, kwargs, **options)


def _options_of(definition: Definition, ref: Ref) -> dict[str, Any]:
    """Return the options of the message of one step, with the header that names the step."""
    step = definition.steps[ref.step]
    header = {
        "run": ref.run,
        "step": ref.step,
        "stage": step.stage,
        "round": ref.round,
        "name": step.name,
        "process": definition.data_of(step.stage),
    }
    # Inside a block of short_publish_timeout(), own_options() returns the block's connection.
    options: dict[str, Any] = {**unpack(step.options), **own_options()}
    options["headers"] = {**(options.get("headers") or {}), HEADER: header}
    options["task_id"] = ref.task_id
    # A step that publishes the next stage must not become the parent of the steps in that stage.
    options["add_to_parent"] = False
    # For a retry, this message replaces one that the broker did not accept or has lost.
    if ref.attempt:
        options["retries"] = ref.attempt
    return options


def _options_by_name(step: Step, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options to publish a step whose task is not registered in this process.

    Any process may publish a stage: the process that ended the stage before, or the beat. It may
    have another code base than the tasks of the stage.
    """
    merged = {**unpack(step.noted), **options}
    queue = merged.get("queue")
    if isinstance(queue, str):
        # Only the code base of the queue knows its settings, so the queue is not declared here.
        merged["queue"] = Queue(queue)  # type: ignore[no-untyped-call]
        merged["declare"] = []
    return merged


def task_values(app: Celery, name: str) -> dict[str, Any]:
    """Return the options of a task, for a process that publishes it and has not registered it.

    A queue or an exchange is stored by its name. An option that cannot be stored is left out.
    """
    task = app.tasks[name]
    options = {**task._get_exec_options(), "ignore_result": task.ignore_result}
    options = {option: value for option, value in options.items() if value is not None}
    # A router may raise anything. Ignore it here, because publishing will report it.
    with suppress(Exception):
        options = app.amqp.router.route({**options}, name, (), {}, task)
    stored: dict[str, Any] = {}
    for option, value in options.items():
        with suppress(InvalidEntry):
            # A queue or an exchange is an object with a name; other values have none.
            stored[option] = pack(getattr(value, "name", value), option)
    return stored

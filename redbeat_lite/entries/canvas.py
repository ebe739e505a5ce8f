"""A canvas (chain, group or chord) in an entry, as the one argument of the task that applies it.

This module imports no modules of workers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from celery.canvas import Signature

from .._base.json_values import dumps, pack

#: Name of the task that applies a canvas.
CANVAS = "redbeat_lite.canvas"

#: Names of Celery's own tasks that stand for a canvas in a signature.
CANVASES = {"celery.chain", "celery.group", "celery.chord"}


def plain(value: Any) -> Any:
    """Return a copy of a signature, and of all signatures in it, as plain dicts and lists."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def call_text(task: str, args: Any) -> str:
    """Return a call as people read it: the task's name, or the canvas as Celery prints it."""
    if task != CANVAS:
        return task
    with suppress(Exception):  # The stored argument may be anything.
        # Celery changes the signature that it reads, so give it a copy.
        return repr(Signature.from_dict(plain(args[0])))
    return task


def sent_tasks(task: str, args: Any) -> set[str]:
    """Return the names of all tasks that a call sends, including the tasks in its canvas.

    Names of Celery's own tasks that stand for a chain, group or chord are left out.

    Parameters:
        task: registered name of the called task.
        args: arguments of the call. If the task is ``CANVAS``, they hold the canvas.
    """
    names = {task}

    def add_task(item: dict[str, Any]) -> dict[str, Any]:
        """Add the task of a JSON object to the names, if the object is a signature."""
        # Celery gives this field to every signature.
        if "subtask_type" in item:
            names.add(str(item.get("task")))
        return item

    if task == CANVAS:
        # The JSON decoder calls add_task for each object, however deep it lies.
        json.loads(dumps(pack(args, "args")), object_hook=add_task)
    return names - CANVASES

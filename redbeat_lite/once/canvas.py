"""A canvas as the argument of the task that applies it, for processes without a worker."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from celery.canvas import Signature

from ..store.json_values import dumps, pack

#: Name of the task that applies a canvas, its one argument.
CANVAS = "redbeat_lite.canvas"

#: Names of tasks by which Celery writes a canvas.
CANVASES = {"celery.chain", "celery.group", "celery.chord"}


def plain(value: Any) -> Any:
    """Return a copy of a signature without Celery's classes, also of the signatures in it."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def call_text(task: str, args: Any) -> str:
    """Return what a call does, for people: its task, or its canvas as Celery writes it."""
    if task != CANVAS:
        return task
    with suppress(Exception):  # The stored argument may be anything.
        # Celery writes into the signature that it reads, so it gets a copy.
        return repr(Signature.from_dict(plain(args[0])))
    return task


def sent(task: str, args: Any) -> set[str]:
    """Return the names of the tasks that a call sends: its own, and those of its canvas."""
    names = {task}

    def add_task(item: dict[str, Any]) -> dict[str, Any]:
        if "subtask_type" in item:
            names.add(str(item.get("task")))
        return item

    if task == CANVAS:
        json.loads(dumps(pack(args, "args")), object_hook=add_task)
    return names - CANVASES

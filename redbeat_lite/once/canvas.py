"""A canvas as the argument of the one task that applies it: what is in there, for whoever has no worker at hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from celery.canvas import Signature

from ..storage.json_values import dumps, pack

#: Name of the task that applies a canvas, its one argument.
CANVAS = "redbeat_lite.canvas"

#: What is no single task.
CANVASES = {"celery.chain", "celery.group", "celery.chord"}


def plain(value: Any) -> Any:
    """A copy of a signature, and of what is in it, without classes of Celery's."""
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, (list, tuple)) else value


def call_text(task: str, args: Any) -> str:
    """What a call does, for people: the name of its task, or its canvas as Celery writes it."""
    with suppress(Exception):  # What stands there as a canvas may be anything.
        return repr(Signature.from_dict(plain(args[0]))) if task == CANVAS else task  # it writes into what it reads
    return task


def sent(task: str, args: Any) -> set[str]:
    """Names of the tasks that a call sends: its own, and those of its canvas."""
    names = {task}

    def look(found: dict[str, Any]) -> dict[str, Any]:
        if "subtask_type" in found:
            names.add(str(found.get("task")))
        return found

    if task == CANVAS:
        json.loads(dumps(pack(args, "args")), object_hook=look)
    return names - CANVASES

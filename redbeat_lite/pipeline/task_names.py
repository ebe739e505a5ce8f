"""Which task somebody means who wrote its name."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from ..errors import InvalidEntry
from .task import PipelineTask


def find(tasks: Mapping[str, Any], name: str, where: str) -> str:
    """The name under which a step's task is registered: its full name, or one of which this is the last part alone.

    Raises:
        InvalidEntry: for the field ``where``, that there is no such task, there are several, or it can be no step.
    """
    found = [name] if name in tasks else [each for each in tasks if each.rpartition(".")[2] == name]
    if len(found) > 1:
        raise InvalidEntry(where, "the full name of a task", name, hint=f"there are {', '.join(sorted(found))}")
    if not found:
        near = difflib.get_close_matches(name, {*tasks, *(each.rpartition(".")[2] for each in tasks)}, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "no task of that name is registered in this app"
        raise InvalidEntry(where, "the name of a registered task", name, hint=hint)
    if not isinstance(tasks[found[0]], PipelineTask):
        raise InvalidEntry(where, "a task whose base is redbeat_lite.PipelineTask", found[0])
    return found[0]

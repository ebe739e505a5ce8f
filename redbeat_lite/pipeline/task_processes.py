"""Task processes: runs that are started from one dict of data, in which ``sub_tasks`` names tasks and priorities.

For jobs that were written for a dispatcher of that kind. Their tasks get ``base=PipelineTask``; names, data, both
styles of a task and what they return stay as they are. What such a dispatcher keeps by hand (the next task, the result
in between, a lock) goes away.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any
from uuid import uuid4

from celery import Celery, current_app

from ..errors import InvalidEntry
from ..public import public
from .pipeline import defined
from .run import PipelineRun, begin

#: What a step gets as it is at that time, and not as it was given.
_OURS = ("task_id", "queue", "status", "params")


@public
def start_task_process(
    data: dict[str, Any], tasks: Mapping[str, Any] | None = None, *, app: Celery | None = None
) -> PipelineRun:
    """Start a run from the data of a task process, into which ``task_id`` (the run's id), ``status`` and ``queue`` go.

    Parameters:
        data: ``{"sub_tasks": [["task1", 1], ["task2", 3]], "params": {...}}``, higher priorities first. What else is in
            it reaches every step unchanged.
        tasks: name -> task. A name that is not in it is one of a registered task.
        app: the Celery app; the current one where absent.

    Raises:
        InvalidEntry: the data is wrong: what :class:`Pipeline` refuses is refused here.
    """
    if not isinstance(data, dict):
        raise InvalidEntry("data", "a dict with sub_tasks and params", data)
    known = dict(tasks or {})
    # People spell it both ways.
    sub_tasks = data.get("sub_tasks", data.get("sub_task"))
    if not isinstance(sub_tasks, (list, tuple)):
        raise InvalidEntry("sub_tasks", "a list of [name, priority]", sub_tasks)
    steps = [_step(index, item, known) for index, item in enumerate(sub_tasks)]
    app = app or current_app._get_current_object()
    rest = {key: value for key, value in data.items() if key not in _OURS}
    definition = defined(app, steps, data.get("params"), process=rest)
    run = begin(app, definition, str(uuid4()))
    data.update({"task_id": run.id, "queue": definition.names(), "status": "waiting"})
    return run


def _step(index: int, item: Any, known: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    if not isinstance(item, (list, tuple)) or len(item) != 2:
        raise InvalidEntry(f"sub_tasks[{index}]", "a pair [name, priority]", item)
    name, priority = item
    return name, known.get(name, name) if isinstance(name, str) else name, priority


def task_process(func: Callable[[dict[str, Any]], Any]) -> Callable[..., Any]:
    """A decorator for a step of a task process: the function gets the data alone, and returns ``(result, params)``.

    It goes under ``@app.task(bind=True, base=PipelineTask)``. A function without it may do the same.
    """

    @functools.wraps(func)
    def wrap(self: Any, obj: dict[str, Any], name: str) -> Any:
        return func(obj)

    # Celery reads the signature of what it is given, and wraps() would show it the inner one.
    del wrap.__wrapped__
    return wrap

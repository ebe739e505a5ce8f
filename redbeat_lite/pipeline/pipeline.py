"""``Pipeline`` and ``start_task_process``: two ways to define a pipeline and start a run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any
from uuid import uuid4

from celery import Celery, current_app

from .._base.celery_app import is_importing, load_tasks
from .._base.errors import InvalidEntry
from .._base.public import public
from .._base.text import nearest_hint
from .._base.times import Duration
from .definition import TTL, Definition, Overlap, define
from .pipeline_keys import START
from .pipeline_run import PipelineRun, begin
from .pipeline_task import PipelineTask
from .publish import task_values

#: Fields of a task process's data that a step gets with current values.
_OWN_FIELDS = ("task_id", "queue", "status", "params")


def defined(app: Celery, steps: Iterable[Any], params: Any, **options: Any) -> Definition:
    """Return the definition of steps that are tasks of an app. Options go to :func:`define`."""
    find = partial(_find, app)
    note = partial(task_values, app)
    return define(steps, params, find=find, note=note, **options)


@public
class Pipeline:
    """The tasks of one job by priority. Equal priorities run side by side, lower ones afterwards.

    Parameters:
        app: the Celery app. The tasks must be registered in it.
        steps: ``(task, priority)`` pairs, higher priorities first. A task is its registered name,
            or the last part of that name; the task itself; or a signature, whose arguments follow
            the params and whose options are kept. A step has the name of its task, unless it is
            written as ``(name, task, priority)``. Every task has the base :class:`PipelineTask`.
        params: a JSON object for the first stage. The results of steps are merged into it.
        revoke_siblings: if a step fails, kill the running steps of its stage; otherwise they run to
            their end, without effect.
        ttl: length of time that the record of a run lives after its end; 7 days by default.
        overlap: what happens if an entry of the schedule starts a run while another run of the
            entry has not ended: ``"allow"`` lets both run, ``"skip"`` leaves the later run out,
            ``"wait"`` has it wait for its turn.
        deadline: length of time from the start of a run after which it fails if it has not ended.
        at_once: most steps of a run that are queued or running; ``None``: all of a stage.

    Raises:
        InvalidEntry: there is no step, two steps have the same name, a task is unknown, a priority
            is no number, or the params are no JSON object. Nothing was published.
    """

    def __init__(
        self,
        app: Celery,
        steps: Iterable[tuple[Any, float] | tuple[str, Any, float] | list[Any]],
        params: dict[str, Any] | None = None,
        *,
        revoke_siblings: bool = False,
        ttl: Duration = TTL,
        overlap: Overlap = "allow",
        deadline: Duration | None = None,
        at_once: int | None = None,
    ) -> None:
        self.app = app
        self.definition = defined(
            app,
            steps,
            params,
            revoke_siblings=revoke_siblings,
            ttl=ttl,
            overlap=overlap,
            deadline=deadline,
            at_once=at_once,
        )

    def __repr__(self) -> str:
        stages = " | ".join(", ".join(names) for names in self.definition.names())
        return f"<Pipeline {stages}>"

    def start(self, run_id: str | None = None) -> PipelineRun:
        """Start a run and publish its first stage.

        If the broker does not answer, the sweeper publishes the stage later.

        Parameters:
            run_id: id of the run; a new id by default. If a run of this id was started before, it
                is not started again.

        Raises:
            ConfigurationError: the app runs its tasks eagerly. A pipeline needs workers.
            PipelineNotFound: a run of this id has ended, and its record has expired.
            redis.exceptions.RedisError: the server did not answer. The run may have started.
                Another call with the same ``run_id`` starts no second run.
        """
        return begin(self.app, self.definition, str(uuid4()) if run_id is None else run_id)

    def as_entry(self) -> dict[str, Any]:
        """Return the fields of a schedule's entry that starts a run at each of its occurrences.

        The run has the id of the occurrence's task. The definition is a text, because the JSON of
        messages would convert values that look like kombu's types.
        """
        return {"task": START, "kwargs": {"definition": self.definition.encode()}}


def _find(app: Celery, name: str, where: str) -> str:
    """Return the registered name of a step's task, by its full name or the last part of it.

    Raises:
        InvalidEntry: no task or several tasks match, or the task cannot be a step. The error names
            the field ``where``.
    """
    tasks = app.tasks
    matches = _matches(tasks, name)
    if not matches and not is_importing():
        load_tasks(app)  # A web process may not have imported the tasks.
        matches = _matches(tasks, name)
    if len(matches) > 1:
        hint = f"there are {', '.join(sorted(matches))}"
        raise InvalidEntry(where, "the full name of a task", name, hint=hint)
    if not matches:
        known = {*tasks, *(task.rpartition(".")[2] for task in tasks)}
        hint = nearest_hint(name, known) or "no task of that name is registered in this app"
        raise InvalidEntry(where, "the name of a registered task", name, hint=hint)
    (task,) = matches
    if not isinstance(tasks[task], PipelineTask):
        raise InvalidEntry(where, "a task whose base is redbeat_lite.PipelineTask", task)
    return task


def _matches(tasks: Mapping[str, Any], name: str) -> list[str]:
    """Return the registered name that is equal; if there is none, each that ends in this part."""
    if name in tasks:
        return [name]
    return [task for task in tasks if task.rpartition(".")[2] == name]


@public
def start_task_process(
    data: dict[str, Any], tasks: Mapping[str, Any] | None = None, *, app: Celery | None = None
) -> PipelineRun:
    """Start a run from the data of a task process.

    The call writes the fields ``task_id`` (the run's id), ``status`` and ``queue`` into the data.

    It is for jobs that were written for a dispatcher which takes such data. Give their tasks
    ``base=PipelineTask``; their names, data, signatures and results stay as they are. Remove the
    code that starts the next task, passes the results on and takes a lock.

    Parameters:
        data: ``{"sub_tasks": [["task1", 1], ["task2", 3]], "params": {...}}``, higher priorities
            first. Other fields reach every step unchanged.
        tasks: name -> task. A name that is not in it is the name of a registered task.
        app: the Celery app; the current one by default.

    Raises:
        InvalidEntry: the data is wrong, or :class:`Pipeline` refuses it.
    """
    if not isinstance(data, dict):
        raise InvalidEntry("data", "a dict with sub_tasks and params", data)
    sub_tasks = data.get("sub_tasks", data.get("sub_task"))  # Both spellings are in use.
    if not isinstance(sub_tasks, (list, tuple)):
        raise InvalidEntry("sub_tasks", "a list of [name, priority]", sub_tasks)
    task_by_name = tasks or {}
    steps = []
    for index, item in enumerate(sub_tasks):
        if not isinstance(item, (list, tuple)) or len(item) != 2:
            raise InvalidEntry(f"sub_tasks[{index}]", "a pair [name, priority]", item)
        name, priority = item
        task = name
        if isinstance(name, str):
            task = task_by_name.get(name, name)
        steps.append((name, task, priority))
    app = app or current_app._get_current_object()
    process = {key: value for key, value in data.items() if key not in _OWN_FIELDS}
    definition = defined(app, steps, data.get("params"), process=process)
    run = begin(app, definition, str(uuid4()))
    data["task_id"] = run.id
    data["queue"] = definition.names()
    data["status"] = "waiting"
    return run


def task_process(func: Callable[[dict[str, Any]], Any]) -> Callable[..., Any]:
    """Decorate a step of a task process that takes the data alone and returns ``(result, params)``.

    Write the decorator below ``@app.task(bind=True, base=PipelineTask)``. It is for existing code:
    a step that takes the data alone works without it, too.
    """

    @functools.wraps(func)
    def wrap(self: Any, obj: dict[str, Any], name: str) -> Any:
        return func(obj)

    # Celery reads the signature of the function. By this attribute it would read the inner one's.
    del wrap.__wrapped__
    return wrap

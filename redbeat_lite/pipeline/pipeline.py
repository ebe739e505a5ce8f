"""``Pipeline`` and ``start_task_process``: two ways to define a pipeline and start a run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from uuid import uuid4

from celery import Celery, current_app
from celery.canvas import Signature
from msgspec.structs import replace

from .._base.celery_app import is_importing, load_tasks
from .._base.errors import InvalidEntry
from .._base.json_values import pack
from .._base.public import public
from .._base.text import is_short_text, nearest_hint
from .._base.times import Duration
from .definition import MAX_STEPS, TTL, Definition, Overlap, Step, pack_params
from .pipeline_keys import START
from .pipeline_run import PipelineRun, begin
from .pipeline_task import PipelineTask
from .publish import task_values

#: Fields of a task process's data that are not stored with the data, because each step gets their
#: current values.
_OWN_FIELDS = ("task_id", "queue", "status", "params")

#: Options of a signature that conflict with the pipeline's own.
_REFUSED = ("link", "link_error", "chord", "group_id", "task_id", "reply_to")


def _sorted_steps(
    app: Celery, items: Iterable[Any], field: str = "steps", tasks: Mapping[str, Any] | None = None
) -> tuple[Step, ...]:
    """Return the steps that a user wrote, sorted by stage. The highest priority is stage 0.

    Parameters:
        items: ``(task, priority)`` pairs, or triples ``(name, task, priority)``.
        field: name of the list in errors.
        tasks: only for a task process: name in a pair -> its task. A name that is missing here
            must be the name of a registered task.

    Raises:
        InvalidEntry: a step is wrong, and the error names it; or there is no step; or there are too
            many.
    """
    if isinstance(items, (str, bytes, Mapping)) or not isinstance(items, Iterable):
        raise InvalidEntry(field, "a list of (task, priority)", items)
    names = set()
    steps = []
    for index, item in enumerate(items):
        where = f"{field}[{index}]"
        step, priority = _parse(app, where, item, tasks)
        if step.name in names:
            expected = "a name that no other step has"
            hint = "name one of them with (name, task, priority)"
            raise InvalidEntry(f"{where}.name", expected, step.name, hint=hint)
        names.add(step.name)
        steps.append((step, priority))
    if not 0 < len(steps) <= MAX_STEPS:
        raise InvalidEntry(field, f"1 to {MAX_STEPS} steps", len(steps))
    # The place of a priority in this list, from 0, is the number of its stage.
    priorities = sorted({priority for _, priority in steps}, reverse=True)
    staged = [replace(step, stage=priorities.index(priority)) for step, priority in steps]
    # The sort is stable, so steps of a stage stay in the order of the user.
    return tuple(sorted(staged, key=lambda step: step.stage))


def _parse(
    app: Celery, where: str, item: Any, tasks: Mapping[str, Any] | None
) -> tuple[Step, float]:
    """Return the step of one item of a list, and its priority.

    Parameters:
        where: the item's name in errors, such as ``steps[0]``.
        tasks: as for :func:`_sorted_steps`.
    """
    # A task process has no triples, because the first item of its pairs is the name of the step.
    most = 3 if tasks is None else 2
    if not isinstance(item, (list, tuple)) or not 2 <= len(item) <= most:
        raise InvalidEntry(where, "a pair (task, priority)", item)
    # A pair has no name, so ``names`` is a list with one item or none.
    *names, task, priority = item
    if tasks is not None:
        # A pair of a task process begins with the name of the step. ``tasks`` may map it to a task.
        names = [task]
        task = tasks.get(str(task), task)
    # The limit refuses infinity. It also refuses NaN, because no comparison with NaN is true.
    is_number = isinstance(priority, (int, float)) and not isinstance(priority, bool)
    if not is_number or not abs(priority) < 1e308:
        raise InvalidEntry(f"{where}.priority", "a number", priority)
    # A task that is no signature is a task object, or a name.
    signature = task if isinstance(task, Signature) else Signature(task)
    # This field has a value only in the signature of a chain, group or chord.
    if signature.get("subtask_type"):
        hint = "no chain, group or chord"
        raise InvalidEntry(where, "the signature of one task", signature, hint=hint)
    options = dict(signature.options)
    for refused in _REFUSED:
        # An empty option has no effect, so it is dropped without an error.
        if options.pop(refused, None):
            raise InvalidEntry(f"{where}.options.{refused}", "no such option in a step", signature)
    written = _text(f"{where}.task", signature.task)
    # The option ``shadow`` is a name for people, so it becomes the name of the step.
    shadow = options.pop("shadow", None)
    name = _text(f"{where}.name", names[0] if names else shadow or written)
    registered = _find(app, written, f"{where}.task")
    call = {
        "args": list(signature.args),
        "kwargs": dict(signature.kwargs),
        "options": options,
        # With these options, a process that has not registered the task can publish it.
        "noted": task_values(app, registered),
    }
    return Step(name, registered, **pack(call, f"step {name!r}")), priority


def _text(where: str, value: Any) -> str:
    """Return the value if it is a short text without control characters, or raise InvalidEntry.

    Parameters:
        where: the field's name in the error, such as ``steps[0].task``.
    """
    if not is_short_text(value, 200):
        raise InvalidEntry(where, "1 to 200 printable characters", value)
    return value


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
        at_once: maximum number of steps of a run that are queued or running; ``None``: all of a
            stage.

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
        self.definition = Definition(
            _sorted_steps(app, steps),
            pack_params(params),
            revoke_siblings=revoke_siblings,
            ttl=ttl,  # type: ignore[arg-type] # Definition makes a number of it
            overlap=overlap,
            deadline=deadline,  # type: ignore[arg-type]
            at_once=at_once,
        )

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
        InvalidEntry: no task or several tasks match, or the task cannot be a step. The error calls
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
        # The hint suggests a similar name: the full name of a task, or its last part.
        known = {*tasks, *(task.rpartition(".")[2] for task in tasks)}
        hint = nearest_hint(name, known) or "no task of that name is registered in this app"
        raise InvalidEntry(where, "the name of a registered task", name, hint=hint)
    (task,) = matches
    if not isinstance(tasks[task], PipelineTask):
        raise InvalidEntry(where, "a task whose base is redbeat_lite.PipelineTask", task)
    return task


def _matches(tasks: Mapping[str, Any], name: str) -> list[str]:
    """Return the registered task names that a user may mean by ``name``.

    If a task has this very name, only that task is returned. Otherwise, all tasks are returned
    whose name has this text after its last dot.
    """
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
        tasks: name in ``sub_tasks`` -> its task. A name that is missing here must be the name of a
            registered task.
        app: the Celery app; the current one by default.

    Raises:
        InvalidEntry: the data is wrong, or :class:`Pipeline` refuses it.
    """
    if not isinstance(data, dict):
        raise InvalidEntry("data", "a dict with sub_tasks and params", data)
    sub_tasks: Any = data.get("sub_tasks", data.get("sub_task"))  # Both spellings are in use.
    app = app or current_app._get_current_object()
    steps = _sorted_steps(app, sub_tasks, "sub_tasks", tasks or {})
    process = {key: value for key, value in data.items() if key not in _OWN_FIELDS}
    params = pack_params(data.get("params"))
    definition = Definition(steps, params, process=pack(process, "data"))
    run = begin(app, definition, str(uuid4()))
    data["task_id"] = run.id
    data["queue"] = definition.names()
    data["status"] = "waiting"
    return run


def task_process(func: Callable[[dict[str, Any]], Any]) -> Callable[..., Any]:
    """Decorate a step whose function takes only the data and returns ``(result, params)``.

    Write the decorator below ``@app.task(bind=True, base=PipelineTask)``. New code does not need
    it; it exists so that the code of a task process keeps working.
    """

    @functools.wraps(func)
    def wrap(self: Any, obj: dict[str, Any], name: str) -> Any:
        return func(obj)

    # Celery reads the signature of the task's function, to check the arguments of calls. With this
    # attribute, it would read the signature of ``func`` instead of that of ``wrap``.
    del wrap.__wrapped__
    return wrap

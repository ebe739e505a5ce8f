"""``Pipeline``: what a user writes, and how a run of it begins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any
from uuid import uuid4

from celery import Celery

from ..app_tasks import is_importing, load_tasks
from ..durations import Duration
from ..errors import InvalidEntry, meant
from ..public import public
from .definition import TTL, Definition, Overlap, define
from .keys import START
from .run import PipelineRun, begin
from .task import PipelineTask
from .task_notes import note


def defined(app: Celery, steps: Iterable[Any], params: Any, **more: Any) -> Definition:
    """The definition of these steps over the tasks of an app; the rest is that of :func:`define`."""
    return define(steps, params, find=partial(_find, app), note=partial(note, app), **more)


@public
class Pipeline:
    """The tasks of one job by priority: equal ones run side by side, lower ones start when all higher ones succeeded.

    Parameters:
        app: the Celery app; it must know the tasks.
        steps: ``(task, priority)`` pairs, higher priorities first. A task is its registered name, or the last part of
            one; the task; or a signature, whose arguments follow the params and whose options are kept. A step is named
            after its task, or with ``(name, task, priority)``. Every task has the base :class:`PipelineTask`.
        params: a JSON object that the first stage gets. What steps return is merged into it.
        revoke_siblings: kill what runs beside a step that fails; otherwise it runs to its end, for nothing.
        ttl: length of time that the record of a run lives after its end; 7 days.
        overlap: what becomes of a run that an entry of the schedule starts while another one of it has not ended:
            ``"allow"`` lets both run, ``"skip"`` leaves the later one out, ``"wait"`` has it wait for its turn.
        deadline: length of time after which a run that has not ended fails, counted from when it begins.
        at_once: how many steps of a run may be queued or running at a time; ``None``: all of a stage.

    Raises:
        InvalidEntry: no steps, equal names, an unknown task, a priority that is no number, params that are no JSON
            object: nothing was published.
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
        more = {"overlap": overlap, "deadline": deadline, "at_once": at_once}
        self.app = app
        self.definition = defined(app, steps, params, revoke_siblings=revoke_siblings, ttl=ttl, **more)

    def __repr__(self) -> str:
        stages = " | ".join(", ".join(step.name for step in stage) for stage in self.definition.stages)
        return f"<Pipeline {stages}>"

    def start(self, run_id: str | None = None) -> PipelineRun:
        """Start a run and publish its first stage. While the broker does not answer, the sweeper tries again.

        Parameters:
            run_id: instead of a new one; a run of this id that was started before is not started again.

        Raises:
            ConfigurationError: the app runs its tasks eagerly, which a pipeline cannot.
            PipelineNotFound: there was a run of this id, and its record is gone.
            redis.exceptions.RedisError: the server did not answer. The run may have started all the same; who calls
                again with the ``run_id`` of the first call starts no second one.
        """
        return begin(self.app, self.definition, run_id if run_id is not None else str(uuid4()))

    def as_entry(self) -> dict[str, Any]:
        """The fields of a schedule's entry that starts a run; the run's id is the occurrence's.

        As text, because a message's JSON would turn what looks like kombu's types into those.
        """
        return {"task": START, "kwargs": {"definition": self.definition.encode()}}


def _find(app: Celery, name: str, where: str) -> str:
    """The name under which a step's task is registered: its full name, or one of which this is the last part alone.

    Raises:
        InvalidEntry: for the field ``where``, that there is no such task, there are several, or it can be no step.
    """
    tasks = app.tasks
    found = _named(tasks, name)
    if not found and not is_importing():
        load_tasks(app)  # a web process may have imported none of them
        found = _named(tasks, name)
    if len(found) > 1:
        raise InvalidEntry(where, "the full name of a task", name, hint=f"there are {', '.join(sorted(found))}")
    if not found:
        known = {*tasks, *(each.rpartition(".")[2] for each in tasks)}
        hint = meant(name, known) or "no task of that name is registered in this app"
        raise InvalidEntry(where, "the name of a registered task", name, hint=hint)
    if not isinstance(tasks[found[0]], PipelineTask):
        raise InvalidEntry(where, "a task whose base is redbeat_lite.PipelineTask", found[0])
    return found[0]


def _named(tasks: Mapping[str, Any], name: str) -> list[str]:
    return [name] if name in tasks else [task for task in tasks if task.rpartition(".")[2] == name]

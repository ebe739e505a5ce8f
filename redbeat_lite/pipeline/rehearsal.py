"""A pipeline in one process, without worker and server, for unit tests."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from celery.app.trace import build_tracer
from celery.exceptions import Retry

from ..errors import describe
from ..public import public_in
from . import params
from .definition import Definition, Step, task_id
from .run_status import RunStatus, State, StepStatus
from .task import REHEARSED

if TYPE_CHECKING:
    from celery import Celery

    from .pipeline import Pipeline


@public_in("redbeat_lite.testing")
class Rehearsal(NamedTuple):
    """What became of a pipeline that was rehearsed.

    Parameters:
        status: as of a run; without times and workers.
        params: those of the start, and what the steps that succeeded have returned.
        ran: the names of the steps that ran, in their order.
        exception: what the one that failed raised.
    """

    status: RunStatus
    params: dict[str, Any]
    ran: list[str]
    exception: BaseException | None


@public_in("redbeat_lite.testing")
def rehearse(pipeline: Pipeline) -> Rehearsal:
    """Run a pipeline at once in this process: stage by stage, the steps of each one after the other, in their order.

    Bodies get and return what they would in a run, through JSON. A retry follows at once; a failure ends it, as does
    a message that the body rejects, and the steps after it do not run. Locks, time limits and the policies of the
    pipeline do nothing.
    """
    definition, run_id = pipeline.definition, str(uuid4())
    texts, steps, exception = [params.encode(definition.params)], [], None
    for stage, each in enumerate(definition.stages):
        begun = params.merge(texts)
        for number, step in zip(definition.numbers(stage), each, strict=True):
            ident, error, state = task_id(run_id, stage, number, 0), None, State.ABORTED
            if exception is None:
                try:
                    texts.append(_outcome(pipeline.app, definition, step, stage, run_id, ident, begun))
                    state = State.SUCCEEDED
                except Exception as exc:  # noqa: BLE001 - a body may raise anything
                    exception, error, state = exc, describe(exc), State.FAILED
            steps.append(StepStatus(step.name, step.task, stage, state, ident, error=error))
    ran = [step for step in steps if step.state is not State.ABORTED]
    ended = State.FAILED if exception is not None else State.SUCCEEDED
    failed = (ran[-1].name, ran[-1].error) if exception is not None else (None, None)
    status = RunStatus(run_id, ended, ran[-1].stage, len(definition.stages), tuple(steps), *failed)
    status = replace(status, done=len(texts) - 1, total=len(steps))
    return Rehearsal(status, params.decode(params.merge(texts)), [step.name for step in ran], exception)


def _outcome(app: Celery, definition: Definition, step: Step, stage: int, run_id: str, ident: str, begun: str) -> str:
    """What a step returns, as JSON; or the exception that it raised."""
    task, process = app.tasks[step.task], definition.data_of(stage)
    header = {"run": run_id, "name": step.name, "process": process}
    args, kwargs, retries = (run_id, *step.args), dict(step.kwargs), 0
    trace = build_tracer(task.name, task, eager=True, app=app)
    while True:
        # As each attempt of a run does, each gets params of its own.
        given = params.arguments(task.run, header, params.decode(begun), args)
        request = {"id": ident, "args": given, "kwargs": kwargs, "retries": retries, "is_eager": True, REHEARSED: True}
        returned, info, *_ = trace(ident, given, kwargs, request)
        if info is None:
            return params.outcome(returned, process=process is not None)
        if not isinstance(info.retval, Retry):
            raise info.retval
        args, kwargs, retries = info.retval.sig.args, info.retval.sig.kwargs, retries + 1

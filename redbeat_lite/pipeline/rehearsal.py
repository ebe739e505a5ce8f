"""Rehearsal of a pipeline for unit tests: in one process, without worker and server."""

from __future__ import annotations

from typing import Any, NamedTuple
from uuid import uuid4

from celery import Celery
from celery.app.trace import build_tracer
from celery.exceptions import Retry

from .._base.json_values import dumps, unpack
from .._base.public import public_in
from .._base.text import describe
from .definition import Ref, Step, decode_params, merge_params, result_of
from .pipeline import Pipeline
from .pipeline_task import REHEARSED
from .run_status import RunStatus, State, StepStatus


@public_in("redbeat_lite.testing")
class Rehearsal(NamedTuple):
    """Result of a rehearsed pipeline.

    Parameters:
        status: status of the run, without times and workers.
        params: params of the start, merged with the results of the steps that succeeded.
        ran: names of the steps that ran, in the order in which they ran.
        exception: the exception of the failed step.
    """

    status: RunStatus
    params: dict[str, Any]
    ran: list[str]
    exception: BaseException | None


@public_in("redbeat_lite.testing")
def rehearse(pipeline: Pipeline) -> Rehearsal:
    """Run a pipeline now, in this process: stage by stage, and one step after the other.

    As in a run, params and results pass through JSON. A retry follows without a pause. If a body
    fails or rejects its message, no later step runs. Locks, time limits and the policies of the
    pipeline have no effect.
    """
    definition = pipeline.definition
    run_id = str(uuid4())
    params = [dumps(definition.params)]
    steps: list[StepStatus] = []
    exception: BaseException | None = None
    for number, step in enumerate(definition.steps):
        if not steps or step.stage != steps[-1].stage:
            # A stage begins. Its steps get the results of the stages before, and do not see each
            # other's results.
            stage_params = merge_params(params)
        ident = Ref(run_id, number).task_id
        # A step is ABORTED unless it runs.
        status = StepStatus(step.name, step.task, step.stage, State.ABORTED, ident)
        if exception is None:  # After a failure, the other steps stay ABORTED.
            try:
                params.append(_run_step(pipeline.app, step, ident, stage_params))
                status = status._replace(state=State.SUCCEEDED)
            except Exception as exc:  # noqa: BLE001 - a body may raise anything
                exception = exc
                status = status._replace(state=State.FAILED, error=describe(exc))
        steps.append(status)
    ran = [step for step in steps if step.state is not State.ABORTED]
    # The first step always runs. After a failure, the last step that ran is the one that failed.
    last = ran[-1]
    run = RunStatus(
        run_id,
        last.state,
        last.stage,
        len(definition.names()),
        tuple(steps),
        error_step=None if exception is None else last.name,
        error=last.error,
        # ``params`` has the params of the start, and one more item for each step that succeeded.
        done=len(params) - 1,
        total=len(steps),
    )
    final_params = decode_params(merge_params(params))
    return Rehearsal(run, final_params, [step.name for step in ran], exception)


def _run_step(app: Celery, step: Step, ident: str, params: str) -> str:
    """Run a step with its retries. Return the JSON of its result, or raise its exception.

    Parameters:
        ident: id of its task.
        params: params of its stage, as JSON.
    """
    task = app.tasks[step.task]
    trace = build_tracer(task.name, task, eager=True, app=app)
    args: Any = unpack(step.args)
    kwargs: Any = unpack(step.kwargs)
    retries = 0
    while True:
        # Each attempt gets a copy of the params, as in a run.
        arguments = (decode_params(params), *args)
        request = {
            "id": ident,
            "args": arguments,
            "kwargs": kwargs,
            "retries": retries,
            "is_eager": True,
            # With this mark, the task refuses to be replaced, as a step in a run does.
            REHEARSED: True,
        }
        # Celery also returns times, which nobody needs here. ``info`` holds the exception.
        returned, info, *_ = trace(ident, arguments, kwargs, request)
        if info is None:  # The body has returned a value.
            return result_of(returned)
        if not isinstance(info.retval, Retry):
            raise info.retval
        # The exception holds the signature of the next attempt. Its first argument are the params.
        args = info.retval.sig.args[1:]
        kwargs = info.retval.sig.kwargs
        retries += 1

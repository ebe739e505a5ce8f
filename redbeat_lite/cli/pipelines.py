"""Commands ``pipelines``, which list, show, await, cancel and resume runs of pipelines."""

from __future__ import annotations

import click

from ..pipeline import RunStatus, State, progress_line
from ..pipeline.pipeline_run import PipelineNotFound, PipelineRun
from .command import (
    INCOMPLETE,
    Failure,
    Group,
    Length,
    bare_app,
    exit_with,
    json_option,
    limit_option,
    load_app,
    note_option,
    option,
    unknown,
)
from .output import echo_fields, echo_json, echo_table, say

#: Most runs that are searched for an id by its beginning.
_LISTED = 1000

_id_argument = click.argument("run_id")


@click.group(cls=Group)
def pipelines() -> None:
    """List, show, await, cancel or resume runs of pipelines.

    The beginning of an id is enough if it is unique and there are fewer than 1,000 runs.

    \b
    Examples:
      celery -A proj redbeat pipelines list
      celery -A proj redbeat pipelines wait 7f3a
    """


@pipelines.command("list")
@option("--running", "Only runs that have not ended.")
@option("--failed", "Only runs that have failed.")
@limit_option(50, "runs")
@json_option
def list_(running: bool, failed: bool, limit: int) -> None:
    """List the runs that have not ended, then the latest that have.

    \b
    Examples:
      celery -A proj redbeat pipelines list --running
      celery -A proj redbeat pipelines list --failed
      celery -A proj redbeat pipelines list --json
    """
    states: list[State] = []
    if running:
        states += [State.RUNNING, State.WAITING]
    if failed:
        states.append(State.FAILED)
    runs = PipelineRun.list(load_app(), states or tuple(State), limit=limit + 1)
    echo_json([run.as_json() for run in runs[:limit]])
    rows = []
    for run in runs:
        steps = f"{run.done}/{run.total}" if run.total else None
        what = ": ".join(filter(None, (run.entry, run.why))) or None
        rows.append((run.id, run.state, _stage(run), steps, run.created_at, what))
    headers = ("RUN", "STATE", "STAGE", "STEPS", "STARTED", "WHAT")
    empty = "No run matches." if states else "No run is recorded."
    echo_table(headers, rows, empty=empty, limit=limit)


@pipelines.command()
@_id_argument
@json_option
def show(run_id: str) -> None:
    """Show one run with its steps.

    \b
    Example:
      celery -A proj redbeat pipelines show 7f3a
    """
    run = _status(run_id)
    echo_json(run.as_json())
    progress = f"{run.percent} %, {run.done} of {run.total} steps" if run.total else None
    echo_fields(
        [
            ("run", run.id),
            ("state", run.state),
            ("waits for", run.waits_for),
            ("stage", _stage(run)),
            ("progress", progress),
            ("started", run.created_at),
            ("ended", run.ended_at),
            ("deadline", run.deadline),
            ("entry", run.entry),
            ("why", run.why),
        ]
    )
    say()
    rows = []
    for step in run.steps:
        progress = " ".join(filter(None, (step.how_far, step.note))) or None
        stage = step.stage + 1
        rows.append((stage, step.name, step.state, step.started_at, step.worker, progress))
    echo_table(("STAGE", "STEP", "STATE", "STARTED", "WORKER", "PROGRESS"), rows)


@pipelines.command()
@_id_argument
@option("--timeout", "How long to wait at most: 90s, 5m. [default: for ever]", type=Length())
@json_option
def wait(run_id: str, timeout: float | None) -> None:
    """Wait until a run has ended, and print a line for each change.

    Exit codes: 0 the run succeeded; 1 the request is wrong; 2 the server or the broker cannot be
    reached; 3 the run did not succeed, or has not ended in time.

    \b
    Example:
      celery -A proj redbeat pipelines wait 7f3a --timeout 600
    """
    run = PipelineRun(bare_app(), _status(run_id).id)
    try:
        status = run.wait(timeout, lambda status: say(progress_line(status)))
    except TimeoutError as exc:
        say(f"Error: {exc}", err=True)
        exit_with(INCOMPLETE)
    echo_json(status.as_json())
    if status.state is not State.SUCCEEDED:
        exit_with(INCOMPLETE)


@pipelines.command()
@_id_argument
@option("--terminate", "Kill the steps that run. Without it, they run to their ends.")
@note_option
def cancel(run_id: str, terminate: bool, note: str) -> None:
    """End a run before its time. No further step of it starts.

    \b
    Example:
      celery -A proj redbeat pipelines cancel 7f3a --terminate
    """
    run = _status(run_id)
    if not PipelineRun(bare_app(), run.id).cancel(terminate=terminate, note=note):
        raise Failure(f"pipeline {run.id} has ended already: {run.state}")
    say(f"cancelled {run.id}")


@pipelines.command()
@_id_argument
@note_option
def resume(run_id: str, note: str) -> None:
    """Resume a run that failed or was cancelled. Steps that have succeeded do not run again.

    \b
    Example:
      celery -A proj redbeat pipelines resume 7f3a
    """
    run = _status(run_id)
    resumed = PipelineRun(bare_app(), run.id).resume(note=note)
    say(f"resumed {run.id}" if resumed else f"{run.id} goes on already")


def _status(run_id: str) -> RunStatus:
    """Return the status of a run, by its id or by the beginning of its id."""
    app = load_app()
    try:
        return PipelineRun(app, run_id).status()
    except PipelineNotFound as exc:
        listed = PipelineRun.list(app, limit=_LISTED)
        matching = [run for run in listed if run.id.startswith(run_id)]
        if not matching:
            raise unknown(str(exc), run_id, [run.id for run in listed]) from None
        if len(listed) == _LISTED:
            hint = f"so {run_id!r} has to be the whole id of one"
            raise Failure(f"there are {_LISTED} runs or more, {hint}") from None
        if len(matching) > 1:
            examples = f"{matching[0].id!r} and {matching[1].id!r}"
            raise Failure(
                f"{len(matching)} runs begin with {run_id!r}, such as {examples}"
            ) from None
        return matching[0]


def _stage(run: RunStatus) -> str | None:
    """Return the present stage and the count of stages; ``None`` if they are not known."""
    return f"{run.stage + 1}/{run.stages}" if run.stages else None

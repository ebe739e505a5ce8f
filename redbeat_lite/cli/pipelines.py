"""``pipelines``: how the runs stand, waiting for one, ending one, going on with one."""

from __future__ import annotations

import click

from ..pipeline import RunStatus, State, StepStatus, progress_line
from ..pipeline.errors import PipelineNotFound
from ..pipeline.run import PipelineRun
from .command import Command, Group, Length, app_of, json_option
from .exit_codes import Failure, unknown
from .output import echo_fields, echo_json, echo_table, fitted, say, when

#: Exit code of ``wait`` where the run did not succeed, or has not ended in time.
NOT_SUCCEEDED = 3

_LISTED = 1000


@click.group(cls=Group)
def pipelines() -> None:
    """Runs of pipelines. The beginning of an id is enough where no other run's begins so, among fewer than 1,000.

    \b
    Examples:
      celery -A proj redbeat pipelines list
      celery -A proj redbeat pipelines wait 7f3a
    """


@pipelines.command("list", cls=Command)
@click.option("--running", is_flag=True, help="Only those that have not ended.")
@click.option("--failed", is_flag=True, help="Only those that have failed.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="How many at most.")
@json_option
def list_(ctx: click.Context, running: bool, failed: bool, limit: int) -> None:
    """List the runs: those that have not ended first, then the others, the latest in front.

    \b
    Examples:
      celery -A proj redbeat pipelines list --running
      celery -A proj redbeat pipelines list --failed
      celery -A proj redbeat pipelines list --json
    """
    wanted = [*((State.RUNNING, State.WAITING) if running else ()), *((State.FAILED,) if failed else ())]
    found = PipelineRun.list(app_of(ctx), wanted or tuple(State), limit=limit + 1)
    echo_json(run.as_json() for run in found[:limit])
    zone = ctx.obj.app.timezone
    rows = ((run.id, run.state, _stage(run), _steps(run), when(run.created_at, zone), _what(run)) for run in found)
    headers = ("RUN", "STATE", "STAGE", "STEPS", "STARTED", "WHAT")
    empty = "There is no such run." if wanted else "No run is recorded."
    echo_table(headers, rows, empty=empty, rigid=headers[:4], limit=limit, below=True)


@pipelines.command(cls=Command)
@click.argument("run_id")
@json_option
def show(ctx: click.Context, run_id: str) -> None:
    """Show one run with its steps.

    \b
    Example:
      celery -A proj redbeat pipelines show 7f3a
    """
    run = _status(ctx, run_id)
    echo_json(run.as_json())
    zone = ctx.obj.app.timezone
    echo_fields(
        [
            ("run", run.id),
            ("state", run.state),
            ("waits for", run.waits_for),
            ("stage", _stage(run)),
            ("progress", _progress(run)),
            ("started", when(run.created_at, zone)),
            ("ended", when(run.ended_at, zone)),
            ("deadline", when(run.deadline, zone)),
            ("entry", run.entry),
            ("why", run.why),
        ]
    )
    say()
    rows = [
        (step.stage + 1, step.name, step.state, when(step.started_at, zone), step.worker, _told(step))
        for step in run.steps
    ]
    rigid = ("STAGE", "STATE", "STARTED")
    echo_table(("STAGE", "STEP", "STATE", "STARTED", "WORKER", "PROGRESS"), rows, rigid=rigid)


@pipelines.command(cls=Command)
@click.argument("run_id")
@click.option("--timeout", type=Length(), help="How long to wait at most: 90s, 5m. [default: for ever]")
@json_option
def wait(ctx: click.Context, run_id: str, timeout: float | None) -> None:
    """Wait until a run has ended, with a line for each change.

    Exit code 3: it did not succeed, or has not ended in time.

    \b
    Example:
      celery -A proj redbeat pipelines wait 7f3a --timeout 600
    """
    run_id = _status(ctx, run_id).id
    try:
        run = PipelineRun(ctx.obj.app, run_id).wait(timeout, lambda status: say(fitted(progress_line(status))))
    except TimeoutError as exc:
        say(f"Error: {exc}", err=True)
        ctx.exit(NOT_SUCCEEDED)
    echo_json(run.as_json())
    if run.state is not State.SUCCEEDED:
        ctx.exit(NOT_SUCCEEDED)


@pipelines.command(cls=Command)
@click.argument("run_id")
@click.option("--terminate", is_flag=True, help="Kill what runs of it, too; otherwise that runs to its end.")
@click.option("--note", default="", help="Why, for the record of changes.")
def cancel(ctx: click.Context, run_id: str, terminate: bool, note: str) -> None:
    """End a run before its time: nothing of it starts any more.

    \b
    Example:
      celery -A proj redbeat pipelines cancel 7f3a --terminate
    """
    run = _status(ctx, run_id)
    if not PipelineRun(ctx.obj.app, run.id).cancel(terminate=terminate, note=note):
        raise Failure(f"pipeline {run.id} has ended already: {run.state}")
    say(f"cancelled {run.id}")


@pipelines.command(cls=Command)
@click.argument("run_id")
@click.option("--note", default="", help="Why, for the record of changes.")
def resume(ctx: click.Context, run_id: str, note: str) -> None:
    """Go on with a run that failed or was cancelled: what has succeeded does not run again.

    \b
    Example:
      celery -A proj redbeat pipelines resume 7f3a
    """
    run = _status(ctx, run_id)
    resumed = PipelineRun(ctx.obj.app, run.id).resume(note=note)
    say(f"resumed {run.id}" if resumed else f"{run.id} goes on already")


def _status(ctx: click.Context, run_id: str) -> RunStatus:
    app = app_of(ctx)
    try:
        return PipelineRun(app, run_id).status()
    except PipelineNotFound as exc:
        listed = PipelineRun.list(app, limit=_LISTED)
        begun = [run for run in listed if run.id.startswith(run_id)]
        if begun and len(listed) == _LISTED:
            raise Failure(f"there are {_LISTED} runs or more, so {run_id!r} has to be the whole id of one") from None
        if len(begun) == 1:
            return begun[0]
        if begun:
            raise Failure(
                f"{len(begun)} runs begin with {run_id!r}, such as {begun[0].id!r} and {begun[1].id!r}"
            ) from None
        raise unknown(str(exc), run_id, [run.id for run in listed]) from None


def _stage(run: RunStatus) -> str | None:
    return f"{run.stage + 1}/{run.stages}" if run.stages else None


def _what(run: RunStatus) -> str | None:
    """The entry that has started it, and why it has ended so."""
    return ": ".join(filter(None, (run.entry, run.why))) or None


def _told(step: StepStatus) -> str | None:
    return " ".join(filter(None, (step.how_far, step.note))) or None


def _progress(run: RunStatus) -> str | None:
    return f"{run.percent} %, {run.done} of {run.total} steps" if run.total else None


def _steps(run: RunStatus) -> str | None:
    return f"{run.done}/{run.total}" if run.total else None

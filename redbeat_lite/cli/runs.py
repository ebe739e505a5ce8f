"""``runs``: what became of occurrences."""

from __future__ import annotations

from collections.abc import Collection
from datetime import tzinfo
from typing import Any

import click
from celery import Celery

from ..api.run_history import OUTCOMES
from ..api.schedules import Schedules
from ..beat.status import status
from ..entries.words import span, took
from ..runs.run import NOT_DONE, Outcome, Run
from ..settings import Settings
from .command import Command, entry_names, json_option, schedules_of
from .entry_options import span_of
from .output import clean, echo_json, echo_table, in_json, say, when
from .selected import names_of, selected, selecting


@click.command(cls=Command)
@click.argument("name", required=False, shell_complete=entry_names)
@selecting
@click.option("--failed", is_flag=True, help="Only those that did not do their work: failed, expired, lost and so on.")
@click.option(
    "--outcome",
    type=click.Choice(OUTCOMES),
    metavar="WORD",
    multiple=True,
    help="Only those that came to this: succeeded, expired, lost and so on; repeatable.",
)
@click.option("--since", metavar="TIME", help="Only those scheduled since: 22:00, an instant, or how long ago: 24h.")
@click.option("--until", metavar="TIME", help="Only those scheduled until then.")
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="How many runs at most.")
@json_option
def runs(
    ctx: click.Context,
    /,
    failed: bool,
    outcome: tuple[Outcome, ...],
    since: str | None,
    until: str | None,
    limit: int,
    **meant: Any,
) -> None:
    """Show what became of the runs of one entry, the newest first; or of several or all what workers have ended.

    TOOK and TRIES are of the task's body.

    \b
    Examples:
      celery -A proj redbeat runs nightly
      celery -A proj redbeat runs --failed --since 24h
      celery -A proj redbeat runs --since 22:00 --until 06:00
      celery -A proj redbeat runs 'report-*' --tag billing
    """
    schedules, zone = schedules_of(ctx), ctx.obj.app.timezone
    outcomes = {*outcome, *(NOT_DONE if failed else ())} or None
    first, last = span_of(("since", "until"), since, until, zone)
    entries = selected(ctx, **meant)
    name = None if entries.selection.is_all else names_of(entries, meant["name"])
    found = schedules.runs(name, outcome=outcomes, since=first, until=last, limit=limit + 1)
    echo_json(found[:limit])
    if found or in_json():
        _echo(found, zone, named=not isinstance(name, str), limit=limit)
    else:
        say(_why_nothing(ctx.obj.app, name, filtered=bool(outcomes or first or last)))


def told(run: Run, zone: tzinfo) -> str:
    """A run in one line, for ``show``."""
    lasted, note = how_long(run), remark(run)
    more = (f" in {lasted}" if lasted else "") + (f": {note}" if note else "")
    return clean(f"{when(run.scheduled_at, zone)}  {run.outcome}{more}")


def _echo(found: list[Run], zone: tzinfo, *, named: bool, limit: int) -> None:
    headers = ("SCHEDULED", *(("ENTRY",) if named else ()), "OUTCOME", "TOOK", "TRIES", "WORKER", "NOTE")
    rigid = ("SCHEDULED", "OUTCOME", "TOOK", "TRIES")
    echo_table(headers, (_cells(run, zone, named) for run in found), rigid=rigid, limit=limit, below=True)


def _cells(run: Run, zone: tzinfo, named: bool) -> tuple[Any, ...]:
    name, more = (run.name,) if named else (), (run.attempts or None, run.worker, remark(run))
    return (when(run.scheduled_at, zone), *name, run.outcome, how_long(run), *more)


def how_long(run: Run) -> str | None:
    """How long a run took, as far as that is known."""
    return None if run.seconds is None else took(run.seconds)


def remark(run: Run) -> str | None:
    """What there is to say of a run besides."""
    if run.until is not None:
        return f"{run.count} in {span((run.until - run.scheduled_at).total_seconds())}"
    if run.outcome == "unknown" and run.began_at is not None:
        return "it began, and nobody has told its end"
    if run.outcome == "failed" and run.retry_at is not None:
        return f"its retry expired; {run.error}"
    return run.error


def _why_nothing(app: Celery, name: str | Collection[str] | None, *, filtered: bool) -> str:
    """Why there is nothing to show, as far as that can be told."""
    if filtered:
        return "No such run is known."
    if isinstance(name, str):
        entry = Schedules(app)[name]
        if not entry.total_run_count:
            return f"{name!r} has not run yet."
        if not (Settings.from_app(app).history if entry.history is None else entry.history):
            return f"No run is recorded: the history of {name!r} is 0."
    if status(app).clocks:
        return "No run is recorded yet."
    return "No run is recorded: no worker with install() has reported."

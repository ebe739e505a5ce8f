"""``runs``: what became of occurrences."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import tzinfo
from typing import TYPE_CHECKING, Any

import click

from ..api.schedules import Schedules
from ..beat.status import status
from ..entries.words import span
from ..runs.run import NOT_DONE, Run
from ..setting_checks import has_results
from ..settings import Settings
from .command import Command, json_option, schedules_of
from .entry_options import since_of
from .output import clean, echo_json, echo_table, say, when

if TYPE_CHECKING:
    from celery import Celery


@click.command(cls=Command)
@click.argument("name", required=False)
@click.option("--failed", is_flag=True, help="Only those that did not do their work: failed, expired, lost and so on.")
@click.option("--since", metavar="TIME", help="Only those scheduled since: an instant, or how long ago, such as 24h.")
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="How many runs at most.")
@json_option
@click.pass_context
def runs(ctx: click.Context, name: str | None, failed: bool, since: str | None, limit: int, as_json: bool) -> None:
    """Show what became of the runs of one entry, the newest first; or of all entries what workers have ended.

    TOOK and TRIES are of the task's body. What no worker has recorded of an entry's runs is asked of the result
    backend.

    \b
    Examples:
      celery -A proj redbeat runs nightly
      celery -A proj redbeat runs --failed --since 24h
    """
    schedules, zone = schedules_of(ctx), ctx.obj.app.timezone
    outcome = NOT_DONE if failed else None
    first = None if since is None else since_of(since, zone)
    found = schedules.runs(name, outcome=outcome, since=first, limit=limit)
    if as_json:
        echo_json(found)
    elif found:
        _echo(found, zone, named=name is None)
    else:
        say(_why_nothing(ctx.obj.app, name, filtered=failed or since is not None))


def told(run: Run, zone: tzinfo) -> str:
    """A run in one line, for ``show``."""
    took = "" if run.seconds is None else f" in {_took(run.seconds)}"
    note = _note(run)
    return clean(f"{when(run.scheduled_at, zone)}  {run.outcome}{took}{f': {note}' if note else ''}")


def _echo(found: list[Run], zone: tzinfo, *, named: bool) -> None:
    headers = ("SCHEDULED", *(("ENTRY",) if named else ()), "OUTCOME", "TOOK", "TRIES", "WORKER", "NOTE")
    rigid = ("SCHEDULED", "OUTCOME", "TOOK", "TRIES")
    echo_table(headers, (tuple(_cells(run, zone, named)) for run in found), rigid=rigid)


def _cells(run: Run, zone: tzinfo, named: bool) -> Iterator[Any]:
    yield when(run.scheduled_at, zone)
    if named:
        yield run.name
    yield run.outcome
    yield None if run.seconds is None else _took(run.seconds)
    yield run.attempts or None
    yield run.worker
    yield _note(run)


def _took(seconds: float) -> str:
    return span(seconds) if seconds >= 1 else f"{round(1000 * seconds)} ms"


def _note(run: Run) -> str | None:
    if run.until is not None:
        return f"{run.count} in {span((run.until - run.scheduled_at).total_seconds())}"
    return run.error or ("says the result backend" if run.source == "result" else None)


def _why_nothing(app: Celery, name: str | None, *, filtered: bool) -> str:
    """Why there is nothing to show, as far as that can be told."""
    if filtered:
        return "No such run is known."
    if name is not None:
        entry = Schedules(app)[name]
        if not entry.total_run_count:
            return f"{name!r} has not run yet."
        if not (Settings.from_app(app).history if entry.history is None else entry.history):
            return f"No run is recorded: the history of {name!r} is 0."
    if status(app).clocks:
        return "No run is recorded yet."
    if has_results(app):
        more = "" if name else "; the result backend tells of those of one entry"
        return f"No run is recorded: no worker with install() has reported{more}."
    return "No run is recorded: no worker with install() has reported, and there is no result backend."

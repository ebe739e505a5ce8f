"""Commands ``backfill`` and ``backfills``, which send runs of the past."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import click

from .._base.errors import InvalidEntry
from ..api.backfills import Backfills
from ..api.schedules import Schedules
from ..entries.backfill import Backfill
from ..entries.words import counted, listed, took
from ..operate.option_values import start_arguments
from ..operate.texts import backfill_status
from .command import Failure, command, json_option, load_schedules, note_option, option
from .options import changing, required_names
from .output import app_zone, echo_json, echo_table, say, when

#: Field of an InvalidEntry that leaves one of several entries out -> the reason in words.
_LEFT_OUT = {
    "start": "with nothing to send, or too much",
    "again": "with a backfill that goes on",
    "missing": "whose record of runs does not go back so far",
}

#: Reasons for which one of several entries is left out unless --everything is used.
_IDLE = ("added later", "disabled", "paused", "finished")


@command()
@changing
@option("--from start INSTANT", "The first instant, or how long ago: 24h.", required=True)
@option("--to end INSTANT", "The last instant, or how long ago.", required=True)
@option("--max-active N", 'Most runs of an entry in flight; or "none" for no limit.', default="1")
@option(
    "--rate", "Messages a second of each entry, with --max-active none.", type=float, default=10
)
@option("--again", "Raise it to send again what earlier backfills have sent.", type=int, default=0)
@option("--missing", "Leave out runs that have succeeded, run or wait.")
@option("--everything", "Include idle entries, and runs from before an entry was added.")
@note_option
@option("--dry-run", "Show what would be sent, and send nothing.")
@json_option
def backfill(
    name: str | None,
    tag: str | None,
    task: str | None,
    yes: bool,
    dry_run: bool,
    everything: bool,
    **options: Any,
) -> None:
    """Send the runs of entries between two instants of the past, oldest first.

    Each entry gets a backfill of its own. Runs that an earlier backfill has sent are left out. Runs
    that were sent when they were due are sent again, unless you say --missing. On a terminal, the
    command asks first. An instant without an offset is in the app's zone. If --from and --to are
    the same instant, a run of that instant is sent, whatever the schedule says.

    If you select several entries, those that are disabled, paused or finished are left out, and so
    are runs from before an entry was added.

    \b
    Examples:
      celery -A proj redbeat backfill nightly --from 2026-11-01 --to 2026-11-14
      celery -A proj redbeat backfill poll --from 2026-11-01T12:00 \\
        --to 2026-11-01T15:30 --max-active none --rate 2
      celery -A proj redbeat backfill '*' --from 02:10 --to 03:40 --missing
    """
    _, names = required_names()
    arguments = start_arguments(options, app_zone())
    start = arguments.pop("start")
    end = arguments.pop("end")
    store = load_schedules().backfills
    if isinstance(names, str):
        first_instants = {names: start}
        planned = [store.start(names, start, end, dry_run=True, **arguments)]
    else:
        first_instants = _first_instants(names, start, end, everything)
        planned = _plan(store, first_instants, end, arguments, is_one=len(names) == 1)
    _say_runs(planned)
    if not dry_run:
        if not yes and sys.stdin.isatty():
            click.confirm("Send them?", abort=True, err=True)
        for index, plan in enumerate(planned):
            first = first_instants[plan.name]
            planned[index] = store.start(plan.name, first, end, **arguments)
            # Print it now, because the start of a later one may fail.
            say(f"started backfill {planned[index].id}")
    echo_json(planned[0] if isinstance(names, str) else planned)


def _first_instants(
    names: Sequence[str], start: datetime, end: datetime, everything: bool
) -> dict[str, datetime]:
    """Return name of an entry -> instant of its first run to send. Idle entries are left out."""
    if everything:
        return dict.fromkeys(names, start)
    schedules = load_schedules()
    instants = {}
    idle: dict[str, list[str]] = {}
    for name in names:
        first = _first_instant(schedules, name, start)
        reason = "added later" if first > end else str(schedules[name].status)
        if reason in _IDLE:
            idle.setdefault(f"{reason} (--everything includes them)", []).append(name)
        else:
            instants[name] = first
    _say_left_out(idle)
    return instants


def _plan(
    store: Backfills,
    first_instants: Mapping[str, datetime],
    end: datetime,
    arguments: Mapping[str, Any],
    *,
    is_one: bool,
) -> list[Backfill]:
    """Return the backfills to start.

    Parameters:
        is_one: whether the user named one entry. Then its error is raised; of several entries,
            refused ones are left out.

    Raises:
        Failure: no backfill can be started.
    """
    planned = []
    refused: dict[str, list[str]] = {}
    for name, first in first_instants.items():
        try:
            planned.append(store.start(name, first, end, dry_run=True, **arguments))
        except InvalidEntry as exc:
            if is_one or exc.field not in _LEFT_OUT:
                raise
            refused.setdefault(_LEFT_OUT[exc.field], []).append(name)
    _say_left_out(refused)
    if not planned:
        raise Failure("none of these entries has a run to send")
    return planned


def _say_left_out(names_by_reason: Mapping[str, Sequence[str]]) -> None:
    """Print which entries are left out, and why."""
    for reason, names in names_by_reason.items():
        say(f"left out, {reason}: {listed(names, 10)}", err=True)


def _first_instant(schedules: Schedules, name: str, start: datetime) -> datetime:
    """Return when an entry was added, by the record, if that is after ``start``; else ``start``."""
    changes = schedules.changes(name, since=start)
    added = [change.at for change in changes if change.action == "added"]
    return added[0] if added else start


def _say_runs(backfills: Sequence[Backfill]) -> None:
    """Print the count of runs of each backfill. Of several runs, print their total and duration."""
    for backfill in backfills:
        runs = counted(backfill.total, "run", "runs")
        span = f"from {when(backfill.start)} to {when(backfill.end)}"
        say(f"{runs} of {backfill.name!r}, {span}")
    total = sum(backfill.total for backfill in backfills)
    if total < 2:
        return
    rate = backfills[0].rate
    max_active = backfills[0].max_active
    if max_active is None:
        seconds = max(backfill.total for backfill in backfills) / rate
        pace = f"about {took(seconds)}, at {rate:g} a second of each entry"
    else:
        pace = f"{max_active} at once of each entry, as fast as workers end them"
    say(f"{total} runs in all: {pace}")


@command()
@click.argument("action", type=click.Choice(["list", "pause", "resume", "cancel"]), default="list")
@click.argument("id", required=False)
@json_option
def backfills(action: str, id: str | None) -> None:
    """List the backfills with their progress; or pause, resume or cancel the one of this ID.

    A resumed backfill does not wait for runs that were sent before, because their messages may be
    lost.

    \b
    Examples:
      celery -A proj redbeat backfills
      celery -A proj redbeat backfills cancel 3f9a21c0
    """
    if (action == "list") != (id is None):
        raise Failure("pause, resume and cancel need an ID, and list takes none")
    stored = load_schedules().backfills
    shown = [*stored] if id is None else [getattr(stored, action)(id)]
    echo_json(shown)
    rows = [
        (
            backfill.id,
            backfill.name,
            backfill.start,
            f"{backfill.sent} of {backfill.total}",
            backfill_status(backfill),
        )
        for backfill in shown
    ]
    headers = ("ID", "ENTRY", "FROM", "SENT", "STATUS")
    echo_table(headers, rows, empty="No backfill was started.")

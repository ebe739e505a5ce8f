"""``backfill`` and ``backfills``: runs of the past, started, listed and stopped."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from datetime import datetime, tzinfo
from typing import Any

import click

from ..api.schedules import Schedules
from ..entries.words import counted, listed, took
from ..errors import InvalidEntry
from ..storage.backfills import Backfill
from .command import Command, json_option, schedules_of
from .entry_options import span_of
from .exit_codes import Failure
from .output import echo_json, echo_table, say, when
from .selected import changing, named

#: Fields whose errors leave one of several entries out -> which entries these are.
_LEFT_OUT = {
    "start": "with nothing to send, or too much",
    "again": "with a backfill that goes on",
    "missing": "whose record of runs does not go back so far",
}

#: Reasons to leave out an entry if there are several, without --everything.
_IDLE = ("added later", "disabled", "paused", "finished")


@click.command(cls=Command)
@changing
@click.option("--from", "start", metavar="INSTANT", required=True, help="The first instant, or how long ago: 24h.")
@click.option("--to", "end", metavar="INSTANT", required=True, help="The last instant, or how long ago.")
@click.option("--max-active", metavar="N", default="1", help='So many at once; or "none": as --rate says.  [1]')
@click.option("--rate", type=float, default=10, show_default=True, help="Messages a second without --max-active.")
@click.option("--again", type=int, default=0, help="1 and so on, to send what was sent before once more.")
@click.option("--missing", is_flag=True, help="Leave out what has succeeded, runs or waits, by the record of runs.")
@click.option("--everything", is_flag=True, help="Include idle entries, and runs from before they came.")
@click.option("--note", default="", help="Why, for those who come after.")
@click.option("--dry-run", is_flag=True, help="Show what would be sent, and send nothing.")
@json_option
def backfill(
    ctx: click.Context, /, name: str | None, tag: str | None, task: str | None, dry_run: bool, yes: bool, **given: Any
) -> None:
    """Have the runs of entries between two instants of the past sent, oldest first, by a backfill of each.

    What was backfilled before is not sent again; what ran when it was due is, unless with --missing. On a terminal it
    asks first. An instant without an offset is read in the app's zone. With several entries, it
    leaves out those that are disabled, paused, finished or without a run to send, and runs from
    before an entry was added.

    \b
    Examples:
      celery -A proj redbeat backfill nightly --from 2026-11-01 --to 2026-11-14
      celery -A proj redbeat backfill poll --from 2026-11-01T12:00 \\
        --to 2026-11-01T15:30 --max-active none --rate 2
      celery -A proj redbeat backfill '*' --from 02:10 --to 03:40 --missing
    """
    _, names = named(ctx, name=name, tag=tag, task=task)
    asks = not yes and sys.stdin.isatty()
    begin(ctx, names, dry_run=dry_run, asks=asks, **asked(given, ctx.obj.app.timezone))


def asked(given: dict[str, Any], zone: tzinfo) -> dict[str, Any]:
    """What ``start()`` is given, by the options of ``backfill``; raises InvalidEntry if one of them is wrong."""
    most = given["max_active"]
    if most != "none" and not re.fullmatch("[0-9]{1,9}", most):
        raise InvalidEntry("max_active", 'a whole number, or "none"', most)
    start, end = span_of(("from", "to"), given["start"], given["end"], zone)
    return {**given, "start": start, "end": end, "max_active": None if most == "none" else int(most)}


def begin(
    ctx: click.Context,
    names: str | Sequence[str],
    start: datetime,
    end: datetime,
    *,
    dry_run: bool = False,
    asks: bool = False,
    everything: bool = False,
    **how: Any,
) -> None:
    """Say what backfills are to send, and start them: none, if one of them is refused.

    Parameters:
        names: of one entry; or of several, but for those that are left out.
        dry_run, asks: start none, or only if somebody at the terminal agrees.
        everything: with several entries, include idle ones and runs from before an entry was added.
        how: as for ``start()``.
    """
    schedules = schedules_of(ctx)
    wanted: list[Backfill] = []
    left_out: dict[str, list[str]] = {}
    begins: dict[str, datetime] = {}
    asked_for = [names] if isinstance(names, str) else names
    is_narrowed = not everything and not isinstance(names, str)
    for name in asked_for:
        first = start
        if is_narrowed:
            first = _first_instant(schedules, name, start)
            reason = "added later" if first > end else schedules[name].status
            if reason in _IDLE:
                left_out.setdefault(f"{reason} (--everything includes them)", []).append(name)
                continue
        try:
            wanted.append(schedules.backfills.start(name, first, end, dry_run=True, **how))
            begins[name] = first
        except InvalidEntry as exc:
            if exc.field not in _LEFT_OUT or len(asked_for) == 1:
                raise
            left_out.setdefault(_LEFT_OUT[exc.field], []).append(name)
    for why, some in left_out.items():
        say(f"left out, {why}: {listed(some, 10)}", err=True)
    if left_out and not wanted:
        raise Failure("of none of these entries is there anything to send")
    _say_runs(wanted, ctx.obj.app.timezone)
    if not dry_run:
        if asks:
            click.confirm("Send them?", abort=True, err=True)
        for place, each in enumerate(wanted):
            started = schedules.backfills.start(each.name, begins[each.name], end, **how)
            wanted[place] = started
            say(f"started backfill {started.id}")  # each at once: those after it may fail
    echo_json(wanted[0] if isinstance(names, str) else wanted)


def _first_instant(schedules: Schedules, name: str, start: datetime) -> datetime:
    """Return when the entry was added, if that is recorded and after ``start``; else ``start``."""
    added = [change.at for change in schedules.changes(name, since=start) if change.action == "added"]
    return added[0] if added else start


def _say_runs(wanted: Sequence[Backfill], zone: tzinfo) -> None:
    """Print how many runs each backfill has, and the total and duration of several runs."""
    for backfill in wanted:
        runs = counted(backfill.total, "run", "runs")
        say(f"{runs} of {backfill.name!r}, from {when(backfill.start, zone)} to {when(backfill.end, zone)}")
    total = sum(backfill.total for backfill in wanted)
    if total < 2:
        return
    rate = wanted[0].rate
    max_active = wanted[0].max_active
    if max_active is None:
        seconds = max(backfill.total for backfill in wanted) / rate
        say(f"{total} runs in all: about {took(seconds)}, at {rate:g} a second of each entry")
    else:
        say(f"{total} runs in all: {max_active} at once of each entry, as fast as workers end them")


@click.command(cls=Command)
@click.argument("action", type=click.Choice(["list", "pause", "resume", "cancel"]), default="list")
@click.argument("id", required=False)
@json_option
def backfills(ctx: click.Context, action: str, id: str | None) -> None:
    """List the backfills and how far each has come; or pause, resume or cancel the one of this ID.

    Resumed, it waits for nothing that is out, as that may have been lost.

    \b
    Examples:
      celery -A proj redbeat backfills
      celery -A proj redbeat backfills cancel 3f9a21c0
    """
    found, zone = schedules_of(ctx).backfills, ctx.obj.app.timezone
    if (action == "list") != (id is None):
        raise Failure("an id goes with pause, resume and cancel, and with these alone")
    shown = [*found] if id is None else [getattr(found, action)(id)]
    echo_json(shown)
    rows = (
        (each.id, each.name, when(each.start, zone), f"{each.sent} of {each.total}", status(each)) for each in shown
    )
    headers, empty = ("ID", "ENTRY", "FROM", "SENT", "STATUS"), "No backfill was started."
    echo_table(headers, rows, empty=empty, rigid=("ID", "FROM"))


def status(backfill: Backfill) -> str:
    """What a backfill is doing."""
    out = f", {len(backfill.active)} out" if backfill.active else ""
    goes = "paused" if backfill.paused else "failing" if backfill.attempts else "running"
    return backfill.ended or goes + out

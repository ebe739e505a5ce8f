"""``backfill`` and ``backfills``: runs of the past, started, listed and stopped."""

from __future__ import annotations

import re
import sys
from datetime import datetime, tzinfo
from typing import Any

import click

from ..entries.words import counted
from ..errors import InvalidEntry
from ..storage.backfills import Backfill
from .command import Command, json_option, name_argument, schedules_of
from .entry_options import since_of
from .exit_codes import Failure
from .output import echo_json, echo_table, say, when


@click.command(cls=Command)
@name_argument
@click.option("--from", "start", metavar="INSTANT", required=True, help="The first instant, or how long ago: 24h.")
@click.option("--to", "end", metavar="INSTANT", required=True, help="The last instant, or how long ago.")
@click.option("--max-active", metavar="N", default="1", help='So many at once; or "none": as --rate says.  [1]')
@click.option("--rate", type=float, default=10, show_default=True, help="Messages a second without --max-active.")
@click.option("--again", type=int, default=0, help="1 and so on, to send what was sent before once more.")
@click.option("--note", default="", help="Why, for those who come after.")
@click.option("--dry-run", is_flag=True, help="Show what would be sent, and send nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@click.pass_context
def backfill(ctx: click.Context, /, dry_run: bool, yes: bool, as_json: bool, **given: Any) -> None:
    """Have the runs of an entry between two instants of the past sent, oldest first.

    What was backfilled before is not sent again. On a terminal it asks first. An instant without an offset is read in
    the app's zone.

    \b
    Examples:
      celery -A proj redbeat backfill nightly --from 2026-11-01 --to 2026-11-14
      celery -A proj redbeat backfill poll --from 2026-11-01T12:00 \\
        --to 2026-11-01T15:30 --max-active none --rate 2
    """
    asks = not yes and sys.stdin.isatty()
    begin(ctx, as_json=as_json, dry_run=dry_run, asks=asks, **asked(given, ctx.obj.app.timezone))


def asked(given: dict[str, Any], zone: tzinfo) -> dict[str, Any]:
    """What ``start()`` is given, by the name and the options of ``backfill``.

    Raises:
        InvalidEntry: one of them is wrong.
    """
    most = given["max_active"]
    if most != "none" and not re.fullmatch("[0-9]{1,9}", most):
        raise InvalidEntry("max_active", 'a whole number, or "none"', most)
    span = {"start": since_of("from", given["start"], zone), "end": since_of("to", given["end"], zone)}
    return {**given, **span, "max_active": None if most == "none" else int(most)}


def begin(
    ctx: click.Context,
    name: str,
    start: datetime,
    end: datetime,
    as_json: bool,
    *,
    dry_run: bool = False,
    asks: bool = False,
    **how: Any,
) -> None:
    """Say what a backfill is to send, and start it.

    Parameters:
        dry_run, asks: start none, or only if somebody at the terminal agrees.
        how: as for ``start()``.
    """
    found, zone = schedules_of(ctx).backfills, ctx.obj.app.timezone
    wanted = found.start(name, start, end, dry_run=True, **how)
    if not as_json:
        runs = counted(wanted.total, "run", "runs")
        say(f"{runs} of {name!r}, from {when(wanted.start, zone)} to {when(wanted.end, zone)}")
    if not dry_run:
        if asks:
            click.confirm("Send them?", abort=True, err=True)
        wanted = found.start(name, start, end, **how)
    if as_json:
        echo_json(wanted)
    elif not dry_run:
        say(f"started backfill {wanted.id}")


@click.command(cls=Command)
@click.argument("action", type=click.Choice(["list", "pause", "resume", "cancel"]), default="list")
@click.argument("id", required=False)
@json_option
@click.pass_context
def backfills(ctx: click.Context, action: str, id: str | None, as_json: bool) -> None:
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
    if as_json:
        echo_json(shown)
        return
    rows = [
        (each.id, each.name, when(each.start, zone), f"{each.sent} of {each.total}", status(each)) for each in shown
    ]
    headers, empty = ("ID", "ENTRY", "FROM", "SENT", "STATUS"), "No backfill was started."
    echo_table(headers, rows, empty=empty, rigid=("ID", "FROM"))


def status(backfill: Backfill) -> str:
    """What a backfill is doing."""
    out = f", {len(backfill.active)} out" if backfill.active else ""
    goes = "paused" if backfill.paused else "failing" if backfill.attempts else "running"
    return backfill.ended or goes + out

"""``list`` and ``show``: the entries as they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from itertools import islice
from typing import TYPE_CHECKING

import click

from ..interchange.schedule_text import schedule_text
from .command import Command, json_option, name_argument, schedules_of
from .entry_output import STATUSES, as_fields, as_json, next_run, status
from .output import echo_fields, echo_json, echo_table, say

if TYPE_CHECKING:
    from ..entries.entry import Entry


@click.command("list", cls=Command)
@click.argument("pattern", required=False)
@click.option("--task", help="Only entries whose task matches this pattern.")
@click.option("--source", help='Only entries from here: "runtime", "config" or "config:OWNER".')
@click.option("--status", "wanted", type=click.Choice([*STATUSES, "failing"]), help="Only entries that are this.")
@click.option("--order", type=click.Choice(["due", "name"]), default="due", show_default=True)
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="How many to show at most.")
@click.option("--offset", type=click.IntRange(0), default=0, show_default=True, help="How many to leave out first.")
@json_option
@click.pass_context
def list_(
    ctx: click.Context,
    pattern: str | None,
    task: str | None,
    source: str | None,
    wanted: str | None,
    order: str,
    limit: int,
    offset: int,
    as_json: bool,
) -> None:
    """List the entries, next to run first. PATTERN is for names and knows * and ?.

    \b
    Examples:
      celery -A proj redbeat list
      celery -A proj redbeat list 'report-*' --status paused
      celery -A proj redbeat list --limit 1000 --json
    """
    schedules = schedules_of(ctx)
    if pattern or task or source or wanted:
        found = _matching(schedules.values(), pattern, task, source, wanted)
        if order == "name":
            found = iter(sorted(found, key=lambda entry: entry.name))
        page = [*islice(found, offset, offset + limit)]
        more = next(found, None) is not None
    else:
        page = schedules.list(offset, limit, order)  # type: ignore[arg-type]  # click has checked it
        more = offset + limit < len(schedules)
    if as_json:
        echo_json([_json(entry) for entry in page])
        return
    zone = ctx.obj.app.timezone
    rows = [(entry.name, entry.task, schedule_text(entry.schedule), next_run(entry, zone)) for entry in page]
    echo_table(("NAME", "TASK", "SCHEDULE", "NEXT RUN"), rows, rigid=("NEXT RUN",))
    if more:
        say(f"There are more: --offset {offset + limit}")


_json = as_json


def _matching(
    entries: Iterable[Entry], pattern: str | None, task: str | None, source: str | None, wanted: str | None
) -> Iterator[Entry]:
    for entry in entries:
        if pattern and not fnmatchcase(entry.name, pattern):
            continue
        if task and not fnmatchcase(entry.task, task):
            continue
        if source and source not in (entry.source, entry.source.split(":")[0]):
            continue
        if wanted and not (entry.last_error is not None if wanted == "failing" else status(entry) == wanted):
            continue
        yield entry


@click.command(cls=Command)
@name_argument
@json_option
@click.pass_context
def show(ctx: click.Context, name: str, as_json: bool) -> None:
    """Show everything about one entry. Its schedule is shown as the options that make it.

    \b
    Examples:
      celery -A proj redbeat show nightly
      celery -A proj redbeat show nightly --json
    """
    entry = schedules_of(ctx)[name]
    if as_json:
        echo_json(_json(entry))
    else:
        echo_fields(as_fields(entry, ctx.obj.app.timezone))

"""``log``: the record of changes."""

from __future__ import annotations

import click

from ..entries.change_words import change_words
from ..schedules.zones import portable
from .command import Command, entry_names, json_option, schedules_of
from .entry_options import since_of
from .output import echo_fields, echo_json, say, when


@click.command(cls=Command)
@click.argument("name", required=False, shell_complete=entry_names)
@click.option("--since", metavar="TIME", help="Only what was changed since: an instant, or how long ago, such as 24h.")
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="How many changes at most.")
@json_option
def log(ctx: click.Context, name: str | None, since: str | None, limit: int) -> None:
    """Tell who changed what, when and why, newest first: of all entries, or of one, which may be gone.

    About the last 10,000 changes are recorded; the last one of each entry is kept for as long as the entry is stored.

    \b
    Examples:
      celery -A proj redbeat log --since 24h
      celery -A proj redbeat log nightly --limit 5
    """
    schedules, zone = schedules_of(ctx), portable(ctx.obj.app.timezone)
    found = schedules.changes(name, since=None if since is None else since_of("since", since, zone), limit=limit + 1)
    echo_json(found[:limit])
    if found:
        echo_fields([(when(change.at, zone) or "", change_words(change, zone, named=True)) for change in found[:limit]])
        if len(found) > limit:
            say(f"There are more: --limit {2 * limit}")
    else:
        say("Nothing is recorded" + (f" of {name!r}" if name else "") + (f" since {since}" if since else "") + ".")

"""``log``: the record of changes."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING

import click

from ..errors import InvalidEntry
from ..interchange.schedule_text import seconds_from
from ..schedules.zones import portable
from .command import Command, json_option, schedules_of
from .entry_options import instant_of
from .output import echo_fields, echo_json, say, when

if TYPE_CHECKING:
    from ..storage.changes import Change


@click.command(cls=Command)
@click.argument("name", required=False)
@click.option("--since", metavar="TIME", help="Only what was changed since: an instant, or how long ago, such as 24h.")
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="How many changes at most.")
@json_option
@click.pass_context
def log(ctx: click.Context, name: str | None, since: str | None, limit: int, as_json: bool) -> None:
    """Tell who changed what, when and why, newest first: of all entries, or of one, which may be gone.

    About the last 10,000 changes are recorded; the last one of each entry is kept for as long as the entry is stored.

    \b
    Examples:
      celery -A proj redbeat log --since 24h
      celery -A proj redbeat log nightly --limit 5
    """
    schedules, zone = schedules_of(ctx), portable(ctx.obj.app.timezone)
    found = schedules.changes(name, since=None if since is None else _instant(since, zone), limit=limit)
    if as_json:
        echo_json([asdict(change) for change in found])
    elif found:
        echo_fields([(when(change.at, zone) or "", _told(change)) for change in found])
    else:
        say("Nothing is recorded" + (f" of {name!r}" if name else "") + (f" since {since}" if since else "") + ".")


def _told(change: Change) -> str:
    """A change in one sentence, without its time."""
    more = f" and {change.count - len(change.names)} more" if change.count > len(change.names) else ""
    which = f" {', '.join(change.names)}{more}" if change.names else ""
    what = "; ".join(filter(None, (*(_difference(*field) for field in change.fields), change.note)))
    return f"{change.action}{which} by {change.actor} ({change.way})" + (f": {what}" if what else "")


def _difference(field: str, before: str | None, after: str | None) -> str:
    if before is None and after is None:  # left out
        return field
    return f"{field} {before or 'default'} → {after or 'default'}"


def _instant(text: str, zone: tzinfo) -> datetime:
    try:
        ago = timedelta(seconds=seconds_from("since", text))
        return datetime.now(UTC) - ago
    except InvalidEntry:
        return instant_of("since", text, zone)
    except OverflowError:
        raise InvalidEntry("since", 'an instant, or how long ago, such as "24h"', text) from None

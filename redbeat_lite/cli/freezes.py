"""``freeze``, ``freezes`` and ``thaw``: entries that do not fire for a time."""

from __future__ import annotations

from typing import Any

import click

from ..entries.words import counted
from .command import Command, Length, json_option, schedules_of
from .entry_options import until_of
from .exit_codes import Failure
from .output import echo_json, echo_table, say, when


@click.command(cls=Command)
@click.argument("pattern", required=False)
@click.option("--tag", help="Only entries with this tag.")
@click.option("--task", default="*", help="Only entries whose task matches this pattern.")
@click.option("--for", "length", type=Length(), help="For how long: 30m, 2h, 1h30m, 2d.")
@click.option("--until", metavar="INSTANT", help="Until when, in the place of --for.")
@click.option("--note", default="", help="Why, for those who come after.")
def freeze(ctx: click.Context, /, pattern: str | None, until: str | None, **given: Any) -> None:
    """Keep the entries whose names match PATTERN from firing for a time. None is edited, and what is out goes on.

    \b
    Examples:
      celery -A proj redbeat freeze '*' --for 2h --note deploy
      celery -A proj redbeat freeze --tag billing --until 2026-12-01T06:00
    """
    if pattern is None and given["tag"] is None and given["task"] == "*":
        raise Failure("say which entries: a PATTERN ('*' is all of them), --tag or --task")
    if (given["length"] is None) == (until is None):
        raise Failure("say for how long: --for or --until")
    end = None if until is None else until_of("until", until, ctx.obj.app.timezone)
    froze(ctx, "*" if pattern is None else pattern, until=end, **given)


def froze(ctx: click.Context, name: str, *, length: float | None, **given: Any) -> None:
    """Freeze what these say, and tell."""
    schedules = schedules_of(ctx)
    made = schedules.freezes.add(name, seconds=length, **given)
    found = len(schedules if made.selection.is_all else schedules.select(**made.selection._asdict()).names())
    until = when(made.until, ctx.obj.app.timezone)
    say(f"froze {made.selection} until {until}: {counted(found, 'entry', 'entries')}; to end it: thaw {made.id}")
    if not found:
        say("No entry is called so, or is such a one; that of all is: freeze '*'")


@click.command(cls=Command)
@json_option
def freezes(ctx: click.Context) -> None:
    """List the freezes that hold.

    \b
    Example:
      celery -A proj redbeat freezes
    """
    found, zone = [*schedules_of(ctx).freezes], ctx.obj.app.timezone
    echo_json(each._asdict() for each in found)
    rows = ((one.id, one.selection, when(one.until, zone), one.actor, one.note) for one in found)
    headers = ("FREEZE", "ENTRIES", "UNTIL", "BY", "NOTE")
    echo_table(headers, rows, empty="Nothing is frozen.", rigid=("FREEZE", "UNTIL"))


@click.command(cls=Command)
@click.argument("id")
def thaw(ctx: click.Context, id: str) -> None:
    """End a freeze before its time. What was due meanwhile is decided on as at its end.

    ID is what freeze has printed, and freezes shows.

    \b
    Example:
      celery -A proj redbeat thaw 3f9a1c
    """
    schedules_of(ctx).freezes.thaw(id)
    say(f"thawed {id!r}")

"""``calendars``: the days on which entries do not run."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime

import click

from ..schedules.calendars import Calendar
from ..storage.calendars import stored_calendars
from .command import Group, completed, json_option, schedules_of
from .exit_codes import Failure
from .output import echo_json, echo_table, say

_DATE = click.DateTime(["%Y-%m-%d"])
_names = completed(lambda store, start: stored_calendars(store))
_name_argument = click.argument("name", shell_complete=_names)


@click.group(cls=Group)
def calendars() -> None:
    """Calendars: named sets of days on which entries do not run; add and edit take --calendar NAME.

    \b
    Examples:
      celery -A proj redbeat calendars set de --holidays DE 2026 2030
      celery -A proj redbeat calendars list
    """


@calendars.command("list")
@click.argument("name", required=False, shell_complete=_names)
@json_option
def list_(ctx: click.Context, name: str | None) -> None:
    """List the calendars, with the last date that each knows of; or the days of one.

    \b
    Examples:
      celery -A proj redbeat calendars list
      celery -A proj redbeat calendars list closed
    """
    stored = schedules_of(ctx).calendars
    found = [*stored.values()] if name is None else [stored[name]]
    echo_json({"calendar": str(each), "until": each.until, "days": sorted(each.days)} for each in found)
    if name is None:
        rows = [(str(each), len(each.days), each.until) for each in found]
        echo_table(("CALENDAR", "DAYS", "UNTIL"), rows, empty="No calendar is stored.")
    else:
        say("\n".join(f"{day:%Y-%m-%d %a}" for day in sorted(found[0].days)))


@calendars.command("set")
@_name_argument
@click.argument("days", nargs=-1, type=_DATE)
@click.option(
    "--holidays",
    type=(str, int, int),
    metavar="PLACE FIRST LAST",
    help="With the public holidays of DE, DE-BY, US-CA, … from the first year to the last.",
)
@click.option("--until", type=_DATE, help="The last date it knows of. [default: the end of the last year]")
def set_(
    ctx: click.Context,
    name: str,
    days: Sequence[datetime],
    holidays: tuple[str, int, int] | None,
    until: datetime | None,
) -> None:
    """Store a calendar of these DAYS, in place of the one that has the name. Its entries are planned anew.

    \b
    Examples:
      celery -A proj redbeat calendars set closed 2026-12-24 2026-12-31
      celery -A proj redbeat calendars set de --holidays DE 2026 2030
    """
    found = {day.date() for day in days}.union(Calendar.of_holidays(*holidays).days if holidays else ())
    if not found:
        raise Failure("name the days, or a place with --holidays")
    stored = schedules_of(ctx).calendars
    stored[name] = Calendar(found, date(max(found).year, 12, 31) if until is None else until.date())
    say(f"stored {stored[name]}, until {stored[name].until}")


@calendars.command()
@_name_argument
def remove(ctx: click.Context, name: str) -> None:
    """Remove a calendar that no entry names.

    \b
    Example:
      celery -A proj redbeat calendars remove closed
    """
    del schedules_of(ctx).calendars[name]
    say(f"removed calendar {name!r}")

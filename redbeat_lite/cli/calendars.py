"""``calendars``: the days on which entries do not run."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime

import click

from ..schedules.calendars import Calendar
from .command import Group, json_option, name_argument, schedules_of
from .exit_codes import Failure
from .output import echo_json, echo_table, say

_DATE = click.DateTime(["%Y-%m-%d"])


@click.group(cls=Group)
def calendars() -> None:
    """Calendars: named sets of days on which entries do not run; add and edit take --calendar NAME.

    \b
    Examples:
      celery -A proj redbeat calendars set de --holidays DE --years 2026 2030
      celery -A proj redbeat calendars list
    """


@calendars.command("list")
@json_option
@click.pass_context
def list_(ctx: click.Context, as_json: bool) -> None:
    """List the calendars, with the last date that each knows of.

    \b
    Example:
      celery -A proj redbeat calendars list
    """
    found = schedules_of(ctx).calendars
    if as_json:
        echo_json([calendar.encode() for calendar in found.values()])
    else:
        echo_table(("CALENDAR", "DAYS", "UNTIL"), [(str(each), len(each.days), each.until) for each in found.values()])


@calendars.command()
@name_argument
@json_option
@click.pass_context
def show(ctx: click.Context, name: str, as_json: bool) -> None:
    """Show the days of a calendar.

    \b
    Example:
      celery -A proj redbeat calendars show closed
    """
    calendar = schedules_of(ctx).calendars[name]
    if as_json:
        echo_json(calendar.encode())
        return
    say(f"{calendar}, which knows until {calendar.until}")
    for day in sorted(calendar.days):
        say(f"{day:%Y-%m-%d %a}")


@calendars.command("set")
@name_argument
@click.argument("days", nargs=-1, type=_DATE)
@click.option("--holidays", metavar="PLACE", help="With the public holidays of DE, DE-BY, US-CA, …")
@click.option("--years", nargs=2, type=int, metavar="FIRST LAST", help="The years of --holidays.")
@click.option("--until", type=_DATE, help="The last date it knows of. [default: the end of the last year]")
@click.pass_context
def set_(
    ctx: click.Context,
    name: str,
    days: Sequence[datetime],
    holidays: str | None,
    years: tuple[int, int] | None,
    until: datetime | None,
) -> None:
    """Store a calendar of these DAYS, in place of the one that has the name. Its entries are planned anew.

    \b
    Examples:
      celery -A proj redbeat calendars set closed 2026-12-24 2026-12-31
      celery -A proj redbeat calendars set de --holidays DE --years 2026 2030
    """
    if (holidays is None) != (years is None):
        raise Failure("--holidays and --years go together: --holidays DE-BY --years 2026 2030")
    found = {day.date() for day in days}
    if holidays is not None and years is not None:
        found |= Calendar.of_holidays(holidays, *years).days
    if not found:
        raise Failure("name the days, or a place with --holidays")
    stored = schedules_of(ctx).calendars
    stored[name] = Calendar(found, date(max(found).year, 12, 31) if until is None else until.date())
    say(f"stored {stored[name]}, until {stored[name].until}")


@calendars.command()
@name_argument
@click.pass_context
def remove(ctx: click.Context, name: str) -> None:
    """Remove a calendar that no entry names.

    \b
    Example:
      celery -A proj redbeat calendars remove closed
    """
    del schedules_of(ctx).calendars[name]
    say(f"removed calendar {name!r}")

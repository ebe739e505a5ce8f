"""Commands for freezes and calendars, which keep entries from running."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime

import click

from ..api.schedules import Schedules
from ..entries.selection import Selection
from ..entries.words import counted
from ..operate.option_values import coming_instant
from ..rules.calendars import Calendar
from .command import (
    Failure,
    Group,
    Length,
    command,
    json_option,
    load_schedules,
    note_option,
    option,
)
from .options import selecting
from .output import app_zone, echo_json, echo_table, say, when

_DATE = click.DateTime(["%Y-%m-%d"])


@command()
@click.argument("pattern", required=False)
@selecting
@option("--for length", "For how long: 30m, 2h, 1h30m, 2d.", type=Length())
@option("--until INSTANT", "Until this instant, in place of --for.")
@note_option
def freeze(
    pattern: str | None,
    tag: str | None,
    task: str | None,
    length: float | None,
    until: str | None,
    note: str,
) -> None:
    """Hold the entries whose names match PATTERN for a time.

    A freeze edits no entry. Messages that were sent before go on.

    \b
    Examples:
      celery -A proj redbeat freeze '*' --for 2h --note deploy
      celery -A proj redbeat freeze --tag billing --until 2026-12-01T06:00
    """
    if pattern is None and tag is None and task is None:
        raise Failure("say which entries: a PATTERN ('*' is all of them), --tag or --task")
    if (length is None) == (until is None):
        raise Failure("say for how long: --for or --until")
    end = None if until is None else coming_instant("until", until, app_zone())
    selection = Selection("*" if pattern is None else pattern, tag, task or "*")
    freeze_selection(load_schedules(), selection, note, seconds=length, until=end)


def freeze_selection(
    schedules: Schedules,
    selection: Selection,
    note: str,
    *,
    seconds: float | None = None,
    until: datetime | None = None,
) -> None:
    """Freeze entries for a time or until an instant, and print how many entries are frozen."""
    made = schedules.freezes.add(**selection._asdict(), seconds=seconds, until=until, note=note)
    if made.selection.is_all:
        count = len(schedules)
    else:
        count = len(schedules.select(**made.selection._asdict()).names())
    frozen = f"{made.selection} until {when(made.until)}: {counted(count, 'entry', 'entries')}"
    say(f"froze {frozen}; to end it: thaw {made.id}")
    if not count:
        say("No entry matches. To freeze all entries: freeze '*'")


@command()
@json_option
def freezes() -> None:
    """List the freezes.

    \b
    Example:
      celery -A proj redbeat freezes
    """
    shown = [*load_schedules().freezes]
    echo_json(shown)
    rows = [
        (freeze.id, freeze.selection, freeze.until, freeze.actor, freeze.note) for freeze in shown
    ]
    echo_table(("FREEZE", "ENTRIES", "UNTIL", "BY", "NOTE"), rows, empty="Nothing is frozen.")


@command()
@click.argument("id")
def thaw(id: str) -> None:
    """End a freeze before its time.

    The misfire policies decide about the runs that it held back. The command freezes lists the IDs.

    \b
    Example:
      celery -A proj redbeat thaw 3f9a1c
    """
    load_schedules().freezes.thaw(id)
    say(f"thawed {id!r}")


@click.group(cls=Group)
def calendars() -> None:
    """Manage calendars, which are named sets of days on which entries do not run.

    add and edit take --calendar NAME.

    \b
    Examples:
      celery -A proj redbeat calendars set de --holidays DE 2026 2030
      celery -A proj redbeat calendars list
    """


@calendars.command("list")
@click.argument("name", required=False)
@json_option
def list_(name: str | None) -> None:
    """List the calendars, or the days of one calendar on which entries do not run.

    UNTIL is the last date that a calendar covers; after it, entries run on every day. The number
    after @ counts the revisions of a calendar. It is no part of the name.

    \b
    Examples:
      celery -A proj redbeat calendars list
      celery -A proj redbeat calendars list closed
    """
    stored = load_schedules().calendars
    shown = [*stored.values()] if name is None else [stored[name]]
    echo_json(
        {"calendar": str(calendar), "until": calendar.until, "days": sorted(calendar.days)}
        for calendar in shown
    )
    if name is None:
        rows = [(str(calendar), len(calendar.days), calendar.until) for calendar in shown]
        echo_table(("CALENDAR", "DAYS OFF", "UNTIL"), rows, empty="No calendar is stored.")
    else:
        for day in sorted(shown[0].days):
            say(f"{day:%Y-%m-%d %a}")


@calendars.command("set")
@click.argument("name")
@click.argument("days", nargs=-1, type=_DATE)
@option(
    "--holidays PLACE FIRST LAST",
    "With the public holidays of DE, DE-BY, US-CA, … from the first year to the last.",
    type=(str, int, int),
)
@option("--until", "The last date that it covers. [default: the end of its last year]", type=_DATE)
def set_(
    name: str,
    days: Sequence[datetime],
    holidays: tuple[str, int, int] | None,
    until: datetime | None,
) -> None:
    """Store a calendar of these DAYS, or replace the one of this name.

    Entries that name the calendar are rescheduled.

    \b
    Examples:
      celery -A proj redbeat calendars set closed 2026-12-24 2026-12-31
      celery -A proj redbeat calendars set de --holidays DE 2026 2030
    """
    dates = {day.date() for day in days}
    if holidays is not None:
        dates |= Calendar.of_holidays(*holidays).days
    if not dates:
        raise Failure("name the days, or a place with --holidays")
    last = date(max(dates).year, 12, 31) if until is None else until.date()
    stored = load_schedules().calendars
    stored[name] = Calendar(dates, last)
    say(f"stored {stored[name]}, until {stored[name].until}")


@calendars.command()
@click.argument("name")
def remove(name: str) -> None:
    """Remove a calendar that no entry names.

    \b
    Example:
      celery -A proj redbeat calendars remove closed
    """
    del load_schedules().calendars[name]
    say(f"removed calendar {name!r}")

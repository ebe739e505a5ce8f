"""Commands for many entries: the freeze, calendars, and backfills, which send past runs."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from datetime import date, datetime
from typing import Any

import click

from .._base.errors import InvalidEntry
from ..api.schedules import Schedules
from ..entries.backfill import Backfill
from ..entries.words import counted, listed, took
from ..operate.entry_options import parse_span, read_word
from ..operate.texts import backfill_status
from ..rules.calendars import Calendar
from .command import (
    Failure,
    Length,
    app_zone,
    echo_json,
    echo_table,
    json_option,
    load_schedules,
    note_option,
    option,
    say,
    when,
)
from .group import Group
from .options import Chosen, optional_name, selecting, yes_option

#: Field that an InvalidEntry names -> why one of several selected entries is left out. An error of
#: any other field ends the command.
_LEFT_OUT = {
    "start": "with nothing to send, or too much",
    "again": "with a backfill that goes on",
    "missing": "whose record of runs does not go back so far",
}

#: Reasons for which one of several entries is left out unless --everything is used: it was added
#: after the span of time, or it has one of these statuses.
_UNUSED = ("added later", "disabled", "paused", "finished")

_DATE = click.DateTime(["%Y-%m-%d"])


@click.command()
@option("--for seconds", "For how long: 30m, 2h, 1h30m, 2d.", type=Length(), required=True)
@note_option
@json_option
def freeze(seconds: float, note: str) -> None:
    """Keep all entries from firing for a time. For some entries, see `pause --for`.

    A freeze edits no entry. Messages that were sent before go on. `redbeat status` shows it.

    \b
    Example:
      celery -A proj redbeat freeze --for 2h --note deploy
    """
    schedules = load_schedules()
    before = schedules.frozen()
    after = schedules.freeze(seconds, note)
    echo_json(after)
    if after == before:
        say("another freeze ends later, and stays:")
    say(f"all entries are frozen until {when(after.until)}; to end it: thaw")


@click.command()
def thaw() -> None:
    """End the freeze before its time.

    The misfire policies decide about the runs that it held back.

    \b
    Example:
      celery -A proj redbeat thaw
    """
    load_schedules().thaw()
    say("thawed")


@click.group(cls=Group)
def calendars() -> None:
    """Manage calendars, which are named sets of days on which entries do not run.

    The commands `add` and `edit` take --calendar NAME.

    \b
    Examples:
      celery -A proj redbeat calendars set de --holidays DE 2026 2030
      celery -A proj redbeat calendars list
    """


@calendars.command("list")
@json_option
def list_() -> None:
    """List the calendars with their days.

    On these days, entries do not run. UNTIL is the last date that a calendar covers; after it,
    entries run on every day. The number after @ counts the revisions of a calendar. It is no part
    of the name.

    \b
    Example:
      celery -A proj redbeat calendars list
    """
    shown = [*load_schedules().calendars.values()]
    echo_json(
        {"calendar": str(calendar), "until": calendar.until, "days": sorted(calendar.days)}
        for calendar in shown
    )
    rows = [
        (calendar, calendar.until, " ".join(map(str, sorted(calendar.days)))) for calendar in shown
    ]
    echo_table(("CALENDAR", "UNTIL", "DAYS OFF"), rows, empty="No calendar is stored.")


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
    """Store a calendar of DAYS, or replace the calendar of this name.

    Entries that name the calendar are rescheduled.

    \b
    Examples:
      celery -A proj redbeat calendars set closed 2026-12-24 2026-12-31
      celery -A proj redbeat calendars set de --holidays DE 2026 2030
    """
    # Click parses a day as a datetime.
    dates = {day.date() for day in days}
    if holidays is not None:
        dates |= Calendar.of_holidays(*holidays).days
    if not dates:
        raise Failure("name the days, or a place with --holidays")
    # Without --until, the calendar counts as complete to the end of the year of its last day.
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


@click.command()
@optional_name
@selecting
@yes_option
@option("--from start INSTANT", "The first instant, or how long ago: 24h.", required=True)
@option("--to end INSTANT", "The last instant, or how long ago.", required=True)
@option("--max-active N", 'Most runs of an entry in flight; or "none" for no limit.', default="1")
@option("--rate N", "Messages a second of each entry, with --max-active none.", default="10")
@option("--again N", "Raise it to send again what earlier backfills have sent.", default="0")
@option("--missing", "Leave out runs that have succeeded, run or wait.")
@option("--everything", "Include idle entries, and runs from before an entry was added.")
@note_option
@option("--dry-run", "Show what would be sent, and send nothing.")
@json_option
def backfill(
    chosen: Chosen,
    yes: bool,
    dry_run: bool,
    everything: bool,
    **options: Any,
) -> None:
    """Send the runs of entries that lie between two past instants.

    The oldest run is sent first. Each entry gets a backfill of its own. Runs that an earlier
    backfill has sent are left out. Runs that were sent when they were due are sent again, unless
    you say --missing. On a terminal, the command asks first. An instant without an offset is in the
    app's zone. If --from and --to are the same instant, a run of that instant is sent, whatever the
    schedule says.

    If you select several entries, the disabled, paused and finished entries are left out. Runs from
    before an entry was added are left out, too.

    \b
    Examples:
      celery -A proj redbeat backfill nightly --from 2026-11-01 --to 2026-11-14
      celery -A proj redbeat backfill poll --from 2026-11-01T12:00 \\
        --to 2026-11-01T15:30 --max-active none --rate 2
      celery -A proj redbeat backfill '*' --from 02:10 --to 03:40 --missing
    """
    chosen.require_selection()
    start, end = parse_span(("from", "to"), options["start"], options["end"], app_zone())
    numbers = {name: read_word(options[name]) for name in ("max_active", "rate", "again")}
    arguments = {**options, **numbers, "start": start, "end": end}
    backfills = chosen.schedules.backfills
    names = chosen.names() if chosen.name is None else [chosen.name]
    # An entry that the command line names is never left out.
    everything = everything or chosen.name is not None
    planned = []
    left_out = defaultdict[str, list[str]](list)
    for name in names:
        try:
            own = arguments if everything else _since_added(chosen.schedules, name, arguments)
            # With dry_run, start() returns the backfill as it would be, and sends nothing.
            plan = backfills.start(name, dry_run=True, **own)
            planned.append((plan, own))
        except InvalidEntry as exc:
            # If only one entry is selected, show its error.
            if len(names) == 1 or exc.field not in _LEFT_OUT:
                raise
            left_out[_LEFT_OUT[exc.field]].append(name)
        except _LeftOut as exc:
            left_out[str(exc)].append(name)
    for reason, unused in left_out.items():
        say(f"left out, {reason}: {listed(unused, 10)}", err=True)
    if not planned:
        raise Failure("none of these entries has a run to send")
    shown = [plan for plan, _ in planned]
    _say_runs(shown)
    if not dry_run:
        if not yes and sys.stdin.isatty():
            click.confirm("Send them?", abort=True, err=True)
        # With --json, print the backfills as they were started, in place of the plans.
        shown = []
        for plan, own in planned:
            started = backfills.start(plan.name, **own)
            shown.append(started)
            # Print it now, because the start of a later backfill may fail.
            say(f"started backfill {started.id}")
    echo_json(shown if chosen.name is None else shown[0])


class _LeftOut(Exception):
    """Reason for which an entry gets no backfill without ``--everything``."""


def _since_added(schedules: Schedules, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a backfill that does not begin before its entry was added.

    If the record of changes does not show when that was, they are returned unchanged.

    Parameters:
        arguments: arguments of :meth:`Backfills.start` for all entries.

    Raises:
        _LeftOut: one of the reasons in ``_UNUSED`` applies to the entry.
    """
    start = arguments["start"]
    # The newest change comes first. An entry may have been removed and added again, so use its
    # newest addition, ``added[0]``.
    added = [
        change.at for change in schedules.changes(name, since=start) if change.action == "added"
    ]
    if added:
        start = added[0]
    reason = "added later" if start > arguments["end"] else schedules[name].status
    if reason in _UNUSED:
        raise _LeftOut(f"{reason} (--everything includes them)")
    return {**arguments, "start": start}


def _say_runs(backfills: Sequence[Backfill]) -> None:
    """Print the count of runs of each backfill.

    If there are several runs in all, print their total and pace, too. All backfills have the same
    pace: a rate, or a count of runs at once.
    """
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
        # The backfills are sent side by side, so the longest one decides.
        seconds = max(backfill.total for backfill in backfills) / rate
        pace = f"about {took(seconds)}, at {rate:g} a second of each entry"
    else:
        pace = f"{max_active} at once of each entry, as fast as workers end them"
    say(f"{total} runs in all: {pace}")


@click.command()
@click.argument("action", type=click.Choice(["list", "pause", "resume", "cancel"]), default="list")
@click.argument("id", required=False)
@json_option
def backfills(action: str, id: str | None) -> None:
    """List the backfills with their progress; or pause, resume or cancel the backfill of this ID.

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
    # Each action but ``list`` is the name of a method, which returns the backfill of the ID.
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
    echo_table(("ID", "ENTRY", "FROM", "SENT", "STATUS"), rows, empty="No backfill was started.")

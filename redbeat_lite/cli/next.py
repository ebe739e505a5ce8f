"""Command ``next``, which lists the coming runs as the beat will plan them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from typing import TYPE_CHECKING

import click

from .._base.times import to_ms
from ..entries.selection import Selection
from ..operate.coming_runs import TEN_YEARS, ComingRun, runs_between
from ..operate.option_values import coming_instant
from ..rules import Manual, Question
from ..rules.zones import portable, zone_name, zone_of
from .command import (
    Failure,
    bare_app,
    command,
    entry_names,
    json_option,
    limit_option,
    load_schedules,
    option,
)
from .options import names_of, selected, selecting
from .output import echo_json, in_json, say, say_more, table, table_width, when

if TYPE_CHECKING:
    from ..entries.entry import Entry

#: How far into the future runs are listed by default, unless the command names one entry.
_DAY = timedelta(days=1)


@command("next")
@click.argument("name", required=False, shell_complete=entry_names)
@selecting
@option("--from start INSTANT", "The first instant, or how long from now: 2h. [default: now]")
@option("--until INSTANT", "The last instant. [default: a day later; for one entry 10 years]")
@limit_option(20, "runs")
@option("--tz ZONE", "Show all times in this zone. [default: each entry's own]")
@json_option
def next_(
    name: str | None,
    start: str | None,
    until: str | None,
    limit: int,
    tz: str | None,
    **_selection: str | None,
) -> None:
    """Preview the runs of all entries, or of some, as the beat will plan them.

    An instant without an offset is read in --tz, or else in the app's zone. A run that a clock
    change moves, merges or doubles is marked.

    \b
    Examples:
      celery -A proj redbeat next
      celery -A proj redbeat next nightly --limit 5
      celery -A proj redbeat next 'report-*' --tag billing --until 1h
      celery -A proj redbeat next --from "2027-03-28" --until "2027-03-29"
    """
    schedules = load_schedules()
    app_zone = portable(bare_app().timezone)
    shown_zone = None if tz is None else zone_of(tz)
    zone = shown_zone or app_zone
    selection = selected()
    entries: Iterable[Entry] = selection
    one = None
    if name is not None and selection.selection == Selection.one(name):
        one = schedules[name]
        entries = [one]
    now = datetime.now(UTC)
    first = now if start is None else coming_instant("from", start, zone)
    if first < now:
        raise Failure(f"--from: expected an instant still to come, got {start}")
    if until is None:
        last = first + (_DAY if one is None else TEN_YEARS)
    else:
        last = coming_instant("until", until, zone)
    if last < first:
        raise Failure(f"--until: expected an instant not before {first.isoformat()}, got {until}")
    freezes = schedules.freezes.known()
    coming = runs_between(entries, first, last, app_zone, freezes, shown_zone)
    runs = [*islice(coming, limit + 1)]
    if in_json():
        echo_json([_as_data(run) for run in runs[:limit]])
    elif runs:
        _echo(runs[:limit])
        if len(runs) > limit:
            say_more(limit)
    elif one is not None and isinstance(one.schedule, Manual):
        say(f"{name!r} is run by hand only.")
    else:
        if not selection.selection.is_all:
            names_of(selection)  # This raises Failure if no entry is selected.
        except_for = _unknown_runs(entries, to_ms(last))
        say(f"Nothing runs until {when(last, zone)}{except_for}.")


def _unknown_runs(entries: Iterable[Entry], end: int) -> str:
    """Return the end of a sentence if some entries may run although no run of them is listed.

    A schedule of another library only says when it will be asked.
    """
    due = takewhile(lambda entry: entry.due is not None and entry.due <= end, entries)
    if any(isinstance(entry.known_state.nominal, Question) for entry in due):
        return ", except for schedules that decide when the time has come"
    return ""


def _echo(runs: list[ComingRun]) -> None:
    """Print a table of runs, with the effect of a clock change below a run."""
    rows = [(when(run.at, run.zone), zone_name(run.zone), run.name) for run in runs]
    header, *lines = table(("AT", "ZONE", "ENTRY"), rows, width=table_width())
    say(header)
    for run, line in zip(runs, lines, strict=True):
        say(line)
        if run.hazard:
            say(f"  ! {run.hazard}")


def _as_data(run: ComingRun) -> dict[str, object]:
    """Return a coming run as JSON has it."""
    local = run.at.astimezone(run.zone).isoformat()
    return {**run._asdict(), "local": local, "zone": zone_name(run.zone)}

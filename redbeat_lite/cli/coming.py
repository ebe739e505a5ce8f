"""Commands for what comes: ``next``, and ``watch``, whose table redraws itself."""

from __future__ import annotations

import logging
import os
import select
import sys
import termios
import tty
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import islice

import click

from ..beat.status import read
from ..entries.entry import STATUSES, Entry
from ..entries.selection import Selection
from ..operate.coming_runs import TEN_YEARS, ComingRun, runs_between
from ..operate.option_values import coming_instant
from ..operate.texts import distance
from ..rules import Manual, schedule_text
from ..rules.zones import portable, zone_name, zone_of
from ..settings import Settings
from ..store.connections import FAULTS
from ..store.store import Store
from .command import (
    Failure,
    Length,
    bare_app,
    command,
    json_option,
    limit_option,
    load_schedules,
    option,
)
from .options import names_of, selected, selecting
from .output import app_zone, column_lines, echo_json, echo_table, in_json, say, when

#: How far into the future runs are listed by default, unless the command names one entry.
_DAY = timedelta(days=1)

#: Keys that end ``watch``: q, and Ctrl-D.
_QUIT = b"qQ\x04"

# Control sequences of a terminal: move the cursor to the first line, clear the rest of a line,
# clear the lines below.
_HOME = "\x1b[H"
_CLEAR_LINE_END = "\x1b[K"
_CLEAR_BELOW = "\x1b[J"


@command("next")
@click.argument("name", required=False)
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
    apps_zone = portable(bare_app().timezone)
    shown_zone = None if tz is None else zone_of(tz)
    zone = shown_zone or apps_zone
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
    coming = runs_between(entries, first, last, apps_zone, freezes, shown_zone)
    runs = [*islice(coming, limit + 1)]
    if in_json():
        echo_json([_as_data(run) for run in runs[:limit]])
    elif runs:
        rows = [(when(run.at, run.zone), zone_name(run.zone), _marked(run)) for run in runs]
        echo_table(("AT", "ZONE", "ENTRY"), rows, limit=limit)
    elif one is not None and isinstance(one.schedule, Manual):
        say(f"{name!r} is run by hand only.")
    else:
        if not selection.selection.is_all:
            names_of(selection)  # This raises Failure if no entry is selected.
        say(f"No run is planned until {when(last, zone)}.")


def _marked(run: ComingRun) -> str:
    """Return the name of a run's entry, and on a line of its own the effect of a clock change."""
    return f"{run.name}\n! {run.hazard}" if run.hazard else run.name


def _as_data(run: ComingRun) -> dict[str, object]:
    """Return a coming run as JSON has it."""
    local = run.at.astimezone(run.zone).isoformat()
    return {**run._asdict(), "local": local, "zone": zone_name(run.zone)}


@command()
@click.argument("name", metavar="[PATTERN]", required=False)
@selecting
@option("--status", "Only entries with this status.", type=click.Choice(STATUSES))
@option("--every", "Time between two reads.", type=Length(0.1), default="1s")
def watch(status: str | None, every: float, **_selection: str) -> None:
    """Watch the entries that run next, in a table that redraws itself. q ends it, or Ctrl-C.

    \b
    Examples:
      celery -A proj redbeat watch
      celery -A proj redbeat watch 'report-*' --status paused
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Failure("watch needs a terminal; list --json is for scripts")
    schedules = load_schedules()
    entries = selected()
    store = Store.of(Settings.from_app(bare_app()))
    # A warning would be written across the table.
    logging.disable()
    with _reading_keys():
        while True:
            size = os.get_terminal_size(sys.stdout.fileno())
            # A terminal of unknown size says 0.
            width = size.columns or 80
            room = (size.lines or 24) - 1
            try:
                marked = schedules.freezes.marked(entries)
                shown = (entry for entry in marked if status in (None, entry.status))
                has_leader = read(store).leader is not None
                lines = _screen(islice(shown, room), has_leader=has_leader)
            except FAULTS as exc:
                lines = [f"cannot reach the server, trying again: {exc}"]
            text = f"{_CLEAR_LINE_END}\n".join(line[:width] for line in lines[:room])
            click.echo(f"{_HOME}{text}{_CLEAR_LINE_END}{_CLEAR_BELOW}", nl=False)
            if select.select([sys.stdin], [], [], every)[0]:
                typed = os.read(sys.stdin.fileno(), 64)
                if not typed or typed[0] in _QUIT:
                    return


@contextmanager
def _reading_keys() -> Iterator[None]:
    """Have keys read as they are typed, until the block ends. Ctrl-C ends it, too."""
    mode = termios.tcgetattr(sys.stdin)
    # TCSADRAIN keeps keys that were typed before this call. The default would drop them.
    tty.setcbreak(sys.stdin, termios.TCSADRAIN)
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, mode)
        click.echo()


def _screen(entries: Iterable[Entry], *, has_leader: bool) -> list[str]:
    """Return the lines of the screen: the time, whether nobody leads, and the entries."""
    now = datetime.now(UTC)
    zone = app_zone()
    rows: list[tuple[object, ...]] = [("NEXT RUN", "LAST RUN", "RUNS", "NAME", "SCHEDULE")]
    for entry in entries:
        next_run: str = entry.status
        if entry.next_run_at and not entry.frozen_until:
            next_run = distance(entry.next_run_at, now)
        last_run = entry.last_run_at and distance(entry.last_run_at, now)
        if entry.last_error:
            last_run = entry.last_error
        schedule = schedule_text(entry.schedule, zone)
        rows.append((next_run, last_run, entry.total_run_count, entry.name, schedule))
    heading = when(now, zone)
    if not has_leader:
        heading += "  nobody leads: nothing is sent"
    return [heading, *column_lines(rows)]

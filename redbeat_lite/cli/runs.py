"""Commands for runs, past and coming, for incidents, and for the record of changes."""

from __future__ import annotations

import logging
import os
import select
import sys
import termios
import tty
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING

import click
from msgspec import structs

from .._base.errors import InvalidEntry
from .._base.times import in_zone
from ..api.run_history import OUTCOMES
from ..beat.status import Status, read_status
from ..entries.entry import Entry
from ..entries.run import NOT_DONE, Outcome
from ..entries.words import change_words, local
from ..operate.coming_runs import TEN_YEARS, ComingRun, runs_between
from ..operate.entry_options import coming_instant, parse_length, parse_span, past_instant
from ..operate.texts import next_run, remark, run_time
from ..rules.zones import zone_name
from ..settings import Settings
from ..store.connections import FAULTS
from ..store.store import Store
from .command import (
    RECORDING,
    Failure,
    app_zone,
    bare_app,
    column_lines,
    echo_fields,
    echo_json,
    echo_table,
    json_option,
    limit_option,
    load_app,
    load_schedules,
    name_argument,
    option,
    say,
    when,
)
from .entries import HEADERS, entry_row
from .options import Chosen, optional_name, selecting

if TYPE_CHECKING:
    from ..operate.why_case import Explanation
    from ..runs.incident import Incident


#: Seconds after which ``watch`` draws the table again.
_REDRAW = 1.0

#: Keys that end ``watch``: q, and Ctrl-D.
_QUIT = b"qQ\x04"

# Control sequences of a terminal: move the cursor to the first line, clear the rest of a line,
# clear the lines below.
_HOME = "\x1b[H"
_CLEAR_LINE_END = "\x1b[K"
_CLEAR_BELOW = "\x1b[J"


@click.command()
@optional_name
@selecting
@option("--failed", "Only runs that failed, expired, were revoked, rejected or lost.")
@option(
    "--outcome WORD",
    "Only runs with this outcome, such as succeeded or expired; repeatable.",
    type=click.Choice(OUTCOMES),
    multiple=True,
)
@option("--since TIME", "Only runs scheduled since: 22:00, an instant, or how long ago: 24h.")
@option("--until TIME", "Only runs scheduled until then.")
@limit_option(20, "runs")
@json_option
def runs(
    chosen: Chosen,
    failed: bool,
    outcome: tuple[Outcome, ...],
    since: str | None,
    until: str | None,
    limit: int,
) -> None:
    """Show runs with their outcomes, the newest first.

    Of one entry, these are all recorded runs; of several or all entries, those that have ended. If
    an entry did not run, `redbeat why` explains it. TOOK is the time in the task's function,
    without the time in the queue; TRIES says how often that function began.

    \b
    Examples:
      celery -A proj redbeat runs nightly
      celery -A proj redbeat runs --failed --since 24h
      celery -A proj redbeat runs --since 22:00 --until 06:00
      celery -A proj redbeat runs 'report-*' --tag billing
    """
    # ``None`` stands for all outcomes.
    outcomes = {*outcome, *(NOT_DONE if failed else ())} or None
    first, last = parse_span(("since", "until"), since, until, app_zone())
    # An entry that NAME alone selects need not be stored: a removed entry has recorded runs, too.
    names = None if chosen.selection.is_all else chosen.name or chosen.names()
    shown = chosen.schedules.runs(names, outcome=outcomes, since=first, until=last, limit=limit + 1)
    echo_json(shown[:limit])
    rows = [
        (
            run.scheduled_at,
            run.name,
            run.outcome,
            run_time(run),
            run.attempts or None,
            run.worker,
            remark(run),
        )
        for run in shown
    ]
    headers = ("SCHEDULED", "ENTRY", "OUTCOME", "TOOK", "TRIES", "WORKER", "NOTE")
    empty = "No run matches." if outcomes or first or last else "No run is recorded."
    echo_table(headers, rows, empty=f"{empty} {RECORDING}", limit=limit)


@click.command()
@optional_name
@option("--since TIME", "Only changes since: an instant, or how long ago, such as 24h.")
@limit_option(20, "changes")
@json_option
def log(name: str | None, since: str | None, limit: int) -> None:
    """Show who changed what, when and why, the newest first.

    NAME may be an entry that is gone. About the last 10,000 changes are recorded, and the last one
    of each entry for as long as the entry is stored.

    \b
    Examples:
      celery -A proj redbeat log --since 24h
      celery -A proj redbeat log nightly --limit 5
    """
    schedules = load_schedules()
    zone = app_zone()
    first = None if since is None else past_instant("since", since, zone)
    changes = schedules.changes(name, since=first, limit=limit + 1)
    echo_json(changes[:limit])
    rows = [(change.at, change_words(change, zone, named=True)) for change in changes]
    echo_table(("AT", "CHANGE"), rows, empty="Nothing is recorded.", limit=limit)


@click.command()
@option("--open only_open", "Only open incidents.")
@limit_option(100, "incidents")
@json_option
def incidents(only_open: bool, limit: int) -> None:
    """List the open incidents, the oldest first, then the latest closed ones.

    \b
    Examples:
      celery -A proj redbeat incidents --open
      celery -A proj redbeat incidents --json
    """
    schedules = load_schedules()
    # One incident more than the limit shows whether there are more.
    shown = [*schedules.incidents(limit=limit + 1)]
    if not only_open:
        shown += schedules.incidents(closed=True, limit=limit + 1)
    # The id is no stored field of an incident.
    echo_json([{"id": incident.id, **structs.asdict(incident)} for incident in shown[:limit]])
    headers = ("ID", "KIND", "ENTRY", "SINCE", "STATE", "WHAT")
    empty = "No incident is open." if only_open else "No incident is open, and none was closed."
    echo_table(headers, map(_incident_row, shown), empty=empty, limit=limit)


def _incident_row(incident: Incident) -> tuple[object, ...]:
    """Return the cells of an incident in the table.

    ``incident.acknowledged`` is the note of the person who works on the incident; empty if nobody
    does. The note precedes the text of the incident.
    """
    text = local(incident.text, app_zone())
    if incident.acknowledged:
        text = f"({incident.acknowledged}) {text}"
    if incident.until is not None:
        state = "closed"
    elif incident.acknowledged:
        state = "taken up"
    else:
        state = "open"
    return incident.id, incident.kind, incident.entry, incident.since, state, text


@click.command()
@click.argument("incident_id", metavar="ID")
@option("--note TEXT", "Who works on it, and how.", required=True)
def ack(incident_id: str, note: str) -> None:
    """Say who works on an open incident. It stays open until its cause is gone.

    \b
    Example:
      celery -A proj redbeat ack 1f0c92ab --note "alice: they know"
    """
    say(f"acknowledged {load_schedules().acknowledge(incident_id, note).id}")


@click.command()
@name_argument
@click.argument("instant", required=False)
@json_option
def why(name: str, instant: str | None) -> None:
    """Say why an entry did not run at INSTANT, or that it did.

    Without INSTANT it explains the last time at which the entry should have run, and the next. An
    instant without an offset is in the zone of the entry's rule, or else in the app's. A time of
    day, such as 03:00, is the last one that has passed; 3m is the minute three minutes ago. If a
    minute has several runs, the answer explains the first one. Below the answer are the recorded
    runs and changes around it.

    \b
    Examples:
      celery -A proj redbeat why nightly
      celery -A proj redbeat why nightly 03:00
      celery -A proj redbeat why nightly 3m
      celery -A proj redbeat why nightly "2026-12-01 03:00"
    """
    # Import these modules only here, because other commands would start more slowly with them.
    from ..operate.why import explain
    from ..operate.why_case import gather

    app = load_app()
    zone = app_zone()
    case = gather(app, name, datetime.now(UTC), zone)
    moment = None
    if instant is not None:
        entry_zone = zone if case.entry is None else case.entry.zone
        moment = past_instant("instant", instant, entry_zone)
        # A length such as 3m stands for the whole minute, and a length in seconds for the second.
        if parse_length(instant) is not None and not instant.endswith("s"):
            moment = moment.replace(second=0, microsecond=0)
        if not 1970 < moment.year < 9999:
            raise InvalidEntry("instant", "an instant of the years 1971 to 9998", instant)
    explanation = explain(case, moment)
    echo_json({"name": name, **asdict(explanation)})
    echo_fields(_explanation_fields(explanation))


def _explanation_fields(explanation: Explanation) -> Iterator[tuple[str, object]]:
    """Yield an explanation as pairs of a label and a text. The text may be ``None``."""
    yield "answer", explanation.verdict
    yield "because", "\n".join(explanation.causes) or None
    events = [f"{when(event.at)} {event.text}" for event in explanation.timeline]
    yield "around", "\n".join(events) or None
    yield "next", explanation.next_run or None


@click.command("next")
@optional_name
@selecting
@option("--from start INSTANT", "The first instant, or how long from now: 2h. [default: now]")
@option("--until INSTANT", "The last instant. [default: 10 years later]")
@limit_option(20, "runs")
@json_option
def next_(chosen: Chosen, start: str | None, until: str | None, limit: int) -> None:
    """Preview the runs of all entries, or of some, as the beat will plan them.

    An instant without an offset is read in the app's zone. A run is shown in the zone of its entry,
    and marked if a clock change moves, merges or doubles it.

    \b
    Examples:
      celery -A proj redbeat next
      celery -A proj redbeat next nightly --limit 5
      celery -A proj redbeat next 'report-*' --tag billing --until 1h
      celery -A proj redbeat next --from "2027-03-28" --until "2027-03-29"
    """
    zone = app_zone()
    # This raises an error if the one entry is not stored, or cannot be read.
    one = None if chosen.name is None else chosen.schedules[chosen.name]
    now = datetime.now(UTC)
    first = now if start is None else coming_instant("from", start, zone)
    if first < now or first.year > 9980:
        raise Failure(f"--from: expected an instant still to come, until 9980, got {start}")
    last = first + TEN_YEARS if until is None else coming_instant("until", until, zone)
    if last < first:
        raise Failure(f"--until: expected an instant not before {first.isoformat()}, got {until}")
    coming = runs_between(chosen.entries, first, last, chosen.schedules.frozen())
    runs = [*islice(coming, limit + 1)]
    empty = f"No run is planned until {when(last)}."
    if one is not None and one.status != "waiting":
        # Its status says why, such as "paused until …", "disabled" or "manual".
        empty = f"No run is planned: {one.name!r} is {next_run(one, zone)}."
    elif not runs and not chosen.selection.is_all:
        chosen.names()  # This only checks: it raises Failure if no entry is selected.
    echo_json([_as_data(run) for run in runs[:limit]])
    rows = []
    for run in runs:
        # The effect of a clock change, if any, is on a second line.
        name = f"{run.name}\n! {run.hazard}" if run.hazard else run.name
        rows.append((in_zone(run.at, run.zone), zone_name(run.zone), name))
    echo_table(("AT", "ZONE", "ENTRY"), rows, empty=empty, limit=limit)


def _as_data(run: ComingRun) -> dict[str, object]:
    """Return a coming run as JSON has it."""
    return {
        **run._asdict(),
        "local": run.at.astimezone(run.zone).isoformat(),
        "zone": zone_name(run.zone),
    }


@click.command()
@click.argument("name", metavar="[PATTERN]", required=False)
@selecting
def watch(chosen: Chosen) -> None:
    """Watch the table of `list`, which redraws itself. q ends it, or Ctrl-C.

    \b
    Examples:
      celery -A proj redbeat watch
      celery -A proj redbeat watch 'report-*' --tag billing
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Failure("watch needs a terminal; list --json is for scripts")
    settings = Settings.from_app(bare_app())
    store = Store.of(settings)
    # A warning would be written across the table.
    logging.disable()
    with _reading_keys():
        while True:
            size = os.get_terminal_size()
            # A terminal of unknown size says 0.
            width = size.columns or 80
            room = (size.lines or 24) - 1
            try:
                lines = _screen(islice(chosen.entries, room), settings.history, read_status(store))
            except FAULTS as exc:
                lines = [f"cannot reach the server, trying again: {exc}"]
            text = f"{_CLEAR_LINE_END}\n".join(line[:width] for line in lines[:room])
            click.echo(f"{_HOME}{text}{_CLEAR_LINE_END}{_CLEAR_BELOW}", nl=False)
            if select.select([sys.stdin], [], [], _REDRAW)[0]:
                typed = os.read(sys.stdin.fileno(), 64)
                # If ``typed`` is empty, the input has ended, because the terminal is gone.
                if not typed or typed[0] in _QUIT:
                    return


@contextmanager
def _reading_keys() -> Iterator[None]:
    """Have the terminal pass on keys as they are typed, until the block ends.

    Otherwise it would wait for the end of the line. Ctrl-C ends the block without an error.
    """
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


def _screen(entries: Iterable[Entry], history: int, status: Status) -> list[str]:
    """Return the lines of the screen: a heading, and the table of ``list``.

    The heading has the time, and a warning if no beat leads or a freeze holds.
    """
    heading = when(datetime.now(UTC))
    if status.leader is None:
        heading += "  nobody leads: nothing is sent"
    if status.freeze is not None:
        heading += f"  frozen until {when(status.freeze.until)}"
    rows = [entry_row(entry, history) for entry in entries]
    return [heading, *column_lines([HEADERS, *rows])]

"""Commands for entries: list and show, add, edit and remove, pause, resume and run."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice
from typing import Any

import click
from redis.exceptions import ResponseError

from .._base.celery_app import short_publish_timeout
from .._base.errors import EntryExists
from .._base.text import clean, describe
from ..api.schedules import Schedules
from ..entries.canvas import CANVAS, sent_tasks
from ..entries.entry import Entry
from ..entries.run import Run
from ..entries.words import change_words, counted, listed
from ..operate.entry_options import STATES, has_state, read_options
from ..operate.texts import entry_lines, last_runs, marks, next_run, remark, run_time
from ..rules import schedule_text
from ..settings import Settings
from .command import (
    RECORDING,
    Failure,
    Length,
    app_zone,
    bare_app,
    echo_fields,
    echo_json,
    echo_table,
    in_json,
    json_option,
    limit_option,
    load_schedules,
    name_argument,
    note_option,
    option,
    say,
    when,
)
from .options import (
    Chosen,
    changing,
    field_options,
    say_changed,
    schedule_options,
    selecting,
    task_option,
)

#: Headings of the table of entries.
HEADERS = ("NAME", "LAST", "NEXT RUN", "TASK", "SCHEDULE")

#: Runs that ``show`` prints.
_RUNS_SHOWN = 5


@click.command("list")
@click.argument("name", metavar="[PATTERN]", required=False)
@selecting
@option(
    "--status",
    "Only entries with this status; or failing: the last publish failed; or failed: the last "
    "finished run failed, expired, was rejected, revoked or lost.",
    type=click.Choice(STATES),
)
@limit_option(100, "entries")
@json_option
def list_(
    chosen: Chosen,
    status: str | None,
    limit: int,
) -> None:
    """List the entries, the next to run first. PATTERN selects names, with * and ? as wildcards.

    LAST shows the last runs, the newest on the right: ✓ succeeded; ✗ failed, expired, was rejected,
    revoked or lost; ▸ runs; ↻ waits for its retry; - was left out; · waits or is unknown, as
    `redbeat why` explains. It is empty for an entry that has not run.

    \b
    Examples:
      celery -A proj redbeat list
      celery -A proj redbeat list 'report-*' --status paused
      celery -A proj redbeat list --limit 1000 --json
    """
    schedules = chosen.schedules
    # Both branches read one entry more than is shown, to know whether there are more.
    if chosen.selection.is_all and status is None:
        entries = schedules.list(limit=limit + 1)
    else:
        matching = (entry for entry in chosen.entries if has_state(entry, status))
        entries = [*islice(matching, limit + 1)]
    history = Settings.from_app(bare_app()).history
    if in_json():
        echo_json([_as_data(entry, history) for entry in entries[:limit]])
        return
    rows = [entry_row(entry, history) for entry in entries]
    # len() asks the server, so call it only for an empty list.
    empty = "" if rows else _why_nothing_listed(len(schedules))
    _say_frozen(schedules)
    if status == "failed":
        empty = f"No recorded run has failed. {RECORDING}"
    echo_table(HEADERS, rows, empty=empty, limit=limit)


def entry_row(entry: Entry, history: int) -> tuple[str, ...]:
    """Return the cells of an entry in the table of ``list`` and ``watch``.

    Parameters:
        history: as for :func:`last_runs`.
    """
    zone = app_zone()
    schedule = schedule_text(entry.schedule, zone)
    return entry.name, marks(entry, history), next_run(entry, zone), _tasks(entry), schedule


def _why_nothing_listed(stored: int) -> str:
    """Return why a list of entries is empty.

    Parameters:
        stored: the number of stored entries.
    """
    if stored:
        return f"Nothing is in this list; {counted(stored, 'entry is', 'entries are')} stored."
    why = "No entry is stored. A beat stores those of beat_schedule when it leads."
    return f"{why} To add another: celery -A ... redbeat add NAME TASK --every 30s"


def _tasks(entry: Entry) -> str:
    """Return the task of an entry, or the names of the tasks of its canvas.

    The arguments of these tasks are not shown, because they may be private.
    """
    members = sent_tasks(entry.task, entry.args) - {CANVAS}
    return ", ".join(sorted(members)) or entry.task


def _as_data(entry: Entry, history: int) -> dict[str, Any]:
    """Return an entry as JSON shows it, with the outcomes of its last runs."""
    return {
        **entry.as_dict(),
        "last_outcomes": [run.outcome for run in last_runs(entry, history)],
    }


@click.command()
@name_argument
@json_option
def show(name: str) -> None:
    """Show everything about one entry, with its last runs.

    SCHEDULE has the options that make the schedule. REFUSED says what is wrong with the entry in
    beat_schedule; the other lines then show its last good definition.

    \b
    Examples:
      celery -A proj redbeat show nightly
      celery -A proj redbeat show nightly --json
    """
    schedules = load_schedules()
    entry = schedules[name]
    refused = schedules.refused().get(name)
    runs: list[Run] = []
    unreadable = None
    try:
        runs = schedules.runs(name, limit=_RUNS_SHOWN)
    except ResponseError as exc:
        # The server has just returned the entry, so only the key with its runs cannot be read.
        unreadable = f"cannot be read: {describe(exc)}"
    change = entry.last_change
    if in_json():
        data = _as_data(entry, Settings.from_app(bare_app()).history)
        echo_json({**data, "runs": runs, "last_change": change, "refused": refused})
        return
    zone = app_zone()
    changed = None if change is None else change_words(change, zone)
    last_runs = "\n".join(map(_run_line, runs)) or unreadable
    lines = [("last runs", last_runs), ("changed", changed), ("refused", refused)]
    _say_frozen(schedules)
    echo_fields([*entry_lines(entry, zone), *lines])


def _say_frozen(schedules: Schedules) -> None:
    """Say until when a freeze keeps all entries from firing, if one holds."""
    freeze = schedules.frozen()
    if freeze is not None:
        say(f"All entries are frozen until {when(freeze.until)}.", err=True)


def _run_line(run: Run) -> str:
    """Return a run as one line: when it was scheduled, its outcome, its duration and a remark."""
    line = f"{when(run.scheduled_at)}  {run.outcome}"
    if run_time(run):
        line += f" in {run_time(run)}"
    if remark(run):
        line += f": {remark(run)}"
    return clean(line)


@click.command()
@name_argument
@click.argument("task")
@schedule_options
@field_options
@option("--replace", "Overwrite an entry of this name; it keeps its history.")
@note_option
@json_option
def add(name: str, task: str, replace: bool, note: str, **options: Any) -> None:
    """Add an entry that runs TASK. The beat acts on it at once.

    \b
    Examples:
      celery -A proj redbeat add hello proj.say --every 30s --args '["hello"]'
      celery -A proj redbeat add nightly reports.build --cron "0 3 * * *" \\
          --tz Europe/Berlin --once true --misfire skip
      celery -A proj redbeat add launch proj.launch --at 2026-12-01T09:00+01:00
    """
    schedules = load_schedules()
    fields = read_options(options, app_zone())
    if "schedule" not in fields:
        kinds = "--every, --cron, --at, --rrule, --manual or --schedule"
        raise Failure(f"say when it runs: {kinds}")
    try:
        entry = schedules.add(name, task, replace=replace, note=note, **fields)
    except EntryExists:
        raise Failure(f"entry {name!r} is already stored; --replace overwrites it") from None
    say_entry(entry, "stored" if replace else "added")


@click.command()
@name_argument
@task_option
@schedule_options
@field_options
@note_option
@json_option
def edit(name: str, note: str, **options: Any) -> None:
    """Change the named fields of an entry and leave its other fields.

    A changed schedule counts from now on and never fires for the past. A new cron or rrule has the
    zone of the schedule before, unless --tz gives another.

    \b
    Examples:
      celery -A proj redbeat edit hello --every 5m --note "less load"
      celery -A proj redbeat edit nightly --kwargs '{"x": 1}' --max-runs none
    """
    schedules = load_schedules()
    if options["tz"] is None and (options["cron"] or options["rrule"]):
        # Keep the zone of the present schedule. A schedule that is no cron and no rrule has none.
        options["tz"] = getattr(schedules[name].schedule, "tz_name", None)
    changes = read_options(options, app_zone())
    if not changes:
        raise Failure("nothing to change: name a field, such as --every or --args")
    say_entry(schedules.update(name, note=note, **changes), "changed")


def say_entry(entry: Entry, done: str) -> None:
    """Say what was done to an entry and when it runs next, or print the entry as JSON."""
    echo_json(entry)
    say(f"{done} {entry.name!r}; next run: {next_run(entry, app_zone())}")
    if entry.next_run_at is not None and entry.next_run_at < datetime.now(UTC):
        say("That time has passed. By default the entry runs at once; its misfire policy decides.")


@click.command()
@changing
@note_option
def remove(chosen: Chosen, note: str) -> None:
    """Remove entries, for good.

    The beat stores an entry of beat_schedule again; pause such an entry instead.

    \b
    Examples:
      celery -A proj redbeat remove hello
      celery -A proj redbeat remove 'reminder:*' --note "moved out"
    """
    # An entry that cannot be read has no known source, and is removed nevertheless.
    sources = {entry.source for entry in chosen.entries}
    if chosen.name is None:
        say_changed("removed", chosen.entries.remove(note))
    else:
        chosen.schedules.remove(chosen.name, note=note)
        say(f"removed {chosen.name!r}")
    # The source of an entry is "runtime", or the configuration that has it.
    for source in sorted(sources - {"runtime"}):
        say(f"A beat stores the entries of {source} again when it next renews its lease.")
        say("Take the entry out of beat_schedule, or pause it once it is back.")


@click.command()
@changing
@note_option
@option("--for seconds", "For how long: 30m, 2h, 2d. [default: until they resume]", type=Length())
def pause(chosen: Chosen, note: str, seconds: float | None) -> None:
    """Stop entries from firing. They keep their history, and stay paused over restarts.

    An entry that is paused for longer already does not change. At the end of --for, the misfire
    policies decide about the runs that the pause held back.

    \b
    Examples:
      celery -A proj redbeat pause nightly --note "until the disk is replaced"
      celery -A proj redbeat pause 'report-*' --tag billing
    """
    if chosen.name is not None:
        version = chosen.schedules[chosen.name].version
        entry = chosen.schedules.pause(chosen.name, note, seconds=seconds)
        end = "it is resumed" if entry.paused_until is None else when(entry.paused_until)
        if entry.version == version:  # It is paused for longer, and the note is not stored.
            say(f"{entry.name!r} is paused already, until {end}")
        else:
            say(f"paused {entry.name!r} until {end}")
        return
    paused = {*chosen.entries.pause(note, seconds=seconds)}
    say(f"paused {counted(len(paused), 'entry', 'entries')}")
    staying = [entry.name for entry in chosen.entries if entry.name not in paused]
    if staying:
        say(f"paused for as long already: {listed(staying, 10)}")


@click.command()
@changing
@option("--catch-up", "Let the misfire policy decide about the runs that the pause held back.")
@json_option
def resume(chosen: Chosen, catch_up: bool) -> None:
    """Let paused entries fire again, from their next due time on.

    \b
    Examples:
      celery -A proj redbeat resume nightly
      celery -A proj redbeat resume --tag billing --catch-up
    """
    names = chosen.entries.resume(catch_up)
    if chosen.name is None:
        say_changed("resumed", names)
    else:
        say_entry(chosen.schedules[chosen.name], "resumed" if names else "not paused:")


@click.command()
@changing
@option("--args JSON", "Other arguments, for this run alone: '[1, \"two\"]'.")
@option("--kwargs JSON", "Other arguments by name, for this run alone: '{\"x\": 1}'.")
@note_option
@json_option
def run(
    chosen: Chosen,
    args: str | None,
    kwargs: str | None,
    note: str,
) -> None:
    """Send one extra task of an entry now. The next run of the entry does not move.

    The task gets the options of the entry, and its arguments unless you give others.

    \b
    Examples:
      celery -A proj redbeat run nightly
      celery -A proj redbeat run nightly --kwargs '{"x": 1}' --note "once more"
    """
    arguments = read_options({"args": args, "kwargs": kwargs}, app_zone())
    if arguments and chosen.name is None:
        raise Failure("--args and --kwargs go with the NAME of one entry")
    app = bare_app()
    with short_publish_timeout(app, Settings.from_app(app).publish_timeout):
        if chosen.name is None:
            task_ids = chosen.entries.run_now(note)
        else:
            task_id = chosen.schedules.run_now(chosen.name, note=note, **arguments)
            task_ids = {chosen.name: task_id}
    data = [{"name": name, "task_id": task_id} for name, task_id in task_ids.items()]
    echo_json(data if chosen.name is None else data[0])
    for name, task_id in task_ids.items():
        say(f"sent {name!r} as task {task_id}")

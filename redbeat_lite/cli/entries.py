"""Commands for entries: list and show, add, edit and remove, pause, resume and run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import click
from kombu.exceptions import OperationalError
from redis.exceptions import ResponseError

from .._base.celery_app import short_publish_timeout
from .._base.errors import CorruptEntry, EntryExists, RedbeatError
from .._base.text import describe, text_of
from ..entries.entry import STATUSES, Entry
from ..entries.selection import Selection
from ..entries.words import change_words, counted
from ..once.canvas import CANVAS, sent
from ..operate.clean_text import clean
from ..operate.entry_options import read_fields, read_schedule
from ..operate.texts import entry_lines, last_outcomes, marks, next_run, remark, run_time
from ..rules import schedule_text
from ..runs.run import Run
from ..settings import Settings
from ..store.connections import FAULTS
from .command import (
    RECORDING,
    Failure,
    Length,
    ServerFailure,
    bare_app,
    command,
    json_option,
    limit_option,
    load_schedules,
    name_argument,
    note_option,
    option,
)
from .many import freeze_selection
from .options import (
    changing,
    field_options,
    say_changed,
    schedule_options,
    selected,
    selecting,
    task_option,
    to_change,
)
from .output import app_zone, echo_fields, echo_json, echo_table, in_json, say, when

#: Runs that ``show`` prints.
_RUNS_SHOWN = 5

#: Errors of a message that could not be sent. kombu raises ValueError for wrong settings, such as
#: a Sentinel without a master.
_UNSENT: tuple[type[Exception], ...] = (OperationalError, *FAULTS, ValueError)


@command("list")
@click.argument("name", metavar="[PATTERN]", required=False)
@selecting
@option(
    "--status",
    "Only entries with this status. Of failing entries, the last publish failed.",
    type=click.Choice([*STATUSES, "failing"]),
)
@option(
    "--failed",
    "Only entries whose last finished run failed, expired, was rejected, revoked or lost.",
)
@limit_option(100, "entries")
@option("--offset", "How many entries to skip.", type=click.IntRange(0), default=0)
@option("--plain", "Letters in place of the signs, such as s for succeeded and f for failed.")
@json_option
def list_(
    status: str | None,
    failed: bool,
    limit: int,
    offset: int,
    plain: bool,
    **selection: str | None,
) -> None:
    """List the entries, the next to run first. PATTERN selects names, with * and ? as wildcards.

    LAST shows the last runs, the newest on the right: ✓ succeeded; ✗ failed, expired, was rejected,
    revoked or lost; ▸ runs; ↻ waits for its retry; - was left out; · waits or is unknown: ask why.
    It is empty for an entry that has not run.

    \b
    Examples:
      celery -A proj redbeat list
      celery -A proj redbeat list 'report-*' --status paused
      celery -A proj redbeat list --limit 1000 --json
    """
    schedules = load_schedules()
    # With a filter, entries are read until the page is full. One further entry shows whether there
    # are more. Without a filter, the server returns the page, and its count of entries says so.
    if status or failed or any(selection.values()):
        marked = schedules.freezes.marked(selected())
        entries = _matching(marked, status, failed)
        page = [*islice(entries, offset, offset + limit)]
        more = next(entries, None) is not None
    else:
        page = [*schedules.freezes.marked(schedules.list(offset, limit))]
        more = offset + limit < len(schedules)
    history = Settings.from_app(bare_app()).history
    if in_json():
        echo_json([_as_data(entry, history) for entry in page])
        return
    zone = app_zone()
    rows = [
        (
            entry.name,
            marks(entry, history, letters=plain),
            next_run(entry, zone),
            _tasks(entry),
            schedule_text(entry.schedule, zone),
        )
        for entry in page
    ]
    empty = "" if rows else _why_nothing_listed(len(schedules))
    if failed:
        empty = f"No recorded run has failed. {RECORDING}"
    echo_table(("NAME", "LAST", "NEXT RUN", "TASK", "SCHEDULE"), rows, empty=empty)
    if more:
        say(f"There are more: --offset {offset + limit}")


def _matching(entries: Iterable[Entry], status: str | None, failed: bool) -> Iterator[Entry]:
    """Yield the entries that have a status; with ``failed``, only those whose last run failed.

    Parameters:
        status: the status; ``None``: any. ``"failing"`` is no status of an entry, and stands for
            those whose last publish failed.
    """
    for entry in entries:
        has_status = status in (None, entry.status)
        if status == "failing":
            has_status = entry.last_error is not None
        if has_status and (entry.failures_in_a_row or not failed):
            yield entry


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
    members = sent(entry.task, entry.args) - {CANVAS}
    return ", ".join(sorted(members)) or entry.task


def _as_data(entry: Entry, history: int) -> dict[str, Any]:
    return {**entry.as_dict(), "last_outcomes": last_outcomes(entry, history)}


@command()
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
    echo_fields([*entry_lines(entry, zone), *lines])


def _run_line(run: Run) -> str:
    line = f"{when(run.scheduled_at)}  {run.outcome}"
    if run_time(run):
        line += f" in {run_time(run)}"
    if remark(run):
        line += f": {remark(run)}"
    return clean(line)


@command()
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
    zone = app_zone()
    # read_schedule() removes the options that it reads. read_fields() below reads the others.
    schedule = read_schedule(options, zone)
    if schedule is None:
        kinds = "--every, --cron, --at, --rrule, --manual or --schedule"
        raise Failure(f"say when it runs: {kinds}")
    fields = read_fields(options, zone)
    try:
        entry = schedules.add(name, task, schedule, replace=replace, note=note, **fields)
    except EntryExists:
        raise Failure(f"entry {name!r} is already stored; --replace overwrites it") from None
    say_entry(entry, "stored" if replace else "added")


@command()
@name_argument
@task_option
@schedule_options
@field_options
@note_option
@json_option
def edit(name: str, note: str, **options: Any) -> None:
    """Change the named fields of an entry and leave the others.

    A changed schedule counts from now on and never fires for the past. A new cron or rrule has the
    zone of the one before, unless --tz gives another.

    \b
    Examples:
      celery -A proj redbeat edit hello --every 5m --note "less load"
      celery -A proj redbeat edit nightly --kwargs '{"x": 1}' --max-runs none
    """
    schedules = load_schedules()
    zone = app_zone()
    if options["tz"] is None and (options["cron"] or options["rrule"]):
        # A schedule that is no cron and no rrule has no zone.
        options["tz"] = getattr(schedules[name].schedule, "tz_name", None)
    # read_schedule() removes the options that it reads, and read_fields() reads the others.
    schedule = read_schedule(options, zone)
    changes = read_fields(options, zone)
    if schedule is not None:
        changes["schedule"] = schedule
    if not changes:
        raise Failure("nothing to change: name a field, such as --every or --args")
    say_entry(schedules.update(name, note=note, **changes), "changed")


def say_entry(entry: Entry, done: str) -> None:
    """Say what was done to an entry and when it runs next, or print the entry as JSON."""
    if in_json():
        # echo_json() prints nothing without --json, but as_dict() may ask the server for the runs.
        echo_json(entry.as_dict())
    say(f"{done} {entry.name!r}; next run: {next_run(entry, app_zone())}")
    if entry.next_run_at is not None and entry.next_run_at < datetime.now(UTC):
        say("That time has passed. By default the entry runs at once; its misfire policy decides.")


@command()
@changing
@note_option
def remove(note: str, **_selection: Any) -> None:
    """Remove entries, for good.

    The beat stores an entry of beat_schedule again; pause such an entry instead.

    \b
    Examples:
      celery -A proj redbeat remove hello
      celery -A proj redbeat remove 'reminder:*' --note "moved out"
    """
    schedules = load_schedules()
    # to_change() itself reads NAME, --tag and --task, so ``_selection`` is not used.
    entries = to_change("remove")
    sources = set[str]()
    if isinstance(entries, str):
        # An entry that cannot be read has no known source, and must be removable nevertheless.
        with suppress(CorruptEntry):
            sources.add(schedules[entries].source)
        schedules.remove(entries, note=note)
        say(f"removed {entries!r}")
    else:
        sources.update(entry.source for entry in entries)
        say_changed("removed", entries.remove(note))
    # The source of an entry is "runtime", or the configuration that has it.
    for source in sorted(sources - {"runtime"}):
        say(f"A beat stores the entries of {source} again when it next renews its lease.")
        say("Take the entry out of beat_schedule, or pause it once it is back.")


@command()
@changing
@note_option
@option("--for length", "Freeze the entries for so long instead: 30m, 2h, 2d.", type=Length())
def pause(note: str, length: float | None, **_selection: Any) -> None:
    """Stop entries from firing. They keep their history, and stay paused over restarts.

    Entries that are paused already keep their notes.

    \b
    Examples:
      celery -A proj redbeat pause nightly --note "until the disk is replaced"
      celery -A proj redbeat pause nightly --for 2h
      celery -A proj redbeat pause 'report-*' --tag billing
    """
    schedules = load_schedules()
    # to_change() itself reads NAME, --tag and --task, so ``_selection`` is not used.
    entries = to_change("pause")
    if length is not None:
        if isinstance(entries, str):
            selection = Selection.one(schedules[entries].name)
        else:
            selection = entries.selection
        freeze_selection(schedules, selection, note, seconds=length)
    elif isinstance(entries, str):
        schedules.pause(entries, note)
        say(f"paused {entries!r}")
    else:
        say_changed("paused", entries.pause(note))


@command()
@changing
@option("--catch-up", "Let the misfire policy decide about the runs that the pause held back.")
@json_option
def resume(catch_up: bool, **_selection: Any) -> None:
    """Let paused entries fire again, from their next due time on.

    \b
    Examples:
      celery -A proj redbeat resume nightly
      celery -A proj redbeat resume --tag billing --catch-up
    """
    schedules = load_schedules()
    # to_change() itself reads NAME, --tag and --task, so ``_selection`` is not used.
    entries = to_change("resume")
    if not isinstance(entries, str):
        say_changed("resumed", entries.resume(catch_up))
        return
    done = "not paused:" if schedules[entries].paused_note is None else "resumed"
    say_entry(schedules.resume(entries, catch_up=catch_up), done)


@command()
@changing
@option("--args JSON", "Other arguments, for this run alone: '[1, \"two\"]'.")
@option("--kwargs JSON", "Other arguments by name, for this run alone: '{\"x\": 1}'.")
@note_option
@json_option
def run(
    args: str | None,
    kwargs: str | None,
    note: str,
    **_selection: Any,
) -> None:
    """Send one extra task of an entry now. The next run of the entry does not move.

    The task gets the options of the entry, and its arguments unless you give others.

    \b
    Examples:
      celery -A proj redbeat run nightly
      celery -A proj redbeat run nightly --kwargs '{"x": 1}' --note "once more"
    """
    arguments = read_fields({"args": args, "kwargs": kwargs}, app_zone())
    schedules = load_schedules()
    # to_change() itself reads NAME, --tag and --task, so ``_selection`` is not used.
    entries = to_change("run")
    if arguments and not isinstance(entries, str):
        raise Failure("--args and --kwargs go with the NAME of one entry")
    app = bare_app()
    what = repr(entries) if isinstance(entries, str) else str(entries.selection)
    if isinstance(entries, str):
        # Read the entry first, so that a server that fails is reported as such. A later error is
        # taken for an error of the broker.
        _ = schedules[entries]
    try:
        with short_publish_timeout(app, Settings.from_app(app).publish_timeout):
            if isinstance(entries, str):
                task_ids = {entries: schedules.run_now(entries, note=note, **arguments)}
            else:
                task_ids = entries.run_now(note)
    except RedbeatError:
        raise  # Some of these errors are also ValueErrors, which _UNSENT has.
    except _UNSENT as exc:
        raise ServerFailure(f"cannot send {what}: {text_of(exc)}") from exc
    data = [{"name": name, "task_id": task_id} for name, task_id in task_ids.items()]
    echo_json(data[0] if isinstance(entries, str) else data)
    for name, task_id in task_ids.items():
        say(f"sent {name!r} as task {task_id}")

"""Commands for files of entries, and to move in from another scheduler."""

from __future__ import annotations

import json
import math
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

import click
from celery import Celery

from .._base.atomic_files import write_whole
from .._base.clock import wall_ms
from ..entries.words import counted, span
from ..interchange.document import BadFile, Document, read_document
from ..interchange.files import Change, Export, FilePlan, Restore, apply_plan, make_plan
from ..interchange.move_in import Carrier, MoveIn, Step, Unreadable
from ..interchange.shadow import Difference, Shadow
from ..interchange.sources import DjangoBeatSource, RedBeatSource
from ..operate.texts import next_run
from ..rules import decode_schedule, schedule_text
from ..settings import NO_SERVER, Settings
from .command import (
    INCOMPLETE,
    Failure,
    Length,
    app_zone,
    echo_json,
    echo_table,
    exit_with,
    json_option,
    load_app,
    option,
    say,
    when,
)
from .options import Chosen, selecting

Source = RedBeatSource | DjangoBeatSource

#: File mode by which only the owner can read an export, because it has the arguments of tasks.
_PRIVATE = 0o600

#: Seconds between two comparisons with another beat.
_PAUSE = 1.0

#: Action of a change -> the sign in front of its line.
_SIGNS = {"add": "+", "change": "~", "remove": "-"}

#: File of entries; ``-`` is the standard input. Some editors write a byte order mark before it.
_FILE = click.File(encoding="utf-8-sig")
_file_argument = click.argument("file", metavar="PATH", type=_FILE)
_prune_option = option("--prune", "Remove the runtime entries that are not in the file.")

#: Other schedulers whose entries can be imported.
_ORIGINS = ("redbeat", "django-celery-beat")


@click.command()
@_file_argument
@_prune_option
@option("--exit-code", "Exit with 3 if there is anything to change.")
@json_option
def plan(file: TextIO, prune: bool, exit_code: bool) -> None:
    """Show what `apply` would change.

    PATH is a file of entries in JSON or TOML; - is standard input, in JSON.

    \b
    A file in TOML:
      [entries.nightly]
      task = "reports.build"
      schedule = {cron = "0 3 * * *", tz = "Europe/Berlin"}
      [entries.hello]
      task = "proj.say"
      schedule = {every = "30s"}
      args = ["hello"]

    The fields are those of an entry. A file that `export` has written works, too; its states and
    its config entries are ignored.

    \b
    Examples:
      celery -A proj redbeat plan entries.toml
      celery -A proj redbeat plan entries.toml --prune --exit-code
    """
    file_plan = _plan_and_show(load_app(), file, prune=prune)
    if exit_code and file_plan.changes:
        exit_with(INCOMPLETE)


@click.command()
@_file_argument
@_prune_option
@json_option
def apply(file: TextIO, prune: bool) -> None:
    """Store the entries of a file, and show the changes as `plan` does.

    If anything in the file is wrong, nothing is written. Repeat the command if it was interrupted.

    \b
    Examples:
      celery -A proj redbeat apply entries.toml
      celery -A proj redbeat apply entries.toml --prune
    """
    app = load_app()
    file_plan = _plan_and_show(app, file, prune=prune)
    apply_plan(app, file_plan)
    if file_plan.changes:
        say("Applied.")


def _plan_and_show(app: Celery, file: TextIO, *, prune: bool) -> FilePlan:
    """Compare a file with the stored entries, and print and return the plan.

    With ``--json``, the plan is printed as JSON, and :func:`say` prints nothing.

    Parameters:
        prune: plan to remove the runtime entries that are not in the file.
    """
    file_plan = make_plan(app, _read_file(file), prune=prune)
    echo_json(
        {
            "changes": [change._asdict() for change in file_plan.changes],
            "same": file_plan.same,
            "unlisted": file_plan.unlisted,
            "left_alone": file_plan.notes,
        }
    )
    for change in file_plan.changes:
        for line in _change_lines(change):
            say(line)
    for name, note in file_plan.notes.items():
        say(f"  {name}: not changed, {note}")
    count_by_action = Counter(change.action for change in file_plan.changes)
    counts = ", ".join(f"{count_by_action[action]} to {action}" for action in _SIGNS)
    say(f"{counts}; {file_plan.same} the same.")
    if file_plan.unlisted:
        say(f"{file_plan.unlisted} not in the file; --prune would remove them.")
    return file_plan


def _change_lines(change: Change) -> Iterator[str]:
    """Yield the lines that describe one change of a plan.

    An added or removed entry has one line. A changed entry has a line for its name, and a line for
    each field that differs.
    """
    before = change.before or {}
    after = change.after or {}
    heading = f"{_SIGNS[change.action]} {change.name}"
    if change.action != "change":
        fields = before or after
        yield f"{heading}  {fields.get('task')}  {_field_text('schedule', fields)}"
        return
    yield heading
    for field in dict.fromkeys((*before, *after)):
        if before.get(field) != after.get(field):
            yield f"    {field}: {_field_text(field, before)} -> {_field_text(field, after)}"


def _field_text(field: str, fields: dict[str, Any]) -> str:
    """Return the value of a field of a definition in words.

    Parameters:
        fields: name of a field -> its value as the file has it.
    """
    if field not in fields:
        return "(default)"
    if field == "schedule":
        return schedule_text(decode_schedule(fields[field]))
    return json.dumps(fields[field], ensure_ascii=False)


@click.command("export")
@click.argument("path", required=False, type=click.Path(path_type=Path))
@option("--name PATTERN", "Entries whose name matches this pattern.")
@selecting
def export_(chosen: Chosen, path: Path | None) -> None:
    """Write all or some entries with their state as JSON.

    Without PATH, or if PATH is -, the entries go to standard output. The file has definitions,
    pauses and their notes, last and next runs, and counters. An export of all entries also has the
    freeze and unfinished backfills. Entries that cannot be read or are in quarantine are left out,
    and the file says which. The file has no once-locks, no pipelines and no messages of queues. It
    has the arguments of tasks, so its owner alone can read it.

    \b
    Examples:
      celery -A proj redbeat export backup.json
      celery -A proj redbeat export | gzip > backup.json.gz
      celery -A proj redbeat export billing.json --tag billing
    """
    if not chosen.selection.is_all:
        chosen.names()  # This only checks: it raises Failure if no entry is selected.
    export = Export(load_app(), chosen.selection)
    place = ""
    if path is None or str(path) == "-":
        sys.stdout.writelines(_document(export))
    else:
        place = f" to {path}"
        try:
            write_whole(path, _document(export), _PRIVATE)
        except OSError as exc:
            raise Failure(f"cannot write {path}: {exc.strerror}") from exc
    exported = counted(export.number, "entry", "entries")
    say(f"exported {exported}{place}, {len(export.left_out)} left out", err=True)
    for entry in export.left_out:
        say(f"left out {entry['name']!r}: {entry['reason']}", err=True)


def _document(export: Export) -> Iterator[str]:
    """Yield the parts of an export's JSON, with each entry on its own line.

    The entries are written as they are read, so the object is put together by hand.
    """
    head = json.dumps(export.head).removesuffix("}")  # Leave the object open for further fields.
    yield f'{head},\n"entries": ['
    separator = ""
    for record in export.records():
        yield f"{separator}\n{json.dumps(record)}"
        separator = ","
    # The list is complete only after the last record.
    yield f'\n],\n"left_out": {json.dumps(export.left_out)}}}\n'


def _read_file(file: TextIO) -> Document:
    """Return the content of a file of entries.

    Raises:
        BadFile: the text is no file of entries.
    """
    try:
        text = file.read()
    except UnicodeDecodeError as exc:
        raise BadFile(f"{file.name}: not UTF-8: {exc}") from exc
    return read_document(file.name, text)


@click.command("import")
@click.argument("file", metavar="[PATH]", required=False, type=_FILE)
@option(
    "--from origin",
    "The scheduler to move in from. [default: a file of export]",
    type=click.Choice(_ORIGINS),
)
@option("--apply", "Write. Without it, only show what would be written.")
@option("--replace", "Overwrite entries that are stored here already.")
@json_option
def import_(
    file: TextIO | None,
    origin: str | None,
    apply: bool,
    replace: bool,
) -> None:
    """Restore a file of export, or move in from another scheduler.

    PATH is a file that `export` has written. Entries keep their last runs. Without --apply, nothing
    is written. Without --replace, stored entries do not change. The store of the other scheduler
    is never changed. Stop the other beat before --apply.

    \b
    Examples:
      celery -A proj redbeat import backup.json --apply
      celery -A proj redbeat import --from redbeat
      celery -A proj redbeat import --from redbeat --apply
      celery -A proj redbeat import --from django-celery-beat --apply

    Exit codes: 0 fine; 1 the request is wrong, or the other scheduler has no entry; 2 the server or
    the broker cannot be reached; 3 some entries are left out.
    """
    if (origin is None) == (file is None):
        raise Failure("give either the PATH of a file that export has written, or --from")
    if file is not None:
        left_out = _restore(file, apply=apply, replace=replace)
    else:
        left_out = _move_in(str(origin), apply=apply, replace=replace)
    if left_out:
        exit_with(INCOMPLETE)


def _restore(file: TextIO, *, apply: bool, replace: bool) -> int:
    """Restore the entries of a file, and return how many are left out.

    Parameters:
        apply: write; otherwise only show what would be written.
        replace: overwrite entries that are stored here already.
    """
    app = load_app()
    document = _read_file(file)
    restore = Restore(app, document, replace=replace)
    steps = restore.plan()
    if apply:
        steps = restore.apply(steps)
    if document.old_freezes:
        left_out = counted(document.old_freezes, "freeze", "freezes")
        say(f"without {left_out} of an older version; to freeze all entries: freeze --for LENGTH")
    if restore.freeze is not None:
        say(f"with the freeze until {when(restore.freeze.until)}")
    if restore.backfills:
        say(f"with {counted(len(restore.backfills), 'backfill', 'backfills')}")
    return _report(steps, applied=apply)


def _move_in(origin: str, *, apply: bool, replace: bool) -> int:
    """Import the entries of another scheduler, and return how many are left out.

    Parameters:
        origin: one of ``_ORIGINS``.
        apply: write; otherwise only show what would be written.
        replace: overwrite entries that are stored here already.
    """
    app = load_app()
    source = _source(app, origin)
    mover = MoveIn(app, replace=replace)
    entries = [*source.read()]
    if not entries:
        advice = f"; {source.advice}" if source.advice else ""
        raise Failure(f"no entry of {source.title} in {source.where}{advice}")
    moves = mover.plan(entries)
    if apply:
        moves = mover.apply(moves)
    say(f"From {source.title}: {source.where}")
    say(f"Into {mover.where}")
    if mover.led:
        say(
            "A beat of redbeat_lite leads, and sends these entries. "
            f"No beat of {source.title} may run any more."
        )
    left_out = _report(moves, applied=apply)
    if apply and source.lock_seconds is not None:
        # Say this last, where nobody overlooks it. Negative seconds stand for "never expires".
        seconds = source.lock_seconds
        end = f"expires in {span(seconds)}" if seconds >= 0 else "does not expire"
        say(f"The lock of {source.title} is held; it {end}. A killed beat leaves its lock.")
        say(f"If a beat of {source.title} still runs, stop it: both would send.")
    return left_out


def _report(steps: list[Step], *, applied: bool) -> int:
    """Print what is done with the entries of an import, and return how many are left out.

    Parameters:
        applied: whether the entries were written.
    """
    echo_json(
        {
            "name": step.name,
            "action": step.action,
            "notes": [*step.notes],
            "entry": step.entry,
        }
        for step in steps
    )
    rows = []
    zone = app_zone()
    for step in steps:
        entry = step.entry
        if entry is not None and step.action in ("add", "replace"):
            runs = entry.total_run_count
            when_next = next_run(entry, zone)
            schedule = schedule_text(entry.schedule, zone)
            rows.append((step.action, step.name, runs, when_next, entry.task, schedule))
    if rows:
        echo_table(("", "NAME", "RUNS", "NEXT RUN", "TASK", "SCHEDULE"), rows)
    for step in steps:
        # Entries that are stored already may be many, so only count them, below.
        if step.notes and step.action != "stored":
            say(f"{step.action} {step.name!r}: {'; '.join(step.notes)}")
    left_out = sum(step.action == "left out" for step in steps)
    stored = len(steps) - len(rows) - left_out
    done = "imported" if applied else "to import"
    hint = "" if applied else ". Nothing was written; --apply does it."
    say(f"{len(rows)} {done}, {stored} stored already, {left_out} left out{hint}")
    return left_out


@click.command()
@option(
    "--from origin", "The scheduler whose beat runs.", type=click.Choice(_ORIGINS), required=True
)
@option("--for length", "How long to watch, such as 1h; by default until Ctrl-C.", type=Length())
@option(
    "--tolerance",
    "Largest difference between two instants that agree.",
    type=Length(),
    default="2s",
)
@json_option
def shadow(
    origin: str,
    length: float | None,
    tolerance: float,
) -> None:
    """Watch another beat, and show where redbeat_lite would have sent otherwise.

    The command sends nothing, leads nothing and writes nothing. It reads from the other beat's
    store what that beat has sent: celery-redbeat stores each run as it sends it; django-celery-beat
    stores runs every three minutes, or at once with beat_sync_every = 1.

    \b
    Examples:
      celery -A proj redbeat shadow --from redbeat --for 24h
      celery -A proj redbeat shadow --from django-celery-beat --json

    With --json, each difference is a line of JSON, and so is the summary at the end.

    Exit codes: 0 no difference; 1 the request is wrong; 2 the server cannot be reached; 3 there
    were differences.
    """
    app = load_app()
    end = math.inf if length is None else time.monotonic() + length
    source = _source(app, origin)
    # Seconds until the store of the other beat shows a run.
    lag = source.lag
    if app.conf.beat_sync_every == 1:
        # The other beat has the same app. With this setting, it stores each run at once.
        lag = min(_PAUSE, lag)
    # The carrier converts the other scheduler's entries. It needs no server.
    carrier = Carrier(app, Settings.from_app(app, url=NO_SERVER))
    watch = Shadow(carrier, app.timezone, tolerance=tolerance, lag=lag)
    # Let SIGTERM end the comparison as Ctrl-C does, so that the summary is printed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt):
        for difference in _differences(source, watch, end):
            echo_json(difference._asdict(), indent=None)
            where = f"{difference.kind}  {difference.name}: {difference.text}"
            say(f"{when(difference.at)}  {where}")
    _summary(watch)
    if watch.counts:
        exit_with(INCOMPLETE)


def _differences(source: Source, watch: Shadow, end: float) -> Iterator[Difference]:
    """Compare again and again, and yield the differences.

    If the store of the other scheduler cannot be read later on, it is read again after the pause.

    Parameters:
        end: time of the monotonic clock at which to stop.

    Raises:
        Unreadable: the store cannot be read at the first comparison.
    """
    differences = [*watch.look([*source.read()], wall_ms())]
    say(f"Watching {watch.watched} entries of {source.title}: {source.where}")
    while True:
        yield from differences
        left = end - time.monotonic()
        if left <= 0:
            return
        time.sleep(min(_PAUSE, left))
        try:
            differences = [*watch.look([*source.read()], wall_ms())]
        except Unreadable as exc:
            differences = []
            say(f"{exc}; looking again", err=True)


def _summary(watch: Shadow) -> None:
    """Print the figures of the whole comparison.

    Undecided runs are due, and the store of the other beat may not show them yet.
    """
    undecided = watch.undecided(wall_ms())
    summary = {
        "watched": watch.watched,
        "agreed": watch.agreed,
        "undecided": undecided,
        "differences": watch.counts,
    }
    echo_json(summary, indent=None)
    differing = ", ".join(f"{number} {kind}" for kind, number in watch.counts.items()) or "none"
    not_known = f"due, outcome not yet seen: {undecided}"
    say(f"{watch.agreed} runs agreed; differences: {differing}; {not_known}")


def _source(app: Celery, origin: str) -> Source:
    """Return the reader of another scheduler's store."""
    return RedBeatSource(app) if origin == "redbeat" else DjangoBeatSource()

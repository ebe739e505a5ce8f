"""Commands for files of entries: ``plan``, ``apply`` and ``export``."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import chain, islice
from pathlib import Path
from typing import Any

import click

from .._base.atomic_files import is_stream, write_whole
from ..entries.words import counted
from ..interchange.backup import Export
from ..interchange.document import BadFile, Document, read_document
from ..interchange.plan import Change, FilePlan, apply_plan, make_plan
from ..rules import decode_schedule, schedule_text
from .command import INCOMPLETE, Failure, command, exit_with, json_option, load_app, option
from .options import selected, selecting
from .output import echo_json, say

#: File mode by which only the owner can read an export, because it has the arguments of tasks.
_PRIVATE = 0o600

#: Action of a change -> the sign in front of its line.
_SIGNS = {"add": "+", "change": "~", "remove": "-"}

_path_argument = click.argument("path", type=click.Path(path_type=Path))
_prune_option = option("--prune", "Remove the runtime entries that are not in the file.")


@command()
@_path_argument
@_prune_option
@option("--exit-code", "Exit with 3 if there is anything to change.")
@json_option
def plan(path: Path, prune: bool, exit_code: bool) -> None:
    """Show what apply would change.

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

    The fields are those of an entry. A file of export works, too; its states and its config entries
    are ignored.

    \b
    Examples:
      celery -A proj redbeat plan entries.toml
      celery -A proj redbeat plan entries.toml --prune --exit-code
    """
    file_plan = make_plan(load_app(), read_file(path), prune=prune)
    _show(file_plan)
    if exit_code and file_plan.changes:
        exit_with(INCOMPLETE)


@command()
@_path_argument
@_prune_option
@json_option
def apply(path: Path, prune: bool) -> None:
    """Store the entries of a file, and show the changes as plan does.

    If anything in the file is wrong, nothing is written. Repeat the command if it was interrupted.

    \b
    Examples:
      celery -A proj redbeat apply entries.toml
      celery -A proj redbeat apply entries.toml --prune
    """
    app = load_app()
    file_plan = make_plan(app, read_file(path), prune=prune)
    _show(file_plan)
    apply_plan(app, file_plan)
    if file_plan.changes:
        say("Applied.")


def _show(file_plan: FilePlan) -> None:
    """Print the changes of a plan."""
    echo_json(
        {
            "changes": [asdict(change) for change in file_plan.changes],
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


def _change_lines(change: Change) -> Iterator[str]:
    """Yield the lines that describe one change of a plan."""
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
    """Return the value of a field in words."""
    if field not in fields:
        return "(default)"
    if field == "schedule":
        return schedule_text(decode_schedule(fields[field]))
    return json.dumps(fields[field], ensure_ascii=False)


@command("export")
@click.argument("path", required=False, type=click.Path(path_type=Path))
@option("--name PATTERN", "Entries whose name matches this pattern.")
@selecting
def export_(path: Path | None, **_selection: str | None) -> None:
    """Write all or some entries with their state as JSON.

    Without PATH, or if PATH is -, the entries go to standard output. The file has definitions,
    pauses and their notes, last and next runs, and counters. An export of all entries also has
    freezes and unfinished backfills. The file names entries that cannot be read or are in
    quarantine, and lacks them; it lacks once-locks, pipelines and messages in queues, too. It has
    the arguments of tasks, so its owner alone can read it.

    \b
    Examples:
      celery -A proj redbeat export backup.json
      celery -A proj redbeat export | gzip > backup.json.gz
      celery -A proj redbeat export billing.json --tag billing
    """
    selection = selected().selection
    export = Export(load_app(), selection)
    records = export.records()
    # Read the first record, to fail before anything is written if no entry is selected.
    first = [*islice(records, 1)]
    if not (first or export.left_out or selection.is_all):
        raise Failure(f"no entry is selected by {selection}")
    records = chain(first, records)
    place = ""
    if path is None or str(path) == "-":
        sys.stdout.writelines(_document(export, records))
    else:
        place = f" to {path}"
        _write(path, _document(export, records))
    exported = counted(export.number, "entry", "entries")
    say(f"exported {exported}{place}, {len(export.left_out)} left out", err=True)
    for entry in export.left_out:
        say(f"left out {entry['name']!r}: {entry['reason']}", err=True)


def _document(export: Export, records: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Yield the parts of an export's JSON, with each entry on its own line."""
    yield json.dumps(export.head, indent=2).removesuffix("\n}") + ',\n  "entries": ['
    separator = ""
    for record in records:
        yield f"{separator}\n    {json.dumps(record)}"
        separator = ","
    left_out = json.dumps({"left_out": export.left_out}, indent=2).removeprefix("{\n")
    yield f"\n  ],\n{left_out}\n"


def _write(path: Path, texts: Iterable[str]) -> None:
    """Write a file atomically, so that half an export never replaces a good one.

    A pipe or a device gets the texts one by one.
    """
    try:
        if is_stream(path):
            stream = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOCTTY)
            with open(stream, "w", encoding="utf-8") as out:
                out.writelines(texts)
        else:
            write_whole(path, texts, _PRIVATE)
    except OSError as exc:
        raise Failure(f"cannot write {path}: {exc.strerror}") from exc


def read_file(path: Path) -> Document:
    """Return the file of entries at a path; ``-`` is the standard input.

    Raises:
        BadFile: it is no file of entries.
    """
    try:
        # Skip a byte order mark, which some editors write.
        if str(path) == "-":
            text = sys.stdin.read().removeprefix("\ufeff")
        else:
            text = path.read_text(encoding="utf-8-sig")
    except OSError as exc:
        raise Failure(f"cannot read {path}: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise BadFile(f"{path}: not UTF-8: {exc}") from exc
    return read_document(str(path), text)

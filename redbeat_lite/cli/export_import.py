"""``export``, and ``import`` of what it wrote."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import click
from celery import Celery

from ..clock import elapsed
from ..entries.words import counted
from ..interchange.backup import Export, Restore, Restored
from ..interchange.document import BadFile, Document, read_document
from ..storage.whole_files import is_stream, write_whole
from .command import Command, app_of, schedules_of
from .entry_output import next_run
from .exit_codes import Failure
from .output import echo_json, echo_table, json_text, say, showing_life, unicode_json
from .selected import selected, selecting

#: Rights of a file that holds the arguments of tasks.
_PRIVATE = 0o600

#: Seconds between two words of an export that goes on.
_SAID_EVERY = 5.0

#: Exit code where not everything is as one would have it: entries left out, differences found by shadow.
NOT_ALL = 3


@click.command("export", cls=Command)
@click.argument("path", required=False, type=click.Path(path_type=Path))
@click.option("--name", metavar="PATTERN", help="Entries whose name matches this pattern.")
@selecting
def export_(ctx: click.Context, /, path: Path | None, **meant: Any) -> None:
    """Write all or some entries with their state as JSON, to PATH, or to the output if that is left out or -.

    With it go definitions, pauses and their notes, last and next runs, and counters; with all entries, the freezes that
    hold and the backfills that have not ended. Not with it go entries that
    cannot be read or are in quarantine (the file names them), once-locks, pipelines, and messages in queues. Arguments
    of tasks are in it, so PATH can be read by its owner alone.

    \b
    Examples:
      celery -A proj redbeat export backup.json
      celery -A proj redbeat export | gzip > backup.json.gz
      celery -A proj redbeat export billing.json --tag billing
    """
    selection = selected(ctx, **meant).selection
    found = Export(app_of(ctx), selection)
    records = _telling(found, len(schedules_of(ctx)))
    first = [*islice(records, 1)]  # looks through all, where there is none
    if not (first or found.left_out or selection.is_all):
        raise Failure(f"no entry is selected by {selection}")
    path = None if str(path) == "-" else path
    if path is None:
        sys.stdout.writelines(_texts(found, chain(first, records), json_text))
    else:
        _write(path, _texts(found, chain(first, records), unicode_json))
    done = counted(found.number, "entry", "entries") + (f" to {path}" if path else "")
    say(f"exported {done}, {len(found.left_out)} left out", err=True)
    for each in found.left_out:
        say(f"left out {each['name']!r}: {each['reason']}", err=True)


def _telling(found: Export, stored: int) -> Iterator[dict[str, Any]]:
    """The records, and a word every few seconds: those of many entries take minutes."""
    said = elapsed()
    for record in found.records():
        yield record
        if elapsed() - said >= _SAID_EVERY:
            say(f"exported {found.number} so far; {counted(stored, 'entry is', 'entries are')} stored", err=True)
            said = elapsed()


def _texts(found: Export, records: Iterable[dict[str, Any]], text: Callable[..., str]) -> Iterator[str]:
    """The document in parts, an entry on a line."""
    yield text(found.head, indent=2).removesuffix("\n}") + ',\n  "entries": ['
    comma = ""
    for record in records:
        yield f"{comma}\n    {text(record)}"
        comma = ","
    left = text({"left_out": found.left_out}, indent=2).removeprefix("{\n")
    yield ("\n  ],\n" if comma else "],\n") + left + "\n"


def _write(path: Path, texts: Iterable[str]) -> None:
    """All of it or nothing: a backup that breaks off would take the place of a good one. A pipe or a device gets it as
    it comes."""
    try:
        if is_stream(path):
            with open(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOCTTY), "w", encoding="utf-8") as out:
                out.writelines(texts)
        else:
            write_whole(path, texts, _PRIVATE)
    except OSError as exc:
        raise Failure(f"cannot write {path}: {exc.strerror}") from exc


def read_file(path: Path) -> Document:
    """The file of entries at a path; ``-`` is the input. Raises BadFile if it is none."""
    try:
        # Editors of some systems begin a file with a mark that says that it is UTF-8.
        text = sys.stdin.read().removeprefix("\ufeff") if str(path) == "-" else path.read_text(encoding="utf-8-sig")
    except OSError as exc:
        raise Failure(f"cannot read {path}: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise BadFile(f"{path}: not UTF-8: {exc}") from exc
    return read_document(str(path), text)


def import_own(ctx: click.Context, path: Path, *, apply: bool, replace: bool) -> None:
    """What ``import`` without ``--from`` does."""
    app = app_of(ctx)
    restore = Restore(app, replace=replace)
    document = read_file(path)
    with showing_life(f"importing {counted(len(document.records), 'entry', 'entries')}"):
        planned = restore.plan(document)
        if apply:
            restore.apply(planned)
    echo_json({"name": each.name, "action": each.action, "note": each.note} for each in planned)
    for found, one, many in ((restore.freezes, "freeze", "freezes"), (restore.backfills, "backfill", "backfills")):
        if found:
            say(f"{counted(len(found), one, many)} {'imported' if apply else 'to import'}")
    _report(app, planned, applied=apply)
    if any(each.action == "left out" for each in planned):
        ctx.exit(NOT_ALL)


def _report(app: Celery, planned: list[Restored], *, applied: bool) -> None:
    changed = [each for each in planned if each.edit is not None]
    if changed:
        rows = [
            (each.action, each.name, each.entry.total_run_count, next_run(each.entry, app.timezone)) for each in changed
        ]
        echo_table(("", "NAME", "RUNS", "NEXT RUN"), rows, rigid=("", "RUNS", "NEXT RUN"))
    left = [each for each in planned if each.action == "left out"]
    for each in left:
        say(f"left out {each.name!r}: {each.note}")
    same = len(planned) - len(changed) - len(left)
    done = "imported" if applied else "to import"
    hint = "" if applied else ". Nothing was written; --apply does it."
    say(f"{len(changed)} {done}, {same} the same, {len(left)} left out{hint}")

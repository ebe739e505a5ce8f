"""``plan`` and ``apply``: a file of entries against Redis."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..entries.schedule_text import schedule_from, schedule_text
from ..entries.words import counted
from ..interchange.plan import Change, FilePlan, apply_plan, make_plan
from .command import Command, app_of, json_option
from .export_import import read_file
from .output import clean, echo_json, fitted, say, showing_life

if TYPE_CHECKING:
    from celery import Celery

#: Exit code of ``plan --exit-code`` where there is something to do.
DIFFERS = 3

_SIGNS = {"add": "+", "change": "~", "remove": "-"}
_FILE = click.argument("path", type=click.Path(path_type=Path))
_PRUNE = click.option("--prune", is_flag=True, help="Remove the runtime entries that are not in the file.")


@click.command(cls=Command)
@_FILE
@_PRUNE
@click.option("--exit-code", is_flag=True, help="Exit with 3 if there is anything to do.")
@json_option
def plan(ctx: click.Context, path: Path, prune: bool, exit_code: bool) -> None:
    """Show what apply would change. PATH is a file of entries in JSON or TOML; - is the input, in JSON.

    \b
    A file in TOML:
      [entries.nightly]
      task = "reports.build"
      schedule = {cron = "0 3 * * *", tz = "Europe/Berlin"}
      [entries.hello]
      task = "proj.say"
      schedule = {every = "30s"}
      args = ["hello"]

    The fields are those of an entry. An exported file will do, too; the state in it is passed over, and so are config
    entries, which belong to their configuration.

    \b
    Examples:
      celery -A proj redbeat plan entries.toml
      celery -A proj redbeat plan entries.toml --prune --exit-code
    """
    found = _plan(app_of(ctx), path, prune)
    _show(found)
    if exit_code and found.changes:
        ctx.exit(DIFFERS)


@click.command(cls=Command)
@_FILE
@_PRUNE
@json_option
def apply(ctx: click.Context, path: Path, prune: bool) -> None:
    """Show the difference between a file of entries and Redis as plan does, and make it none.

    Nothing is written if anything in the file is wrong. Interrupted and repeated, it does the rest.

    \b
    Examples:
      celery -A proj redbeat apply entries.toml
      celery -A proj redbeat apply entries.toml --prune
    """
    app = app_of(ctx)
    found = _plan(app, path, prune)
    _show(found)
    with showing_life(f"writing {counted(len(found.changes), 'change', 'changes')}"):
        apply_plan(app, found)
    if found.changes:
        say("Applied.")


def _plan(app: Celery, path: Path, prune: bool) -> FilePlan:
    document = read_file(path)
    with showing_life(f"comparing {counted(len(document.records), 'entry', 'entries')}"):
        return make_plan(app, document, prune=prune)


def _show(found: FilePlan) -> None:
    changes = (
        {"action": each.action, "name": each.name, "before": each.before, "after": each.after} for each in found.changes
    )
    echo_json({"changes": changes, "same": found.same, "unlisted": found.unlisted, "left_alone": found.notes})
    for change in found.changes:
        for line in _lines(change):
            say(fitted(line))
    for name, note in found.notes.items():
        say(fitted(f"  {name}: left alone, {note}"))
    counts = {action: sum(each.action == action for each in found.changes) for action in _SIGNS}
    told = ", ".join(f"{count} to {action}" for action, count in counts.items())
    say(f"{told}; {found.same} the same.")
    if found.unlisted:
        say(f"{found.unlisted} not in the file; --prune would remove them.")


def _lines(change: Change) -> Iterator[str]:
    before, after = change.before or {}, change.after or {}
    words = "" if change.action == "change" else f"  {_task_and_schedule(before or after)}"
    yield f"{_SIGNS[change.action]} {clean(change.name)}{words}"
    if change.action == "change":
        for field in dict.fromkeys((*before, *after)):
            if before.get(field) != after.get(field):
                yield f"    {field}: {_shown(field, before)} -> {_shown(field, after)}"


def _task_and_schedule(fields: dict[str, Any]) -> str:
    return f"{fields.get('task')}  {_shown('schedule', fields)}"


def _shown(field: str, fields: dict[str, Any]) -> str:
    if field not in fields:
        return "(default)"
    if field == "schedule":
        return schedule_text(schedule_from(fields[field]))
    return json.dumps(fields[field], ensure_ascii=False)

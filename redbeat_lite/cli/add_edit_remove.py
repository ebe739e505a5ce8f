"""``add``, ``edit`` and ``remove``: the definitions of runtime entries."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import click

from ..errors import CorruptEntry, EntryExists
from .command import Command, entry_names, json_option, name_argument, schedules_of
from .entry_options import field_options, fields_of, schedule_of, schedule_options
from .entry_output import tell
from .exit_codes import Failure
from .output import say
from .selected import agreeing, tell_names, to_change

_note = click.option("--note", default="", help="Why, for the record of changes.")


@click.command(cls=Command)
@name_argument
@click.argument("task")
@schedule_options
@field_options
@click.option("--replace", is_flag=True, help="Overwrite an entry of this name; it keeps its history.")
@_note
@json_option
def add(ctx: click.Context, /, name: str, task: str, replace: bool, note: str, **given: Any) -> None:
    """Add an entry that runs TASK. The beat acts on it at once.

    \b
    Examples:
      celery -A proj redbeat add hello proj.say --every 30s --args '["hello"]'
      celery -A proj redbeat add nightly reports.build --cron "0 3 * * *" \\
          --tz Europe/Berlin --once true --misfire skip
      celery -A proj redbeat add launch proj.launch --at 2026-12-01T09:00+01:00
    """
    schedules, zone = schedules_of(ctx), ctx.obj.app.timezone
    schedule = schedule_of(given, zone)
    if schedule is None:
        raise Failure("say when it runs: --every, --cron, --at, --rrule, --manual or --schedule")
    try:
        entry = schedules.add(name, task, schedule, replace=replace, note=note, **fields_of(given, zone))
    except EntryExists:
        raise Failure(f"entry {name!r} is already stored; --replace overwrites it") from None
    tell(ctx, entry, "stored" if replace else "added")


@click.command(cls=Command)
@name_argument
@click.option("--task", help="The name of the task.")
@schedule_options
@field_options
@_note
@json_option
def edit(ctx: click.Context, /, name: str, task: str | None, note: str, **given: Any) -> None:
    """Change the named fields of an entry and leave the others.

    A changed schedule counts from now on and never fires for the past. A new cron or rrule has the zone of the one
    before, unless --tz gives another.

    \b
    Examples:
      celery -A proj redbeat edit hello --every 5m --note "less load"
      celery -A proj redbeat edit nightly --kwargs '{"x": 1}' --max-runs none
    """
    schedules, zone = schedules_of(ctx), ctx.obj.app.timezone
    if given["tz"] is None and (given["cron"] or given["rrule"]):
        given["tz"] = getattr(schedules[name].schedule, "tz_name", None)
    schedule = schedule_of(given, zone)
    changes = fields_of({"task": task, **given}, zone)
    if schedule is not None:
        changes["schedule"] = schedule
    if not changes:
        raise Failure("nothing to change: name a field, such as --every or --args")
    tell(ctx, schedules.update(name, note=note, **changes), "changed")


@click.command(cls=Command)
@click.argument("names", nargs=-1, shell_complete=entry_names)
@agreeing
@_note
def remove(ctx: click.Context, /, names: tuple[str, ...], note: str, **meant: Any) -> None:
    """Remove entries, for good.

    An entry of beat_schedule is soon brought back by the beat that has it; pause it instead.

    \b
    Examples:
      celery -A proj redbeat remove hello goodbye
      celery -A proj redbeat remove 'reminder:*' --note "moved out"
    """
    for name in names or (None,):
        ctx.params["name"] = name  # for the message of an error
        _remove(ctx, note, {**meant, "name": name})


def _remove(ctx: click.Context, note: str, meant: dict[str, Any]) -> None:
    schedules, found = schedules_of(ctx), to_change(ctx, "remove", **meant)
    if isinstance(found, str):
        sources = set[str]()
        with suppress(CorruptEntry):  # nobody can tell; and to remove what cannot be read must be possible
            sources = {schedules[found].source}
        schedules.remove(found, note=note)
        say(f"removed {found!r}")
    else:
        sources = {entry.source for entry in found}
        tell_names("removed", found.remove(note))
    for source in sorted(sources - {"runtime"}):
        say(f"What belongs to {source} is brought back by the beat that has it when it next renews its lease.")
        say("To be rid of it, take it out of beat_schedule; to silence it, pause it once it is back.")

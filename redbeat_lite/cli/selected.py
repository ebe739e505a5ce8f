"""Which entries a command means: one by its name, or several by a pattern, a tag or a task."""

from __future__ import annotations

import sys
from typing import Any

import click

from ..api.selected import Selected
from ..entries.selection import Selection, is_pattern
from ..entries.words import counted, listed
from .command import entry_names, schedules_of, together
from .exit_codes import Failure
from .output import echo_json, say

selecting = together(
    click.option("--tag", help="Entries that have this tag."),
    click.option("--task", metavar="PATTERN", help="Entries whose task matches this pattern."),
)

#: Options of the commands that use :func:`to_change`, without the argument for the name.
agreeing = together(selecting, click.option("--yes", is_flag=True, help="Do not ask, however many entries they are."))

#: What :func:`to_change` takes.
changing = together(click.argument("name", required=False, shell_complete=entry_names), agreeing)


def selected(ctx: click.Context, name: str | None, tag: str | None, task: str | None) -> Selected:
    """The entries that are meant; one of the very name goes before a pattern."""
    schedules = schedules_of(ctx)
    if name is not None and is_pattern(name) and name in schedules:
        name = Selection.one(name).name
    return schedules.select("*" if name is None else name, tag=tag, task=task)


def names_of(found: Selected, name: str | None) -> list[str] | str:
    """Their names, or a Failure if there is none; the name alone, stored or not, where that is all that was said."""
    if name is not None and found.selection == Selection.one(name):
        return name
    if names := found.names():
        return names
    raise Failure(f"no entry is selected by {found.selection}")


def named(ctx: click.Context, **meant: Any) -> tuple[Selected, list[str] | str]:
    """The entries that are meant with their names, as :func:`names_of` has them; or a Failure if nothing was said."""
    if not any(meant.values()):
        raise Failure("say which entries: a NAME or a pattern, --tag or --task")
    found = selected(ctx, **meant)
    return found, names_of(found, meant["name"])


def to_change(ctx: click.Context, what: str, yes: bool, **meant: Any) -> Selected | str:
    """The name of the one entry to change; or those that are selected, shown, and agreed to by who is at a terminal."""
    found, names = named(ctx, **meant)
    if isinstance(names, str):
        return names
    if len(names) > 1:
        say(f"{len(names)} entries to {what}: {listed(names, 10)}", err=True)
        if not yes and sys.stdin.isatty():
            click.confirm("Go on?", abort=True, err=True)
    return found


def tell_names(done: str, names: list[str]) -> None:
    """Say what was done to so many entries, or print their names, for ``--json``."""
    echo_json(names)
    say(f"{done} {counted(len(names), 'entry', 'entries')}")

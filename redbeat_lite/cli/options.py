"""Options that commands share: the selection of entries, and the options of one entry."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import click

from ..api.selected import Selected
from ..entries.selection import Selection, is_pattern
from ..entries.words import counted, listed
from ..operate.entry_options import FIELD_OPTIONS, KINDS, REFINEMENTS, Option, option_word
from .command import Failure, load_schedules, option, together
from .output import echo_json, say

selecting = together(
    option("--tag TEXT", "Entries that have this tag."),
    option("--task PATTERN", "Entries whose task matches this pattern."),
)

#: Argument and options of :func:`to_change`.
changing = together(
    click.argument("name", required=False),
    selecting,
    option("--yes", "Do not ask before several entries are changed."),
)


def _declared(options: Mapping[str, Option]) -> Callable[[Any], Any]:
    """Return options as one decorator; the value of an option that is not given is ``None``."""
    decorators = []
    for name, details in options.items():
        words = f"{option_word(name)} {details.metavar}"
        if details.off:
            words = f"{option_word(name)}/--{details.off}"
        elif name == "tags":
            # --tag is a second name, because the commands that select entries call it so.
            words = f"--tags --tag {details.metavar}"
        decorators.append(option(words, details.help, default=None, show_default=False))
    return together(*decorators)


schedule_options = _declared({**KINDS, **REFINEMENTS})
task_option = _declared({"task": FIELD_OPTIONS["task"]})
#: Options of the fields of an entry other than its task, which is an argument of ``add``.
field_options = _declared({name: FIELD_OPTIONS[name] for name in FIELD_OPTIONS if name != "task"})


def selected() -> Selected:
    """Return the entries that NAME, ``--tag`` and ``--task`` of the command line select.

    If an entry has exactly this name, NAME is no pattern, and only that entry is selected.
    """
    name = _parameter("name")
    if name is None:
        name = "*"
    schedules = load_schedules()
    if is_pattern(name) and name in schedules:
        name = Selection.one(name).name
    return schedules.select(name, tag=_parameter("tag"), task=_parameter("task"))


def _parameter(name: str) -> Any:
    """Return a parameter of the command that runs."""
    return click.get_current_context().params[name]


def names_of(entries: Selected) -> list[str] | str:
    """Return a list of the names of the selected entries, or a single name as a text.

    The text is NAME, if NAME is no pattern and neither ``--tag`` nor ``--task`` is used. An entry
    of this name need not be stored. Raises Failure if no entry is selected.
    """
    name: str | None = _parameter("name")
    if name is not None and entries.selection == Selection.one(name):
        return name
    names = entries.names()
    if not names:
        raise Failure(f"no entry is selected by {entries.selection}")
    return names


def required_names() -> tuple[Selected, list[str] | str]:
    """Return the selected entries, and their names as :func:`names_of` returns them.

    Raises:
        Failure: the command line does not say which entries, or none is selected.
    """
    if not any(map(_parameter, ("name", "tag", "task"))):
        raise Failure("say which entries: a NAME or a pattern, --tag or --task")
    entries = selected()
    return entries, names_of(entries)


def to_change(what: str) -> Selected | str:
    """Return the name of the single entry to change, or the selection that the user agrees to.

    Several entries are changed without a question if ``--yes`` is used or nobody is at a terminal.

    Parameters:
        what: the verb of the question, such as ``"remove"``.
    """
    entries, names = required_names()
    if isinstance(names, str):
        return names
    if len(names) > 1:
        say(f"{len(names)} entries to {what}: {listed(names, 10)}", err=True)
        if not _parameter("yes") and sys.stdin.isatty():
            click.confirm("Go on?", abort=True, err=True)
    return entries


def say_changed(done: str, names: list[str]) -> None:
    """Say what was done to so many entries, or print their names as JSON."""
    echo_json(names)
    say(f"{done} {counted(len(names), 'entry', 'entries')}")

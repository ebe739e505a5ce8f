"""Options that commands share: the selection of entries, and the options of one entry."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import click

from ..api.schedules import Schedules
from ..api.selected import Selected
from ..entries.selection import Selection, is_pattern
from ..entries.words import counted, listed
from ..operate.entry_options import FIELD_OPTIONS, KINDS, REFINEMENTS, Option, option_word
from .command import Failure, echo_json, load_schedules, option, say

yes_option = option("--yes", "Do not ask before several entries are changed.")
optional_name = click.argument("name", required=False)


@dataclass(frozen=True)
class Chosen:
    """Entries that NAME, ``--tag`` and ``--task`` of a command line select.

    Parameters:
        schedules: schedule of the app.
        entries: all entries that match.
        typed_name: NAME; ``None`` without it.
    """

    schedules: Schedules
    entries: Selected
    typed_name: str | None

    @property
    def name(self) -> str | None:
        """NAME, if it names the one entry that is meant; else ``None``.

        It is ``None`` if NAME is a pattern, or is used with ``--tag`` or ``--task``. An entry of
        this name need not be stored.
        """
        name = self.typed_name
        if name is None or self.selection != Selection.one(name):
            return None
        return name

    @property
    def selection(self) -> Selection:
        """Selection of the entries."""
        return self.entries.selection

    def require_selection(self) -> None:
        """Raise Failure if the command line does not say which entries."""
        if self.typed_name is None and self.selection.is_all:
            hint = "a NAME or a pattern ('*' is all of them), --tag or --task"
            raise Failure(f"say which entries: {hint}")

    def names(self) -> list[str]:
        """Return the names of the entries; raise Failure if none is selected."""
        names = self.entries.names()
        if not names:
            raise Failure(f"no entry is selected by {self.selection}")
        return names

    def confirm(self, verb: str, *, yes: bool) -> None:
        """Show several entries before they are changed, and ask the user whether to go on.

        Nothing is asked if nobody is at a terminal.

        Parameters:
            verb: what is done to the entries, such as ``"remove"``.
            yes: do not ask.
        """
        self.require_selection()
        if self.name is not None:
            return  # The user has named the one entry, so there is nothing to ask.
        names = self.names()
        if len(names) > 1:
            say(f"{len(names)} entries to {verb}: {listed(names, 10)}", err=True)
            if not yes and sys.stdin.isatty():
                click.confirm("Go on?", abort=True, err=True)


def selecting(function: Callable[..., None]) -> Callable[..., None]:
    """Add ``--tag`` and ``--task`` to a command with NAME.

    The command gets :class:`Chosen`, the entries that NAME, ``--tag`` and ``--task`` select, in
    place of the values of these three.
    """

    @option("--tag TEXT", "Entries that have this tag.")
    @option("--task PATTERN", "Entries whose task matches this pattern.")
    @wraps(function)
    def command(name: str | None, tag: str | None, task: str | None, **params: Any) -> None:
        schedules = load_schedules()
        pattern = "*" if name is None else name
        if name is not None and is_pattern(name) and name in schedules:
            # An entry has exactly this name, so NAME stands for that entry, and is no pattern.
            # Selection.one() escapes the characters of a pattern.
            pattern = Selection.one(name).name
        entries = schedules.select(pattern, tag=tag, task=task)
        function(Chosen(schedules, entries, name), **params)

    return command


def changing(function: Callable[..., None]) -> Callable[..., None]:
    """Add NAME, ``--tag``, ``--task`` and ``--yes`` to a command that changes entries.

    The command runs after the user has agreed; see :meth:`Chosen.confirm`.
    """

    @yes_option
    @wraps(function)
    def command(chosen: Chosen, yes: bool, **params: Any) -> None:
        chosen.confirm(function.__name__, yes=yes)
        function(chosen, **params)

    return optional_name(selecting(command))


def _declared(options: dict[str, Option]) -> Callable[[Any], Any]:
    """Return a decorator that adds these options to a command.

    The command gets ``None`` for an option that the command line does not use.
    """

    def add_options(function: Any) -> Any:
        """Add the options, the last one first, as stacked decorators do."""
        for name, details in reversed(options.items()):
            words = f"{option_word(name)} {details.metavar}"
            if details.off:
                # The option is a flag that has an opposite.
                words = f"{option_word(name)}/--{details.off}"
            elif name == "tags":
                # Also accept --tag, because the commands that select entries have that option.
                words = f"--tags --tag {details.metavar}"
            add = option(words, details.help, default=None, show_default=False)
            function = add(function)
        return function

    return add_options


schedule_options = _declared({**KINDS, **REFINEMENTS})
task_option = _declared({"task": FIELD_OPTIONS["task"]})
#: Options of the fields of an entry other than its task, which is an argument of ``add``.
field_options = _declared({name: FIELD_OPTIONS[name] for name in FIELD_OPTIONS if name != "task"})


def say_changed(done: str, names: list[str]) -> None:
    """Say what was done, and to how many entries; or print the names of the entries as JSON."""
    echo_json(names)
    say(f"{done} {counted(len(names), 'entry', 'entries')}")

"""The group of all commands, and the one place where they are registered."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from .commands import Group

#: Command -> the module of this package that holds it, and its name there. In the order of the help.
_COMMANDS = {
    "list": ("listing", "list_"),
    "show": ("listing", "show"),
    "add": ("changing", "add"),
    "edit": ("changing", "edit"),
    "remove": ("changing", "remove"),
    "pause": ("acting", "pause"),
    "resume": ("acting", "resume"),
    "run": ("acting", "run"),
    "next": ("upcoming", "next_"),
    "quarantine": ("quarantine", "quarantine"),
    "locks": ("locks", "locks"),
    "pipelines": ("pipelines", "pipelines"),
    "watch": ("watch", "watch"),
    "export": ("backup", "export_"),
    "plan": ("planning", "plan"),
    "apply": ("planning", "apply"),
    "status": ("status", "status"),
    "health": ("health", "health"),
    "doctor": ("doctor", "doctor"),
    "import": ("moving", "import_"),
    "shadow": ("moving", "shadow"),
}


class _LazyGroup(Group):
    """Loads the module of a command when that command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*_COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, attribute = _COMMANDS[cmd_name]
        command: click.Command = getattr(import_module(f".{module}", __package__), attribute)
        return command


@click.group(cls=_LazyGroup)
def redbeat(**_preload: Any) -> None:
    """Look after the schedule in Redis: entries, locks, pipelines, the beats.

    \b
    Examples:
      celery -A proj redbeat list
      celery -A proj redbeat add hello proj.say --every 30s --args '["hello"]'
      celery -A proj redbeat next --until "2026-12-01 00:00"

    Exit codes: 0 fine; 1 the request is wrong; 2 the server or the broker cannot be reached.
    """

"""The group of all commands, and the one place where they are registered."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from .command import Group

#: Module of this package -> the commands that it holds, by their names there. In the order of the help.
_MODULES = {
    "list_show": ("list_", "show"),
    "add_edit_remove": ("add", "edit", "remove"),
    "pause_resume_run": ("pause", "resume", "run"),
    "freezes": ("freeze", "freezes", "thaw"),
    "backfills": ("backfill", "backfills"),
    "next": ("next_",),
    "log": ("log",),
    "runs": ("runs",),
    "why": ("why",),
    "quarantine": ("quarantine",),
    "locks": ("locks",),
    "pipelines": ("pipelines",),
    "calendars": ("calendars",),
    "watch": ("watch",),
    ".web.command": ("web",),
    "export_import": ("export_",),
    "plan_apply": ("plan", "apply"),
    "status": ("status",),
    "incidents": ("incidents", "ack"),
    "health": ("health",),
    "doctor": ("doctor",),
    "import_shadow": ("import_", "shadow"),
}
#: Command -> its module, and its name there: with an underscore where the word is one of Python's.
_COMMANDS = {name.rstrip("_"): (module, name) for module, names in _MODULES.items() for name in names}


#: What is typed by those who do not know them yet.
_MEANT = {
    **dict.fromkeys(("unpause", "enable"), "resume"),
    **dict.fromkeys(("disable", "stop"), "pause"),
    **dict.fromkeys(("failed", "failures", "errors"), "runs --failed"),
    **dict.fromkeys(("history", "results"), "runs"),
    **dict.fromkeys(("changes", "audit", "who"), "log"),
    **dict.fromkeys(("leader", "beats", "info", "state"), "status"),
    **dict.fromkeys(("upcoming", "preview"), "next"),
    **dict.fromkeys(("entries", "schedule", "schedules", "ls"), "list"),
    **dict.fromkeys(("rerun", "replay", "catchup"), "backfill"),
    **dict.fromkeys(("delete", "rm"), "remove"),
    **dict.fromkeys(("check", "ping"), "health"),
    **dict.fromkeys(("create", "new"), "add"),
    **dict.fromkeys(("update", "change", "set"), "edit"),
    **dict.fromkeys(("trigger", "start", "execute"), "run"),
    **dict.fromkeys(("describe", "get", "inspect"), "show"),
    **dict.fromkeys(("ui", "page", "dashboard"), "web"),
    **dict.fromkeys(("monitor", "top"), "watch"),
    **dict.fromkeys(("backup", "dump"), "export"),
    **dict.fromkeys(("restore", "load"), "import"),
    "acknowledge": "ack",
    "unfreeze": "thaw",
    "explain": "why",
    "diff": "plan",
}


class _LazyGroup(Group):
    """Loads the module of a command when that command is asked for."""

    meant = _MEANT

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

    Exit codes: 0 fine; 1 the request is wrong; 2 the server or the broker cannot be reached; 3
    and 4 as the help of a command says.
    """

"""Group of all commands, with the table of the commands."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from .._base.actors import by_way
from .command import Group, failure_of, show_warnings
from .output import JSON, tolerate_any_text

#: Section of the help -> module -> functions of its commands, in the order of the help. A function
#: has an underscore at its end if Python itself uses the name of the command. The page of the
#: documentation has the same sections.
_SECTIONS = {
    "Entries": {".entries": "list_ show add edit remove"},
    "Stop and run": {
        ".entries": "pause resume run",
        ".many": "freeze freezes thaw calendars backfill backfills",
    },
    "What comes": {".runs": "next_ watch"},
    "What became of runs": {".runs": "runs why log", ".status": "incidents ack"},
    "Beats": {".status": "status health doctor"},
    "Repair": {".repair": "quarantine locks pipelines"},
    "Files and moving": {".files": "plan apply export_ import_ shadow"},
    "In a browser": {"..web.command": "web"},
}

#: Command -> its module, and the name of its function.
_COMMANDS = {
    name.rstrip("_"): (module, name)
    for modules in _SECTIONS.values()
    for module, names in modules.items()
    for name in names.split()
}


class _Redbeat(Group):
    """Group that imports the module of a command when that command is called.

    It turns the errors of all commands into a Failure, and prints warnings of the log.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*_COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, name = _COMMANDS[cmd_name]
        command: click.Command = getattr(import_module(module, __package__), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands in sections, with their whole summaries, which click would cut."""
        for heading, modules in _SECTIONS.items():
            rows = []
            for function in " ".join(modules.values()).split():
                name = function.rstrip("_")
                command = self.get_command(ctx, name)
                if command is not None:
                    rows.append((name, command.get_short_help_str(limit=1000)))
            with formatter.section(heading):
                formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> Any:
        # In an interactive shell of click, one context serves many commands, and may still have the
        # --json of the last one.
        ctx.meta[JSON] = False
        tolerate_any_text()
        show_warnings()
        with by_way("cli"):
            try:
                return super().invoke(ctx)
            except Exception as exc:
                failure = failure_of(ctx.obj.app, exc)
                if failure is None:
                    raise
                raise failure from exc


@click.group(cls=_Redbeat)
def redbeat(**_preload: Any) -> None:
    """Manage the schedule in Redis: entries, runs, beats, locks and pipelines.

    \b
    Examples:
      celery -A proj redbeat list
      celery -A proj redbeat add hello proj.say --every 30s --args '["hello"]'
      celery -A proj redbeat next --until "2026-12-01 00:00"

    Exit codes: 0 fine; 1 the request is wrong; 2 the server or the broker cannot be reached; for 3
    and 4, see the help of the command.
    """

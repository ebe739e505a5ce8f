"""Group of all commands, with the table of the commands and the explanation of their errors.

Every command of Celery imports this module, so it imports little at its top.
"""

from __future__ import annotations

import errno
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import islice
from shlex import quote
from typing import TYPE_CHECKING, Any

import click
from click_didyoumean import DYMMixin

from .._base.actors import by_way
from .._base.errors import EntryNotFound, InvalidEntry, RedbeatError
from .._base.text import nearest_hint, text_of
from .command import JSON, WRONG_REQUEST, Failure, ServerFailure, say, tolerate_any_text

if TYPE_CHECKING:
    from celery import Celery

#: Section of the help -> module -> functions of its commands, in the order of the help. A function
#: has an underscore at its end if Python itself uses the name of the command. The page of the
#: documentation has the same sections.
_SECTIONS = {
    "Entries": {".entries": "list_ show add edit remove"},
    "Stop and run": {
        ".entries": "pause resume run",
        ".many": "freeze thaw calendars backfill backfills",
    },
    "What comes": {".runs": "next_ watch"},
    "What became of runs": {".runs": "runs why log incidents ack"},
    "Beats": {".operating": "status health doctor"},
    "Repair": {".operating": "quarantine locks pipelines"},
    "Files and moving": {".files": "plan apply export_ import_ shadow"},
    "In a browser": {"..web.command": "web"},
}

#: Maximum number of names that are compared with an unknown name. More would delay the error.
_COMPARED = 20_000

#: Command -> its module, and the name of its function.
_COMMANDS = {
    name.rstrip("_"): (module, name)
    for modules in _SECTIONS.values()
    for module, names in modules.items()
    for name in names.split()
}


class Group(DYMMixin, click.Group):  # type: ignore[misc]  # DYMMixin ships no types
    """A group of commands, which suggests similar names for an unknown one.

    A wrong command line exits with 1, like any wrong request. Click would exit with 2, which here
    means that the server cannot be reached. A group that has the command ``list`` calls it if the
    command line names no command.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> Any:
        """Parse the arguments; if there are none, the command ``list`` is called."""
        if not args and "list" in self.commands:
            args = ["list"]
        with _wrong_request():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. The error of a wrong value names the option that has it."""
        with _wrong_request():
            try:
                return super().invoke(ctx)
            except InvalidEntry as exc:
                command = self.get_command(ctx, ctx.invoked_subcommand or "")
                raise _naming_option(exc, command) from exc


@contextmanager
def _wrong_request() -> Iterator[None]:
    """Give the error of a wrong command line the exit code of a wrong request."""
    try:
        yield
    except click.UsageError as exc:
        exc.exit_code = WRONG_REQUEST  # type: ignore[misc]  # click reads it from the instance
        raise


def _naming_option(exc: InvalidEntry, command: click.Command | None) -> InvalidEntry:
    """Return the same error with the option of a command in place of a field, if it has one."""
    field = re.split(r"[.\[]", exc.field)[0]
    for param in command.params if command else ():
        if field == param.name or f"--{field}" in param.opts:
            return exc.at(exc.field.replace(field, param.opts[0], 1), exc.entry)
    return exc


class _Redbeat(Group):
    """Group that imports the module of a command when that command is called.

    It turns the errors of all commands into a Failure, and prints warnings of the log.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*_COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of a command, and return the command; ``None`` if there is none."""
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
        """Run the command that was called, and turn its error into a Failure."""
        # In an interactive shell of click, one context serves many commands, and may still have the
        # --json of the command before.
        ctx.meta[JSON] = False
        tolerate_any_text()
        _show_warnings()
        # The record of changes says that they were made by the command line.
        with by_way("cli"):
            try:
                return super().invoke(ctx)
            except Exception as exc:
                failure = _failure_of(ctx.obj.app, exc)
                if failure is None:
                    raise
                raise failure from exc


class _StderrHandler(logging.Handler):
    """Handler that prints log records as lines on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        say(f"{record.levelname.capitalize()}: {record.getMessage()}", err=True)


def _show_warnings() -> None:
    """Have warnings of the log printed, unless the app has set up logging.

    For example, a warning names the entries that a list leaves out. Without a handler, Celery's
    loggers would print nothing.
    """
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(_StderrHandler(logging.WARNING))


def _failure_of(app: Celery, exc: Exception) -> Failure | None:
    """Return the Failure for an error that can be explained to a user.

    ``None`` for an error that is a defect of the program, and for the error of an output that
    nobody reads any more.
    """
    # Import these modules only after an error, because they load redis-py.
    from kombu.exceptions import OperationalError

    from ..interchange.move_in import Unreadable
    from ..settings import Settings
    from ..store.connections import FAULTS, Backend, with_advice
    from ..store.server_check import failover_faults

    if isinstance(exc, EntryNotFound) and exc.entry is not None:
        return _not_stored(app, str(exc), exc.entry)
    if isinstance(exc, Unreadable):
        return ServerFailure(str(exc))
    if isinstance(exc, RedbeatError):
        return Failure(str(exc))
    if isinstance(exc, OperationalError):
        return ServerFailure(f"cannot reach the broker: {text_of(exc)}")
    # EPIPE means that nobody reads the output any more. Click itself then exits without a message.
    is_closed_output = isinstance(exc, OSError) and exc.errno == errno.EPIPE
    if is_closed_output or not isinstance(exc, FAULTS):
        return None
    settings = Settings.from_app(app)
    why = text_of(with_advice(exc, settings.key_prefix))
    hints = "".join(f"; {fault.what}" for fault in failover_faults(app))
    return ServerFailure(f"cannot use {Backend(settings).display_url}: {why}{hints}")


def _not_stored(app: Celery, message: str, name: str) -> Failure:
    """Return the Failure for an entry that is not stored, with the reason or a hint.

    The entry may be in quarantine (the beat could not use it, and has set it aside), or the beat
    may have refused it in ``beat_schedule``. Otherwise similar names are suggested.
    """
    from ..api.schedules import Schedules
    from ..store.connections import FAULTS

    schedules = Schedules(app)
    try:
        record = schedules.quarantined().get(name)
        if record is not None:
            command = f"celery -A ... redbeat quarantine release {quote(name)}"
            where = f"it is in quarantine: {record.get('error')}"
            return Failure(f"{message}; {where}; mend that, then: {command}")
        error = schedules.refused().get(name)
        if error is not None:
            return Failure(f"{message}; the beat refuses the one in beat_schedule: {error}")
        hint = nearest_hint(name, islice(schedules, _COMPARED))
        return Failure(f"{message}; {hint}" if hint else message)
    except FAULTS:
        return Failure(message)  # The server fails now, so there is no hint.


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

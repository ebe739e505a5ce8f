"""Base of all commands: their class, shared options, exit codes, and access to the app.

Every command of Celery imports this module, so it imports little at its top.
"""

from __future__ import annotations

import errno
import logging
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from shlex import quote
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click
from click_didyoumean import DYMMixin

from .._base.errors import EntryNotFound, InvalidEntry, RedbeatError
from .._base.fields import length
from .._base.text import nearest_hint, text_of
from ..operate.clean_text import clean
from .output import JSON, say

if TYPE_CHECKING:
    from celery import Celery

    from ..api.schedules import Schedules

_F = TypeVar("_F", bound=Callable[..., Any])

#: Exit code for a wrong request. A command with further codes names them in its help.
WRONG_REQUEST = 1

#: Exit code for a server or a broker that cannot be reached, or refuses a command.
NO_SERVER = 2

#: Exit code of a command that has worked, but has findings or has left something out.
INCOMPLETE = 3

#: Explanation of a list of runs that is empty.
RECORDING = "Workers record runs if their app has called install(app)."

#: Maximum number of names that are compared with an unknown name. More would delay the error.
_COMPARED = 20_000


class Failure(click.ClickException):
    """Error of a wrong request, such as an unknown entry or a wrong value; shown as one line."""

    exit_code = WRONG_REQUEST

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(clean(message).split()))


class ServerFailure(Failure):
    """Error of a server or a broker that cannot be reached, or refuses a command."""

    exit_code = NO_SERVER


class Group(DYMMixin, click.Group):  # type: ignore[misc]  # DYMMixin ships no types
    """A group of commands, which suggests similar names for an unknown one.

    A wrong command line exits with 1, like any wrong request. Click would exit with 2, which here
    means that the server cannot be reached. Without a command, a group that has ``list`` lists.
    """

    group_class = type

    def parse_args(self, ctx: click.Context, args: list[str]) -> Any:
        if not args and "list" in self.commands:
            args = ["list"]
        with _explaining_usage(ctx):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        with _explaining_usage(ctx):
            return super().invoke(ctx)


@contextmanager
def _explaining_usage(ctx: click.Context) -> Iterator[None]:
    """Turn a usage error into a Failure that names the command and its ``--help``."""
    try:
        yield
    except click.UsageError as exc:
        if exc.message.startswith("Usage:"):
            # The group was called without a command. Click raises the group's help as an error, so
            # print that.
            exc.show()
            ctx.exit(WRONG_REQUEST)
        # The error usually has the context of the command at fault. Without it, the group knows
        # which command was called.
        path = f"{ctx.command_path} {ctx.invoked_subcommand or ''}"
        if exc.ctx is not None:
            path = exc.ctx.command_path
        raise Failure(f"{exc.format_message()} ({path} --help)") from None


class _StderrHandler(logging.Handler):
    """Handler that prints log records as lines on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        say(f"{record.levelname.capitalize()}: {record.getMessage()}", err=True)


def show_warnings() -> None:
    """Have warnings of the log printed, unless the app has set up logging.

    For example, a warning names the entries that a list leaves out. Without a handler, Celery's
    loggers would print nothing.
    """
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(_StderrHandler(logging.WARNING))


def failure_of(app: Celery, exc: Exception) -> Failure | None:
    """Return the Failure for an error that can be explained to a user.

    ``None`` for any other error, which is a defect of the program, and for an output that nobody
    reads any more.
    """
    # Import these only now, because they load redis-py.
    from kombu.exceptions import OperationalError

    from ..interchange.move_in import Unreadable
    from ..settings import Settings, key_root
    from ..store.connections import FAULTS, Backend, refusal
    from ..store.server_check import failover

    if isinstance(exc, EntryNotFound) and exc.entry is not None:
        return _not_stored(app, str(exc), exc.entry)
    if isinstance(exc, Unreadable):
        return ServerFailure(str(exc))
    if isinstance(exc, RedbeatError):
        return Failure(str(exc))
    if isinstance(exc, OperationalError):
        return ServerFailure(f"cannot reach the broker: {text_of(exc)}")
    # EPIPE means that nobody reads the output any more. Click itself then exits without a message.
    if not isinstance(exc, FAULTS) or (isinstance(exc, OSError) and exc.errno == errno.EPIPE):
        return None
    settings = Settings.from_app(app)
    why = text_of(refusal(exc, key_root(settings.key_prefix)))
    hints = "".join(f"; {fault.what}" for fault in failover(app))
    return ServerFailure(f"cannot use {Backend(settings).display_url}: {why}{hints}")


def unknown(message: str, name: str, known: Iterable[str]) -> Failure:
    """Return the Failure for an unknown name, with the most similar known name.

    Parameters:
        message: error without that name.
    """
    hint = nearest_hint(name, known)
    return Failure(f"{message}; {hint}" if hint else message)


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
        return unknown(message, name, islice(schedules, _COMPARED))
    except FAULTS:
        return Failure(message)  # The server fails now, so there is no hint.


class Length(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic from click 8.4 on
    """Type of an option whose value is a length of time. The command gets seconds.

    Parameters:
        least: the shortest length in seconds.
    """

    name = "length"

    def __init__(self, least: float = 0.0) -> None:
        self._kind = length(least, math.inf)

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> float:
        where = self.name if param is None else param.opts[0]
        try:
            return self._kind.read(where, value)  # type: ignore[no-any-return]
        except InvalidEntry as exc:
            raise Failure(str(exc)) from None


def option(words: str, help_text: str, **details: Any) -> Callable[[_F], _F]:
    """Return an option of a command.

    Parameters:
        words: names of the option, the name of its parameter if that differs, and a word in
            capitals that stands for the value, such as ``--from start INSTANT``. An option without
            such a word and without a ``type`` is a flag.
        help_text: help of the option. A default is added to it.
        details: further arguments of ``click.option``.
    """
    names = [word for word in words.split() if not word.isupper()]
    kind = " ".join(words.split()[len(names) :])
    if kind:
        details["metavar"] = kind
    elif "type" not in details:
        details["is_flag"] = True
    details.setdefault("show_default", "default" in details)
    return click.option(*names, help=help_text, **details)


def _note_json(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    """Note in the context whether ``--json`` is used."""
    ctx.meta[JSON] = value


json_option = option(
    "--json",
    "Print JSON, with times in UTC.",
    expose_value=False,
    callback=_note_json,
)

note_option = option(
    "--note TEXT",
    "Why, for the record of changes.",
    default="",
    show_default=False,
)


def limit_option(default: int, what: str) -> Callable[[_F], _F]:
    """Return the option ``--limit``.

    Parameters:
        default: its default.
        what: plural of what is limited, for the help.
    """
    return option("--limit N", f"How many {what} at most.", type=click.IntRange(1), default=default)


name_argument = click.argument("name")


def bare_app() -> Celery:
    """Return the app of ``-A``, without loading its tasks."""
    app: Celery = click.get_current_context().obj.app
    return app


def load_app() -> Celery:
    """Return the app of ``-A``, after importing its modules, so that its tasks are registered."""
    from .._base.celery_app import load_tasks
    from ..settings import check_timezone

    app = bare_app()
    check_timezone(app)
    load_tasks(app)
    return app


def load_schedules() -> Schedules:
    """Return the schedule of the app."""
    from ..api.schedules import Schedules

    return Schedules(load_app())


def exit_with(code: int) -> NoReturn:
    """End the command with an exit code."""
    click.get_current_context().exit(code)

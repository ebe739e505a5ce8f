"""What every command is made of: its class, the options that many share, and the way to the app."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..actors import by_way
from ..durations import seconds_of
from ..storage.replies import text
from .exit_codes import WRONG_REQUEST, Failure, explained
from .output import JSON, say, tolerate_any_text

if TYPE_CHECKING:
    from celery import Celery

    from ..api.schedules import Schedules
    from ..storage.store import Store

_F = TypeVar("_F", bound=Callable[..., Any])


#: Characters of a summary that are shown: click would cut it where a line ends.
_WHOLE = 1000

_EXIT_CODES = "Exit codes: 0 fine; 1 the request is wrong; 2 the server or the broker cannot be reached."

#: Names that are shown where the shell completes one, and seconds that the server is given for it.
_COMPLETED, _PATIENCE = 100, 1.0


class Command(click.Command):
    """A command whose function is given the context first, and whose failures are one line and an exit code; see
    :mod:`redbeat_lite.cli.exit_codes`."""

    def get_short_help_str(self, limit: int = 45) -> str:
        return super().get_short_help_str(_WHOLE)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if "Exit codes:" not in (self.help or ""):
            formatter.write_paragraph()
            formatter.write_text(_EXIT_CODES)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[JSON] = False  # and not what a command before was told, where a shell keeps the context above both
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        tolerate_any_text()
        callback: Any = self.callback
        with _warnings_said(), explained(ctx), by_way("cli"):
            return ctx.invoke(callback, ctx, **ctx.params)


class Group(click.Group):
    """A group of such commands. What is wrong with the words on the command line exits with 1, like any wrong request:
    click's own code for that is 2, which here means that there is no server."""

    command_class = Command
    group_class = type
    #: Words that others have for a command of ours, which is not spelt like them -> that command.
    meant: Mapping[str, str] = {}

    def get_short_help_str(self, limit: int = 45) -> str:
        return super().get_short_help_str(_WHOLE)

    def parse_args(self, ctx: click.Context, args: list[str]) -> Any:
        with _wrong_words(ctx):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        with _wrong_words(ctx):
            return super().invoke(ctx)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args[0] not in self.list_commands(ctx) and not args[0].startswith("-"):
            # What is near, and the nearest alone: nobody who types "unpuase" or "restore" means to pause or to remove.
            near = get_close_matches(args[0], [*self.list_commands(ctx), *self.meant], n=1, cutoff=0.78)
            hint = f" Did you mean {self.meant.get(near[0], near[0])}?" if near else ""
            raise click.UsageError(f"No such command {args[0]!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)


class _Say(logging.Handler):
    """Prints what is logged to stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        say(f"{record.levelname.capitalize()}: {record.getMessage()}", err=True)


@contextmanager
def _warnings_said() -> Iterator[None]:
    """Have warnings said, such as of what a list leaves out: Celery's loggers keep them to themselves otherwise. An app
    that has set logging up has them where it wants them."""
    root = logging.getLogger()
    if root.handlers:
        yield
        return
    handler = _Say(logging.WARNING)
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)


@contextmanager
def _wrong_words(ctx: click.Context) -> Iterator[None]:
    try:
        yield
    except click.UsageError as exc:
        if exc.message.startswith("Usage:"):  # nothing is wrong: it is the help, for who names no command
            exc.show()
            ctx.exit(WRONG_REQUEST)
        where = [exc.ctx.command_path] if exc.ctx else [ctx.command_path, ctx.invoked_subcommand or ""]
        raise Failure(f"{exc.format_message()} ({' '.join(where)} --help)") from None


class Length(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic from click 8.4 on
    """A length of time, as seconds."""

    name = "length"

    def __init__(self, least: float = 0.0) -> None:
        self._least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = seconds_of(value)
        if seconds is None or seconds < self._least:
            where = param.opts[0] if param is not None else self.name
            least = f", at least {self._least:g} s" if self._least else ""
            raise Failure(f"{where}: expected a length of time such as 30s or 1h30m{least}, got {value!r}")
        return seconds


def together(*options: Callable[[Any], Any]) -> Callable[[_F], _F]:
    """Several options and arguments as one decorator, in the order of the help."""

    def add(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def _noted(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    ctx.meta[JSON] = value


#: A command tells both what scripts and what people read; :mod:`redbeat_lite.cli.output` prints what was asked for.
json_option = click.option(
    "--json", is_flag=True, expose_value=False, callback=_noted, help="Print JSON, with times in UTC."
)


def completed(
    names: Callable[[Store, str], Iterable[str]],
) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """How the shell completes one of these names; where the schedule is not to be had, it completes nothing."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
        from celery import current_app
        from celery.app.utils import find_app

        from ..settings import Settings
        from ..storage.store import Store

        try:
            given = ctx.find_root().params.get("app")  # -A is no app yet
            app = find_app(given) if isinstance(given, str) else given or current_app
            store = Store.of(Settings.from_app(app), timeout=_PATIENCE)
            found = (name for name in names(store, incomplete) if name.startswith(incomplete))
            return sorted(islice(found, _COMPLETED))
        except Exception:  # noqa: BLE001 - a traceback would be written into the command line
            return []

    return complete


#: Completes the names of entries.
entry_names = completed(lambda store, start: (text(name) for name, _ in store.scan(start)))

#: The name of an entry.
name_argument = click.argument("name", shell_complete=entry_names)


def app_of(ctx: click.Context) -> Celery:
    """The app of ``-A``, with its tasks and whatever else its modules register."""
    from ..app_tasks import load_tasks
    from ..settings import check_timezone

    app: Celery = ctx.obj.app
    check_timezone(app)
    load_tasks(app)
    return app


def schedules_of(ctx: click.Context) -> Schedules:
    """The schedule of the app."""
    from ..api.schedules import Schedules

    return Schedules(app_of(ctx))

"""Base of all commands: their errors and exit codes, shared options, access to the app, and output.

Every command of Celery imports this module, so it imports little at its top. A command calls
functions for JSON and functions for people. With ``--json``, only the functions for JSON print.
"""

from __future__ import annotations

import io
import json
import math
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click
from msgspec import Struct, structs

from .._base.errors import InvalidEntry
from .._base.fields import length
from .._base.text import clean
from .._base.times import in_zone

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

#: Sentence that explains why a list of runs may be empty.
RECORDING = "Workers record runs if their app has called install(app)."

#: Key in ``meta`` of the click context. Its value says whether ``--json`` is used.
JSON = "redbeat_lite.json"

#: Spaces between two columns.
_GAP = 2

#: Least width to which a text is broken into lines.
_LEAST = 20


class Failure(click.ClickException):
    """Error of a wrong request, such as an unknown entry or a wrong value; shown as one line."""

    exit_code = WRONG_REQUEST

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(clean(message).split()))


class ServerFailure(Failure):
    """Error of a server or a broker that cannot be reached, or refuses a command."""

    exit_code = NO_SERVER


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
        """Return the length in seconds; raise Failure if the value is no length."""
        # An error names the option.
        where = self.name if param is None else param.opts[0]
        try:
            return self._kind.read(where, value)  # type: ignore[no-any-return]
        except InvalidEntry as exc:
            raise Failure(str(exc)) from None


def option(words: str, help_text: str, **details: Any) -> Callable[[_F], _F]:
    """Return a decorator that adds an option to a command.

    Parameters:
        words: names of the option, the name of its parameter if that differs, and a word in
            capitals that stands for the value, such as ``--from start INSTANT``. An option without
            such a word and without a ``type`` is a flag.
        help_text: help of the option. A default is added to it.
        details: further arguments of ``click.option``.
    """
    names = [word for word in words.split() if not word.isupper()]
    # The words in capitals come last.
    metavar = " ".join(words.split()[len(names) :])
    if metavar:
        details["metavar"] = metavar
    elif "type" not in details:
        details["is_flag"] = True
    details.setdefault("show_default", "default" in details)
    return click.option(*names, help=help_text, **details)


def _remember_json(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    """Store in the context whether ``--json`` is used. Click calls this with the option's value."""
    ctx.meta[JSON] = value


json_option = option(
    "--json",
    "Print JSON, with times in UTC.",
    expose_value=False,
    callback=_remember_json,
)

note_option = option(
    "--note TEXT",
    "Why, for the record of changes.",
    default="",
    show_default=False,
)


def limit_option(default: int, what: str) -> Callable[[_F], _F]:
    """Return a decorator that adds the option ``--limit`` to a command.

    Parameters:
        default: default value of the option.
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


# -- Output: JSON with --json, otherwise lines, fields and tables for people -----------------------


def say(line: str = "", *, err: bool = False) -> None:
    """Print a line for people. With ``--json``, nothing is printed.

    Parameters:
        err: print to stderr, even with ``--json``.
    """
    if err or not in_json():
        click.echo(clean(line), err=err)


def in_json() -> bool:
    """Return whether ``--json`` is used."""
    return bool(click.get_current_context().meta.get(JSON))


def echo_json(value: Any, *, indent: int | None = 2) -> None:
    """With ``--json``, print a value as one JSON document in ASCII.

    A datetime becomes ISO 8601 in UTC, a dataclass or an entry an object, and an iterator a list.
    """
    if in_json():
        click.echo(json.dumps(value, indent=indent, default=_jsonable))


def _jsonable(value: object) -> Any:
    """Return a value as a type that JSON knows, for ``json.dumps(default=…)``.

    Values of other types, such as dates and calendars, become their texts.
    """
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Struct):
        return structs.asdict(value)
    if hasattr(value, "as_dict"):
        return value.as_dict()  # This is an entry, whose module this module does not import.
    if isinstance(value, Iterator):
        return [*value]
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    return str(value)


def tolerate_any_text() -> None:
    """Make the output print ``?`` for a character that its encoding lacks, and raise no error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower() != "utf-8":
            stream.reconfigure(errors="replace")


def echo_table(
    headers: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    empty: str = "",
    limit: int | None = None,
) -> None:
    """Print a table; see :func:`column_lines`.

    Parameters:
        empty: text to print if there are no rows.
        limit: maximum number of rows to print. If there are more, a last line says so.
    """
    if in_json():
        return
    all_rows = [*rows]
    if not all_rows:
        say(empty)
        return
    _echo_lines([headers, *all_rows[:limit]])
    if limit is not None and len(all_rows) > limit:
        say(f"There are more: --limit {2 * limit}")


def echo_fields(fields: Iterable[tuple[str, object]]) -> None:
    """Print one line per pair of a name and a value. A pair with the value ``None`` is left out."""
    if not in_json():
        _echo_lines([field for field in fields if field[1] is not None])


def _echo_lines(rows: Sequence[Sequence[object]]) -> None:
    """Print rows in columns; see :func:`column_lines`."""
    for line in column_lines(rows):
        click.echo(line)


def column_lines(rows: Sequence[Sequence[object]]) -> Iterator[str]:
    """Yield the lines of rows in columns, with whole values. ``None`` becomes a dash.

    The last cell of a row is broken between words, so that the row fits the terminal. If the other
    cells are too wide for that, the terminal breaks the line.
    """
    # The labels of a row are all its cells but the last one, padded to the widths of the columns.
    texts = [[_text(cell) for cell in row] for row in rows]
    labels = [[clean(cell) for cell in row[:-1]] for row in texts]
    widths = [max(map(len, column)) + _GAP for column in zip(*labels, strict=True)]
    # If a program reads the output, there is no terminal. Then the width is maxsize, so that the
    # program gets whole lines.
    columns = shutil.get_terminal_size((sys.maxsize, 24)).columns
    room = max(columns - sum(widths), _LEAST)
    for label, text in zip(labels, texts, strict=True):
        start = "".join(map(str.ljust, label, widths))
        # splitlines() returns no line for an empty cell, and wrap() no piece for an empty line. In
        # both cases, yield an empty line.
        for line in text[-1].splitlines() or [""]:
            for piece in textwrap.wrap(clean(line), room, break_on_hyphens=False) or [""]:
                yield f"{start}{piece}".rstrip()
                start = " " * sum(widths)  # Only the first line of a row has the labels.


def _text(cell: object) -> str:
    """Return the text of a cell; a dash for ``None``."""
    if cell is None:
        return "-"
    return when(cell) if isinstance(cell, datetime) else str(cell)


def app_zone() -> tzinfo:
    """Return the time zone of the app of ``-A``, in which instants are read and shown."""
    # Import this module only here, because it loads the rules.
    from ..rules.zones import portable

    return portable(bare_app().timezone)


def when(instant: datetime) -> str:
    """Return an instant to the second, with its offset, in the app's zone."""
    return in_zone(instant, app_zone())

"""Output of commands: JSON with ``--json``, otherwise lines, fields and tables for people.

A command calls functions of both kinds. With ``--json``, only the function for JSON prints.
"""

from __future__ import annotations

import io
import json
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime, tzinfo
from typing import Any

import click
from msgspec import Struct, structs

from .._base.times import in_zone
from ..operate.clean_text import clean

#: Key in ``meta`` of the click context. Its value says whether ``--json`` is used.
JSON = "redbeat_lite.json"

#: Spaces between two columns.
_GAP = 2

#: Least width to which a text is broken into lines.
_LEAST = 20


def say(line: str = "", *, err: bool = False) -> None:
    """Print a line for people. With ``--json``, nothing is printed.

    Parameters:
        err: print to stderr, even with ``--json``.
    """
    if err or not in_json():
        click.echo(clean(line), err=err)


def in_json() -> bool:
    """Return whether ``--json`` is used."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(JSON))


def echo_json(value: Any, *, indent: int | None = 2) -> None:
    """With ``--json``, print a value as one JSON document in ASCII.

    A datetime becomes ISO 8601 in UTC, a dataclass an object, and an iterator a list.
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
    if isinstance(value, Iterator):
        return [*value]
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    return str(value)


def tolerate_any_text() -> None:
    """Have characters that the output's encoding lacks printed as ``?``, without an error."""
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
        for line in text[-1].splitlines() or [""]:
            for piece in textwrap.wrap(clean(line), room, break_on_hyphens=False) or [""]:
                yield f"{start}{piece}".rstrip()
                start = " " * sum(widths)  # Only the first line of a row has the labels.


def _text(cell: object) -> str:
    if cell is None:
        return "-"
    return when(cell) if isinstance(cell, datetime) else str(cell)


def app_zone() -> tzinfo:
    """Return the time zone of the app of ``-A``."""
    zone: tzinfo = click.get_current_context().obj.app.timezone
    return zone


def when(instant: datetime, zone: tzinfo | None = None) -> str:
    """Return an instant to the second, with its offset, by default in the app's zone."""
    return in_zone(instant, app_zone() if zone is None else zone)

"""Output of commands: JSON with ``--json``, otherwise lines, fields and tables for a terminal.

A command calls functions of both kinds. With ``--json``, only the functions for JSON print.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime, tzinfo
from itertools import islice
from typing import Any

import click
from msgspec import Struct, structs

from .._base.clock import elapsed
from .._base.times import in_zone
from ..operate.clean_text import BEYOND_ASCII, clean

#: Key in ``meta`` of the click context. Its value says whether ``--json`` is used.
JSON = "redbeat_lite.json"

#: Spaces between two columns of a table.
_GAP = 2

#: Indentation of a text that is printed below its row.
_INDENT = " " * 4

#: Least width to which a column is shrunk.
_LEAST = 8

#: Columns that are never cut, such as times and ids.
_RIGID = frozenset(
    (
        "",
        "AT",
        "FREEZE",
        "FROM",
        "ID",
        "KIND",
        "LAST",
        "LEASE",
        "NEXT RUN",
        "OUTCOME",
        "RUN",
        "RUNS",
    )
).union(("SCHEDULED", "SINCE", "STAGE", "STATE", "STEPS", "TOOK", "TRIES", "UNTIL", "WAIT"))

#: Columns that are shrunk last, because people need the full names for further commands.
_NAMES = ("NAME", "ENTRY")

#: Unprintable characters beyond ASCII. With ``ensure_ascii=False``, ``json.dumps`` does not escape
#: them. It always escapes the unprintable characters of ASCII.
_UNPRINTABLE_IN_JSON = re.compile(f"[{BEYOND_ASCII}]")

#: Columns whose cells begin with a word of this package, and the colours of these words.
_COLOURED = ("NEXT RUN", "OUTCOME", "STATE", "STATUS")
_COLOURS = {
    **dict.fromkeys(("succeeded", "running", "RUNNING", "SUCCEEDED"), "green"),
    **dict.fromkeys(("failed", "expired", "revoked", "rejected", "lost"), "red"),
    **dict.fromkeys(("open", "FAILED", "failing"), "red"),
    **dict.fromkeys(("paused", "retrying", "ABORTED", "cancelled", "taken"), "yellow"),
    **dict.fromkeys(("frozen", "disabled", "finished", "manual"), "cyan"),
}
_MARK_COLOURS = {"✓": "green", "✗": "red", "▸": "green", "↻": "yellow"}


def say(line: str = "", *, err: bool = False, colour: str | None = None) -> None:
    """Print a line for people. With ``--json``, nothing is printed.

    Parameters:
        err: print to stderr, even with ``--json``.
        colour: colour of the line, if :func:`wants_colour`.
    """
    if err or not in_json():
        click.secho(clean(line), err=err, fg=colour if wants_colour() else None)


def show_progress(text: str) -> None:
    """Print the progress of long work on stderr, over the last such line. Only on a terminal."""
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{fitted(text, terminal_width())}", err=True, nl=False)


@contextmanager
def showing_progress(what: str) -> Iterator[None]:
    """Print once a second, by :func:`show_progress`, for how long the block has run.

    Parameters:
        what: work of the block, in words.
    """
    if not sys.stderr.isatty():
        yield
        return
    # Import this only here, because it loads Celery, and the probe of python -m redbeat_lite must
    # start without Celery.
    from .._base.threads import Ticker

    began = elapsed()
    ticker = Ticker(
        "progress",
        lambda: 1.0,
        lambda: show_progress(f"{what}: {elapsed() - began:.0f} s"),
    )
    ticker.start()
    try:
        yield
    finally:
        ticker.stop()
        ticker.join(1)
        show_progress("")


def in_json() -> bool:
    """Return whether ``--json`` is used."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(JSON))


def echo_json(value: Any, *, indent: int | None = 2) -> None:
    """With ``--json``, print a value as one JSON document.

    A datetime becomes ISO 8601 in UTC, a dataclass an object, and an iterator a list.
    """
    if in_json():
        click.echo(json_text(value, indent=indent))


def json_text(value: Any, *, indent: int | None = None) -> str:
    """Return a value as JSON that every encoding of the output can print."""
    if is_unicode(sys.stdout):
        return unicode_json(value, indent=indent)
    return json.dumps(value, indent=indent, default=_jsonable)


def unicode_json(value: Any, *, indent: int | None = None) -> str:
    """Return a value as JSON with letters of all scripts, and without unprintable characters."""
    text = json.dumps(value, indent=indent, ensure_ascii=False, default=_jsonable)
    return _UNPRINTABLE_IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _jsonable(value: object) -> Any:
    """Return a value of a type that JSON knows, for ``json.dumps(default=…)``."""
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
        if isinstance(stream, io.TextIOWrapper) and not is_unicode(stream):
            stream.reconfigure(errors="replace")


def is_unicode(stream: Any) -> bool:
    """Return whether the encoding of an output has all characters."""
    return str(getattr(stream, "encoding", None)).lower().startswith("utf")


def echo_table(
    headers: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    empty: str | None = None,
    limit: int | None = None,
    below: bool = False,
) -> None:
    """Print a table that fits the terminal; see :func:`table`.

    Parameters:
        empty: text to print if there are no rows; by default the headers are printed.
        limit: most rows to print. If there are more, a last line says so.
        below: if the table is too wide, print the last cell of each row uncut below the row.
    """
    if in_json():
        return
    # Read one row more than is printed, to know whether there are more.
    all_rows = [*islice(rows, None if limit is None else limit + 1)]
    if not all_rows and empty is not None:
        for line in empty.splitlines():
            say(line)
        return
    shown = all_rows[:limit]
    width = table_width()
    notes: list[object] = [None for _ in shown]
    if below and max(map(_columns, table(headers, shown, width=sys.maxsize))) > width:
        notes = [row[-1] for row in shown]
        headers = headers[:-1]
        shown = [row[:-1] for row in shown]
    header, *lines = table(headers, shown, width=width, paint=wants_colour())
    click.echo(header)
    for line, note in zip(lines, notes, strict=True):
        click.echo(line)
        if note is not None:
            for piece in _wrapped(clean(str(note)), max(width - len(_INDENT), 20)):
                say(f"{_INDENT}{piece}")
    if limit is not None and len(all_rows) > limit:
        say_more(limit)


def say_more(limit: int) -> None:
    """Print that there are more rows than the limit."""
    say(f"There are more: --limit {2 * limit}")


def echo_fields(fields: Iterable[tuple[str, object]]) -> None:
    """Print one line per pair of a name and a value. A pair with the value ``None`` is left out.

    Lines that are too long are broken between words. A name is cut to half the line.
    """
    shown = [(clean(name), _text(value)) for name, value in fields if value is not None]
    widest = max((_columns(name) for name, _ in shown), default=0)
    widest = min(widest, terminal_width() // 2)
    left = widest + _GAP
    room = max(terminal_width() - left, 20)
    for name, text in shown:
        label = _padded(_cut(name, widest), left)
        for line in text.splitlines() or [""]:
            for piece in _wrapped(clean(line), room):
                say(f"{label}{piece}".rstrip())
                label = " " * left


def terminal_width() -> int:
    """Return the columns of the terminal, or 80 where the output is no terminal."""
    return shutil.get_terminal_size((80, 24)).columns


def table_width() -> int:
    """Return the columns of the terminal; no bound where the output is no terminal.

    A program that reads a table gets whole values.
    """
    return shutil.get_terminal_size((sys.maxsize, 24)).columns


def table(
    headers: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    width: int,
    paint: bool = False,
) -> list[str]:
    """Return the lines of a table. A cell that is too long is cut with an ellipsis.

    Parameters:
        rows: cells; ``None`` becomes a dash, and a datetime is shown in the app's zone.
        width: columns of the terminal.
        paint: colour the words for states of entries and runs.
    """
    cells = [[*headers], *([clean(_text(cell, "-")) for cell in row] for row in rows)]
    widths = [max(map(_columns, column)) for column in zip(*cells, strict=True)]
    _shrink(widths, width, headers)
    for row in cells:
        for index, cell in enumerate(row):
            row[index] = _padded(_cut(cell, widths[index]), widths[index])
    gap = " " * _GAP
    lines = [_cut(gap.join(row).rstrip(), width) for row in cells]
    # If the table is still too wide, its lines are cut. Such lines get no colour, because the cut
    # counts codes of colours as characters, and could remove the code that ends a colour.
    is_cut = sum(widths) + _GAP * (len(widths) - 1) > width
    if is_cut or not paint:
        return lines
    painted = [gap.join(map(_painted, headers, row)) for row in cells[1:]]
    return [click.style(lines[0], bold=True), *painted]


def _text(value: object, missing: str = "") -> str:
    """Return the text of a cell; ``missing`` for ``None``."""
    if value is None:
        return missing
    return when(value) if isinstance(value, datetime) else str(value)


def _shrink(widths: list[int], room: int, headers: Sequence[str]) -> None:
    """Shrink the widest columns, in ``widths``, until all fit. Columns with names are last."""
    excess = sum(widths) + _GAP * (len(widths) - 1) - room
    elastic = [index for index, header in enumerate(headers) if header not in _RIGID]
    first = [index for index in elastic if headers[index] not in _NAMES]
    for columns in (first, elastic):
        while excess > 0 and columns:
            widest = max(columns, key=widths.__getitem__)
            if widths[widest] <= _LEAST:
                break
            widths[widest] -= 1
            excess -= 1


def _painted(header: str, cell: str) -> str:
    """Return a cell with the colour of its first word, or of each of its marks."""
    if header == "LAST":
        return "".join(click.style(mark, fg=_MARK_COLOURS.get(mark)) for mark in cell)
    word = cell.partition(" ")[0]
    if header in _COLOURED and word in _COLOURS:
        return click.style(cell, fg=_COLOURS[word])
    return cell


def wants_colour() -> bool:
    """Return whether the output is a terminal, and ``NO_COLOR`` and Celery's ``-C`` are not set."""
    context = click.get_current_context(silent=True)
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    if context is not None and getattr(context.obj, "no_color", False):
        return False
    return sys.stdout.isatty()


def fitted(line: str, width: int | None = None) -> str:
    """Return a line, cut to ``width`` columns, by default :func:`table_width`."""
    return _cut(clean(line), table_width() if width is None else width)


def app_zone() -> tzinfo:
    """Return the time zone of the app of ``-A``."""
    zone: tzinfo = click.get_current_context().obj.app.timezone
    return zone


def when(instant: datetime, zone: tzinfo | None = None) -> str:
    """Return an instant to the second, with its offset, by default in the app's zone."""
    return in_zone(instant, app_zone() if zone is None else zone)


def _columns(text: str) -> int:
    """Return the columns that a terminal needs for a text."""
    if text.isascii():
        return len(text)
    return sum(map(_columns_of, text))


def _columns_of(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _cut(text: str, width: int) -> str:
    """Return a text of at most ``width`` columns, with an ellipsis if it was cut."""
    if _columns(text) <= width:
        return text
    while text and _columns(text) > width - 1:
        text = text[:-1]
    return f"{text}…" if width > 0 else ""


def _padded(text: str, width: int) -> str:
    return text + " " * (width - _columns(text))


def _wrapped(text: str, width: int) -> list[str]:
    """Return the lines of a text, broken between words where that is possible."""
    lines = [""]
    for line in textwrap.wrap(text, width, break_on_hyphens=False):
        if lines[-1]:
            lines.append("")
        # textwrap counts characters, but some characters take two columns. So break a line again if
        # it is too wide.
        for character in line:
            if _columns(lines[-1]) + _columns_of(character) > width:
                lines.append("")
            lines[-1] += character
    return lines

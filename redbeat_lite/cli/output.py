"""Output of commands: JSON with ``--json``, or else lines, fields and tables that fit the terminal.

A command states both, for scripts and for people, and one of them is printed.
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

from .._base.clock import elapsed
from .._base.times import in_zone
from ..operate.clean_text import BEYOND_ASCII, clean

#: Key of the click context that says whether ``--json`` was given.
JSON = "redbeat_lite.json"

#: Columns of space between two columns of a table.
_GAP = 2

#: Space before a text that stands below its row.
_INDENT = " " * 4

#: Width that no column is cut below, as long as another column can be cut.
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
        "NEXT RUN",
        "OUTCOME",
        "RUN",
        "RUNS",
        "RUNS OUT",
    )
).union(("SCHEDULED", "SINCE", "STAGE", "STATE", "STEPS", "TOOK", "TRIES", "UNTIL", "WAIT"))

#: Columns that are cut last, because a reader who acts must know the names.
_NAMES = ("NAME", "ENTRY")

#: Unprintable characters beyond ASCII, which JSON leaves in texts. It escapes the others itself.
_UNPRINTABLE_IN_JSON = re.compile(f"[{BEYOND_ASCII}]")

#: Columns with words of this package, and the colours of these words.
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
    """Print a line for people, which ``--json`` leaves out.

    Parameters:
        err: print to stderr, with ``--json`` too.
        colour: of the line, on a terminal that wants colours.
    """
    if err or not in_json():
        click.secho(clean(line), err=err, fg=colour if wants_colour() else None)


def show_progress(text: str) -> None:
    """Show on stderr how far long work is, over the last such line; only on a terminal."""
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{fitted(text)}", err=True, nl=False)


@contextmanager
def showing_progress(what: str) -> Iterator[None]:
    """Show each second, as :func:`show_progress` does, for how long the block has run."""
    if not sys.stderr.isatty():
        yield
        return
    # This loads Celery, which the probe of python -m redbeat_lite does without.
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
    """Return whether ``--json`` was given."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(JSON))


def echo_json(value: Any, *, indent: int | None = 2) -> None:
    """Print a value as one JSON document, if ``--json`` was given.

    Datetimes become ISO 8601 in UTC, dataclasses objects, and iterators lists.
    """
    if in_json():
        click.echo(json_text(value, indent=indent))


def json_text(value: Any, *, indent: int | None = None) -> str:
    """Return a value as JSON that loses nothing in the encoding of the output."""
    if is_unicode(sys.stdout):
        return unicode_json(value, indent=indent)
    return json.dumps(value, indent=indent, default=_jsonable)


def unicode_json(value: Any, *, indent: int | None = None) -> str:
    """Return a value as JSON with letters of all scripts, and without unprintable characters."""
    text = json.dumps(value, indent=indent, ensure_ascii=False, default=_jsonable)
    return _UNPRINTABLE_IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _jsonable(value: object) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Iterator):
        return [*value]
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    return str(value)


def tolerate_any_text() -> None:
    """Print ``?`` for characters that the output's encoding lacks, and raise no error for them."""
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
        empty: the text to print if there are no rows; by default the headers alone.
        limit: the rows to print; a last line says that there are more.
        below: if the table is too wide, print the last column below each row, as a whole.
    """
    if in_json():
        return
    read = [*islice(rows, None if limit is None else limit + 1)]
    if not read and empty is not None:
        for line in empty.splitlines():
            say(line)
        return
    shown = read[:limit]
    width = terminal_width()
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
    if limit is not None and len(read) > limit:
        say_more(limit)


def say_more(limit: int) -> None:
    """Say that there are more rows than the limit."""
    say(f"There are more: --limit {2 * limit}")


def echo_fields(fields: Iterable[tuple[str, object]]) -> None:
    """Print names and values below each other; a value ``None`` is left out.

    Lines that are too long are broken between words. A name that would take more than half of the
    line is cut.
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


def table(
    headers: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    width: int,
    paint: bool = False,
) -> list[str]:
    """Return the lines of a table; cells that are too long are cut with an ellipsis.

    Parameters:
        rows: cells; ``None`` becomes a dash, and a datetime is shown in the app's zone.
        width: the columns of the terminal.
        paint: colour the words that say how entries and runs are.
    """
    cells = [[*headers], *([clean(_text(cell, "-")) for cell in row] for row in rows)]
    widths = [max(map(_columns, column)) for column in zip(*cells, strict=True)]
    _shrink(widths, width, headers)
    for row in cells:
        for index, cell in enumerate(row):
            row[index] = _padded(_cut(cell, widths[index]), widths[index])
    gap = " " * _GAP
    lines = [_cut(gap.join(row).rstrip(), width) for row in cells]
    # A table that is still too wide has its lines cut, and a cut line cannot be coloured: colour
    # codes count as characters, and a cut would lose the code that ends the colour.
    is_cut = sum(widths) + _GAP * (len(widths) - 1) > width
    if is_cut or not paint:
        return lines
    painted = [gap.join(map(_painted, headers, row)) for row in cells[1:]]
    return [click.style(lines[0], bold=True), *painted]


def _text(value: object, missing: str = "") -> str:
    if value is None:
        return missing
    return when(value) if isinstance(value, datetime) else str(value)


def _shrink(widths: list[int], room: int, headers: Sequence[str]) -> None:
    """Shrink the widest columns until all fit. Columns with names are shrunk last."""
    excess = sum(widths) + _GAP * (len(widths) - 1) - room
    soft = [index for index, header in enumerate(headers) if header not in _RIGID]
    first = [index for index in soft if headers[index] not in _NAMES]
    for columns in (first, soft):
        while excess > 0 and columns:
            widest = max(columns, key=widths.__getitem__)
            if widths[widest] <= _LEAST:
                break
            widths[widest] -= 1
            excess -= 1


def _painted(header: str, cell: str) -> str:
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
    """Return a line, cut to so many columns, by default the width of the terminal."""
    return _cut(clean(line), terminal_width() if width is None else width)


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
        # textwrap counts characters, and some of them take two columns.
        for character in line:
            if _columns(lines[-1]) + _columns_of(character) > width:
                lines.append("")
            lines[-1] += character
    return lines

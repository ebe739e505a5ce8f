"""What commands print: with ``--json`` JSON alone, else lines, fields and tables that fit the terminal.

A command tells both, what scripts read and what people read, and one of them is printed.
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
from itertools import islice, zip_longest
from typing import Any

import click

from ..clock import elapsed
from ..entries.words import in_zone, span

#: Where the context has whether ``--json`` was given.
JSON = "redbeat_lite.json"

_GAP = 2
#: Before what stands below a row; and more columns than any row has.
_INDENT, _ENDLESS = " " * 4, 1 << 30
#: No column is cut below this, as long as another one can be.
_LEAST = 8
#: Columns that are cut when the others cannot be cut any more: who acts has to know which one it is.
_NAMES = ("NAME", "ENTRY")
#: What would move the cursor, ring, or worse: entries may be named and described by anybody.
_BEYOND_ASCII = r"\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_UNPRINTABLE = re.compile(rf"[\x00-\x1f{_BEYOND_ASCII}]+")
#: Columns with words of this package, and what colour such a word has.
_COLOURED = ("NEXT RUN", "OUTCOME", "STATE", "STATUS")
_COLOURS = {
    **dict.fromkeys(("succeeded", "running", "RUNNING", "SUCCEEDED"), "green"),
    **dict.fromkeys(("failed", "expired", "revoked", "rejected", "lost", "open", "FAILED", "failing"), "red"),
    **dict.fromkeys(("paused", "retrying", "ABORTED", "cancelled", "taken"), "yellow"),
    **dict.fromkeys(("frozen", "disabled", "finished", "manual"), "cyan"),
}
_MARKS = {"✓": "green", "✗": "red", "▸": "green", "↻": "yellow"}
#: JSON itself escapes the others in a text, and puts line ends between them.
_UNPRINTABLE_IN_JSON = re.compile(f"[{_BEYOND_ASCII}]")


def say(line: str = "", *, err: bool = False, colour: str | None = None) -> None:
    """Print a line, whatever stands in it; all that commands print for people goes this way, and none with ``--json``.

    With ``err`` it goes to stderr, ``--json`` or not. It has its ``colour`` where a terminal wants that.
    """
    if err or not in_json():
        click.secho(clean(line), err=err, fg=colour if colour and wants_colour() else None)


def show_life(text: str) -> None:
    """Show on stderr, in one line that is drawn over, how far long work has come; nothing where that is no terminal."""
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{fitted(text)}", err=True, nl=False)


@contextmanager
def showing_life(what: str) -> Iterator[None]:
    """Show as :func:`show_life` does for how many seconds something goes on that prints nothing."""
    if not sys.stderr.isatty():
        yield
        return
    from ..threads import Ticker  # which loads Celery, and a probe prints, too

    began = elapsed()
    ticker = Ticker("sign of life", lambda: 1.0, lambda: show_life(f"{what}: {elapsed() - began:.0f} s"))
    ticker.start()
    try:
        yield
    finally:
        ticker.stop()
        ticker.join(1)
        show_life("")


def in_json() -> bool:
    """Whether ``--json`` was given."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(JSON))


def echo_json(value: Any, *, indent: int | None = 2) -> None:
    """Print a value as one JSON document, with ``--json``; datetimes as ISO 8601 in UTC, dataclasses as objects,
    iterators as lists."""
    if in_json():
        click.echo(json_text(value, indent=indent))


def json_text(value: Any, *, indent: int | None = None) -> str:
    """A value as JSON that loses nothing in the output's encoding; on one line unless indented."""
    if not is_unicode(sys.stdout):
        return json.dumps(value, indent=indent, default=_jsonable)
    return unicode_json(value, indent=indent)


def unicode_json(value: Any, *, indent: int | None = None) -> str:
    """A value as JSON that shows letters of all scripts, and escapes what would confuse a terminal."""
    text = json.dumps(value, indent=indent, ensure_ascii=False, default=_jsonable)
    return _UNPRINTABLE_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def tolerate_any_text() -> None:
    """Have what the output's encoding does not know, such as an ellipsis, printed as ``?`` instead of ending us."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and not is_unicode(stream):
            stream.reconfigure(errors="replace")


def is_unicode(stream: Any) -> bool:
    """Whether an output knows all characters."""
    return str(getattr(stream, "encoding", None)).lower().startswith("utf")


def _jsonable(value: object) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Iterator):
        return [*value]
    return value.astimezone(UTC).isoformat() if isinstance(value, datetime) else str(value)


def echo_table(
    headers: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    empty: str | None = None,
    rigid: Sequence[str] = (),
    limit: int | None = None,
    below: bool = False,
) -> None:
    """Print a table that fits the terminal; see :func:`table`.

    Parameters:
        empty: what is said where there are no rows; ``None``: the headers alone are shown.
        below: where the table is too wide, what stands in the last column is shown whole, below each row.
        limit: how many are shown; that there are more is said.
    """
    if in_json():
        return
    shown = [*islice(rows, limit if limit is None else limit + 1)]
    if not shown and empty is not None:
        for line in empty.splitlines():
            say(line)
        return
    rows, width, paint = shown[:limit], terminal_width(), wants_colour()
    said: Sequence[object] = ()
    if below and max(map(_columns, table(headers, rows, width=_ENDLESS))) > width:
        headers, rows, said = headers[:-1], [row[:-1] for row in rows], [row[-1] for row in rows]
    for line, text in zip_longest(table(headers, rows, width=width, rigid=rigid, paint=paint), [None, *said]):
        click.echo(line)
        for piece in [] if text is None else _wrapped(clean(str(text)), max(width - len(_INDENT), 20)):
            say(f"{_INDENT}{piece}")
    if limit is not None and len(shown) > limit:
        say(f"There are more: --limit {2 * limit}")


def echo_fields(fields: Iterable[tuple[str, object]]) -> None:
    """Print names and values below each other.

    Values of several lines are continued indented, and so are long ones, which are broken between words. A name that
    would take more than half of the line is cut.
    """
    shown = [(clean(name), value) for name, value in fields if value is not None]
    widest = min(max((_columns(name) for name, _ in shown), default=0), terminal_width() // 2)
    left = widest + _GAP
    room = max(terminal_width() - left, 20)
    for name, value in shown:
        first, *rest = [piece for line in str(value).splitlines() or [""] for piece in _wrapped(clean(line), room)]
        say(f"{_padded(_cut(name, widest), left)}{first}".rstrip())
        for line in rest:
            say(f"{' ' * left}{line}".rstrip())


def terminal_width() -> int:
    """Columns of the terminal, or 80 where the output is no terminal."""
    return shutil.get_terminal_size((80, 24)).columns


def table(
    headers: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    width: int,
    rigid: Sequence[str] = (),
    paint: bool = False,
) -> list[str]:
    """The lines of a table; cells that are too long are cut with an ellipsis.

    Parameters:
        rows: cells; ``None`` is shown as a dash.
        rigid: headers of columns that are not cut, such as times.
        paint: whether to colour words for what entries and runs do.
    """
    cells = [list(headers), *([clean("-" if cell is None else str(cell)) for cell in row] for row in rows)]
    widths = _fitted([max(map(_columns, column)) for column in zip(*cells, strict=True)], width, headers, rigid)
    gap = " " * _GAP
    padded = [[_padded(_cut(c, w), w) for c, w in zip(row, widths, strict=True)] for row in cells]
    lines = [_cut(gap.join(row).rstrip(), width) for row in padded]
    if not paint or sum(widths) + _GAP * (len(widths) - 1) > width:
        return lines
    painted = (gap.join(map(_painted, headers, row)) for row in padded[1:])
    return [click.style(lines[0], bold=True), *painted]


def _painted(header: str, cell: str) -> str:
    if header == "LAST":
        return "".join(click.style(each, fg=_MARKS[each]) if each in _MARKS else each for each in cell)
    first = cell.split(maxsplit=1)[:1]
    colour = _COLOURS.get(first[0]) if first and header in _COLOURED else None
    return cell if colour is None else click.style(cell, fg=colour)


def wants_colour() -> bool:
    """Whether the output is a terminal, and nobody has asked for no colours: by ``NO_COLOR`` or Celery's ``-C``."""
    context = click.get_current_context(silent=True)
    refused = os.environ.get("NO_COLOR") or (context is not None and getattr(context.obj, "no_color", False))
    return sys.stdout.isatty() and not refused and os.environ.get("TERM") != "dumb"


def fitted(line: str, width: int | None = None) -> str:
    """A line, cut to so many columns, by default those of the terminal."""
    return _cut(clean(line), terminal_width() if width is None else width)


def clean(text: str) -> str:
    """``text`` on one line, without what would confuse a terminal."""
    return _UNPRINTABLE.sub(" ", text)


def when(instant: datetime | None, zone: tzinfo) -> str | None:
    """An instant in a zone, to the second, with its offset; ``None`` stays ``None``."""
    return None if instant is None else in_zone(instant, zone)


def distance(instant: datetime, now: datetime) -> str:
    """How far away an instant is, in words of one or two units: ``in 3 h 5 min``, ``12 s ago``."""
    seconds = (instant - now).total_seconds()
    text = span(abs(seconds))
    return f"in {text}" if seconds >= 0 else f"{text} ago"


def _fitted(widths: list[int], room: int, headers: Sequence[str], rigid: Sequence[str]) -> list[int]:
    """The widths of the columns, the widest ones cut until all fit, and names last."""
    excess = sum(widths) + _GAP * (len(widths) - 1) - room
    soft = [index for index, header in enumerate(headers) if header not in rigid]
    for some in ([i for i in soft if headers[i] not in _NAMES], soft):
        while excess > 0 and some and max(widths[index] for index in some) > _LEAST:
            widths[max(some, key=widths.__getitem__)] -= 1
            excess -= 1
    return widths


def _columns(text: str) -> int:
    """Columns that a terminal needs for a text."""
    if text.isascii():
        return len(text)
    return sum(_columns_of(character) for character in text)


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
    """The lines of a text, broken between words where that is possible."""
    # It counts characters, of which some are two columns wide.
    lines = textwrap.wrap(text, width, break_on_hyphens=False) or [""]
    return [piece for line in lines for piece in _folded(line, width)]


def _folded(text: str, width: int) -> list[str]:
    lines = [""]
    for character in text:
        if _columns(lines[-1]) + _columns_of(character) > width:
            lines.append("")
        lines[-1] += character
    return lines

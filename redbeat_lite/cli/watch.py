"""Command ``watch``, which shows the entries in a table that redraws itself."""

from __future__ import annotations

import logging
import os
import re
import select
import signal
import sys
import termios
import tty
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from threading import Thread
from typing import NamedTuple

import click

from .._base.clock import elapsed
from ..api.schedules import Schedules
from ..beat.status import read
from ..entries.entry import STATUSES, Entry
from ..entries.words import counted
from ..operate.clean_text import clean
from ..operate.texts import distance
from ..rules import schedule_text
from ..settings import Settings
from ..store.connections import FAULTS
from ..store.store import Store
from .command import Failure, Length, bare_app, command, entry_names, load_schedules, option
from .entries import why_nothing_listed
from .options import selected, selecting
from .output import app_zone, fitted, table, wants_colour, when

# Control sequences of a terminal.
#: It enters the terminal's second screen and hides the cursor.
_ENTER = "\x1b[?1049h\x1b[?25l"

#: It shows the cursor and leaves the second screen.
_LEAVE = "\x1b[?25h\x1b[?1049l"

#: They move the cursor to the first line, clear the rest of a line, and clear the lines below.
_HOME = "\x1b[H"
_CLEAR_LINE_END = "\x1b[K"
_CLEAR_BELOW = "\x1b[J"

#: Keys that quit, that turn to the next page, and that turn to the previous one. The page keys of a
#: keyboard send four bytes.
_QUIT = b"qQ\x03\x04"
_NEXT = (b"n", b" ", b"\x1b[6~")
_PREVIOUS = (b"p", b"b", b"\x1b[5~")
_KEY = re.compile(rb"\x1b\[[56]~|.", re.DOTALL)

#: Seconds between two checks of the keys and of the terminal's size.
_TICK = 0.05

#: Count of the lines that are no rows: heading, line about the beat, header, and line of help.
_OTHER_LINES = 4


class _View(NamedTuple):
    """Content of the screen.

    Parameters:
        lines: lines from the top of the terminal.
        help: text about the keys, for the last line.
        has_more: whether there is a next page.
    """

    lines: list[str]
    help: str = "q quits"
    has_more: bool = False


@command()
@click.argument("name", metavar="[PATTERN]", required=False, shell_complete=entry_names)
@selecting
@option("--status", "Only entries with this status.", type=click.Choice(STATUSES))
@option("--every", "Time between two reads.", type=Length(0.1), default="1s")
def watch(status: str | None, every: float, **_selection: str) -> None:
    """Watch the entries that run next, in a table that redraws itself.

    n and p turn its pages; q ends it, or Ctrl-C.

    \b
    Examples:
      celery -A proj redbeat watch
      celery -A proj redbeat watch 'report-*' --status paused
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Failure("watch needs a terminal; list --json is for scripts")
    reader = _Reader(status)
    # Read once before the screen changes, so that an error is printed on the normal screen.
    reader.read(0, _terminal_size())
    with _screen():
        page = 0
        typed = b""
        while not _quits(typed):
            size = _terminal_size()
            # Read in a thread, so that q works while the server does not answer.
            reading = _start(reader, page, size)
            typed = b""
            while not reading.done():
                typed += _keys(_TICK)
                if _quits(typed):
                    return
            view = reading.result()
            _draw(view, size)
            typed = typed or _keys_or_resize(every, size)
            page = _turned(page, typed, view.has_more)


class _Reader:
    """Reader of the pages of the selected entries."""

    def __init__(self, status: str | None) -> None:
        self._schedules: Schedules = load_schedules()
        self._store = Store.of(Settings.from_app(bare_app()))
        self._entries = selected()
        self._status = status
        self._is_filtered = status is not None or not self._entries.selection.is_all
        self._zone = app_zone()
        self._paint = wants_colour()

    def read(self, number: int, size: os.terminal_size) -> _View:
        """Return the view of a page.

        Parameters:
            number: index of the page, from 0.
            size: size of the terminal.
        """
        room = max(size.lines - _OTHER_LINES, 1)
        start = number * room
        total = len(self._schedules)
        entries = self._page(start, room + 1)
        has_more = len(entries) > room
        del entries[room:]
        which = "those that match" if self._is_filtered else counted(total, "entry", "entries")
        keys = "q quits"
        if start or has_more:
            which = f"{start + 1} to {start + len(entries)} of {which}"
            keys = "n next page, p previous, q quits"
        heading = fitted(f"{which}  {when(datetime.now(UTC), self._zone)}", size.columns)
        beat = ""
        if read(self._store).leader is None:
            beat = fitted("nobody leads: nothing is sent", size.columns)
            beat = click.style(beat, fg="red") if self._paint else beat
        rows = why_nothing_listed(total).splitlines()
        if entries:
            rows = self._table(entries, size.columns)
        return _View([heading, beat, *rows], keys, has_more)

    def _page(self, start: int, most: int) -> list[Entry]:
        """Return up to ``most`` of the selected entries, from the index ``start`` on."""
        freezes = self._schedules.freezes
        if not self._is_filtered:
            return [*freezes.marked(self._schedules.list(start, most))]
        marked = freezes.marked(self._entries)
        matching = (entry for entry in marked if self._status in (None, entry.status))
        return [*islice(matching, start, start + most)]

    def _table(self, entries: Sequence[Entry], width: int) -> list[str]:
        """Return the lines of the table of entries."""
        now = datetime.now(UTC)
        rows = []
        for entry in entries:
            next_run: str = entry.status
            if entry.next_run_at and not entry.frozen_until:
                next_run = distance(entry.next_run_at, now)
            last_run = entry.last_run_at and distance(entry.last_run_at, now)
            if entry.last_error:
                last_run = clean(entry.last_error)
            schedule = schedule_text(entry.schedule, self._zone)
            rows.append((entry.name, schedule, next_run, entry.total_run_count, last_run))
        header = ("NAME", "SCHEDULE", "NEXT RUN", "RUNS", "LAST RUN")
        return table(header, rows, width=width, paint=self._paint)


def _start(reader: _Reader, page: int, size: os.terminal_size) -> Future[_View]:
    """Read a page in a thread, and return the future of its view."""
    view: Future[_View] = Future()

    def run() -> None:
        try:
            view.set_result(reader.read(page, size))
        except FAULTS as exc:
            # Show the error. The next read tries again.
            text = f"cannot reach the server, trying again: {exc}"
            view.set_result(_View([fitted(text, size.columns)]))
        except Exception as exc:  # noqa: BLE001 - raised where the result is asked for
            view.set_exception(exc)

    Thread(target=run, daemon=True).start()
    return view


def _turned(page: int, typed: bytes, has_more: bool) -> int:
    """Return the index of the page to which these keys turn.

    Parameters:
        page: index of the present page.
        has_more: whether there is a next page.
    """
    for key in _KEY.findall(typed):
        if key in _NEXT and has_more:
            page += 1
            # It is not known yet whether there is a page after that one.
            has_more = False
        elif key in _PREVIOUS and page:
            page -= 1
    return page


def _quits(typed: bytes) -> bool:
    return any(key in _QUIT for key in typed)


def _keys(seconds: float) -> bytes:
    """Return the keys that are typed within ``seconds``."""
    stdin = sys.stdin.fileno()
    ready, _, _ = select.select([stdin], [], [], seconds)
    if not ready:
        return b""
    # If the terminal is gone, os.read() returns no bytes. Then quit.
    return os.read(stdin, 64) or _QUIT


def _keys_or_resize(seconds: float, size: os.terminal_size) -> bytes:
    """Wait until a key is typed or the terminal has another size. Return the keys.

    Parameters:
        seconds: longest wait.
        size: size for which the screen was drawn.
    """
    end = elapsed() + seconds
    typed = b""
    while not typed and elapsed() < end and _terminal_size() == size:
        typed = _keys(min(_TICK, seconds))
    return typed


def _draw(view: _View, size: os.terminal_size) -> None:
    """Draw a view over the previous view."""
    room = size.lines - 1
    lines = view.lines[:room]
    lines += [""] * (room - len(lines))
    text = f"{_CLEAR_LINE_END}\n".join([*lines, fitted(view.help, size.columns)])
    sys.stdout.write(f"{_HOME}{text}{_CLEAR_LINE_END}{_CLEAR_BELOW}")
    sys.stdout.flush()


@contextmanager
def _screen() -> Iterator[None]:
    """Show the second screen during the block. However it ends, the terminal is then as before."""
    stdin = sys.stdin.fileno()
    mode = termios.tcgetattr(stdin)
    handlers = {number: signal.signal(number, _exit) for number in (signal.SIGTERM, signal.SIGHUP)}
    # TCSADRAIN keeps keys that were typed before this call. The default would drop them.
    tty.setcbreak(stdin, termios.TCSADRAIN)
    sys.stdout.write(_ENTER)
    # Log nothing, because warnings would be written across the table.
    logging.disable()
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        logging.disable(logging.NOTSET)
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()
        termios.tcsetattr(stdin, termios.TCSADRAIN, mode)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _exit(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def _terminal_size() -> os.terminal_size:
    """Return the present size of the terminal; 80 columns and 24 lines if it has none."""
    # Ask the terminal itself. COLUMNS and LINES of the environment do not change with it.
    size = os.get_terminal_size(sys.stdout.fileno())
    return os.terminal_size((size.columns or 80, size.lines or 24))

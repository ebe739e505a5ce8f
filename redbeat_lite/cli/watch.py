"""``watch``: the entries as a table that keeps itself up to date."""

from __future__ import annotations

import logging
import os
import re
import select
import signal
import socket
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, tzinfo
from itertools import islice
from threading import Thread
from typing import Any, NamedTuple

import click

from ..beat.status import read
from ..entries.as_read import STATUSES
from ..entries.entry import Entry
from ..entries.schedule_text import schedule_text
from ..entries.words import counted
from ..settings import Settings
from ..storage.connections import FAULTS
from ..storage.store import Store
from .command import Command, Length, entry_names, schedules_of
from .entry_output import nothing_listed
from .exit_codes import Failure
from .output import clean, distance, fitted, table, wants_colour, when
from .selected import selected, selecting

_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"  # the other screen without a cursor; back
_HOME, _END_OF_LINE, _BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
_QUIT = b"qQ\x03\x04"
_NEXT, _PREVIOUS = (b"n", b" ", b"\x1b[6~"), (b"p", b"b", b"\x1b[5~")  # and the keys for pages
_KEY = re.compile(rb"\x1b\[[56]~|.", re.DOTALL)


@click.command(cls=Command)
@click.argument("name", metavar="[PATTERN]", required=False, shell_complete=entry_names)
@selecting
@click.option("--status", "doing", type=click.Choice(STATUSES), help="Only entries that are this.")
@click.option("--every", type=Length(0.1), default="1s", show_default=True, help="Time between looks.")
def watch(ctx: click.Context, /, doing: str | None, every: float, **meant: Any) -> None:
    """Watch the entries that run next, in a table that redraws itself. n and p turn its pages; q ends it, or Ctrl-C.

    \b
    Examples:
      celery -A proj redbeat watch
      celery -A proj redbeat watch 'report-*' --status paused
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Failure("watch needs a terminal; list --json is for scripts")
    schedules, zone, paint = schedules_of(ctx), ctx.obj.app.timezone, wants_colour()
    store, page, is_filtered = Store.of(Settings.from_app(ctx.obj.app)), 0, doing is not None or any(meant.values())
    entries = selected(ctx, **meant)

    def from_rank(start: int, number: int) -> Iterator[Entry]:
        if not is_filtered:
            return schedules.freezes.marked(schedules.list(start, number))
        found = (each for each in schedules.freezes.marked(entries) if doing is None or each.status == doing)
        return islice(found, start, start + number)

    def look() -> _Look:
        # All but the heading, the line about the beat, the header and the line of help.
        room, total = max(_size().lines - 4, 1), len(schedules)
        found = [*from_rank(page * room, room + 1)]
        shown = f"{page * room + 1} to {page * room + len(found[:room])} of " if page or len(found) > room else ""
        which = "those that match" if is_filtered else counted(total, "entry", "entries")
        width, is_led = _size().columns, read(store).leader is not None
        beat = (
            "" if is_led else click.style(fitted("nobody leads: nothing is sent", width), fg="red" if paint else None)
        )
        rows = _table(found[:room], width, zone, paint) if found else nothing_listed(total).splitlines()
        lines = [fitted(f"{shown}{which}  {when(datetime.now(UTC), zone)}", width), beat, *rows]
        return _Look(lines, "n next page, p previous, q quits" if shown else "q quits", len(found) > room)

    look()  # what is wrong is said before the screen changes
    with _screen() as (wait, wake):
        typed = b""
        while not _quits(typed):
            looking, typed = _looking(look, wake), b""
            while not looking.done() and not _quits(typed):
                typed += wait(None)  # until something was typed, or the terminal was resized
            if not looking.done():
                return
            seen = looking.result()
            sys.stdout.write(_drawn(seen))
            sys.stdout.flush()
            typed = typed or wait(every)
            page = _turned(page, typed, seen.has_more)


class _Look(NamedTuple):
    lines: list[str]
    help: str = "q quits"
    has_more: bool = False


def _turned(page: int, typed: bytes, has_more: bool) -> int:
    for key in _KEY.findall(typed):
        if key in _NEXT and has_more:
            page, has_more = page + 1, False  # of the page after that nobody knows yet
        elif key in _PREVIOUS and page:
            page -= 1
    return page


def _quits(typed: bytes) -> bool:
    return any(key in _QUIT for key in typed)


def _looking(look: Callable[[], _Look], wake: socket.socket) -> Future[_Look]:
    """A look that has begun, in a thread: a server that does not answer must not keep ``q`` waiting. Its end wakes."""
    found: Future[_Look] = Future()

    def looked() -> None:
        try:
            found.set_result(look())
        except FAULTS as exc:  # a server that comes back is watched on
            found.set_result(_Look([fitted(f"cannot reach the server, trying again: {exc}", _size().columns)]))
        except Exception as exc:  # noqa: BLE001 - raised where the result is asked for
            found.set_exception(exc)
        with suppress(OSError):  # nobody waits any more, or is being woken already
            wake.send(b"\0")

    Thread(target=looked, daemon=True).start()
    return found


@contextmanager
def _screen() -> Iterator[tuple[Callable[[float | None], bytes], socket.socket]]:
    """A screen of its own; yields what waits so many seconds, or less if it is woken or the terminal was resized, and
    tells what was typed; and where a byte wakes it. The terminal is as before at the end, whatever ends it."""
    stdin, before = sys.stdin.fileno(), termios.tcgetattr(sys.stdin)
    woken, wake = socket.socketpair()
    wake.setblocking(False)
    handlers = {each: signal.signal(each, _ends) for each in (signal.SIGTERM, signal.SIGHUP)}
    handlers[signal.SIGWINCH] = signal.signal(signal.SIGWINCH, lambda *_: None)
    # A handler alone would not end a select that is waiting; a byte in this socket does.
    old_wake = signal.set_wakeup_fd(wake.fileno())
    tty.setcbreak(stdin, termios.TCSADRAIN)  # its default throws away a q that was typed before the screen is up
    sys.stdout.write(_ENTER)
    logging.disable()  # a warning at each look would be written across the table

    def wait(seconds: float | None) -> bytes:
        ready, _, _ = select.select([stdin, woken], [], [], seconds)
        if woken in ready:
            woken.recv(512)
        return (os.read(stdin, 64) or _QUIT) if stdin in ready else b""

    try:
        yield wait, wake
    except KeyboardInterrupt:
        pass
    finally:
        logging.disable(logging.NOTSET)
        signal.set_wakeup_fd(old_wake)
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        woken.close()
        wake.close()


def _ends(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def _table(page: Sequence[Entry], width: int, zone: tzinfo, paint: bool) -> list[str]:
    now = datetime.now(UTC)
    rows = [
        (
            entry.name,
            schedule_text(entry.schedule, zone),
            distance(entry.next_run_at, now) if entry.next_run_at and not entry.frozen_until else entry.status,
            entry.total_run_count,
            clean(entry.last_error) if entry.last_error else entry.last_run_at and distance(entry.last_run_at, now),
        )
        for entry in page
    ]
    header = ("NAME", "SCHEDULE", "NEXT RUN", "RUNS", "LAST RUN")
    return table(header, rows, width=width, rigid=("NEXT RUN", "RUNS"), paint=paint)


def _size() -> os.terminal_size:
    # Asked of the terminal itself: COLUMNS and LINES of the environment do not follow it. One that nobody has given a
    # size says that it has none.
    size = os.get_terminal_size(sys.stdout.fileno())
    return os.terminal_size((size.columns or 80, size.lines or 24))


def _drawn(look: _Look) -> str:
    """The text that draws these lines over what was there, and what may be typed in the last line."""
    width, height = _size()
    shown = [*look.lines[: height - 1], *[""] * (height - 1 - len(look.lines)), fitted(look.help, width)]
    return _HOME + f"{_END_OF_LINE}\n".join(shown) + _END_OF_LINE + _BELOW

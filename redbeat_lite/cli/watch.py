"""``watch``: the entries as a table that keeps itself up to date."""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from threading import Thread
from typing import TYPE_CHECKING, Any

import click

from ..beat.status import read
from ..entries.schedule_text import schedule_text
from ..entries.words import counted
from ..settings import Settings
from ..storage.connections import FAULTS
from ..storage.store import Store
from .command import Command, Length, schedules_of
from .exit_codes import Failure
from .output import clean, distance, fitted, table, when

if TYPE_CHECKING:
    from ..api.schedules import Schedules

_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"  # the other screen without a cursor; back
_HOME, _END_OF_LINE, _BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
_QUIT = b"qQ\x03\x04"


@click.command(cls=Command)
@click.option("--every", type=Length(0.1), default="1s", show_default=True, help="Time between looks.")
@click.pass_context
def watch(ctx: click.Context, every: float) -> None:
    """Watch the entries that run next, in a table that redraws itself. Ends on q, or Ctrl-C.

    \b
    Example:
      celery -A proj redbeat watch
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Failure("watch needs a terminal; list --json is for scripts")
    schedules, zone = schedules_of(ctx), ctx.obj.app.timezone
    store = Store.of(Settings.from_app(ctx.obj.app))

    def look() -> list[str]:
        return _lines(schedules, read(store).leader is not None, zone)

    look()  # what is wrong is said before the screen changes
    with _screen() as (wait, wake):
        while True:
            found = _looking(look, wake)
            while (goes_on := wait(None)) and not found.done():
                pass  # something was typed, or the terminal was resized
            if not goes_on:
                return
            sys.stdout.write(_drawn(found.result()))
            sys.stdout.flush()
            if not wait(every):
                return


def _looking(lines: Callable[[], list[str]], wake: socket.socket) -> Future[list[str]]:
    """A look that has begun, in a thread: a server that does not answer must not keep ``q`` waiting. Its end wakes."""
    found: Future[list[str]] = Future()

    def look() -> None:
        try:
            found.set_result(_looked(lines))
        except Exception as exc:  # noqa: BLE001 - raised where the result is asked for
            found.set_exception(exc)
        with suppress(OSError):  # nobody waits any more, or is being woken already
            wake.send(b"\0")

    Thread(target=look, daemon=True).start()
    return found


@contextmanager
def _screen() -> Iterator[tuple[Callable[[float | None], bool], socket.socket]]:
    """A screen of its own; yields what waits so many seconds, or less if it is woken or the terminal was resized, and
    tells whether to go on; and where a byte wakes it. The terminal is as before at the end, whatever ends it."""
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

    def wait(seconds: float | None) -> bool:
        ready, _, _ = select.select([stdin, woken], [], [], seconds)
        if woken in ready:
            woken.recv(512)
        if stdin not in ready:
            return True
        keys = os.read(stdin, 64)
        return bool(keys) and not any(key in _QUIT for key in keys)

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


def _looked(lines: Callable[[], list[str]]) -> list[str]:
    """The lines of the table, or what keeps us from having them: a server that comes back is watched on."""
    try:
        return lines()
    except FAULTS as exc:
        return [fitted(f"cannot reach the server, trying again: {exc}", _size().columns)]


def _lines(schedules: Schedules, is_led: bool, zone: Any) -> list[str]:
    # All but the heading, the header and the line of help.
    width, height = _size()
    room = max(height - 4, 1)
    page, total, now = schedules.list(limit=room), len(schedules), datetime.now(UTC)
    rows = [
        (
            entry.name,
            schedule_text(entry.schedule),
            distance(entry.next_run_at, now) if entry.next_run_at else entry.status,
            entry.total_run_count,
            clean(entry.last_error) if entry.last_error else entry.last_run_at and distance(entry.last_run_at, now),
        )
        for entry in page
    ]
    heading = f"{counted(total, 'entry', 'entries')}  {when(now, zone)}"
    header = ("NAME", "SCHEDULE", "NEXT RUN", "RUNS", "LAST RUN")
    beat = "" if is_led else "nobody leads: nothing is sent"
    return [fitted(heading, width), fitted(beat, width), *table(header, rows, width=width, rigid=("NEXT RUN", "RUNS"))]


def _size() -> os.terminal_size:
    # Asked of the terminal itself: COLUMNS and LINES of the environment do not follow it. One that nobody has given a
    # size says that it has none.
    size = os.get_terminal_size(sys.stdout.fileno())
    return os.terminal_size((size.columns or 80, size.lines or 24))


def _drawn(lines: list[str]) -> str:
    """The text that draws these lines over what was there, and ``q`` in the last line."""
    width, height = _size()
    shown = [*lines[: height - 1], *[""] * (height - 1 - len(lines)), fitted("q quits", width)]
    return _HOME + f"{_END_OF_LINE}\n".join(shown) + _END_OF_LINE + _BELOW

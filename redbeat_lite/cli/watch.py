"""``watch``: the entries as a table that keeps itself up to date."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from ..backend import FAULTS
from ..interchange_schedules import schedule_text
from .commands import Command, schedules_of
from .entries import status
from .failures import Failure
from .output import clean, distance, fitted, table, when

if TYPE_CHECKING:
    from ..api import Schedules

_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"  # the other screen without a cursor; back
_HOME, _END_OF_LINE, _BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
_QUIT = b"qQ\x03\x04"


@click.command(cls=Command)
@click.option("--every", type=click.FloatRange(min=0.1), default=1.0, show_default=True, help="Seconds between looks.")
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
    _lines(schedules, zone)  # what is wrong is said before the screen changes
    with _screen() as wait:
        while True:
            sys.stdout.write(_drawn(_looked(schedules, zone)))
            sys.stdout.flush()
            if not wait(every):
                return


@contextmanager
def _screen() -> Iterator[Callable[[float], bool]]:
    """A screen of its own; yields what waits so many seconds, or less if the terminal was resized, and tells whether
    to go on. The terminal is as before at the end, whatever ends it."""
    stdin, before = sys.stdin.fileno(), termios.tcgetattr(sys.stdin)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    handlers = {each: signal.signal(each, _ends) for each in (signal.SIGTERM, signal.SIGHUP)}
    handlers[signal.SIGWINCH] = signal.signal(signal.SIGWINCH, lambda *_: None)
    # A handler alone would not end a select that is waiting; a byte in this pipe does.
    old_wake = signal.set_wakeup_fd(wake)
    tty.setcbreak(stdin)
    sys.stdout.write(_ENTER)

    def wait(seconds: float) -> bool:
        ready, _, _ = select.select([stdin, woken], [], [], seconds)
        if woken in ready:
            os.read(woken, 512)
        if stdin not in ready:
            return True
        keys = os.read(stdin, 64)
        return bool(keys) and not any(key in _QUIT for key in keys)

    try:
        yield wait
    except KeyboardInterrupt:
        pass
    finally:
        signal.set_wakeup_fd(old_wake)
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        os.close(woken)
        os.close(wake)


def _ends(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def _looked(schedules: Schedules, zone: Any) -> list[str]:
    """The lines of the table, or what keeps us from having them: a server that comes back is watched on."""
    try:
        return _lines(schedules, zone)
    except FAULTS as exc:
        return [fitted(f"cannot reach the server, trying again: {exc}", _size().columns)]


def _lines(schedules: Schedules, zone: Any) -> list[str]:
    # All but the heading, the header and the line of help.
    width, height = _size()
    room = max(height - 4, 1)
    page, total, now = schedules.list(limit=room), len(schedules), datetime.now(UTC)
    rows = [
        (
            entry.name,
            schedule_text(entry.schedule),
            distance(entry.next_run_at, now) if entry.next_run_at else status(entry),
            entry.total_run_count,
            clean(entry.last_error) if entry.last_error else when(entry.last_run_at, zone),
        )
        for entry in page
    ]
    heading = f"{total} entries  {when(now, zone)}"
    header = ("NAME", "SCHEDULE", "NEXT RUN", "RUNS", "LAST RUN")
    return [fitted(heading, width), "", *table(header, rows, width=width, rigid=("NEXT RUN", "RUNS"))]


def _size() -> os.terminal_size:
    # Asked of the terminal itself: COLUMNS and LINES of the environment do not follow it.
    return os.get_terminal_size(sys.stdout.fileno())


def _drawn(lines: list[str]) -> str:
    """The text that draws these lines over what was there, and ``q`` in the last line."""
    width, height = _size()
    shown = [*lines[: height - 1], *[""] * (height - 1 - len(lines)), fitted("q quits", width)]
    return _HOME + f"{_END_OF_LINE}\n".join(shown) + _END_OF_LINE + _BELOW

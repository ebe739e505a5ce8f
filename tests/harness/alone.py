"""Tests in a process without other threads, whose forks are not those of pytest.

A process of pytest has threads that hold locks, so a child that it forks may hang for their sake.
``python -m tests.harness.alone`` has none. It reads tests from its input, and plays each in a fork
of its own.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from tests.support.nursery import ROOT

Work = Callable[[], object]

#: Seconds after which a child that has not ended hangs. Nothing that it does takes any time.
HANGS = 10.0

#: Seconds after which a test is ended.
_ALARM = 50


class Player:
    """The process that plays tests."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def play(self, test: Callable[..., None], arguments: dict[str, Any]) -> None:
        """Play a test, and fail with what it printed if it failed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        job = [test.__module__, test.__name__, arguments]
        print(json.dumps(job), file=self._process.stdin, flush=True)
        status, output = json.loads(self._process.stdout.readline())
        assert status == 0, output


@pytest.fixture(scope="module")
def player() -> Iterator[Player]:
    """A process without other threads."""
    command = [sys.executable, "-m", "tests.harness.alone"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, text=True, **pipes) as process:
        yield Player(process)


def alone(test: Callable[..., None]) -> Callable[..., None]:
    """Have a test of a module run in the process of the fixture ``player``.

    Its arguments come from ``parametrize``, as JSON.
    """

    def play(player: Player, **arguments: Any) -> None:
        player.play(test, arguments)

    own = inspect.Parameter("player", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    signature = inspect.signature(test)
    parameters = [own, *signature.parameters.values()]
    play.__name__ = test.__name__
    play.__doc__ = test.__doc__
    play.__module__ = test.__module__
    vars(play).update(__signature__=signature.replace(parameters=parameters), test=test)
    return play


# -- in that process -------------------------------------------------------------------------------


def fork(in_child: Work) -> None:
    """Fork, and fail unless the child does its work and ends."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            in_child()
            os.write(writer, b".")
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writer)
    os.set_blocking(reader, False)
    answer, deadline = None, time.monotonic() + HANGS
    # The exit code says nothing, because the loop of gevent may take it away.
    while answer is None:
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            raise SystemExit("the child hangs")
        with suppress(BlockingIOError):
            answer = os.read(reader, 1)
        time.sleep(0.01)
    os.close(reader)
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)
    assert answer, "the child has failed"


def in_thread(work: Work) -> threading.Thread:
    """Start a thread that does this work."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def play_in_fork(module: str, name: str, arguments: dict[str, Any]) -> tuple[int, str]:
    """Play a test in a fork; return its exit status and what it printed as errors."""
    test = getattr(importlib.import_module(module), name).test
    with tempfile.TemporaryFile("w+") as output:
        pid = os.fork()
        if not pid:
            code = 1
            try:
                os.dup2(output.fileno(), 2)
                signal.alarm(_ALARM)
                test(**arguments)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        output.seek(0)
        return status, output.read()


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(play_in_fork(*json.loads(line))), flush=True)

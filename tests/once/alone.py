"""Runs a test in a process of its own, which has no other threads and may fork.

A process of pytest has threads that hold locks, so a child that it forks may wait for them forever.
As a script, this file runs one test. Its arguments are the module, the test, and the test's
arguments as JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any

from tests.support.processes import ROOT, run_python

Work = Callable[[], object]

#: Seconds after which a child counts as hanging. Its work takes almost no time.
HANGS = 10.0

#: Seconds that a test may take.
_LONGEST = 50.0


def alone(test: Callable[..., None]) -> Callable[..., None]:
    """Have a test of a module run in a process of its own.

    Its arguments come from ``parametrize``, as JSON.
    """

    @wraps(test)
    def run(**arguments: Any) -> None:
        words = [Path(__file__).name, test.__module__, test.__name__, json.dumps(arguments)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = run_python(*words, env=environment, cwd=Path(__file__).parent, within=_LONGEST)
        assert done.returncode == 0, done.stderr

    return run


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
    answer = None
    deadline = time.monotonic() + HANGS
    # The child answers by a pipe, because gevent's loop may collect its exit code first.
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


def main(module: str, name: str, arguments: str) -> None:
    """Run a test, and end this process with 0 if it passed; its threads may hang."""
    code = 1
    try:
        getattr(importlib.import_module(module), name).__wrapped__(**json.loads(arguments))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


if __name__ == "__main__":
    main(*sys.argv[1:])

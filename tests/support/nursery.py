"""Where the processes of the tests come from, and what takes them away however the tests end.

A *nursery* is one process for each process of pytest. It has Celery and the package imported already, so a ``celery``
command or a script that it forks is up in the time that this itself takes: of the half second of a fresh interpreter
nine tenths go to imports that are the same each time. Any other command it starts as everybody does. It adopts what its
children leave behind, and once pytest is gone, killed or not, it ends all of them and removes the run's directory.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]

#: The signal at which a fork of the nursery prints where each of its threads is; Celery leaves it alone.
STACKS = signal.SIGUSR2

#: Those that do not change what the interpreter does before a command is its own master.
_HARMLESS = ("PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE")


class Job(NamedTuple):
    """What a new process is to be."""

    command: list[str]
    env: dict[str, str]
    cwd: str
    session: bool  #: of its own, so that a signal can reach it and its children together

    @property
    def program(self) -> list[str]:
        """What a fork of the nursery may run in place of a fresh interpreter, with its arguments, if there is such.

        That is ``celery``, or a script in the directory of the job.
        """
        interpreter, *words = self.command
        if words[:2] == ["-m", "celery"]:
            words = words[1:]
        if interpreter != sys.executable or not re.fullmatch(r"celery|\w+\.py", words[0]):
            return []
        if {"gevent", "eventlet"} & {*words}:
            return []  # those two change the standard library before anything else is imported
        if any(name.startswith(("PYTHON", "LD_", "DYLD_", "COV")) and name not in _HARMLESS for name in self.env):
            return []
        packages = (Path(each) for each in self.path if (Path(each) / "redbeat_lite").is_dir())
        return words if next(packages, ROOT) == ROOT else []

    @property
    def path(self) -> list[str]:
        """What comes first in ``sys.path``."""
        return [self.cwd, *filter(None, self.env.get("PYTHONPATH", "").split(os.pathsep))]


class Child:
    """A process that was started by the nursery, to be used as a :class:`subprocess.Popen`."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self._nursery = nursery
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._nursery.code_of(self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.clock_gettime(time.CLOCK_MONOTONIC) + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.clock_gettime(time.CLOCK_MONOTONIC) > deadline:
                assert timeout is not None
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            self._nursery.wait_for_news(0.05)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Nursery:
    """The side of pytest: asks for processes and hears of their ends."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="rbl-"))
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "tests.support.nursing", str(theirs.fileno()), str(self.directory)]
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        self._socket = ours
        self._news = b""
        self._codes: dict[int, int] = {}
        self._asked = 0  #: how many processes
        self._started: list[int] = []  #: the ids of those; 0 for one that could not be started
        self._lock = threading.RLock()

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(
        self,
        command: list[str],
        *,
        env: dict[str, str] | None = None,
        cwd: Path | str = ROOT,
        stdout: IO[Any] | int,
        stderr: IO[Any] | int | None = None,
        session: bool = False,
    ) -> Child:
        """Start a process without an input.

        Parameters:
            stdout: where its output goes.
            stderr: where that for errors goes; the same by default.
            session: let it lead a session of its own; where its output is a terminal, it sits before that and reads it.
        """
        job = Job(command, dict(os.environ if env is None else env), str(cwd), session)
        out, err = (each if isinstance(each, int) else each.fileno() for each in (stdout, stderr or stdout))
        with self._lock:
            number = self._asked
            self._asked += 1
            body = json.dumps(job).encode()
            self._socket.settimeout(None)
            socket.send_fds(self._socket, [len(body).to_bytes(4, "big")], [out, err])
            self._socket.sendall(body)
            # A timeout of pytest may have broken off an earlier call before it had heard of its process.
            while len(self._started) <= number:
                self._hear(None)
            pid = self._started[number]
        if not pid:
            raise FileNotFoundError(command[0])
        return Child(self, pid)

    def code_of(self, pid: int) -> int | None:
        """The exit code of a process that has ended; that of a signal is negative."""
        with self._lock:
            self._hear(0)
            return self._codes.get(pid)

    def wait_for_news(self, seconds: float) -> None:
        with self._lock:
            self._hear(seconds)

    def close(self) -> None:
        """End every process, and wait until all is gone. May be called again."""
        self._socket.close()
        self._process.wait(60)

    def _hear(self, timeout: float | None) -> None:
        self._socket.settimeout(timeout)
        try:
            heard = self._socket.recv(4096)
        except (BlockingIOError, TimeoutError):
            return
        if not heard:
            raise RuntimeError("the nursery has ended")
        *lines, self._news = (self._news + heard).split(b"\n")
        for line in lines:
            kind, pid, code = line.split()
            if kind == b"started":
                self._started.append(int(pid))
                self._codes.pop(int(pid), None)  # of another process that had this number
            else:
                self._codes[int(pid)] = int(code)


def nursery() -> Nursery:
    """That of this process; started when it is first asked for."""
    global _nursery
    if _nursery is None:
        _nursery = Nursery()
        atexit.register(_nursery.close)
    return _nursery


_nursery: Nursery | None = None

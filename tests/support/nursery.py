"""Where the processes of the tests come from, and what takes them away however the tests end.

A *nursery* is one process for each process of pytest. It has Celery and the package imported already, so a ``celery``
command that it forks is up in the time that the command itself takes: of the half second of a fresh interpreter nine
tenths go to imports that are the same each time. Any other command it starts as everybody does. It adopts what its
children leave behind, and once pytest is gone, killed or not, it ends all of them and removes the run's directory.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, Any, NamedTuple

from tests.support.process_table import descendants

ROOT = Path(__file__).resolve().parents[2]

#: What a command of Celery's imports before it looks at its arguments, and a beat or a worker soon after.
_IMPORTED = (
    "celery.apps.beat",
    "celery.apps.worker",
    "celery.backends.redis",
    "celery.bin.celery",
    "celery.concurrency.prefork",
    "celery.concurrency.solo",
    "celery.concurrency.thread",
    "kombu.transport.redis",
    "redbeat_lite.cli",
    "redbeat_lite.scheduler",
)

#: Those that do not change what the interpreter does before a command is its own master.
_HARMLESS = ("PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE")

_PR_SET_CHILD_SUBREAPER = 36

#: What a terminal, or whoever ends the run, sends to the whole group of processes.
_OF_TERMINALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Job(NamedTuple):
    """What a new process is to be."""

    command: list[str]
    env: dict[str, str]
    cwd: str
    session: bool  #: of its own, so that a signal can reach it and its children together

    @property
    def module(self) -> str | None:
        """The module that a fork of the nursery may run in place of a fresh interpreter, if there is one."""
        if self.command[:3] != [sys.executable, "-m", "celery"] or {"gevent", "eventlet"} & {*self.command}:
            return None  # those two change the standard library before anything else is imported
        if any(name.startswith(("PYTHON", "LD_", "DYLD_", "COV")) and name not in _HARMLESS for name in self.env):
            return None
        packages = (Path(each) for each in self.path if (Path(each) / "redbeat_lite").is_dir())
        return "celery" if next(packages, ROOT) == ROOT else None

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
        command = [sys.executable, "-m", "tests.support.nursery", str(theirs.fileno()), str(self.directory)]
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
        self._started: list[int] = []
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
            session: let it lead a session of its own.
        """
        job = Job(command, dict(os.environ if env is None else env), str(cwd), session)
        out, err = (each if isinstance(each, int) else each.fileno() for each in (stdout, stderr or stdout))
        with self._lock:
            body = json.dumps(job).encode()
            self._socket.settimeout(None)
            socket.send_fds(self._socket, [len(body).to_bytes(4, "big")], [out, err])
            self._socket.sendall(body)
            while not self._started:
                self._hear(None)
            pid = self._started.pop()
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


# -- the side of the nursery ------------------------------------------------------------------------------------------


def _serve(control: socket.socket) -> Job | None:
    """Start what is asked for, until pytest is gone; returns a job in the fork that is to do it."""
    woken, waker = socket.socketpair()
    woken.setblocking(False)
    waker.setblocking(False)
    signal.set_wakeup_fd(waker.fileno())
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is woken:
                    with contextlib.suppress(BlockingIOError):
                        woken.recv(4096)
                    _tell_ends(control)
                    continue
                job, fds = _request(control)
                if job is None:
                    return None
                if _fork(job, fds, control):
                    for each in (control, woken, waker):
                        each.close()
                    return job


def _request(control: socket.socket) -> tuple[Job | None, list[int]]:
    head, fds, _, _ = socket.recv_fds(control, 4, 2)
    length, body = int.from_bytes(head, "big"), b""
    while head and len(body) < length:
        part = control.recv(length - len(body))
        if not part:
            return None, []
        body += part
    return (Job(*json.loads(body)) if head else None), fds


def _tell_ends(control: socket.socket) -> None:
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            control.sendall(b"ended %d %d\n" % (pid, os.waitstatus_to_exitcode(status)))


def _fork(job: Job, fds: list[int], control: socket.socket) -> bool:
    """``True`` in a fork that has to go on as its job; does not come back in one that becomes another program."""
    ready, when_ready = os.pipe()
    pid = os.fork()
    if pid:
        os.close(when_ready)
        for each in fds:
            os.close(each)
        # Nobody hears of it before it has its session, or has become its program; that closes the pipe too.
        failed = os.read(ready, 1)
        os.close(ready)
        control.sendall(b"started %d 0\n" % (0 if failed else pid))
        return False
    os.close(ready)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, *_OF_TERMINALS):
        signal.signal(number, signal.SIG_DFL)
    if job.session:
        os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, each in enumerate(fds, start=1):
        os.dup2(each, number)
        os.close(each)
    try:
        os.chdir(job.cwd)
        if job.module is None:
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            os.execvpe(job.command[0], job.command, job.env)
    except OSError:
        os.write(when_ready, b"x")
        os._exit(127)
    os.close(when_ready)
    return True


def _become(job: Job, path: list[str]) -> None:
    """Go on as a fresh interpreter would that was given this command."""
    assert job.module is not None
    os.environ.clear()
    os.environ.update(job.env)
    time.tzset()
    sys.path[:] = [*job.path, *path]
    sys.argv = [job.module, *job.command[3:]]
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    runpy.run_module(job.module, run_name="__main__", alter_sys=True)


def _end_all() -> None:
    """Kill whatever was started and what that started; what is orphaned meanwhile comes to us."""
    deadline = time.monotonic() + 30
    while (left := descendants(os.getpid())) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.01)


def _main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    directory = sys.argv[2]
    for number in _OF_TERMINALS:
        signal.signal(number, signal.SIG_IGN)  # the terminal tells them pytest too, and its end is ours
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    path = [each for each in sys.path if each not in ("", str(ROOT))]
    for each in _IMPORTED:
        importlib.import_module(each)
    gc.freeze()  # what is never looked at stays shared with the forks
    job = None
    nursery = os.getpid()
    try:
        # If pytest goes while it has not read everything, that is a connection which was reset, and no end.
        with contextlib.suppress(ConnectionError):
            job = _serve(control)
    finally:
        if os.getpid() == nursery:
            _end_all()
            shutil.rmtree(directory, ignore_errors=True)
    if job is not None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _become(job, path)


if __name__ == "__main__":
    _main()

"""The process that starts those of the tests and ends them: ``python -m tests.support.nursing SOCKET DIRECTORY``."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import fcntl
import gc
import importlib
import json
import os
import runpy
import selectors
import shutil
import signal
import socket
import sys
import termios
import threading
import time
import warnings

from tests.support.nursery import ROOT, STACKS, Job
from tests.support.process_table import descendants

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

_PR_SET_CHILD_SUBREAPER = 36  # of Linux's prctl.h

#: What a terminal, or whoever ends the run, sends to the whole group of processes.
_OF_TERMINALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _serve(control: socket.socket) -> Job | None:
    """Start what is asked for, until pytest is gone; returns a job in the fork that is to do it."""
    children: set[int] = set()
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
                    _tell_ends(control, children)
                    continue
                job, fds = _request(control)
                if job is None:
                    return None
                pid = _fork(job, fds, control)
                if not pid:
                    signal.set_wakeup_fd(-1)
                    for each in (control, woken, waker):
                        each.close()
                    return job
                children.add(pid)


def _request(control: socket.socket) -> tuple[Job | None, list[int]]:
    head, fds, _, _ = socket.recv_fds(control, 4, 2)
    length, body = int.from_bytes(head, "big"), b""
    while head and len(body) < length:
        part = control.recv(length - len(body))
        if not part:
            return None, []
        body += part
    return (Job(*json.loads(body)) if head else None), fds


def _tell_ends(control: socket.socket, children: set[int]) -> None:
    """Tell pytest of each child that has ended, and have it reaped; also an adopted orphan that has ended."""
    options = os.WEXITED | os.WNOHANG | os.WNOWAIT
    for pid in tuple(children):
        end = os.waitid(os.P_PID, pid, options)
        if end is not None:
            children.remove(pid)
            code = end.si_status if end.si_code == os.CLD_EXITED else -end.si_status
            control.sendall(b"ended %d %d\n" % (pid, code))
            _reap(pid)
    with contextlib.suppress(ChildProcessError):
        end = os.waitid(os.P_ALL, 0, options)
        if end is not None and end.si_pid not in children:
            _reap(end.si_pid)


def _reap(pid: int) -> None:
    """Reap a child in a thread.

    When a process is reaped, Linux drops its directory of ``/proc``. If a reader of that directory gets no processor
    just then, Linux waits for the reader in a busy loop, which has taken more than a minute beside other work. Nobody
    may have to wait for that who hears of another end, or starts a process.
    """

    def reap() -> None:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)

    threading.Thread(target=reap, daemon=True).start()


def _fork(job: Job, fds: list[int], control: socket.socket) -> int:
    """Return the id of the new process, or 0 in a fork that has to go on as its job; others become another program."""
    ready, when_ready = os.pipe()
    with warnings.catch_warnings():
        # Python 3.12 warns of the threads that reap, but those hold no lock.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        os.close(when_ready)
        for each in fds:
            os.close(each)
        # Nobody hears of it before it has its session, or has become its program; that closes the pipe too.
        failed = os.read(ready, 1)
        os.close(ready)
        control.sendall(b"started %d 0\n" % (0 if failed else pid))
        return pid
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
    if job.session and os.isatty(1):
        fcntl.ioctl(1, termios.TIOCSCTTY, 0)  # so that Ctrl-C and a resize become signals
        os.dup2(1, 0)
    try:
        os.chdir(job.cwd)
        if not job.program:
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            os.execvpe(job.command[0], job.command, job.env)
    except OSError:
        os.write(when_ready, b"x")
        os._exit(127)
    os.close(when_ready)
    return 0


def _become(job: Job, path: list[str]) -> None:
    """Go on as a fresh interpreter would that was given this command."""
    os.environ.clear()
    os.environ.update(job.env)
    time.tzset()
    sys.path[:] = [*job.path, *path]
    sys.argv = job.program
    sys.dont_write_bytecode = "PYTHONDONTWRITEBYTECODE" in job.env
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    faulthandler.register(STACKS)
    if sys.argv[0].endswith(".py"):
        runpy.run_path(sys.argv[0], run_name="__main__")
    else:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


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

"""Processes of this machine: who started them, and what the system says about them."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from pathlib import Path


def descendants(pid: int) -> set[int]:
    """The processes that this one started and those that they started, as far as they still run."""
    return _descendants(pid, _parents())


def is_running(pid: int) -> bool:
    """Whether there is such a process, and not only what is left of it."""
    return pid in _parents(str(pid))


def is_stopped(pid: int) -> bool:
    """Whether this process was stopped by a signal; on a system without ``/proc`` every process passes for one."""
    row = _stat(str(pid))
    return not os.path.exists("/proc/self/stat") or row[1:2] == ["T"]


def is_ready(pid: int, thread: int) -> bool:
    """Whether a thread of this process runs or waits for a processor; false on a system without ``/proc``."""
    return _stat(f"{pid}/task/{thread}")[1:2] == ["R"]


def states(pid: int) -> str:
    """Return a line about this process and one about each of its descendants, also those of which only the end is left.

    The lines tell why a process has not ended: it waits for something, it gets no processor, or nobody has taken note
    of its end. Empty on a system without ``/proc``.
    """
    parents = {int(row[0]): int(row[2]) for row in _rows()}
    lines = [_state(each) for each in sorted({pid, *_descendants(pid, parents)})]
    return "\n".join(filter(None, lines))


def _state(pid: int) -> str:
    """Return for each thread of a process its state, where it waits in the kernel, and how long it ran and waited."""
    directory = Path(f"/proc/{pid}")
    with suppress(OSError):
        command = (directory / "cmdline").read_text().replace("\0", " ")
        threads = [_thread_state(thread) for thread in (directory / "task").iterdir()]
        return f"{pid} {command[:120]}: {'; '.join(threads)}"
    return ""


def _thread_state(directory: Path) -> str:
    state = (directory / "stat").read_text().rpartition(")")[2].split()[0]
    place = (directory / "wchan").read_text()
    # Linux counts a wait for a processor when it is over.
    ran, waited, _ = (int(word) / 1e9 for word in (directory / "schedstat").read_text().split())
    return f"{state} {place}, ran {ran:.2f} s, was ready for {waited:.2f} s more"


def _descendants(pid: int, parents: dict[int, int]) -> set[int]:
    family = {pid}
    size = 0
    while size < len(family):
        size = len(family)
        family |= {child for child, parent in parents.items() if parent in family}
    return family - {pid}


def _parents(*which: str) -> dict[int, int]:
    """Who started each of these, or each process that there is, as far as they still run."""
    return {int(pid): int(parent) for pid, state, parent in _rows(*which) if not state.startswith("Z")}


def _rows(*which: str) -> list[list[str]]:
    """Return the id, the state and the parent of each of these processes, or of each process that there is."""
    # What "ps" of every system prints, but an image of Linux may lack it.
    if os.path.exists("/proc/self/stat"):
        pids = which or filter(str.isdigit, os.listdir("/proc"))
        return [*filter(None, map(_stat, pids))]
    with subprocess.Popen(["ps", "-A", "-o", "pid=,state=,ppid="], stdout=subprocess.PIPE, text=True) as ps:
        rows = [line.split() for line in ps.communicate()[0].splitlines()]
    return [row for row in rows if row and row[0] != str(ps.pid)]


def _stat(pid: str) -> list[str]:
    """Return the id, the state and the parent of a process or thread; nothing if it is gone."""
    try:
        # pid (name, which may hold anything) state parent ...
        _, _, after = content(f"/proc/{pid}/stat").rpartition(b")")
    except OSError:
        return []
    return [pid, *after.decode().split()[:2]]


def content(path: str) -> bytes:
    """Return the content of a small file. Raises OSError if it is gone.

    Tests that wait read hundreds of these many times a second, so it goes without objects for paths and files.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, 4096)
    finally:
        os.close(descriptor)

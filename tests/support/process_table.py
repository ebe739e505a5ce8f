"""What runs on this machine, and who started it."""

from __future__ import annotations

import os
import subprocess


def descendants(pid: int) -> set[int]:
    """The processes that this one started and those that they started, as far as they still run."""
    parents, found = _parents(), {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def is_running(pid: int) -> bool:
    """Whether there is such a process, and not only what is left of it."""
    return pid in _parents(str(pid))


def is_stopped(pid: int) -> bool:
    """Whether this process was stopped by a signal; on a system without ``/proc`` every process passes for one."""
    row = _stat(str(pid))
    return not os.path.exists("/proc/self/stat") or row[1:2] == ["T"]


def _parents(*which: str) -> dict[int, int]:
    """Who started each of these, or each process that there is."""
    # What "ps" of every system prints, but an image of Linux may lack it.
    if os.path.exists("/proc/self/stat"):
        rows = [_stat(pid) for pid in which or filter(str.isdigit, os.listdir("/proc"))]
    else:
        with subprocess.Popen(["ps", "-A", "-o", "pid=,state=,ppid="], stdout=subprocess.PIPE, text=True) as ps:
            rows = [line.split() for line in ps.communicate()[0].splitlines()]
        rows = [row for row in rows if row[:1] != [str(ps.pid)]]
    return {int(pid): int(parent) for pid, state, parent in filter(None, rows) if not state.startswith("Z")}


def _stat(pid: str) -> list[str]:
    # Tests that wait ask for hundreds of these many times a second, so it goes without objects for paths and files.
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    except OSError:
        return []
    try:
        # pid (name, which may hold anything) state parent ...
        _, _, after = os.read(descriptor, 4096).rpartition(b")")
    except OSError:
        return []
    finally:
        os.close(descriptor)
    return [pid, *after.decode().split()[:2]]

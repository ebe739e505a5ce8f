"""What runs on this machine, and who started it."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from pathlib import Path


def descendants(pid: int) -> set[int]:
    """The processes that this one started and those that they started, as far as they still run."""
    parents, found = _parents(), {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def is_running(pid: int) -> bool:
    """Whether there is such a process, and not only what is left of it."""
    return pid in _parents(str(pid))


def _parents(which: str = "[0-9]*") -> dict[int, int]:
    # What "ps" of every system prints, but an image of Linux may lack it.
    if Path("/proc/self/stat").exists():
        rows = [_stat(path) for path in Path("/proc").glob(f"{which}/stat")]
    else:
        with subprocess.Popen(["ps", "-A", "-o", "pid=,state=,ppid="], stdout=subprocess.PIPE, text=True) as ps:
            rows = [line.split() for line in ps.communicate()[0].splitlines()]
        rows = [row for row in rows if row[:1] != [str(ps.pid)]]
    return {int(pid): int(parent) for pid, state, parent in filter(None, rows) if not state.startswith("Z")}


def _stat(path: Path) -> list[str]:
    with suppress(OSError):
        # pid (name, which may hold anything) state parent ...
        before, _, after = path.read_text().rpartition(")")
        return [before.split()[0], *after.split()[:2]]
    return []

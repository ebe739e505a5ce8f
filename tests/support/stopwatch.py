"""Bounds in seconds that hold the product, and not the machine that it is tested on.

A bound is what something may take on a machine that has nothing else to do. Beside other work a process that is ready
to run has to wait for a processor; Linux counts for how long. A :class:`Stopwatch` adds that up, for the processes that
take part, and gives it on top. Where there is no such count, the bound is all there is.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

#: How often the counts are read: they are gone with the thread that they belong to.
_OFTEN = 0.01

_TICKS = os.sysconf("SC_CLK_TCK")


class HasPid(Protocol):
    """A process, a server, a worker."""

    @property
    def pid(self) -> int: ...


class Stopwatch:
    """Measures how long a block takes, and how much of that the machine kept from those who took part.

    Parameters:
        others: who took part besides this process. One that ends meanwhile counts until then.
    """

    def __init__(self, *others: HasPid) -> None:
        self._pids = [os.getpid(), *(each.pid for each in others)]
        self._first: dict[tuple[int, int], int] = {}
        self._last: dict[tuple[int, int], int] = {}
        self._over = threading.Event()
        self._sampler = threading.Thread(target=self._sample, daemon=True)
        self._stolen = 0.0
        self.took = 0.0  #: seconds

    def __enter__(self) -> Stopwatch:
        self._read(self._first)
        self._stolen = _stolen()
        self._sampler.start()
        self._began = time.monotonic()
        return self

    def __exit__(self, *exc: object) -> None:
        self.took = time.monotonic() - self._began
        self._over.set()
        self._sampler.join()
        self._read(self._last)
        self._stolen = _stolen() - self._stolen

    @property
    def withheld(self) -> float:
        """Seconds for which somebody was ready to run and did not."""
        waited = sum(last - self._first.get(thread, 0) for thread, last in self._last.items())
        return waited / 1e9 + self._stolen

    def at_most(self, bound: float) -> None:
        """Fail if it took longer than so many seconds, and longer than the machine explains."""
        told = f"took {self.took:.3f} s, of which the machine may have withheld {self.withheld:.3f} s"
        print(told)
        assert self.took < bound + self.withheld, f"{told}; at most {bound:g} s"

    def _sample(self) -> None:
        while not self._over.wait(_OFTEN):
            self._read(self._last)

    def _read(self, into: dict[tuple[int, int], int]) -> None:
        for pid in self._pids:
            into.update(_waited(pid))


def _waited(pid: int) -> Iterator[tuple[tuple[int, int], int]]:
    """For each thread, the nanoseconds for which it waited for a processor."""
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        try:
            _, waited, _ = path.read_text().split()
        except OSError:  # it has ended
            continue
        yield (pid, int(path.parent.name)), int(waited)


def _stolen() -> float:
    """Seconds that the host of a virtual machine took from it."""
    try:
        words = Path("/proc/stat").read_text().split()
    except OSError:
        return 0.0
    return int(words[8]) / _TICKS

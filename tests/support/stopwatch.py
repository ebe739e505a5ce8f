"""Bounds in seconds that hold the product, and not the machine that it is tested on.

A bound is what something may take on a machine that has nothing else to do. Beside other work a process that is ready
to run has to wait for a processor; Linux counts for how long, once the wait is over. A :class:`Stopwatch` adds that up
for the processes that take part, with the waits that are not over, and gives it on top. Where there is no such count,
the bound is all there is.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Protocol

from tests.support.process_table import content, is_ready

_TICKS = os.sysconf("SC_CLK_TCK")


class HasPid(Protocol):
    """A process, a server, a worker."""

    @property
    def pid(self) -> int: ...


class Waits:
    """Waits of threads for a processor, as far as repeated readings show them."""

    def __init__(self) -> None:
        #: For each thread, the nanoseconds for which it ran and for which it waited, until its last wait was over.
        self._counts: dict[int, tuple[int, int]] = {}
        #: The first and the last reading of a wait that is not counted yet. A thread that ends takes its count along.
        self._uncounted: dict[int, tuple[float, float]] = {}

    def note(self, thread: int, counts: tuple[int, int], *, is_ready: bool, at: float) -> None:
        """Note one reading of a thread.

        Parameters:
            counts: the nanoseconds for which it ran and for which it waited.
            is_ready: whether it runs or waits for a processor.
            at: seconds of a monotonic clock.
        """
        if counts != self._counts.get(thread) or not is_ready:
            self._counts[thread] = counts
            self._uncounted.pop(thread, None)
            return
        first, _ = self._uncounted.get(thread, (at, at))
        self._uncounted[thread] = (first, at)

    @property
    def seconds(self) -> float:
        """All waits of all threads, in seconds."""
        counted = sum(waited for _, waited in self._counts.values())
        return counted / 1e9 + sum(last - first for first, last in self._uncounted.values())


class Stopwatch:
    """Measures how long a block takes, and how much of that the machine kept from those who took part.

    Parameters:
        others: who took part besides this process. One that ends meanwhile counts until then.
        often: seconds from one reading of the counts to the next; they are gone with the thread that they belong to.
    """

    def __init__(self, *others: HasPid, often: float = 0.01) -> None:
        self._pids = [os.getpid(), *(each.pid for each in others)]
        self._often = often
        self._waits = Waits()
        self._before = 0.0
        self._readings: list[tuple[float, float]] = []  #: when, and what was withheld until then
        self._over = threading.Event()
        self._sampler = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Stopwatch:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def start(self) -> None:
        """Begin to measure."""
        self._before = self._read()
        self._readings.append((time.monotonic(), 0.0))
        self._sampler.start()

    def stop(self) -> None:
        """End it; may be called again."""
        if not self._over.is_set():
            ended = time.monotonic()
            self._over.set()
            self._sampler.join()
            self._readings.append((ended, self._read() - self._before))

    def add(self, other: HasPid) -> None:
        """One more takes part, from now on."""
        self._pids.append(other.pid)

    @property
    def took(self) -> float:
        """Seconds from the start to the end."""
        return self._readings[-1][0] - self._readings[0][0]

    @property
    def withheld(self) -> float:
        """Seconds for which somebody was ready to run and did not."""
        return self._readings[-1][1]

    def worst(self, seconds: float, *, since: float) -> float:
        """The most that was withheld within any span of so many seconds after this moment of the monotonic clock."""
        most, first = 0.0, 0
        for at, withheld in self._readings:
            if at <= since:
                first += 1
                continue
            while self._readings[first][0] < at - seconds:
                first += 1
            most = max(most, withheld - self._readings[first][1])
        return most

    def at_most(self, bound: float) -> None:
        """Fail if it took longer than so many seconds, and longer than the machine explains."""
        told = f"took {self.took:.3f} s, of which the machine may have withheld {self.withheld:.3f} s"
        print(told)
        assert self.took < bound + self.withheld, f"{told}; at most {bound:g} s"

    def _sample(self) -> None:
        while not self._over.wait(self._often):
            self._readings.append((time.monotonic(), self._read() - self._before))

    def _read(self) -> float:
        at = time.monotonic()
        for pid in tuple(self._pids):
            for thread, counts in _counts(pid):
                self._waits.note(thread, counts, is_ready=is_ready(pid, thread), at=at)
        return self._waits.seconds + _stolen()


def _counts(pid: int) -> Iterator[tuple[int, tuple[int, int]]]:
    """For each thread, the nanoseconds for which it ran and for which it waited for a processor."""
    with suppress(OSError):  # it has ended
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError):
                ran, waited, _ = content(f"/proc/{pid}/task/{thread}/schedstat").split()
                yield int(thread), (int(ran), int(waited))


def _stolen() -> float:
    """Seconds that the host of a virtual machine took from it."""
    try:
        words = content("/proc/stat").split()
    except OSError:
        return 0.0
    return int(words[8]) / _TICKS

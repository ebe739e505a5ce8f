"""The two clocks: the wall clock tells the time, the other one tells how much time has passed."""

from __future__ import annotations

import time

#: A clock that nobody can set and that runs on while the machine sleeps, because a lease runs out
#: then too. Linux has its own name for it; elsewhere the monotonic clock does this.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

#: Seconds that two correct clocks may differ. A time server allows less, and so does the round trip
#: of a question.
CLOCK_OFF = 0.5


def wall_ms() -> int:
    """Return the time of the wall clock in epoch milliseconds."""
    return int(time.time() * 1000)


def elapsed() -> float:
    """Return seconds since some fixed moment. Only differences have a meaning."""
    return time.clock_gettime(_CLOCK)

"""Two clocks: the wall clock for instants, and a monotonic clock for lengths of time."""

from __future__ import annotations

import time

#: Clock that nobody can set. It goes on while the machine sleeps, because a lease expires then,
#: too. On Linux this clock has its own name; elsewhere it is the monotonic clock.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

#: Seconds by which two clocks may differ without a warning. It exceeds the errors of a time server
#: and of a round trip.
CLOCK_OFF = 0.5


def wall_ms() -> int:
    """Return the time of the wall clock in epoch milliseconds."""
    return int(time.time() * 1000)


def elapsed() -> float:
    """Return the seconds since an unknown fixed moment. Only differences have a meaning."""
    return time.clock_gettime(_CLOCK)

"""The two clocks: one that says what time it is, and one that says how much time has passed."""

from __future__ import annotations

import time

#: A clock that no one can set and that goes on while the machine sleeps: a lease does not wait for a laptop's lid.
#: Linux needs its own name for that; elsewhere the monotonic clock behaves so.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

#: Seconds by which two clocks may seem to differ and be right: a time server allows less, a question takes less.
CLOCK_OFF = 0.5


def wall_ms() -> int:
    """The wall clock in epoch milliseconds."""
    return int(time.time() * 1000)


def elapsed() -> float:
    """Seconds since some fixed moment; only differences mean anything."""
    return time.clock_gettime(_CLOCK)

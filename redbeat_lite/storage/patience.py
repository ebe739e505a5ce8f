"""Patience: with a server that restarts, and how much of it others can be asked for."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from redis.exceptions import NoPermissionError

from ..clock import elapsed
from ..forks import let_through
from ..schedules.missed import WalkOn, by_count
from .connections import FAULTS
from .key_types import ForeignKey

_T = TypeVar("_T")

#: Seconds for which missed occurrences are walked through one by one while somebody waits: a step of a valid recurrence
#: can take 25 ms. The beat has bounds of its own, and takes turns.
_BRIEF = 1.0

#: Seconds of the first pause; each is twice as long as the one before it, …
_FIRST = 0.2

#: … and at most this long.
_LONGEST = 4.0


def briefly() -> WalkOn:
    """A walk through missed occurrences that is over a second from now, for all of one call together."""
    ends = elapsed() + _BRIEF
    return lambda walked: by_count(walked) and elapsed() < ends


def patiently(ask: Callable[[], _T], seconds: float) -> _T:
    """What ``ask`` returns, asked again and again for so many seconds while the server does not answer.

    For what does no harm when it is asked twice: the first time may have arrived, and only its reply been lost. The
    last attempt begins when the time is over; against a server that hangs it takes another four seconds. What it raises
    then is raised; at once that the server does not let us, or that another program uses the key, which stays so.
    """
    deadline, pause = time.monotonic() + seconds, _FIRST
    while True:
        try:
            return ask()
        except FAULTS as exc:
            left = deadline - time.monotonic()
            # Within a script, what is not permitted is an error like any other.
            if left <= 0 or isinstance(exc, (NoPermissionError, ForeignKey)) or "ACL failure" in str(exc):
                raise
            with let_through():
                time.sleep(min(pause, left))
            pause = min(2 * pause, _LONGEST)

"""Limits of the time that a caller waits for a server."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from redis.exceptions import NoPermissionError

from .._base.forks import forks_allowed
from .connections import FAULTS
from .keys import ForeignKey

_T = TypeVar("_T")

# Seconds of the first pause between two attempts. Each pause is twice as long as the one before it.
_FIRST = 0.2

# Longest pause between two attempts, in seconds.
_LONGEST = 4.0


def retry_for(ask: Callable[[], _T], seconds: float) -> _T:
    """Return what ``ask`` returns, and retry it for some seconds while the server does not answer.

    ``ask`` must be idempotent, because the server may have done it and only the reply may be lost.
    The last attempt begins when the time is over, and takes four more seconds if the server hangs.

    Raises:
        Exception: the last attempt has failed. A missing permission and a key of another program
            are raised at once, because they stay.
    """
    deadline = time.monotonic() + seconds
    pause = _FIRST
    while True:
        try:
            return ask()
        except FAULTS as exc:
            left = deadline - time.monotonic()
            # Within a script, a missing permission is an error like any other.
            is_forbidden = isinstance(exc, NoPermissionError) or "ACL failure" in str(exc)
            if left <= 0 or is_forbidden or isinstance(exc, ForeignKey):
                raise
            with forks_allowed():
                time.sleep(min(pause, left))
            pause = min(2 * pause, _LONGEST)

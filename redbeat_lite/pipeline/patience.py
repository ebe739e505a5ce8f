"""Waiting for a server that restarts."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from ..once.store import DOWN

#: Seconds between attempts to record something while the server does not answer; together about half a minute.
_PATIENCE = (0.2, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0)

_T = TypeVar("_T")


def patiently(call: Callable[[], _T]) -> _T:
    """What ``call`` returns, asked again for half a minute while the server does not answer.

    A body's outcome is not to be lost because the server restarts; and each script knows its own earlier work.
    """
    for pause in _PATIENCE:
        try:
            return call()
        except DOWN:
            time.sleep(pause)
    return call()

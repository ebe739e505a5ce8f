"""No garbage collection while what is due is sent."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collection() -> Iterator[None]:
    """Keep the garbage collector from running for some seconds.

    What a batch makes is gone when it ends, without a collector. Collections in the middle of it, or after each of
    many, would count that as here to stay, and go through every cached entry again and again for nothing.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()

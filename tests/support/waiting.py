"""Waiting for a condition instead of sleeping and hoping."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(condition: Callable[[], T], *, within: float = 60.0, what: str = "the condition") -> T:
    """Poll until ``condition()`` is true and return what it returned; fail after ``within`` seconds."""
    began = looked = time.monotonic()
    while True:
        value = condition()
        if value:
            return value
        now = time.monotonic()
        if now > began + within:
            raise AssertionError(f"{what} did not come true within {within} s; last seen: {value!r}")
        # A look that took long keeps others from going on.
        time.sleep(max(pause(now - began), min(now - looked, 0.1)))
        looked = time.monotonic()


def pause(waited: float) -> float:
    """Seconds until the next look: a twentieth of what it has taken so far, because many looks cost others the core."""
    return min(max(0.005, waited / 20), 0.05)


def never(condition: Callable[[], object], *, during: float, what: str = "the condition") -> None:
    """Fail if ``condition()`` becomes true within ``during`` seconds."""
    deadline = time.monotonic() + during
    while time.monotonic() < deadline:
        value = condition()
        if value:
            raise AssertionError(f"{what} came true: {value!r}")
        time.sleep(0.01)

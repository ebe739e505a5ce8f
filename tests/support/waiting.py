"""Waiting for a condition instead of sleeping and hoping."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(condition: Callable[[], T], *, within: float = 10.0, what: str = "the condition") -> T:
    """Poll until ``condition()`` is true and return what it returned; fail after ``within`` seconds."""
    began = time.monotonic()
    deadline = began + within
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true within {within} s; last seen: {value!r}")
        # Who has waited for long can wait a little longer: what is looked at costs a processor something each time.
        time.sleep(min(max((time.monotonic() - began) / 40, 0.005), 0.025))


def never(condition: Callable[[], object], *, during: float, what: str = "the condition") -> None:
    """Fail if ``condition()`` becomes true within ``during`` seconds."""
    deadline = time.monotonic() + during
    while time.monotonic() < deadline:
        value = condition()
        if value:
            raise AssertionError(f"{what} came true: {value!r}")
        time.sleep(0.01)

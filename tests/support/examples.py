"""How many examples Hypothesis tries."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings

#: How many times as many `make soak` tries as the ordinary run.
MORE = 125


def examples(count: int, **more: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Try so many examples in the ordinary run, the same ones each time; where the environment has SOAK_MINUTES, many
    times as many, new ones each time, and the test is one of the soak."""
    if "SOAK_MINUTES" not in os.environ:
        return settings(max_examples=count, deadline=None, **more)

    def soaking(test: Callable[..., None]) -> Callable[..., None]:
        for mark in (pytest.mark.soak, pytest.mark.timeout(900)):
            test = mark(test)
        return settings(max_examples=MORE * count, deadline=None, **more)(test)

    return soaking

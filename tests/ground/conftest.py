"""A clock that stands still."""

from __future__ import annotations

from tests.support.in_process import clock

__all__ = ["clock"]

"""A beat in this process, the Schedules API, and a clock that stands still."""

from __future__ import annotations

from tests.support.in_process import (
    clock,
    inner_beat,
    make_app,
    make_beat,
    no_leaks,
    schedules,
    small_pages,
)

__all__ = ["clock", "inner_beat", "make_app", "make_beat", "no_leaks", "schedules", "small_pages"]

"""A beat in this process, and the Schedules API, for what people who run it look at."""

from __future__ import annotations

from tests.integration.conftest import clock, inner_beat, make_app, make_beat, no_leaks, schedules

__all__ = ["clock", "inner_beat", "make_app", "make_beat", "no_leaks", "schedules"]

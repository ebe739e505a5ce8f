"""Incidents, written with their start in epoch milliseconds."""

from __future__ import annotations

from typing import Any

from redbeat_lite import Incident
from redbeat_lite._base.times import from_ms


def incident(kind: Any, entry: str, since: int, text: str, **more: Any) -> Incident:
    """Return an incident; ``entry`` is empty for the whole schedule, ``until`` in epoch milliseconds, too."""
    if "until" in more:
        more["until"] = from_ms(more["until"])
    return Incident(kind, entry or None, from_ms(since), text, **more)

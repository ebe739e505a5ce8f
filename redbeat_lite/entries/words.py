"""Texts for sentences: lists of names, counts, instants, lengths of time."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime, tzinfo

from .._base.times import in_zone

#: Instant in UTC, as texts have it that were written without a zone to show it in.
_UTC = re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{3,6})?\+00:00")


def listed(names: Iterable[str], most: int = 5) -> str:
    """Return names for a sentence: the first few of them, and the number of the others."""
    names = [*names]
    shown = ", ".join(map(repr, names[:most]))
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def counted(number: int, one: str, many: str) -> str:
    """Return a number with its noun: ``1 entry``, ``2 entries``."""
    return f"{number} {one if number == 1 else many}"


def counted_missed(number: int) -> str:
    """Return how many occurrences were missed; not all are counted if there are very many."""
    if number >= 1000:
        return "1,000 occurrences or more"
    return counted(number, "occurrence", "occurrences")


def local(text: str, zone: tzinfo) -> str:
    """Convert the UTC instants in a text to local times of a zone."""

    def localize(match: re.Match[str]) -> str:
        instant = match[0]
        try:
            return in_zone(datetime.fromisoformat(instant), zone)
        except (ValueError, OverflowError):
            # The error of a task may hold a date that does not exist.
            return instant

    return _UTC.sub(localize, text)


def span(seconds: float) -> str:
    """Return a length of time in one or two units, rounded down."""
    if seconds < 10:
        return f"{int(seconds * 10) / 10:g} s"
    units = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))
    left = int(seconds)
    parts: list[str] = []
    for unit, size in units:
        if left >= size and len(parts) < 2:
            parts.append(f"{left // size} {unit}")
        elif parts:
            break
        left %= size
    return " ".join(parts)


def took(seconds: float) -> str:
    """Return a measured length of time: ``41 s``, ``70 ms``."""
    return span(seconds) if seconds >= 1 else f"{round(1000 * seconds)} ms"

"""Words for sentences: which entries and how many, when, and how long."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, tzinfo

#: Names that a sentence lists; a finding holds all of them.
_LISTED = 5


def listed(names: Iterable[str]) -> str:
    """Names for a sentence: the first few of them, and how many more."""
    names = [*names]
    shown = ", ".join(map(repr, names[:_LISTED]))
    return shown if len(names) <= _LISTED else f"{shown} and {len(names) - _LISTED} more"


def counted(number: int, one: str, many: str) -> str:
    """``1 entry``, ``2 entries``."""
    return f"{number} {one if number == 1 else many}"


def in_zone(instant: datetime, zone: tzinfo) -> str:
    """An instant in a zone, to the second, with its offset."""
    return instant.astimezone(zone).replace(microsecond=0).isoformat(sep=" ")


def span(seconds: float) -> str:
    """A length of time in one or two units, rounded down."""
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

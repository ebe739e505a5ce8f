"""Entries in sentences: how many, and which."""

from __future__ import annotations

from collections.abc import Iterable

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

"""Lengths of time, as everybody may write them: seconds, a timedelta, or a text such as ``1h30m``."""

from __future__ import annotations

import math
import re
import sys
from datetime import timedelta

from .errors import InvalidEntry

#: What is taken wherever a length of time is.
Duration = float | timedelta | str

#: The same, for errors.
LENGTH = 'seconds, a timedelta or a text such as "1h30m"'

_UNITS = {"w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|w|d|h|min|m|s)", re.ASCII)
_NUMBER = re.compile(r"\d+(?:\.\d+)?", re.ASCII)


def seconds_of(value: object) -> float | None:
    """The seconds of a finite number, a timedelta, or a text: ``30``, ``30s``, ``1h30m``, ``250ms``, ``2d``.

    ``None`` for anything else.
    """
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, str):
        value = _of_text(value.strip())
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    # Of a size that a float can have: JSON has NaN and Infinity, and so have numbers of many digits.
    return value if is_number and abs(value) <= sys.float_info.max else None  # type: ignore[return-value, arg-type]


def length_of(field: str, value: object, bounds: str, least: float, most: float = math.inf) -> float:
    """The seconds of a length of time that is not less than ``least`` and not more than ``most`` seconds.

    Raises InvalidEntry, which names the field, and tells the bounds in these words.
    """
    seconds = seconds_of(value)
    if seconds is None or not least <= seconds <= most:
        raise InvalidEntry(field, f"{LENGTH}, {bounds}", value)
    return seconds


def _of_text(text: str) -> float | None:
    if _NUMBER.fullmatch(text):
        return float(text)
    parts = _PART.findall(text)
    if not parts or _PART.sub("", text).strip():
        return None
    return sum(float(number) * _UNITS["m" if unit == "min" else unit] for number, unit in parts) / 1000


def duration_text(ms: int) -> str:
    """Milliseconds as ``1h30m``; whatever :func:`seconds_of` reads back."""
    parts = []
    for unit, size in _UNITS.items():
        if ms >= size and unit != "w":
            parts.append(f"{ms // size}{unit}")
            ms %= size
    return "".join(parts) or "0s"

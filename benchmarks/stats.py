"""The little statistics that figures are quoted with."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple


class Figure(NamedTuple):
    """A median, or another quantile, and the range over the rounds."""

    value: float
    low: float
    high: float


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> Figure:
    """The ratio of two figures, round by round."""
    return spread([one / other for one, other in zip(ours, theirs, strict=True)])


def spread(values: Sequence[float]) -> Figure:
    """The median and the range."""
    return Figure(median(values), min(values), max(values))


def quantile(values: Sequence[float], share: float) -> float:
    """The value that this share of all does not exceed."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def pooled(rounds: Sequence[Sequence[float]], share: float) -> Figure:
    """A quantile of all values together, and its range over the rounds."""
    each = [quantile(values, share) for values in rounds]
    return Figure(quantile([value for values in rounds for value in values], share), min(each), max(each))


def seconds(work: Callable[[], object]) -> float:
    """How long ``work`` takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started

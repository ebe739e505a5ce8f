"""Streams, as they are read from their end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

from ..errors import CorruptEntry

_T = TypeVar("_T")

#: What is raised of a line that says something else than it should.
UNREADABLE = (CorruptEntry, KeyError, TypeError, ValueError, OverflowError)


def newest_first(
    client: Any, key: str, decode: Callable[[Any, Any], _T], size: int, oldest: str | int = "-", newest: str = "+"
) -> Iterator[_T]:
    """What the lines of a stream tell, newest first, but for those that cannot be read.

    Parameters:
        decode: what a line tells, by its id and its fields; raises one of :data:`UNREADABLE`.
        size: lines of a round trip.
        oldest, newest: ids, both of which are part of the range.
    """
    while page := client.xrevrange(key, newest, oldest, count=size):
        yield from readable(page, decode)
        if len(page) < size:
            return
        newest = f"({page[-1][0].decode()}"


def readable(page: Iterable[Any], decode: Callable[[Any, Any], _T]) -> Iterator[_T]:
    """What these lines tell, but for those that cannot be read."""
    for line in page:
        with suppress(*UNREADABLE):
            yield decode(*line)

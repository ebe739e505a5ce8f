"""What all readers have in common."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from ...errors import RedbeatError
from .found import Found, Left


class Unreadable(RedbeatError):
    """The store of the other scheduler cannot be reached."""


class Source(Protocol):
    """A schedule that is kept by another scheduler. It is read, never written."""

    #: What the other scheduler is called.
    title: str
    #: Seconds until its store shows what it did.
    lag: float
    #: Whether a beat of it has a lock, as far as ``read`` could see.
    led: bool

    @property
    def where(self) -> str:
        """The place that is read, for people."""
        ...

    def read(self) -> Iterator[Found | Left]:
        """Every entry, as it is now.

        Raises:
            Unreadable: the store cannot be reached.
        """
        ...

    def close(self) -> None:
        """Close what is open."""
        ...

"""What all readers have in common."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from .found import Found, Left


class Source(Protocol):
    """A schedule that is kept by another scheduler. It is read, never written."""

    #: What the other scheduler is called.
    title: str

    @property
    def where(self) -> str:
        """The place that is read, for people."""
        ...

    def read(self) -> Iterator[Found | Left]:
        """Every entry, as it is now."""
        ...

    def close(self) -> None:
        """Close what is open."""
        ...

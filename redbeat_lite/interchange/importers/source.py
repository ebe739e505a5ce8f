"""What all readers have in common, and what they hand on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from ...errors import RedbeatError


class Unreadable(RedbeatError):
    """The store of the other scheduler cannot be reached."""


class Found(NamedTuple):
    """One entry of another scheduler.

    Parameters:
        name: its name.
        fields: what it is, in the form of a value of ``beat_schedule``.
        since: aware; the instant from which its next run is counted: that of its last run, or of its creation where it
            never ran. None for an entry that begins now.
        runs: how often it ran.
        ran: whether ``since`` is its last run although ``runs`` is 0, as after somebody has set back that counter.
        at_once: whether the other scheduler would run it at its next look, whatever its schedule says.
        of_config: whether the other scheduler has it from ``beat_schedule``, where that is known.
        notes: what a person should know about it.
    """

    name: str
    fields: Mapping[str, Any]
    since: datetime | None = None
    runs: int = 0
    ran: bool = False
    at_once: bool = False
    of_config: bool = False
    notes: tuple[str, ...] = ()


class Left(NamedTuple):
    """Something that cannot be carried over, and why."""

    name: str
    reason: str


class Source:
    """A schedule that is kept by another scheduler. It is read, never written."""

    title: str  #: what the other scheduler is called
    where: str  #: the place that is read, for people
    lag = 0.0  #: seconds until its store shows what it did
    led = False  #: whether a beat of it has a lock, as far as :meth:`read` could see

    def read(self) -> Iterator[Found | Left]:
        """Every entry, as it is now; raises Unreadable if the store cannot be reached."""
        raise NotImplementedError

    def close(self) -> None:
        """Close what is open."""

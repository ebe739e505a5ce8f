"""Hooks: what a beat tells whoever wants to know, without ever waiting for them.

Every subscriber has a queue and a thread of its own, so that one that hangs or raises delays
neither the beat nor another subscriber.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple, get_args

if TYPE_CHECKING:
    from celery import Celery

_ATTRIBUTE = "_redbeat_lite_hooks"


class Dispatched(NamedTuple):
    """An occurrence is in the queue. ``lateness`` is in seconds, from its due time on, jitter
    included.
    """

    name: str
    task: str
    task_id: str
    nominal: datetime
    lateness: float


class Misfired(NamedTuple):
    """Missed occurrences were left out by the entry's misfire policy."""

    name: str
    task: str
    missed: int
    policy: str


class Skipped(NamedTuple):
    """An occurrence was left out because the entry's once-lock is held."""

    name: str
    task: str
    nominal: datetime


class Failed(NamedTuple):
    """A publish failed for the ``attempts``-th time in a row; the occurrence stays due."""

    name: str
    task: str
    error: str
    attempts: int


class Quarantined(NamedTuple):
    """An entry cannot be used and was set aside."""

    name: str
    error: str


class LeaderGained(NamedTuple):
    """This beat leads from now on."""

    term: int


class LeaderLost(NamedTuple):
    """This beat leads no more."""

    reason: str


class Ticked(NamedTuple):
    """One turn of the loop is over; ``seconds`` without the wait that follows it."""

    seconds: float


class IncidentOpened(NamedTuple):
    """An expectation does not hold. Told at least once; the same incident has the same ``id``.

    ``kind`` is one of those of :class:`redbeat_lite.Incident`; ``entry`` is ``None`` where it is
    the whole schedule.
    """

    id: str
    kind: str
    entry: str | None
    since: datetime
    text: str


class IncidentClosed(NamedTuple):
    """It holds again, or nobody expects it any more. Told at least once, after the opening."""

    id: str
    kind: str
    entry: str | None
    since: datetime
    text: str
    until: datetime


Event = (
    Dispatched
    | Misfired
    | Skipped
    | Failed
    | Quarantined
    | LeaderGained
    | LeaderLost
    | Ticked
    | IncidentOpened
    | IncidentClosed
)

#: The method that is told of each.
_METHODS: dict[type, str] = {
    event: re.sub("(?<=.)([A-Z])", r"_\1", event.__name__).lower() for event in get_args(Event)
}


class Hooks:
    """What a beat tells. Override what you want to hear, and hand an instance to :func:`subscribe`.

    The methods run in a thread of their own, one event after the other. What they raise is logged
    once and goes no further. Whoever is slower than the beat for long loses events, which is logged
    once too.
    """

    def dispatched(self, event: Dispatched) -> None:
        """An occurrence is in the queue."""

    def misfired(self, event: Misfired) -> None:
        """Missed occurrences were left out by a misfire policy."""

    def skipped(self, event: Skipped) -> None:
        """An occurrence was left out for a once-lock."""

    def failed(self, event: Failed) -> None:
        """A publish failed and will be tried again."""

    def quarantined(self, event: Quarantined) -> None:
        """An entry was set aside."""

    def leader_gained(self, event: LeaderGained) -> None:
        """This beat leads from now on."""

    def leader_lost(self, event: LeaderLost) -> None:
        """This beat leads no more."""

    def ticked(self, event: Ticked) -> None:
        """One turn of the loop is over."""

    def incident_opened(self, event: IncidentOpened) -> None:
        """An expectation does not hold."""

    def incident_closed(self, event: IncidentClosed) -> None:
        """It holds again."""


def subscribe(app: Celery, hooks: Hooks) -> None:
    """Have every beat of ``app`` that starts in this process tell ``hooks`` what happens.

    Call it where the app is made. In a worker or a web process it does nothing.

    Raises:
        TypeError: ``hooks`` is not an instance of :class:`Hooks`.
    """
    if not isinstance(hooks, Hooks):
        raise TypeError(f"hooks: expected an instance of redbeat_lite.events.Hooks, got {hooks!r}")
    app.__dict__.setdefault(_ATTRIBUTE, []).append(hooks)


def subscribers(app: Celery) -> list[Hooks]:
    """What :func:`subscribe` was given for this app."""
    return list(app.__dict__.get(_ATTRIBUTE, ()))

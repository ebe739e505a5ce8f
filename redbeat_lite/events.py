"""Hooks: a beat calls the methods of subscribers when something happens, and never waits for them.

Every subscriber has its own queue and thread. So a subscriber that hangs or raises delays neither
the beat nor another subscriber.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple, get_args

if TYPE_CHECKING:
    from celery import Celery

_ATTRIBUTE = "_redbeat_lite_hooks"


class Dispatched(NamedTuple):
    """An occurrence was sent to the queue.

    ``lateness`` is the time in seconds since its due time, which includes the jitter.
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
    """This beat does not lead any more."""

    reason: str


class Ticked(NamedTuple):
    """One turn of the loop has ended. ``seconds`` does not include the wait that follows."""

    seconds: float


class IncidentOpened(NamedTuple):
    """An expectation is not met. The event may come twice for an incident, with the same ``id``.

    ``kind`` is a kind of :class:`redbeat_lite.Incident`. ``entry`` is ``None`` if the incident
    concerns the whole schedule.
    """

    id: str
    kind: str
    entry: str | None
    since: datetime
    text: str


class IncidentClosed(NamedTuple):
    """An expectation is met again, or was removed. The event may come twice, and follows the
    opening.
    """

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

#: Name of the method that gets an event of this class.
_METHODS: dict[type, str] = {
    event: re.sub("(?<=.)([A-Z])", r"_\1", event.__name__).lower() for event in get_args(Event)
}


class Hooks:
    """Subscriber to the events of a beat. Override methods, and pass an instance to
    :func:`subscribe`.

    The methods run in a separate thread, one event after the other. An exception in a method is
    logged once, and has no other effect. A subscriber that is slower than the beat for a long time
    loses events, which is logged once too.
    """

    def dispatched(self, event: Dispatched) -> None:
        """An occurrence was sent to the queue."""

    def misfired(self, event: Misfired) -> None:
        """Missed occurrences were left out by a misfire policy."""

    def skipped(self, event: Skipped) -> None:
        """An occurrence was left out because of a once-lock."""

    def failed(self, event: Failed) -> None:
        """A publish failed and will be retried."""

    def quarantined(self, event: Quarantined) -> None:
        """An entry was set aside."""

    def leader_gained(self, event: LeaderGained) -> None:
        """This beat leads from now on."""

    def leader_lost(self, event: LeaderLost) -> None:
        """This beat does not lead any more."""

    def ticked(self, event: Ticked) -> None:
        """One turn of the loop has ended."""

    def incident_opened(self, event: IncidentOpened) -> None:
        """An expectation is not met."""

    def incident_closed(self, event: IncidentClosed) -> None:
        """An expectation is met again, or was removed."""


def subscribe(app: Celery, hooks: Hooks) -> None:
    """Let every beat of ``app`` that starts in this process send its events to ``hooks``.

    Call it where the app is created. In a worker or a web process it has no effect.

    Raises:
        TypeError: ``hooks`` is not an instance of :class:`Hooks`.
    """
    if not isinstance(hooks, Hooks):
        raise TypeError(f"hooks: expected an instance of redbeat_lite.events.Hooks, got {hooks!r}")
    app.__dict__.setdefault(_ATTRIBUTE, []).append(hooks)


def subscribers(app: Celery) -> list[Hooks]:
    """Return the hooks that :func:`subscribe` has added to this app."""
    return list(app.__dict__.get(_ATTRIBUTE, ()))

"""Hooks: what a beat tells whoever wants to know, without ever waiting for them.

Every subscriber has a queue and a thread of its own, so that one that hangs or raises delays neither the beat nor
another subscriber.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import datetime
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

from celery.utils.log import get_logger

from .clock import elapsed

if TYPE_CHECKING:
    from celery import Celery

logger = get_logger(__name__)

#: Events that may wait for one subscriber; what comes beyond them is dropped. Some 25 MB at most.
BACKLOG = 50_000

#: Seconds that a beat which is told to stop waits for its subscribers to hear the last events.
_FAREWELL = 0.3

_ATTRIBUTE = "_redbeat_lite_hooks"


class Dispatched(NamedTuple):
    """An occurrence is in the queue. ``lateness`` is in seconds, from its due time on, jitter included."""

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


Event = Dispatched | Misfired | Skipped | Failed | Quarantined | LeaderGained | LeaderLost | Ticked

_METHODS: dict[type, str] = {
    Dispatched: "dispatched",
    Misfired: "misfired",
    Skipped: "skipped",
    Failed: "failed",
    Quarantined: "quarantined",
    LeaderGained: "leader_gained",
    LeaderLost: "leader_lost",
    Ticked: "ticked",
}


class Hooks:
    """What a beat tells. Override what you want to hear, and hand an instance to :func:`subscribe`.

    The methods run in a thread of their own, one event after the other. What they raise is logged once and goes no
    further. Whoever is slower than the beat for long loses events, which is logged once too.
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


class Announcer:
    """Tells the subscribers of one beat. Starts no thread before the first event."""

    def __init__(self, hooks: Sequence[Hooks]) -> None:
        self._subscribers = [_Subscriber(each) for each in hooks]

    def add(self, hooks: Hooks) -> None:
        """Tell these hooks too, from now on."""
        self._subscribers.append(_Subscriber(hooks))

    @property
    def listening(self) -> bool:
        """Whether anybody wants to hear; if not, an event need not be made."""
        return bool(self._subscribers)

    def tell(self, events: Sequence[Event]) -> None:
        """Hand these events to every subscriber's thread, and return at once."""
        if events:
            for subscriber in self._subscribers:
                subscriber.tell(events)

    def close(self) -> None:
        """Let the subscribers hear what was told, for a third of a second at most. May be called twice."""
        for subscriber in self._subscribers:
            subscriber.stop()
        deadline = elapsed() + _FAREWELL
        for subscriber in self._subscribers:
            subscriber.join(max(deadline - elapsed(), 0.0))


class _Subscriber:
    def __init__(self, hooks: Hooks) -> None:
        self._name = type(hooks).__qualname__
        self._handlers = _handlers(hooks)
        # A SimpleQueue, because a signal handler may put into it whatever it has interrupted.
        self._queue: SimpleQueue[Sequence[Event] | None] = SimpleQueue()
        self._told = self._heard = 0  # each written by one thread alone
        self._dropping = False
        self._failed: set[type] = set()
        self._thread: threading.Thread | None = None

    def tell(self, events: Sequence[Event]) -> None:
        events = [event for event in events if type(event) in self._handlers]
        if not events:
            return
        if self._told - self._heard > BACKLOG:
            self._drop()
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._listen, name=f"redbeat-lite-{self._name}", daemon=True)
            self._thread.start()
        self._told += len(events)
        self._queue.put(events)

    def stop(self) -> None:
        self._queue.put(None)

    def join(self, seconds: float) -> None:
        if self._thread is not None and self._thread.is_alive():  # a signal may come before its start, too
            self._thread.join(seconds)

    def _drop(self) -> None:
        if not self._dropping:
            self._dropping = True
            logger.error("beat: hooks %s are slower than the beat; events are dropped from now on", self._name)

    def _listen(self) -> None:
        while (events := self._queue.get()) is not None:
            for event in events:
                self._deliver(event)
            self._heard += len(events)

    def _deliver(self, event: Event) -> None:
        kind = type(event)
        try:
            self._handlers[kind](event)
        except Exception as exc:  # somebody else's code must not end the thread
            if kind not in self._failed:
                self._failed.add(kind)
                what = f"{self._name}.{_METHODS[kind]}"
                logger.error("beat: hook %s failed, which is said once: %r", what, exc, exc_info=True)


def _handlers(hooks: Hooks) -> dict[type, Callable[[Any], None]]:
    """The methods that were overridden; the others need not be called."""
    return {
        kind: getattr(hooks, name)
        for kind, name in _METHODS.items()
        if getattr(type(hooks), name) is not getattr(Hooks, name) or name in vars(hooks)
    }

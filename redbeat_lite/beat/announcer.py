"""Announcements of events to the hooks of a beat.

Each subscriber has its own thread. So a hook that hangs delays neither the beat nor another
subscriber.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

from celery.utils.log import get_logger

from .._base.clock import elapsed
from ..events import _METHODS, Event, Hooks

logger = get_logger(f"celery.{__name__}")

#: Maximum number of events that are queued for one subscriber, some 25 MB. Later events are
#: dropped.
BACKLOG = 50_000

#: Seconds without a handled event after which a subscriber counts as hanging. The three attempts to
#: send a notice take less time.
HANGS = 120.0

#: Maximum number of seconds that a stopping beat waits for its subscribers to handle the last
#: events.
_LAST_WAIT = 0.3


class Announcer:
    """Announces events to the subscribers of one beat. Starts no thread before the first event."""

    def __init__(self, hooks: Sequence[Hooks]) -> None:
        self._subscribers = [_Subscriber(subscriber) for subscriber in hooks]

    def add(self, hooks: Hooks) -> None:
        """Announce events to these hooks, too, from now on."""
        self._subscribers.append(_Subscriber(hooks))

    @property
    def listening(self) -> bool:
        """Whether there is a subscriber. Without one, the caller need not make events."""
        return bool(self._subscribers)

    def announce(self, events: Sequence[Event]) -> None:
        """Queue events for every subscriber, and return at once."""
        for subscriber in self._subscribers:
            subscriber.announce(events)

    def delivery(self) -> Delivery:
        """Return an object that tells whether all events announced until now are handled."""
        return Delivery(self._subscribers)

    def close(self) -> None:
        """Wait for a moment until queued events are handled. A second call does no harm."""
        for subscriber in self._subscribers:
            # ``None`` ends the thread, after the events that are queued before it.
            subscriber.queue.put(None)
        deadline = elapsed() + _LAST_WAIT
        for subscriber in self._subscribers:
            if subscriber.thread is not None:
                subscriber.thread.join(max(deadline - elapsed(), 0.0))


class Delivery:
    """Tells whether the subscribers have handled all events announced before it was made."""

    def __init__(self, subscribers: Sequence[_Subscriber]) -> None:
        self._announced_at = elapsed()
        #: Each subscriber, and the count of the events that were queued for it until now.
        self._queued = [(subscriber, subscriber.queued) for subscriber in subscribers]

    @property
    def is_complete(self) -> bool:
        """Whether each subscriber has handled the events of this delivery, or hangs.

        A subscriber that hangs is ignored, so that nobody waits for it for ever.
        """
        for subscriber, queued in self._queued:
            # A subscriber is silent since it last handled an event. But before the announcement, it
            # may have had nothing to handle. So count from the announcement at the earliest.
            silence = elapsed() - max(self._announced_at, subscriber.handled_at)
            if subscriber.handled < queued and silence <= HANGS:
                return False
        return True


class _Subscriber:
    """Hooks with their queue and their thread.

    The announcing threads write ``queued``, the count of queued events. The subscriber's thread
    writes ``handled``, the count of handled events, and ``handled_at``, the time of the last one
    in seconds of :func:`elapsed`.
    """

    def __init__(self, hooks: Hooks) -> None:
        self._name = type(hooks).__qualname__
        #: Type of event -> method, for the methods that the hooks override.
        self._handlers: dict[type, Callable[[Any], None]] = {
            kind: getattr(hooks, name)
            for kind, name in _METHODS.items()
            if getattr(type(hooks), name) is not getattr(Hooks, name)
        }
        #: Lock of the announcing threads: the main loop and the incident watch announce events.
        #: Without it, both could start a thread for the first events.
        self._lock = threading.Lock()
        #: Lists of events that wait for the thread. ``None`` ends the thread.
        self.queue: SimpleQueue[Sequence[Event] | None] = SimpleQueue()
        #: Counts of events that were queued and handled, and when the last one was handled.
        self.queued = 0
        self.handled = 0
        self.handled_at = 0.0
        #: Whether events were dropped. Only the first drop is logged.
        self._has_dropped = False
        #: Types of events whose hook has failed. The log has the first error of each.
        self._failed: set[type] = set()
        #: Thread that calls the hooks; ``None`` until the first event that they handle.
        self.thread: threading.Thread | None = None

    def announce(self, events: Sequence[Event]) -> None:
        """Queue those events that the hooks handle."""
        events = [event for event in events if type(event) in self._handlers]
        if events:
            with self._lock:
                self._enqueue(events)

    def _enqueue(self, events: Sequence[Event]) -> None:
        """Queue events for the thread of this subscriber, unless its backlog is too long.

        The caller holds the lock.
        """
        if self.queued - self.handled > BACKLOG:
            if not self._has_dropped:
                self._has_dropped = True
                logger.error("beat: hooks %s are too slow, and events are dropped", self._name)
            return
        if self.thread is None:
            name = f"redbeat-lite-{self._name}"
            self.thread = threading.Thread(target=self._listen, name=name, daemon=True)
            self.thread.start()
        self.queued += len(events)
        self.queue.put(events)

    def _listen(self) -> None:
        """Handle queued events, as the thread of this subscriber, until ``None`` is queued."""
        while (events := self.queue.get()) is not None:
            for event in events:
                self._handle(event)
                self.handled_at = elapsed()
            self.handled += len(events)

    def _handle(self, event: Event) -> None:
        """Call the subscriber's method for an event. Log the first error of each kind of event."""
        kind = type(event)
        try:
            self._handlers[kind](event)
        except Exception as exc:  # A user's code must not end the thread.
            if kind not in self._failed:
                self._failed.add(kind)
                hook = f"{self._name}.{_METHODS[kind]}"
                logger.error("beat: hook %s failed (logged once): %r", hook, exc, exc_info=True)

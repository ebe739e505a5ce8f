"""Telling the hooks: each has a thread of its own, so that one that hangs delays neither the beat nor another."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

from celery.utils.log import get_logger

from ..clock import elapsed
from ..events import _METHODS, Event, Hooks

logger = get_logger(f"celery.{__name__}")

#: Events that may wait for one subscriber; what comes beyond them is dropped. Some 25 MB at most.
BACKLOG = 50_000

#: Seconds after which a subscriber that has ended with no event meanwhile hangs; a notice may take 110.
HANGS = 120.0

#: Seconds that a stopping beat waits until its subscribers have handled the last events.
_FAREWELL = 0.3


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
        for subscriber in self._subscribers:
            subscriber.tell(events)

    def hearing(self) -> Callable[[], bool]:
        """What tells whether all have heard what was told until now, but for those that hang."""
        since, told = elapsed(), [(subscriber, subscriber.told) for subscriber in self._subscribers]

        def heard() -> bool:
            hung = elapsed() - HANGS
            return all(one.heard >= far or max(since, one.moved) < hung for one, far in told)

        return heard

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
        self._queue: SimpleQueue[Sequence[Event] | None] = SimpleQueue()
        self.told = self.heard = 0  # each written by one thread alone
        self.moved = 0.0  #: when it was last done with an event
        self._dropping = False
        self._failed: set[type] = set()
        self._thread: threading.Thread | None = None

    def tell(self, events: Sequence[Event]) -> None:
        events = [event for event in events if type(event) in self._handlers]
        if not events:
            return
        if self.told - self.heard > BACKLOG:
            if not self._dropping:
                self._dropping = True
                logger.error("beat: hooks %s are slower than the beat; events are dropped from now on", self._name)
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._listen, name=f"redbeat-lite-{self._name}", daemon=True)
            self._thread.start()
        self.told += len(events)
        self._queue.put(events)

    def stop(self) -> None:
        self._queue.put(None)

    def join(self, seconds: float) -> None:
        if self._thread is not None:
            self._thread.join(seconds)

    def _listen(self) -> None:
        while (events := self._queue.get()) is not None:
            for event in events:
                self._deliver(event)
                self.moved = elapsed()
            self.heard += len(events)

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

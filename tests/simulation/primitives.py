"""What threads use of the modules ``time``, ``threading`` and ``queue``, in the time of a world."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from math import ceil
from typing import Any

from greenlet import getcurrent  # type: ignore[import-untyped]

from tests.simulation.thread import Thread
from tests.simulation.world import MICROS, Waiters, World


class Time:
    """The module ``time``: each process has a wall clock of its own, which somebody may set."""

    CLOCK_BOOTTIME = 7
    CLOCK_MONOTONIC = 1

    def __init__(self, world: World) -> None:
        self._world = world

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def time(self) -> float:
        process = self._world.current
        ahead = 0 if process is None else process.clock_ahead
        return (self._world.now_us + ahead) / MICROS

    def monotonic(self) -> float:
        return (self._world.now_us - self._world.start_us) / MICROS

    perf_counter = monotonic

    def clock_gettime(self, _: int) -> float:
        return self.monotonic()

    def sleep(self, seconds: float) -> None:
        self._world.wait(seconds)


class Event:
    """An event of the module ``threading``."""

    def __init__(self, world: World) -> None:
        self._is_set = False
        self._waiters = Waiters(world)

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        self._waiters.wake_all()

    def wait(self, timeout: float | None = None) -> bool:
        if not self._is_set:
            self._waiters.wait(timeout)
        return self._is_set


class SimpleQueue:
    """A queue of the module ``queue``."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._items: deque[Any] = deque()
        self._waiters = Waiters(world)

    def put(self, item: Any) -> None:
        self._items.append(item)
        self._waiters.wake_all()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        ends = None if timeout is None else self._world.now_us + ceil(timeout * MICROS)
        while not self._items:
            left = None if ends is None else (ends - self._world.now_us) / MICROS
            if not block or (left is not None and left <= 0):
                raise queue.Empty
            self._waiters.wait(left)
        return self._items.popleft()

    def get_nowait(self) -> Any:
        return self.get(block=False)


class ThreadHandle:
    """A thread of the module ``threading``."""

    def __init__(self, world: World, target: Callable[..., object], args: tuple[Any, ...] = (), **_: Any) -> None:
        self._world = world
        self._run = target
        self._args = args
        self._ended = Event(world)
        self.ident: int | None = None

    def start(self) -> None:
        process = self._world.current
        assert process is not None
        self.ident = len(process.threads) + 1

        def run() -> None:
            try:
                self._run(*self._args)
            finally:
                self._ended.set()

        process.start(run)

    def is_alive(self) -> bool:
        return self.ident is not None and not self._ended.is_set()

    def join(self, timeout: float | None = None) -> None:
        self._ended.wait(timeout)


class Threading:
    """The module ``threading``. Its locks stay the real ones: no thread waits while it holds one."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __getattr__(self, name: str) -> Any:
        return getattr(threading, name)

    def Thread(self, target: Callable[..., object], **options: Any) -> ThreadHandle:
        return ThreadHandle(self._world, target, **options)

    def Event(self) -> Event:
        return Event(self._world)

    def get_ident(self) -> int:
        return id(getcurrent())

    def current_thread(self) -> object:
        """Return something that is not the main thread, so that nobody handles signals."""
        return self if isinstance(getcurrent(), Thread) else threading.current_thread()


class Alarm:
    """The class ``Alarm`` of the package."""

    def __init__(self, world: World) -> None:
        self._rings = False
        self._waiters = Waiters(world)

    def wait(self, seconds: float) -> None:
        if not self._rings:
            self._waiters.wait(max(seconds, 0.0))
        self._rings = False

    def ring(self) -> None:
        self._rings = True
        self._waiters.wake_all()


class Queue:
    """The module ``queue``."""

    Empty = queue.Empty

    def __init__(self, world: World) -> None:
        self._world = world

    def SimpleQueue(self) -> SimpleQueue:
        return SimpleQueue(self._world)


def date_class(world: World) -> type[datetime]:
    """Return the class ``datetime`` whose ``now`` is that of the world."""

    def now(_cls: type, tz: Any = None) -> datetime:
        instant = datetime.fromtimestamp(world.now_us / MICROS, UTC)
        return instant.replace(tzinfo=None) if tz is None else instant.astimezone(tz)

    return type("WorldTime", (datetime,), {"now": classmethod(now)})

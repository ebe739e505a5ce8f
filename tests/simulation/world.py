"""Virtual time, and the processes and threads that live in it.

Each thread is a greenlet. It runs until it waits; then the next event of the queue is handled, and the
clock is set to the time of that event. So no real time passes, and one seed gives one order of events.

A thread that waits handles the events itself, until one of them lets it go on, or lets another thread run,
to which it switches. A request whose reply comes next costs no switch at all.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from math import ceil
from random import Random
from typing import Any

from greenlet import GreenletExit, getcurrent  # type: ignore[import-untyped]

from tests.simulation.thread import Thread

MICROS = 1_000_000

#: Where the clocks of a world begin unless its seed says otherwise: 2026-03-02T00:00:00Z.
EPOCH_US = 1_772_409_600 * MICROS


class Process:
    """One process of the simulated system: its threads run, freeze and die together.

    Parameters:
        name: for the story of a seed.
    """

    def __init__(self, world: World, name: str, pid: int) -> None:
        self.world = world
        self.name = name
        self.pid = pid
        #: What this process and its connections draw. No other process moves it on.
        self.random = world.random_for(name)
        #: What it draws for names, of which nothing else depends.
        self.names = world.random_for(f"names of {name}")
        self.is_frozen = False
        self.is_dead = False
        #: Whether nothing that it sends or asks for comes through.
        self.is_cut_off = False
        #: Seconds by which all that it hears is late.
        self.slowness = 0.0
        #: Seconds by which what it sends is late at most.
        self.jitter = 0.0
        #: Microseconds by which its wall clock is ahead.
        self.clock_ahead = 0
        #: Why its main thread ended, if it did so by itself.
        self.ended: str | None = None
        self._held_back: list[Callable[[], None]] = []
        self.threads: list[Thread] = []
        #: Called when it dies, to close its connections.
        self.at_death: list[Callable[[], None]] = []

    def start(self, run: Callable[[], object]) -> Thread:
        """Start a thread; it runs at the next event."""
        thread = Thread(self, run)
        self.threads.append(thread)
        self.world.soon(lambda: self.resume(thread, None))
        return thread

    def start_main(self, run: Callable[[], object]) -> None:
        """Start the main thread; its end is noted, unless somebody has ended the process."""

        def main() -> None:
            ended = "its main thread returned"
            try:
                run()
            except SystemExit as exc:
                ended = f"SystemExit({exc.code})"
            except Exception as exc:
                ended = f"{type(exc).__name__}: {exc}"
            if not self.is_dead:
                self.ended = ended

        self.start(main)

    def resume(self, thread: Thread, value: Any) -> None:
        """Let a thread run that waits, unless the process is frozen or dead.

        Only an event may call this, as the last thing that it does.
        """
        if self.is_dead or thread.dead:
            return
        if self.is_frozen:
            self._held_back.append(lambda: self.resume(thread, value))
            return
        self.world.next_thread = thread
        self.world.handed = value

    def interrupt(self, thread: Thread, exc: BaseException) -> None:
        """Raise an exception in a thread that waits, as a signal does."""
        if self.is_dead or thread.dead or not thread:
            return
        if self.is_frozen:
            self._held_back.append(lambda: self.interrupt(thread, exc))
            return
        self.world.next_thread = thread
        self.world.thrown = exc

    def freeze(self) -> None:
        self.is_frozen = True

    def thaw(self) -> None:
        """Let all threads go on that should have run meanwhile."""
        self.is_frozen = False
        for resume in self._held_back:
            self.world.soon(resume)
        self._held_back = []

    def kill(self) -> None:
        """End the process without any of its code running."""
        self.is_dead = True
        for close in self.at_death:
            close()


class Wait:
    """One wait of a thread. It ends once: by its time or because somebody wakes the thread."""

    __slots__ = ("_waiter", "is_over")

    def __init__(self, thread: Thread) -> None:
        self._waiter = thread
        self.is_over = False

    def wake(self) -> None:
        """Let the thread run at the next event."""
        if not self.is_over:
            self._waiter.process.world.soon(self.wake_now)

    def wake_now(self) -> None:
        """Let the thread run at once; only an event may call this, as the last thing that it does."""
        if not self.is_over:
            self.is_over = True
            self._waiter.process.resume(self._waiter, value=True)

    def time_out(self) -> None:
        """Let the thread run because its time is over."""
        if not self.is_over:
            self.is_over = True
            self._waiter.process.resume(self._waiter, value=False)


class Waiters:
    """Threads that wait for the same thing."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._waits: list[Wait] = []

    def wait(self, seconds: float | None) -> bool:
        """Wait until somebody wakes this thread; return whether that was within so many seconds."""
        return self.wait_until(None if seconds is None else self._world.instant_in(seconds))

    def wait_until(self, ends_us: int | None) -> bool:
        """Wait until somebody wakes this thread; return whether that was before an instant."""
        self._waits = [wait for wait in self._waits if not wait.is_over]
        return self._world.wait_until(ends_us, self._waits.append)

    def wake_all(self) -> None:
        """Let all of them run at the next event."""
        waits, self._waits = self._waits, []
        for wait in waits:
            wait.wake()

    def wake_all_now(self) -> None:
        """Let all of them run at once; only an event may call this, as the last thing that it does."""
        waits = [wait for wait in self._waits if not wait.is_over]
        self._waits = []
        # The event may let one thread run. Those after it follow before any other event.
        for wait in reversed(waits[1:]):
            self._world.at_once(wait.wake_now)
        if waits:
            waits[0].wake_now()


#: One event of the queue: its instant, its number, and what it calls. Those of one instant come by their numbers.
Item = tuple[int, int, Callable[[], None]]


class World:
    """The queue of events and the clock.

    Parameters:
        start_us: epoch microseconds at which all clocks begin.
    """

    def __init__(self, seed: int, start_us: int = EPOCH_US) -> None:
        self.seed = seed
        self.start_us = start_us
        self.now_us = start_us
        self.hub: Any = getcurrent()
        #: The thread that runs now; ``None`` while an event is handled.
        self.running: Thread | None = None
        #: The thread that the event lets run, with the value or the exception that ends its wait.
        self.next_thread: Thread | None = None
        self.handed: Any = None
        self.thrown: BaseException | None = None
        self.processes: list[Process] = []
        self._events: list[Item] = []
        self._number = 0
        #: Number of the last event that was put before all others of its instant.
        self._urgent = 0
        #: Instant up to which events are handled.
        self._until_us = start_us

    def random_for(self, name: str) -> Random:
        """Return a source of random numbers of its own, the same for each run of the seed."""
        return Random(f"{self.seed} {name}")

    def process(self, name: str) -> Process:
        """A new process without threads."""
        process = Process(self, name, pid=100 + len(self.processes))
        self.processes.append(process)
        return process

    def is_gone(self, pid: int) -> bool:
        """Whether the process of this number is dead."""
        return self.processes[pid - 100].is_dead

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning, by a clock that nobody sets."""
        return (self.now_us - self.start_us) / MICROS

    def pid(self) -> int:
        """Return the number of the current process, or 1."""
        running = self.running
        return 1 if running is None else running.process.pid

    @property
    def current(self) -> Process | None:
        """The process whose thread runs now."""
        running = self.running
        return None if running is None else running.process

    def at(self, instant_us: int, call: Callable[[], None]) -> None:
        """Call something at an instant."""
        self._number += 1
        heapq.heappush(self._events, (max(instant_us, self.now_us), self._number, call))

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Call something after so many seconds."""
        self.at(self.instant_in(seconds), call)

    def soon(self, call: Callable[[], None]) -> None:
        self.at(self.now_us, call)

    def is_free_until(self, instant_us: int) -> bool:
        """Whether nothing else happens up to an instant, and the world goes on for so long."""
        return instant_us <= self._until_us and (not self._events or self._events[0][0] > instant_us)

    def do_at(self, instant_us: int, event: Callable[[], None]) -> None:
        """Let the running thread do what an event at this instant would do; nothing else happens before it."""
        running = self.running
        self.running = None
        self.now_us = instant_us
        try:
            event()
        except BaseException as exc:
            # The event has nothing to do with this thread.
            self.hub.throw(exc)
        self.running = running

    def at_once(self, call: Callable[[], None]) -> None:
        """Call something before all other events."""
        self._urgent -= 1
        heapq.heappush(self._events, (self.now_us, self._urgent, call))

    def run_until(self, instant_us: int) -> None:
        """Handle all events up to an instant."""
        self._until_us = instant_us
        while self._handle_events(None)[0]:
            thread = self._take_next()
            if self.thrown is None:
                thread.switch(self.handed)
            else:
                thread.throw(self._take_thrown())
            self.running = None
        self.now_us = max(self.now_us, instant_us)

    def _handle_events(self, extra: Item | None) -> tuple[bool, Item | None]:
        """Handle events until one lets a thread run.

        Parameters:
            extra: an event that is not in the queue.

        Returns:
            Whether a thread is to run, and ``extra`` if it was not handled.
        """
        events = self._events
        until_us = self._until_us
        pop = heapq.heappop
        while True:
            if extra is not None and (not events or extra < events[0]):
                if extra[0] > until_us:
                    return False, extra
                event_us, _, call = extra
                extra = None
            elif events and events[0][0] <= until_us:
                event_us, _, call = pop(events)
            else:
                return False, extra
            if event_us > self.now_us:
                self.now_us = event_us
            call()
            if self.next_thread is not None:
                return True, extra

    def _take_next(self) -> Thread:
        """Return the thread that an event lets run; it counts as running from now on."""
        thread = self.next_thread
        assert thread is not None
        self.next_thread = None
        self.running = thread
        return thread

    def _take_thrown(self) -> BaseException:
        """Return the exception that ends the wait of the next thread."""
        thrown = self.thrown
        assert thrown is not None
        self.thrown = None
        return thrown

    def sleep_until(self, instant_us: int) -> None:
        """Let time pass in which nothing runs, as on a machine that is suspended: what was due comes afterwards."""
        self.now_us = max(self.now_us, instant_us)

    # -- for threads -------------------------------------------------------------------------------

    def wait(self, seconds: float | None, register: Callable[[Wait], None] | None = None) -> bool:
        """Let the current thread wait; return whether it was woken before the time was over.

        Parameters:
            seconds: ``None`` to wait for ever.
            register: is given the wait, so that somebody can end it.
        """
        return self.wait_until(None if seconds is None else self.instant_in(seconds), register)

    def instant_in(self, seconds: float) -> int:
        """Return the instant after so many seconds, rounded up: a wait must not end before its time."""
        return self.now_us + ceil(seconds * MICROS)

    def wait_until(self, ends_us: int | None, register: Callable[[Wait], None] | None = None) -> bool:
        """Let the current thread wait until an instant, as :meth:`wait` does."""
        thread = getcurrent()
        if not isinstance(thread, Thread):
            raise TypeError("only a thread of the simulation may wait")
        if thread.process.is_dead:
            raise GreenletExit
        wait = Wait(thread)
        if register is not None:
            register(wait)
        time_out = None
        if ends_us is not None:
            self._number += 1
            time_out = (max(ends_us, self.now_us), self._number, wait.time_out)
        try:
            was_woken: bool = self._pass_on(thread, time_out)
        finally:
            wait.is_over = True
        return was_woken

    def _pass_on(self, thread: Thread, time_out: Item | None) -> Any:
        """Handle events in the place of a thread that waits, until something lets it go on; return the value.

        Parameters:
            time_out: is put into the queue only if another thread runs before it. Most waits end sooner.
        """
        self.running = None
        try:
            has_next, time_out = self._handle_events(time_out)
        except BaseException as exc:
            # The event has nothing to do with this thread.
            return self.hub.throw(exc)
        if time_out is not None and self.next_thread is not thread:
            heapq.heappush(self._events, time_out)
        if not has_next:
            return self.hub.switch()
        other = self._take_next()
        if self.thrown is not None:
            thrown = self._take_thrown()
            if other is thread:
                raise thrown
            return other.throw(thrown)
        return self.handed if other is thread else other.switch(self.handed)

    def close(self) -> None:
        """End all threads."""
        for process in self.processes:
            process.is_dead = True
        for process in self.processes:
            for thread in process.threads:
                if thread:
                    self.running = thread
                    thread.throw(GreenletExit)
        self.running = None
